#!/usr/bin/env python3
"""What does a start cost, and on which rung: image absent, image there, saved state, started ahead, used before?

Every substrate that this node can run is asked for one sandbox after the other, each on one rung of its ladder
(``_ladders.py``), and each runs a first no-op. Cold start is from ``create`` to the runner's accepted hello, as
everywhere in rayroll: fetching the image is told apart. To first action is all of it: from asking to the no-op's
result. All ways of all substrates take turns within a round, so that whatever else the machine does hits all alike;
what is claimed is the median over rounds of ratios within a round.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _arms import Skipped
from _facts import facts, load_average
from _ladders import LADDERS, Ladder, Place, Way
from _stats import Gate, at_least, quantile, show_gates
from rich.console import Console
from rich.table import Table

from rayroll import Client, SessionConfig, Task
from rayroll.errors import RayrollError
from rayroll.substrates import kinds, load
from rayroll.types import FileTree

MEMORY_MIB = 256
FETCH = ("pull", "build")

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


@dataclass(frozen=True, slots=True)
class Start:
    """One start as it went."""

    cold_start_s: float
    fetch_s: float
    """Pull and build, which are no part of ``cold_start_s``."""
    first_action_s: float
    """Asked to the no-op's result, everything in."""
    rung: str
    """As the sandbox says."""
    facts: dict[str, str]


@dataclass(slots=True)
class Row:
    """One way of one substrate."""

    kind: str
    way: Way
    starts: dict[int, Start] = field(default_factory=dict)
    """By round."""
    failures: Counter[str] = field(default_factory=Counter)
    skipped: str = ""
    """Why it is not measured (any more)."""
    place: Place | None = None

    @property
    def title(self) -> str:
        """For people and for keys."""
        return f"{self.kind} {self.way.rung}" + (f" ({self.way.name})" if self.way.name else "")

    async def open(self, stack: contextlib.AsyncExitStack, ladder: Ladder, image: str) -> None:
        """Open its client, which stays: a host has long been up when a sandbox is asked of it."""
        try:
            task = task_of(self.way.image(image))
            config = {**ladder.config, **self.way.config}
            client = Client(
                self.kind, substrate_config=config, config=SessionConfig(first_action=True, reset=self.way.reset)
            )
            folder = stack.enter_context(cache_folder())
            with _cache_in(folder) if self.way.has_own_cache else contextlib.nullcontext():
                await stack.enter_async_context(client)
            self.place = Place(client, task, folder)
            stack.push_async_callback(self.way.after, self.place)
        except (Skipped, RayrollError) as reason:
            self.skipped = str(reason)

    async def start(self, number: int) -> None:
        """One start; a failed one is counted with its reason."""
        assert self.place is not None
        client, task = self.place.client, self.place.task
        try:
            await self.way.before(self.place)
            asked_s = time.perf_counter()
            async with client.open(task) as session:
                sandbox = await session.booted()
                first_action_s = time.perf_counter() - asked_s
                assert session.cold_start_s is not None and session.rung is not None
                spans = [span for span in session.recorder.spans if span.phase in FETCH]
                self.starts[number] = Start(
                    session.cold_start_s,
                    sum(span.end_ns - span.start_ns for span in spans) / 1e9,
                    first_action_s,
                    session.rung,
                    dict(sandbox.facts),
                )
        except Skipped as reason:
            self.skipped = str(reason)
        except RayrollError as error:
            self.failures[f"{type(error).__name__}: {error}"] += 1

    def as_json(self) -> dict[str, Any]:
        """Quantiles in seconds."""
        starts = list(self.starts.values())
        figures = {
            name: {
                "p50": round(quantile(values, 0.5), 4),
                "p95": round(quantile(values, 0.95), 4),
                "least": round(min(values), 4),
            }
            for name in ("cold_start_s", "fetch_s", "first_action_s")
            if (values := [getattr(start, name) for start in starts])
        }
        return {
            "substrate": self.kind,
            "rung": self.way.rung,
            "way": self.way.name,
            "starts": len(starts),
            **figures,
            "says": sorted({start.rung for start in starts}),
            "facts": starts[-1].facts if starts else {},
            "failures": dict(self.failures),
            "skipped": self.skipped,
        }


def task_of(image: str | None) -> Task:
    """A task that only needs to be started."""
    nothing = FileTree.from_files({})
    return Task("bench/start", "", environment=nothing, tests=nothing, image=image, memory_mib=MEMORY_MIB)


@contextlib.contextmanager
def cache_folder() -> Iterator[Path]:
    """A folder that sandboxes' users can pass through."""
    with tempfile.TemporaryDirectory(prefix="rayroll-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Whatever is opened meanwhile keeps its cache there."""
    before = os.environ.get("RAYROLL_CACHE_DIR")
    os.environ["RAYROLL_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["RAYROLL_CACHE_DIR"]
        else:
            os.environ["RAYROLL_CACHE_DIR"] = before


async def rows_of(kind: str) -> list[Row]:
    """The rows of a substrate. Raises Skipped where this node cannot run it."""
    ladder, substrate = LADDERS.get(kind, Ladder()), load(kind)
    probe = await substrate(substrate.config_type.parse(ladder.config, where=f"substrate {kind!r}")).probe()
    if not probe.ok:
        raise Skipped(probe.reason + (f"; fix: {probe.fix}" if probe.fix else ""))
    return [Row(kind, way) for way in ladder.ways]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let all rows take turns. Returns the line to print."""
    line: dict[str, Any] = {"machine": facts(), "image": options.image, "skipped": {}}
    rows: list[Row] = []
    for kind in options.substrates or [kind for kind in kinds() if kind != "simulated"]:
        try:
            rows += await rows_of(kind)
        except Skipped as reason:
            line["skipped"][kind] = str(reason)
            console.print(f"[yellow]{kind} is left out: {reason}", highlight=False)
    if not rows:
        raise SystemExit("nothing can be measured")
    async with contextlib.AsyncExitStack() as stack:
        for row in rows:
            await row.open(stack, LADDERS.get(row.kind, Ladder()), options.image)
        for number in range(-1, options.rounds):  # the first one fills caches and does not count
            await one_round(number, rows, options)
    line["machine"]["load_after"] = load_average()
    asked = set(options.substrates) or {row.kind for row in rows}
    line["starts"] = [row.as_json() | {"over_first": over_first(row, rows)} for row in rows]
    line["gates"] = [] if options.smoke else [gate.as_json() for gate in gates(rows, asked)]
    return line


async def one_round(number: int, rows: Sequence[Row], options: argparse.Namespace) -> None:
    """A start of each, beginning with another one each time."""
    first = number % len(rows)
    for row in (*rows[first:], *rows[:first]):
        if row.skipped or (row.way.is_slow and not takes_part(number, options.rounds, options.slow_rounds)):
            continue
        await row.start(number)
        if row.skipped:
            console.print(f"[yellow]{row.title} is left out: {row.skipped}", highlight=False)
    if number < 0:
        for row in rows:
            row.starts.clear()
            row.failures.clear()
    console.print(f"round {number + 1} of {options.rounds}, load {load_average()}", style="dim", highlight=False)


def takes_part(number: int, rounds: int, slow_rounds: int) -> bool:
    """Whether a slow way is measured in this round: in so many of all, evenly spread; also in the one before all."""
    return number < 0 or number * slow_rounds // rounds != (number - 1) * slow_rounds // rounds


# --- what it means ---


def ratios(upper: Row, lower: Row) -> list[float]:
    """How many times longer one cold start took than another, in each round that has both."""
    both = [number for number in upper.starts if number in lower.starts]
    return [upper.starts[number].cold_start_s / lower.starts[number].cold_start_s for number in both]


def over_first(row: Row, rows: Sequence[Row]) -> list[float] | None:
    """Quarter point, median and three-quarter point of its cold start over its substrate's first way's."""
    values = ratios(row, next(other for other in rows if other.kind == row.kind))
    if not values:
        return None
    return [round(value, 4) for value in (quantile(values, 0.25), statistics.median(values), quantile(values, 0.75))]


def gates(rows: Sequence[Row], asked: Collection[str]) -> list[Gate]:
    """The claims of every substrate that was asked for; one that was not measured is no pass."""
    by_name = {(row.kind, row.way.name): row for row in rows if row.way.name}
    made = []
    for kind in sorted(asked):
        for claim in LADDERS.get(kind, Ladder()).claims:
            pair = [by_name.get((kind, name)) for name in (claim.slow, claim.fast)]
            values = ratios(pair[0], pair[1]) if pair[0] and pair[1] else []
            made.append(at_least(f"cold start of {kind}: {claim.slow} over {claim.fast}", claim.times, values))
    return made


def show(line: dict[str, Any]) -> None:
    """The table, for people."""
    table = Table(title=f"starts of {line['image']}, seconds at p50 (p95)", title_justify="left")
    for column in ("substrate", "rung", "starts", "fetch", "cold start", "to first action", "over its first"):
        table.add_column(column, justify="left" if column in ("substrate", "rung") else "right", no_wrap=True)
    for row in line["starts"]:
        rung = row["rung"] + (f" ({row['way']})" if row["way"] else "")
        cells = [
            f"{row[name]['p50']:.3g} ({row[name]['p95']:.3g})" if row["starts"] else ""
            for name in ("fetch_s", "cold_start_s", "first_action_s")
        ]
        low, middle, high = row["over_first"] or (0.0, 0.0, 0.0)
        ratio = f"{middle:.3g} ({low:.3g} - {high:.3g})" if row["over_first"] else ""
        table.add_row(row["substrate"], rung, str(row["starts"]), *cells, ratio)
    console.print(table)
    for row in line["starts"]:
        title = f"{row['substrate']} {row['rung']}"
        for reason, times in row["failures"].items():
            console.print(f"[red]{title}: {times} failed: {reason}", highlight=False)
        if row["skipped"]:
            console.print(f"{title} was not measured: {row['skipped']}", highlight=False)
        if row["starts"] and row["says"] != [row["rung"]]:
            console.print(f"{title} says of itself: {', '.join(row['says'])}", highlight=False)
    show_gates(console, line["gates"])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""

    def substrates(text: str) -> list[str]:
        given = [word for word in text.split(",") if word]
        for word in given:
            if word not in kinds():
                raise argparse.ArgumentTypeError(f"unknown: {word!r}; known: {', '.join(sorted(kinds()))}")
        return given

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--substrates", type=substrates, default=[], help="comma-separated [all that this node can run]")
    add("--image", default="python:3.11-slim", help="what is started; the registry offers it too [python:3.11-slim]")
    add("--rounds", type=int, default=20, help="starts of each [20]")
    add("--slow-rounds", type=int, default=5, help="starts of each with the image absent [5]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="two rounds of a small image, no claims: does every way work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.image, options.rounds, options.slow_rounds = "busybox:latest", 2, 1
    if not 1 <= options.slow_rounds <= options.rounds:
        parser.error("--rounds must be at least --slow-rounds, and that at least 1")
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether the claims hold (only with --gate)."""
    options = parse(argv)
    line = asyncio.run(measure(options))
    show(line)
    print(json.dumps(line))
    return int(options.gate and not (line["gates"] and all(gate["passed"] for gate in line["gates"])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
