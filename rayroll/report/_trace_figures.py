"""What the figures of a report on traces are made of: curves, bars and trade-offs, each beside what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayroll.report import _format
from rayroll.report.trace_charts import Axis, Mark, bar_chart, line_chart
from rayroll.traces import figures, published, statistics
from rayroll.traces.categories import CATEGORIES
from rayroll.traces.findings import Findings

__all__ = [
    *("UNDER", "Figure", "bars", "beside", "curve", "duration", "in_table", "number", "series_of", "shown", "swept"),
    "words",
]

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with what belongs to it."""

    title: str
    statistic: str
    svg: str
    """Empty: there is nothing to draw, and the page says so."""
    legend: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""

    @property
    def definition(self) -> str:
        return statistics.definition(self.statistic).partition(" Source: ")[0]

    @property
    def source(self) -> str:
        return statistics.definition(self.statistic).partition(" Source: ")[2]


def words(name: str) -> str:
    """A name as people read it."""
    return name.replace("_", " ")


def duration(value: float | None) -> str:
    """Seconds in the unit that fits, days at most."""
    if value is None or abs(value) < 3600:
        return _format.seconds(value)
    return f"{value / 3600:.3g} h" if abs(value) < 48 * 3600 else f"{value / 86400:,.3g} d"


def number(value: float | None) -> str:
    """A count, large ones shortened: ``875``, ``118k``, ``2.3G``."""
    if value is None:
        return "–"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (size if unit != 'k' else 1e3):.3g}{unit}" if unit != "k" else f"{value / 1e3:,.0f}k"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def shown(found: Findings, statistic: str, column: str, **keys: Any) -> published.Comparison | None:
    for c in found.comparisons:
        p = c.published
        if p.statistic == statistic and p.column == column and all(p.row.get(k) == v for k, v in keys.items()):
            return c
    return None


def beside(found: Findings, c: published.Comparison, text: Callable[[float | None], str]) -> str:
    """The published value, with the difference where it means something."""
    if found.is_public_data and c.difference is not None:
        return f"published {text(c.published.value)} ({c.difference:+.1%})".replace("-", "−")
    return f"published {'' if found.is_public_data else '(other data) '}{text(c.published.value)}"


def in_table(told: str) -> str:
    """A published value under ours, where a note says what it is."""
    return told.removeprefix("published ").removeprefix("(other data) ")


UNDER = "In grey below the values of this trace: the published ones."


def series_of(rows: Sequence[Row], column: str = "series") -> list[str]:
    present = list(dict.fromkeys(row[column] for row in rows))
    return [name for name in (*CATEGORIES, "all", "claude", "codex") if name in present] + [
        name for name in present if name not in (*CATEGORIES, "all", "claude", "codex")
    ]


def curve(found: Findings, name: str, title: str, keys: Row | None) -> Figure:
    """``keys``: what the statistic's rows have beside the provider; None: the series are its categories."""
    rows, statistic = found.figures[name], figures.CURVES[name]
    if not rows:
        return Figure(title, statistic, "")
    text = duration if name.endswith("_s") else number
    axis = Axis(
        "seconds, log scale" if name.endswith("_s") else "tokens, log scale", "time" if name.endswith("_s") else "log"
    )
    series = series_of(rows)
    shares = {"p25": 0.25, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    marks, table = [], []
    for one in series:
        own = {row["share"]: row["value"] for row in rows if row["series"] == one}
        where = {"provider": "all", "category": one} if keys is None else {"provider": one, **keys}
        cells = [words(one), number(next(row["n"] for row in rows if row["series"] == one))]
        for column, share in shares.items():
            c = shown(found, statistic, column, **where)
            if c is not None and c.published.value > 0:
                told = beside(found, c, text)
                marks.append(Mark(one, c.published.value, share, f"{words(one)} {column}: {told}"))
                cells.append(f"{text(own[share])}\n{in_table(told)}")
            else:
                cells.append(text(own[share]))
        table.append(cells)
    points = [{"series": row["series"], "x": row["value"], "y": row["share"]} for row in rows]
    svg = line_chart(points, axis, Axis("share at or below", "share"), marks)
    return Figure(
        title,
        statistic,
        svg,
        series,
        ("", "n", *shares),
        table,
        UNDER if marks else "",
    )


def bars(
    found: Findings,
    title: str,
    statistic: str,
    rows: list[Row],
    text: Callable[[float | None], str],
    *,
    domain_end: float | None = None,
) -> Figure:
    """Rows: ``group``, ``series``, ``value``; also ``at``, the cell that the value is in, for the published one."""
    rows = [row for row in rows if row["value"] is not None]
    if not rows or not any(row["value"] for row in rows):
        return Figure(title, statistic, "")
    marks, drawn = [], []
    for row in rows:
        name = f"{row['group']}, {words(row['series'])}"
        c = shown(found, *row["at"][:2], **row["at"][2]) if "at" in row else None
        if c is not None:
            told = beside(found, c, text)
            marks.append({**row, "value": c.published.value, "title": f"{name}: {told}"})
        drawn.append(
            {**row, "text": text(row["value"]), "title": f"{name}: {text(row['value'])}{'; ' + told if c else ''}"}
        )
    legend = list(dict.fromkeys(row["series"] for row in rows))
    svg = bar_chart(
        drawn,
        marks=[{k: m[k] for k in ("group", "series", "value", "title")} for m in marks],
        domain_end=domain_end,
    )
    return Figure(title, statistic, svg, legend if len(legend) > 1 else ())


def swept(
    found: Findings, name: str, title: str, statistic: str, x: str, y: str, axes: tuple[Axis, Axis], key: str
) -> Figure:
    rows = [row for row in found.figures[name] if row[x] is not None and row[y] is not None]
    if not any(row[x] and row[y] for row in rows):
        return Figure(title, statistic, "")
    points = [{"series": row["provider"], "x": row[x], "y": row[y]} for row in rows]
    marks = []
    for row in rows:
        c = shown(found, statistic, y, provider=row["provider"], **{key: row[key]})
        at = None if x == key else shown(found, statistic, x, provider=row["provider"], **{key: row[key]})
        where = row[x] if x == key else at and at.published.value
        if c is not None and where:
            marks.append(
                Mark(
                    row["provider"],
                    where,
                    c.published.value,
                    f"{row['provider']}, {duration(row[key])}: {beside(found, c, lambda v: f'{v:.3g}')}",
                )
            )
    return Figure(title, statistic, line_chart(points, *axes, marks), series_of(rows, "provider"))
