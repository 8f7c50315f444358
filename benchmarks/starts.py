#!/usr/bin/env python3
"""How soon are many containers ready that are asked for at once: with a limit that adapts, and with fixed ones?

Every arm is a run of as many rollouts as there are to be sandboxes, none of which ends before all are up. The first
wait of each is for its sandbox, so the last one to take a step says how long it took. Nothing is tried again: a start
that fails is counted with its reason. Arms take turns.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from _facts import facts, load_average
from _ray import start_ray
from _rayroll_arms import TASK
from _stats import Gate, below, show_gates
from rich.console import Console
from rich.table import Table

from rayroll import Act, Executor, Turn
from rayroll.executor import PlayConfig
from rayroll.types import FileTree

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)

ADAPTIVE = "adaptive"
DAY_S = 86_400.0
GRADED = replace(
    TASK, tests=FileTree.from_files({"test.sh": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n"})
)
"""Where tests leave no verdict, each rollout starts an untouched sandbox to find out why: as many again, at once."""


class Barrier:
    """A policy whose rollouts all end when the last sandbox is up."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._all_up = asyncio.Event()
        self.ready_s: list[float] = []
        """When each was up, since the run began."""
        self._began_s = time.perf_counter()

    async def act(self, turn: Turn) -> Act:
        """See ``Policy``."""
        if turn.index == 0:
            return Act("true")
        self.ready_s.append(time.perf_counter() - self._began_s)
        self.expect_one_less()
        await self._all_up.wait()
        return Act(submit=True)

    def expect_one_less(self) -> None:
        """One is up, or will never be."""
        self._missing -= 1
        if not self._missing:
            self._all_up.set()


async def ready_s(substrate: str, count: int, limit: int | None) -> tuple[list[float], Counter[str]]:
    """When each of so many sandboxes was up, with a fixed limit or an adaptive one; and why the others failed."""
    starts = {} if limit is None else {"first": limit, "is_adaptive": False}
    # The substrate's own limit is for those who use it without a scheduler.
    config = {"max_starting": count}
    policy, failures = Barrier(count), Counter[str]()
    async with Executor(substrate, substrate_config=config, scheduler={"starts": starts}) as executor:
        run = executor.submit(
            [GRADED],
            policy,
            samples_per_task=count,
            max_in_flight=count,
            max_infra_retries=0,
            config=PlayConfig(deadline_s=DAY_S),
        )
        async for rollout in run.rollouts():
            if rollout.failure is not None:
                failures[f"{rollout.failure.error}: {rollout.failure.reason}"] += 1
            if not rollout.steps:
                policy.expect_one_less()
    return policy.ready_s, failures


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Let the arms take turns. Returns the line to print."""
    line: dict[str, Any] = {"machine": facts(), "substrate": options.substrate, "sandboxes": options.sandboxes}
    arms: dict[str, int | None] = {ADAPTIVE: None} | {f"fixed {limit}": limit for limit in options.fixed}
    took_s: dict[str, list[float]] = {name: [] for name in arms}
    middle_s: dict[str, list[float]] = {name: [] for name in arms}
    failures = dict.fromkeys(arms, 0)
    for number in range(options.rounds):
        order = list(arms)[number % len(arms) :] + list(arms)[: number % len(arms)]
        for name in order:
            ready, reasons = await ready_s(options.substrate, options.sandboxes, arms[name])
            took_s[name].append(max(ready))
            middle_s[name].append(statistics.median(ready))
            failures[name] += reasons.total()
            console.print(f"round {number + 1}, {name}: all ready after {max(ready):.1f} s, {reasons.total()} failed")
            for reason, times in reasons.most_common():
                console.print(f"  {times} x {reason}", markup=False)
    best = min((name for name in arms if name != ADAPTIVE), key=lambda name: statistics.median(took_s[name]))
    line |= {
        "adaptive_s": round(statistics.median(took_s[ADAPTIVE]), 2),
        "best_fixed_s": round(statistics.median(took_s[best]), 2),
        "best_fixed": best,
        "failures": failures[ADAPTIVE],
        "arms": [
            {
                "name": name,
                "ready_s": round(statistics.median(took_s[name]), 2),
                "p50_s": round(statistics.median(middle_s[name]), 2),
                "rounds_s": [round(value, 2) for value in took_s[name]],
                "failures": failures[name],
            }
            for name in arms
        ],
    }
    ratios = [one / other for one, other in zip(took_s[ADAPTIVE], took_s[best], strict=True)]
    line["gates"] = [] if options.smoke else [gate.as_json() for gate in gates(ratios, failures[ADAPTIVE])]
    line["machine"]["load_after"] = load_average()
    return line


def gates(ratios: Sequence[float], failures: int) -> list[Gate]:
    """The claims."""
    return [
        below("all ready with the adaptive limit over the best fixed one", 1.1, ratios),
        below("failed starts with the adaptive limit", 0.0, [float(failures)]),
    ]


def show(line: dict[str, Any]) -> None:
    """The table, for people."""
    title = f"{line['sandboxes']} sandboxes on {line['substrate']}, asked for at once"
    table = Table("limit", "all ready s", "half ready s", "failed", title=title, title_justify="left")
    for arm in sorted(line["arms"], key=lambda arm: float(arm["ready_s"])):
        table.add_row(arm["name"], f"{arm['ready_s']:.1f}", f"{arm['p50_s']:.1f}", str(arm["failures"]))
    console.print(table)
    show_gates(console, line["gates"])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--substrate", default="docker", help="where sandboxes come from [docker]")
    add("--sandboxes", type=int, default=200, help="asked for at once [200]")
    add(
        "--fixed",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[2, 4, 8, 16, 32],
        help="[2,4,8,16,32]",
    )
    add("--rounds", type=int, default=3, help="turns of each [3]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="few sandboxes, no claims: does it work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.sandboxes, options.fixed, options.rounds = 6, [2], 1
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether the claims hold (only with --gate)."""
    options = parse(argv)
    start_ray()
    line = asyncio.run(measure(options))
    show(line)
    print(json.dumps(line))
    return int(options.gate and not all(gate["passed"] for gate in line["gates"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
