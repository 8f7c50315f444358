#!/usr/bin/env python3
"""Can one host hold many sandboxes at once: how much memory does its process take, and how many threads?

Each substrate has one host, and all of them work at the same time. No rollout takes its first action before the last
sandbox is up, so that all are there together; then each takes so many actions and is graded. The host's process is
looked at every moment from its start to its end. Nothing is tried again: a rollout that fails is counted.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _facts import facts, load_average
from _ray import start_ray
from _stats import Gate, below, quantile, show_gates
from rich.console import Console
from rich.table import Table
from starts import DAY_S, GRADED

from rayroll import Act, Executor, Turn
from rayroll.cli._settings import settings
from rayroll.executor import PlayConfig

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)

MOST_HOST_MB, MOST_THREADS = 500.0, 150.0
LOOK_S = 0.2


class Crowd:
    """A policy whose rollouts begin when the last sandbox is up, and then take their actions."""

    def __init__(self, sandboxes: int, actions: int) -> None:
        self._missing = sandboxes
        self._actions = actions
        self._all_up = asyncio.Event()

    async def act(self, turn: Turn) -> Act:
        """See ``Policy``. A rollout without a sandbox never asks for a second action."""
        if turn.index == 1:
            self.arrive()
            await self._all_up.wait()
        return Act(f"echo {turn.index} >> log") if turn.index < self._actions else Act(submit=True)

    def arrive(self) -> None:
        """One is up, or will never be."""
        self._missing -= 1
        if not self._missing:
            self._all_up.set()


@dataclass(slots=True)
class Seen:
    """One substrate's host and its rollouts."""

    substrate: str
    failures: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    wrong: int = 0
    """Rollouts with another number of actions, a failed one among them, or no reward."""
    start_s: list[float] = field(default_factory=list)
    action_ms: list[float] = field(default_factory=list)
    host_mb: float = 0.0
    threads: int = 0

    def look(self, pid: int) -> None:
        """At the host's process, which may just have ended."""
        try:
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            return
        self.host_mb, self.threads = max(self.host_mb, resident / 1e6), max(self.threads, threads)


async def play(seen: Seen, executor: Executor, options: argparse.Namespace) -> None:
    """One substrate's rollouts, its host looked at meanwhile."""
    policy = Crowd(options.sandboxes, options.actions)
    run = executor.submit(
        [GRADED],
        policy,
        samples_per_task=options.sandboxes,
        max_in_flight=options.sandboxes,
        max_infra_retries=0,
        config=PlayConfig(deadline_s=DAY_S, max_steps=options.actions + 1),
    )

    async def look() -> None:
        while True:
            for host in executor.hosts:
                seen.look(host.pid)
            await asyncio.sleep(LOOK_S)

    looking = asyncio.create_task(look())
    try:
        async for rollout in run.rollouts():
            seen.finished += 1
            if rollout.failure is not None:
                seen.failures[f"{rollout.failure.error}: {rollout.failure.reason}"] += 1
            if not rollout.steps:
                policy.arrive()
            codes = [step.exit_code for step in rollout]
            seen.wrong += codes != [0] * options.actions or rollout.reward != 1.0
            seen.start_s += [rollout.cold_start_s] if rollout.cold_start_s is not None else []
            seen.action_ms += [1e3 * (sum(step.phases_s.values()) - step.phases_s["policy"]) for step in rollout]
    finally:
        looking.cancel()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All substrates at once. Returns the line to print."""
    line: dict[str, Any] = {"machine": facts(), "sandboxes": options.sandboxes, "actions": options.actions}
    configs = settings(options.set)
    all_seen = [Seen(kind) for kind in options.substrates]
    async with AsyncExitStack() as stack:
        executors = [
            await stack.enter_async_context(
                Executor(seen.substrate, substrate_config=configs.get(seen.substrate, {}), hosts_per_node=1)
            )
            for seen in all_seen
        ]
        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for seen, executor in zip(all_seen, executors, strict=True):
                group.create_task(play(seen, executor, options))
        line["took_s"] = round(time.perf_counter() - start_s, 1)
    line["hosts"] = [
        {
            "substrate": seen.substrate,
            "finished": seen.finished,
            "failed": seen.failures.total(),
            "wrong": seen.wrong,
            "reasons": dict(seen.failures),
            "host_mb": round(seen.host_mb, 1),
            "threads": seen.threads,
            "start_p50_s": round(quantile(seen.start_s, 0.5), 2) if seen.start_s else None,
            "action_p50_ms": round(quantile(seen.action_ms, 0.5), 1) if seen.action_ms else None,
        }
        for seen in all_seen
    ]
    line["gates"] = [gate.as_json() for gate in gates(line["hosts"])]
    line["machine"]["load_after"] = load_average()
    return line


def gates(hosts: Sequence[dict[str, Any]]) -> list[Gate]:
    """The claims, of the worst host."""
    return [
        below("failed or wrong rollouts", 0.0, [float(max(max(host["failed"], host["wrong"]) for host in hosts))]),
        below("memory of a host, MB", MOST_HOST_MB, [max(host["host_mb"] for host in hosts)]),
        below("threads of a host", MOST_THREADS, [float(max(host["threads"] for host in hosts))]),
    ]


def show(line: dict[str, Any]) -> None:
    """The table, for people."""
    title = f"{line['sandboxes']} sandboxes on each host, {line['actions']} actions in each, {line['took_s']} s"
    columns = ("substrate", "finished", "failed", "wrong", "host MB", "threads", "start p50 s", "action p50 ms")
    table = Table(*columns, title=title, title_justify="left")
    for host in line["hosts"]:
        table.add_row(*(str(host[name]) for name in ("substrate", "finished", "failed", "wrong", "host_mb", "threads")),
                      str(host["start_p50_s"]), str(host["action_p50_ms"]))  # fmt: skip
        for reason, times in host["reasons"].items():
            console.print(f"{host['substrate']}: {times} x {reason}", markup=False)
    console.print(table)
    show_gates(console, line["gates"])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--substrates", type=lambda text: text.split(","), default=["docker", "kubernetes"], help="[docker,kubernetes]")
    add("--sandboxes", type=int, default=50, help="of each substrate, at once [50]")
    add("--actions", type=int, default=20, help="of each rollout [20]")
    add("--set", action="append", metavar="KIND.FIELD=VALUE", help="a field of a substrate's config")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="few sandboxes: does it work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.sandboxes, options.actions = 4, 3
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
