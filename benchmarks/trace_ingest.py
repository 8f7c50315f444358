#!/usr/bin/env python3
"""How fast do traces come in, in how much memory, and how long does a store of a public data set's size take to answer?

Raw logs are TraceLab's two sample sessions, copied under new ids until there are so many MB of them; ``collect`` reads
them in a process of its own, beside the floor, which reads the same lines and parses their JSON and does nothing else.
Then the same of the larger amount: its memory is to be that of the smaller one. Last, made-up sessions are loaded into
a store, and the whole report is made of it: statistics, curves, timelines, the page and its CSV files.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _facts import facts, load_average
from _stats import Gate, at_least, below, show_gates
from rich.console import Console
from rich.table import Table

SAMPLES = Path(__file__).parents[1] / "tests" / "traces" / "data"
STEPS_A_SESSION = 86
"""Of made-up sessions, in the mean."""
FLAT = 1.1
MOST_RSS_MB = 500.0
MOST_REPORT_S = 60.0
MOST_PAGE_MB = 5.0
AIM_MB_PER_S = 40.0

COLLECT = """
from rayroll.traces.collect import collect
report = collect([sys.argv[1]], sys.argv[2])
assert not report.lost and not report.copies_dropped, report
found = report.rows
"""
FLOOR = """
import orjson
from pathlib import Path
found = 0
for path in sorted(Path(sys.argv[1]).rglob("*.jsonl")):
    with path.open("rb") as lines:
        for line in lines:
            found += isinstance(orjson.loads(line), dict)
"""
LOAD = """
from rayroll.traces.store import Store
with Store.open(sys.argv[2]) as store:
    found = store.load(sys.argv[1]).added
"""
REPORT = """
from pathlib import Path
from rayroll.report.traces import render
from rayroll.traces import prices
from rayroll.traces.findings import find
from rayroll.traces.store import Store
folder = Path(sys.argv[2]).parent
with Store.open(sys.argv[2], read_only=True) as store:
    answers = find(store, prices.load())
assert not answers.failed, answers.failed
answers.write_csv(folder / "csv")
(folder / "report.html").write_text(render(answers), encoding="utf-8")
found = len(answers.statistics)
"""
AROUND = """
import json, resource, sys, time
start_s, cpu_s = time.monotonic(), time.process_time()
{body}
print(json.dumps({{
    "found": found, "s": time.monotonic() - start_s, "cpu_s": time.process_time() - cpu_s,
    "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}}))
"""

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def run(body: str, *arguments: Path) -> dict[str, Any]:
    """A part of the work, in a process of its own: what it found, its seconds, and its memory at most, in MB."""
    command = [sys.executable, "-c", AROUND.format(body=body), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def make_logs(folder: Path, mb: float) -> float:
    """Logs of so many MB, of both agents, no two of the same session. Returns how many MB they are."""
    claude = (SAMPLES / "claude_session.jsonl").read_text()
    codex = (SAMPLES / "codex_session.jsonl").read_text()
    size, number = 0, 0
    while size < mb * 1e6:
        number += 1
        own = f"{number:07x}"
        texts = {
            f".claude/projects/p{number % 50}/{own}.jsonl": claude.replace("claude-public-example", own)
            .replace("msg_01", f"msg_{own}")
            .replace("toolu_01", f"toolu_{own}"),
            f".codex/sessions/2026/03/21/rollout-{own}.jsonl": codex.replace("01a7c9e", own).replace(
                "call_", f"call_{own}"
            ),
        }
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            size += path.write_bytes(text.encode())
    return size / 1e6


def ingest(folder: Path, mb: float) -> dict[str, Any]:
    """Collect and floor over the same logs."""
    made_mb = make_logs(folder / "home", mb)
    floor = run(FLOOR, folder / "home")
    collected = run(COLLECT, folder / "home", folder / "rows.jsonl")
    return {
        "mb": round(made_mb, 1),
        "rows": collected["found"],
        "mb_per_s": round(made_mb / collected["s"], 1),
        "mb_per_cpu_s": round(made_mb / collected["cpu_s"], 1),
        "floor_mb_per_s": round(made_mb / floor["s"], 1),
        "over_floor": round(collected["cpu_s"] / floor["cpu_s"], 2),
        "rss_mb": round(collected["rss_mb"], 1),
    }


def answer(folder: Path, steps: int) -> dict[str, Any]:
    """Load made-up rows, and report on them."""
    from rayroll.traces.rows import write_rows
    from rayroll.traces.synth import synthesize

    rows, store = folder / "rows.jsonl", folder / "t.duckdb"
    write_rows(rows, synthesize(max(1, steps // STEPS_A_SESSION), seed=0))  # type: ignore[arg-type]
    loaded, asked = run(LOAD, rows, store), run(REPORT, rows, store)
    return {
        "steps": loaded["found"],
        "statistics": asked["found"],
        "load_s": round(loaded["s"], 2),
        "load_rss_mb": round(loaded["rss_mb"], 1),
        "report_s": round(asked["s"], 2),
        "report_rss_mb": round(asked["rss_mb"], 1),
        "page_mb": round((folder / "report.html").stat().st_size / 1e6, 2),
    }


def gates(small: dict[str, Any], large: dict[str, Any], answered: dict[str, Any]) -> list[Gate]:
    """What is asked for."""
    return [
        at_least("raw logs, MB a second of one core's time", AIM_MB_PER_S, [small["mb_per_cpu_s"]]),
        below(
            f"memory at {large['mb']:g} MB over that at {small['mb']:g} MB", FLAT, [large["rss_mb"] / small["rss_mb"]]
        ),
        below("memory, MB", MOST_RSS_MB, [large["rss_mb"]]),
        below(f"the report on {answered['steps']:,} steps, s", MOST_REPORT_S, [answered["report_s"]]),
        below("its page, MB", MOST_PAGE_MB, [answered["page_mb"]]),
    ]


def show(small: dict[str, Any], large: dict[str, Any], answered: dict[str, Any]) -> None:
    """For people."""
    table = Table(title="raw logs", title_justify="left")
    for column in ("MB", "steps", "MB/s", "MB per s of CPU", "parsing alone, MB/s", "CPU over that", "RSS MB"):
        table.add_column(column, justify="right")
    for part in (small, large):
        table.add_row(*(f"{value:,g}" for value in part.values()))
    console.print(table)
    console.print(
        f"{answered['steps']:,} made-up steps: loaded in {answered['load_s']} s and {answered['load_rss_mb']:,} MB, "
        f"{answered['statistics']} statistics and the page ({answered['page_mb']} MB) in {answered['report_s']} s and "
        f"{answered['report_rss_mb']:,} MB"
    )


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether it is as asked for (only with --gate)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--mb", type=float, default=100.0, help="of raw logs [100]")
    add("--large-mb", type=float, default=2000.0, help="of raw logs, for the memory [2000]")
    add("--steps", type=int, default=350_000, help="in the store, about [350000]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="little of everything, no claims: does it work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.mb, options.large_mb, options.steps = 1.0, 2.0, 1_000
    machine, start_s = facts(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="traces-") as name:
        folder = Path(name)
        for part in ("small", "large", "store"):
            (folder / part).mkdir()
        small = ingest(folder / "small", options.mb)
        large = ingest(folder / "large", options.large_mb)
        answered = answer(folder / "store", options.steps)
    show(small, large, answered)
    found = [] if options.smoke else [gate.as_json() for gate in gates(small, large, answered)]
    show_gates(console, found)
    line = {
        "raw_mb_per_s": small["mb_per_s"],
        "raw_rss_mb": large["rss_mb"],
        "report_s": answered["report_s"],
        "ingest": [small, large],
        "store": answered,
        "gates": found,
        "machine": {**machine, "load_after": load_average()},
        "wall_s": round(time.monotonic() - start_s, 1),
    }
    print(json.dumps(line))
    return int(options.gate and not all(gate["passed"] for gate in line["gates"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
