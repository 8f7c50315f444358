"""Everything that a report says of a store: statistics beside what was published, curves, timelines, what is missing.

>>> with Store.open("traces.duckdb", read_only=True) as store:
...     found = find(store, prices.load())
>>> found.write_csv(Path("csv"))
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayroll.errors import ConfigError
from rayroll.traces import figures, published, statistics
from rayroll.traces._kept import kept
from rayroll.traces._shield import Shield
from rayroll.traces.published import Comparison
from rayroll.traces.timelines import Timeline, timelines

if TYPE_CHECKING:
    from rayroll.traces.prices import PriceTable
    from rayroll.traces.store import Store

__all__ = ["Findings", "find"]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a store; names that are somebody's own are replaced, unless it was asked for otherwise."""

    statistics: Mapping[str, Sequence[Row]]
    """Every statistic's rows, by its name."""
    figures: Mapping[str, Sequence[Row]]
    """Every curve and sweep of ``rayroll.traces.figures``."""
    comparisons: Sequence[Comparison]
    """Every published number."""
    is_public_data: bool
    """Whether differences from published numbers mean anything: the store holds the whole public data set."""
    timelines: Sequence[Timeline]
    missing: Sequence[str]
    """What the trace does not say, in sentences: why parts of the report are empty."""
    failed: Mapping[str, str]
    """Statistics and figures that the store could not answer, and what it said; they have no rows."""
    prices: str
    """Whose prices costs are at."""
    has_inputs: bool

    def row(self, statistic: str, **keys: Any) -> Row | None:
        """The first row with these keys; None where there is none."""
        found = self.statistics.get(statistic, ())
        return next((row for row in found if keys.items() <= row.items()), None)

    def value(self, statistic: str, column: str, **keys: Any) -> Any:
        """A cell; None where the row is missing, or the value."""
        row = self.row(statistic, **keys)
        return None if row is None else row[column]

    def published(self) -> list[Row]:
        """The comparison as a table. Where the data are others, there is no difference to be told."""
        return [
            {
                "statistic": c.published.statistic,
                "row": " ".join(f"{column}={value}" for column, value in c.published.row.items()),
                "column": c.published.column,
                "ours": c.ours,
                "published": c.published.value,
                "difference": c.difference if self.is_public_data else None,
                "exactness": c.published.exactness,
                "published_of": "the same data" if self.is_public_data else "other data",
            }
            for c in self.comparisons
        ]

    def write_csv(self, folder: Path) -> list[Path]:
        """A file for each statistic and each figure, and ``published.csv``; returns them.

        Raises:
            ConfigError: The folder cannot be made or written to.
        """
        tables = {
            **self.statistics,
            **{f"figure_{name}": rows for name, rows in self.figures.items()},
            "published": self.published(),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, rows in tables.items():
                _write(folder / f"{name}.csv", rows)
        except OSError as error:
            raise ConfigError(f"cannot write CSV files into {folder}: {error.strerror}") from error
        return [folder / f"{name}.csv" for name in tables]


def find(
    store: Store,
    prices: PriceTable,
    *,
    include_inputs: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Findings:
    """Ask a store everything.

    Args:
        store: An open store.
        prices: What tokens cost.
        include_inputs: Show commands and names as they are. The report is then not for others.
        progress: Called before each part with its name, and how many of how many parts are done.

    Raises:
        ConfigError: The store holds no step.
    """
    import duckdb

    connection = store.connection
    if not statistics.rows(connection, "SELECT 1 FROM steps LIMIT 1", {}):
        raise ConfigError("the store is empty: there is nothing to report", fix="rayroll traces load fills it")
    shield = Shield(is_open=include_inputs)
    failed: dict[str, str] = {}
    raw: dict[str, list[Row]] = {}
    drawn: dict[str, list[Row]] = {name: [] for name in (*figures.CURVES, *figures.SWEEPS)}
    lines: list[Timeline] = []
    table = prices.rows()

    def statistic(name: str) -> None:
        raw[name] = []
        given = {"prices": table} if "prices" in statistics.parameters(name) else {}
        raw[name] = statistics.compute(connection, name, **given)

    def sweep(name: str) -> None:
        drawn[name] = figures.sweep(connection, name)

    parts: dict[str, Callable[[], object]] = {
        **{name: partial(statistic, name) for name in statistics.names()},
        **{name: partial(sweep, name) for name in figures.SWEEPS},
        "curves": lambda: drawn.update(figures.curves(connection)),
        "timelines": lambda: lines.extend(timelines(connection, shield, include_inputs=include_inputs)),
    }
    progress("what statistics share", 0, len(parts))
    with kept(connection):
        for done, (name, part) in enumerate(parts.items()):
            progress(name.replace("_", " "), done, len(parts))
            try:
                part()
            except duckdb.Error as error:
                failed[name] = str(error).splitlines()[0]
    return Findings(
        statistics={name: shield.rows(rows) for name, rows in raw.items()},
        figures={name: shield.rows(rows) for name, rows in drawn.items()},
        comparisons=[comparison for name, rows in raw.items() for comparison in published.compare(name, rows)],
        is_public_data=published.is_public_data(raw["counts_scope"]),
        timelines=lines,
        missing=_missing(store, raw, include_inputs=include_inputs),
        failed=failed,
        prices=f"prices of {prices.as_of}" if prices.as_of else "prices of an undated table",
        has_inputs=include_inputs,
    )


_COUNTED = """
SELECT
    (SELECT count(*) FROM steps) AS steps,
    (SELECT count(*) FROM steps WHERE first_at IS NULL) AS untimed,
    (SELECT count(*) FROM steps WHERE prefix_tokens IS NULL OR append_tokens IS NULL) AS uncounted,
    (SELECT count(*) FROM tools) AS calls,
    (SELECT count(*) FROM tools WHERE effective_ms IS NULL) AS unmeasured,
    (SELECT count(program) FROM tools) AS programs,
    (SELECT count(command) FROM tools) AS commands,
    (SELECT count(*) FROM human_waits) AS waits,
    (SELECT count(*) FROM events WHERE type = 'user_message') AS messages
"""


def _missing(store: Store, found: Mapping[str, Sequence[Row]], *, include_inputs: bool) -> list[str]:
    [n] = statistics.rows(store.connection, _COUNTED, {})
    told = []
    if n["untimed"] == n["steps"]:
        told.append(
            "No step has a time: nothing is known of the length of sessions, of requests, waits, generation and idle "
            "caches, and no session can be drawn."
        )
    elif n["untimed"]:
        told.append(f"{_of(n['untimed'], n['steps'], 'step')} have no time, and are in no statistic of time.")
    if n["uncounted"] == n["steps"]:
        told.append("No step says how many tokens it read, so nothing is known of caches, contexts and costs.")
    elif n["uncounted"]:
        told.append(f"{_of(n['uncounted'], n['steps'], 'step')} do not say how many tokens they read.")
    if not n["calls"]:
        told.append("No step calls a tool.")
    elif n["unmeasured"]:
        told.append(
            f"{_of(n['unmeasured'], n['calls'], 'tool call')} have no latency: unfinished, not above 0, or by a clock "
            "that ran backwards."
        )
    if not n["messages"]:
        told.append("No step has a message of a user, so there are no requests and no waits for one.")
    elif not n["waits"] and n["untimed"] < n["steps"]:
        told.append("Nobody was ever waited for: each session begins with its only message of a user.")
    for row in found["cost_totals"]:
        if row["provider"] == "all" and row["priced_steps"] < row["steps"]:
            unpriced = _of(row["steps"] - row["priced_steps"], row["steps"], "step")
            told.append(f"{unpriced} are of models without a price, and are in no sum of costs.")
    if include_inputs and n["programs"] and not n["commands"]:
        told.append(
            "The store has no commands, only the programs that they run: timelines show those. "
            "`rayroll traces load --include-inputs` keeps commands."
        )
    return told


def _of(part: int, whole: int, noun: str) -> str:
    return f"All {whole:,} {noun}s" if part == whole else f"{part:,} of {whole:,} {noun}s"


def _write(path: Path, rows: Iterable[Row]) -> None:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
