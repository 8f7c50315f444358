#!/usr/bin/env python3
"""Is a predictor of tool calls worth it, and what does an answer cost?

Recorded commands (`results/commands`, of `record_commands.py`) are split four ways: by session, by time, by task, and
by repository, so that none of a held-out repository was ever seen; the first three leave repositories on both sides.
In rollouts every call is of one tool, so that per tool and global are one baseline there; per program is the one that
is hard to beat. Made-up sessions, sanitized as all of them are, have tools and sizes only: there the predictor
may not lose more than tools alone do.

`gain` is of two losses, that of seconds and that of their logarithms, the lesser one. Answers are timed on commands of
held-out sessions with nothing remembered between them.

Prints tables on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _facts import facts, load_average
from _stats import Gate, at_least, below, quantile, show_gates
from rich.console import Console
from rich.table import Table

from rayroll.traces.predict import commands
from rayroll.traces.predict.evaluate import Evaluation, evaluate, split
from rayroll.traces.predict.examples import Recorded, sessions_in
from rayroll.traces.predict.features import Session
from rayroll.traces.predict.fit import fit
from rayroll.traces.rows import write_rows
from rayroll.traces.synth import synthesize

COMMANDS = Path(__file__).parent / "results" / "commands" / "commands.jsonl.zst"
LEAST_GAIN = 0.15
MOST_LOAD_MS = 10.0
MOST_ANSWER_US = 200.0
NEVER_WORSE = -0.01
"""Noise: a held-out part of a heavy tail decides a hundredth by chance."""

LOAD = """
import sys, time
from rayroll.traces.predict.model import Predictor
start_s = time.perf_counter()
Predictor.load(sys.argv[1])
print(1000 * (time.perf_counter() - start_s))
"""

console = Console(stderr=True, width=None if sys.stderr.isatty() else 130)


def repository(session: Recorded) -> str:
    """What a task's number stands behind: `repo_fix/boltons-03` is of boltons."""
    return (session.project or "").rpartition("-")[0] or (session.project or "")


def show(title: str, found: Evaluation) -> None:
    """For people."""
    table = Table(
        title=f"{title}: {found.train_sessions} sessions to learn from, {found.test_calls:,} calls of "
        f"{found.test_sessions} to be judged on",
        title_justify="left",
    )
    for column in ("", "pinball, s", "pinball, log", "calibration", "inside 80 %"):
        table.add_column(column, justify="right" if column else "left")
    for score in found.scores:
        table.add_row(
            score.name,
            f"{score.pinball_s:.4g}",
            f"{score.pinball_log:.4g}",
            f"{score.calibration:.3f}",
            f"{score.inside_80:.1%}",
        )
    console.print(table)
    for gain in found.gains:
        console.print(
            f"  over {gain.over}: {gain.seconds:.1%} ({gain.seconds_low:.1%} - {gain.seconds_high:.1%}) of seconds, "
            f"{gain.log:.1%} ({gain.log_low:.1%} - {gain.log_high:.1%}) of logarithms",
            highlight=False,
        )


def cost(sessions: Sequence[Recorded], folder: Path) -> dict[str, Any]:
    """Of a model of all sessions but a few: how long it takes to load in a new process, and to answer."""
    train, test = split(sessions, seed=1, held_out=0.1)
    made = fit(train)
    path = folder / "calls.model"
    made.save(path)
    loads = [
        float(subprocess.run([sys.executable, "-c", LOAD, path], capture_output=True, text=True, check=True).stdout)
        for _ in range(7)
    ]
    answers, updates = [], []
    predictor = type(made).load(path)
    for recorded in test:
        session = Session(project=recorded.project)
        for timed in recorded.calls:
            commands.read.cache_clear()
            start_s = time.perf_counter()
            said = predictor.predict(timed.call, session)
            answers.append(1e6 * (time.perf_counter() - start_s))
            start_s = time.perf_counter()
            predictor.observe(timed.call, session, timed.seconds, forecast=said, result_chars=timed.result_chars)
            updates.append(1e6 * (time.perf_counter() - start_s))
    return {
        "keys": len(made),
        "file_kb": round(path.stat().st_size / 1000, 1),
        "load_ms": round(statistics.median(loads), 2),
        "answer_us": round(statistics.median(answers), 1),
        "answer_p99_us": round(quantile(answers, 0.99), 1),
        "update_us": round(statistics.median(updates), 1),
    }


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether it is as asked for (only with --gate)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--commands", type=Path, default=COMMANDS, help="rollouts to learn from and to be judged on")
    add("--seeds", type=int, default=3, help="splits of each kind that is drawn [3]")
    add("--sessions", type=int, default=200, help="made-up ones [200]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="little of everything, no claims: does it work?")
    options = parser.parse_args(argv)
    sessions = sessions_in(options.commands)
    if options.smoke:
        sessions, options.seeds, options.sessions = sessions[:30], 1, 20
    before = load_average()
    found: dict[str, list[Evaluation]] = {}
    for title, by, group in (
        ("session", "session", None),
        ("time", "time", None),
        ("task", "project", None),
        ("repository", "project", repository),
    ):
        for seed in range(1 if by == "time" else options.seeds):
            train, test = split(sessions, by, seed=seed, group=group)  # type: ignore[arg-type]
            found.setdefault(title, []).append(evaluate(train, test, seed=seed))
        show(f"by {title}", found[title][0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spent = cost(sessions, folder)
        made_up = []
        for seed in range(options.seeds):
            write_rows(folder / f"{seed}.jsonl", synthesize(options.sessions, seed=seed))  # type: ignore[arg-type]
            train, test = split(sessions_in(folder / f"{seed}.jsonl"), seed=seed)
            made_up.append(evaluate(train, test, seed=seed))
    show("made-up sessions, by session", made_up[0])
    console.print(spent, highlight=False)

    def least(title: str, over: str) -> list[float]:
        return [one.gain(over).least for one in found[title]]

    checked = [
        *(at_least(f"gain over per tool, by {title}", LEAST_GAIN, least(title, "per tool")) for title in found),
        *(at_least(f"gain over per program, by {title}", 0.0, least(title, "per program")) for title in found),
        at_least(
            "tools and sizes only: gain of seconds", NEVER_WORSE, [one.gain("per tool").seconds for one in made_up]
        ),
        at_least("tools and sizes only: gain of logarithms", 0.0, [one.gain("per tool").log for one in made_up]),
        below("loading, ms", MOST_LOAD_MS, [spent["load_ms"]]),
        below("an answer, us", MOST_ANSWER_US, [spent["answer_us"]]),
    ]
    gates: list[Gate] = [] if options.smoke else checked
    line = {
        "gain_vs_tool": round(statistics.median(least("session", "per tool")), 3),
        "gain_vs_program": round(statistics.median(least("session", "per program")), 3),
        "coverage": round(statistics.median(one.scores[0].inside_80 for one in found["session"]), 3),
        **spent,
        "splits": {
            title: [
                {
                    "calls": one.test_calls,
                    "inside_80": round(one.scores[0].inside_80, 3),
                    "calibration": round(one.scores[0].calibration, 3),
                    **{
                        gain.over: [round(gain.seconds, 3), round(gain.log, 3)]
                        for gain in one.gains
                        if gain.over != "global"
                    },
                }
                for one in evaluations
            ]
            for title, evaluations in {**found, "made up": made_up}.items()
        },
        "gates": [gate.as_json() for gate in gates],
        "passed": all(gate.passed for gate in gates),
        **facts(),
        "load_before": before,
    }
    show_gates(console, line["gates"])  # type: ignore[arg-type]
    print(json.dumps(line))
    return 1 if options.gate and not line["passed"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
