#!/usr/bin/env python3
"""How many environments can one host actor own, beside an actor for each environment, and does it stay responsive?

Simulated sandboxes that take no time leave only what rayroll, Ray and Python cost. One host owns a thousand of them;
the usual way, an actor for each environment and a Ray call for each step, is measured at 16, because a thousand would
not fit. Both run distinct echoes, checked, in turns; ``actor_per_env_line`` is as many whole rayroll hosts. Then one
host gets 100 real sandboxes of this machine that print 64 kB each, without a pause, and says how late its event loop
wakes up.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from _arms import Load, async_burst
from _facts import facts, load_average
from _ray import start_ray
from _stats import Gate, at_least, below, show_gates
from rich.console import Console
from rich.table import Table

from rayroll.executor.link import HostLink, remote_call
from rayroll.executor.messages import Exec, HostSetup, Open
from rayroll.session import Client, Session
from rayroll.types import ExecResult, FileTree, Task

TASK = Task("bench/echo", "", environment=FileTree.from_files({}), tests=FileTree.from_files({}))
DEADLINE_S = 600.0
LAG_WINDOW_S = 60.0
"""What a host's lag figures cover; a shorter run would still count the start of the sandboxes."""

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)

Step = Callable[[str], Awaitable[str]]


class OneHost:
    """One host, and as many environments as asked for, through the driver's own end of it."""

    def __init__(self, substrate: str) -> None:
        self._link = HostLink(HostSetup(substrate, secrets.token_hex(6), "host_scale"))
        self.steps: list[Step] = []

    async def create(self, envs: int) -> None:
        """Start the actor and its environments."""
        await self._link.start()
        key = await self._link.teach(TASK)
        await asyncio.gather(*(self._open(f"env-{i}", key) for i in range(envs)))

    async def _open(self, session: str, key: str) -> None:
        message = Open(session, key, seed=None, group_id=None, sample_index=0, deadline_s=86_400.0, trusted=True)
        done = await self._link.call(message, deadline_s=DEADLINE_S)
        if done.error is not None:
            raise done.error

        async def step(script: str) -> str:
            done = await self._link.call(Exec(session, script, DEADLINE_S), deadline_s=DEADLINE_S)
            if done.error is not None:
                raise done.error
            return str(done.value.output)

        self.steps.append(step)

    def pids(self) -> list[int]:
        """Processes that exist for these environments."""
        return [self._link.info.pid]

    async def lag_ms(self) -> dict[str, float]:
        """How late the host's loop woke up, over the last minute."""
        stats = await self._link.stats()
        return {"p50": stats.loop_lag_p50_ms, "p99": stats.loop_lag_p99_ms}

    async def close(self) -> None:
        """Free everything."""
        await self._link.close()


class ManyHosts:
    """A whole host for each environment."""

    def __init__(self, substrate: str) -> None:
        self._substrate = substrate
        self._hosts: list[OneHost] = []

    async def create(self, envs: int) -> None:
        """Start all at the same time."""
        self._hosts = [OneHost(self._substrate) for _ in range(envs)]
        await asyncio.gather(*(host.create(1) for host in self._hosts))

    @property
    def steps(self) -> list[Step]:
        """One for each environment."""
        return [step for host in self._hosts for step in host.steps]

    def pids(self) -> list[int]:
        """Processes that exist for these environments."""
        return [pid for host in self._hosts for pid in host.pids()]

    async def close(self) -> None:
        """Free everything."""
        await asyncio.gather(*(host.close() for host in self._hosts))


class EnvActor:
    """What an environment is where every environment is an actor."""

    def __init__(self, substrate: str) -> None:
        self._client = Client(substrate)
        self._session: Session

    async def start(self) -> int:
        """Start the environment; the actor's process id."""
        await self._client.__aenter__()
        self._session = self._client.open(TASK, deadline_s=86_400.0)
        await self._session.booted()
        return os.getpid()

    async def step(self, script: str) -> ExecResult:
        """Run a command."""
        return await self._session.exec(script)

    async def close(self) -> None:
        """Free everything."""
        await self._client.close()


class PlainActors:
    """An actor for each environment, a Ray call for each step."""

    def __init__(self, substrate: str) -> None:
        self._substrate = substrate
        self._actors: list[Any] = []
        self._pids: list[int] = []
        self.steps: list[Step] = []

    async def create(self, envs: int) -> None:
        """Start all at the same time."""
        kind = ray.remote(EnvActor).options(num_cpus=0)
        self._actors = [kind.remote(self._substrate) for _ in range(envs)]
        self._pids = await asyncio.gather(*(_call(actor.start.remote()) for actor in self._actors))
        self.steps = [self._step(actor) for actor in self._actors]

    @staticmethod
    def _step(actor: Any) -> Step:
        async def step(script: str) -> str:
            return str((await actor.step.remote(script)).output)

        return step

    def pids(self) -> list[int]:
        """Processes that exist for these environments."""
        return self._pids

    async def close(self) -> None:
        """Free everything."""
        await asyncio.gather(*(_call(actor.close.remote()) for actor in self._actors))
        for actor in self._actors:
            ray.kill(actor)


async def _call(ref: Any) -> Any:
    return await remote_call(ref, deadline_s=DEADLINE_S, what="benchmark")


def rss_mb(pids: Sequence[int]) -> float:
    """Resident memory of processes, in MB."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything. Returns the line to print."""
    # Our hosts see to that themselves, so the others shall have it, too.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
    start_ray()
    line: dict[str, Any] = {"machine": facts()}
    arms = {
        "": (OneHost("simulated"), options.envs),
        "actor_per_env": (PlainActors("simulated"), options.actors),
        "actor_per_env_line": (ManyHosts("simulated"), options.actors),
    }
    figures: dict[str, dict[str, Any]] = {}
    try:
        for name, (arm, envs) in arms.items():
            console.print(f"starting {envs} envs: {name or 'one host'}", style="dim")
            start_s = time.perf_counter()
            await arm.create(envs)
            figures[name] = {"envs": envs, "create_s": time.perf_counter() - start_s, "rounds": [], "checked": 0}
        for number in range(-1, options.rounds):  # round -1 warms up and is not kept
            for name in list(arms)[number % 3 :] + list(arms)[: number % 3]:
                arm, _ = arms[name]
                console.print(f"round {number}: {name or 'one host'}", style="dim")
                burst = await async_burst(Load(10**9, 0, options.turn_s), arm.steps)
                if number >= 0:
                    figures[name]["rounds"].append(len(burst.latencies_s) / burst.wall_s)
                    figures[name]["checked"] += burst.checked
        for name, (arm, _) in arms.items():
            figures[name]["rss_mb"] = rss_mb(arm.pids())
    finally:
        for arm, _ in arms.values():
            await arm.close()
    line |= as_json(figures[""])
    line |= {name: as_json(figures[name]) for name in arms if name}
    line["real"] = await real(options)
    if not options.smoke:
        line["gates"] = [gate.as_json() for gate in gates(figures, line["real"])]
    line["machine"]["load_after"] = load_average()
    return line


async def real(options: argparse.Namespace) -> dict[str, Any]:
    """One host, sandboxes of this machine, large outputs, no pause; how late does its loop wake up?"""
    host = OneHost("local")
    try:
        console.print(f"starting {options.real} local sandboxes", style="dim")
        await host.create(options.real)
        console.print(
            f"{options.real} local sandboxes print {options.output_bytes:,} bytes for {options.real_s} s", style="dim"
        )
        burst = await async_burst(Load(10**9, options.output_bytes, options.real_s), host.steps)
        lag_ms = await host.lag_ms()
    finally:
        await host.close()
    return {
        "envs": options.real,
        "output_bytes": options.output_bytes,
        "steps_per_s": round(len(burst.latencies_s) / burst.wall_s, 1),
        "checked": burst.checked,
        "loop_lag_p50_ms": round(lag_ms["p50"], 2),
        "loop_lag_p99_ms": round(lag_ms["p99"], 2),
        "covers_start": options.real_s < LAG_WINDOW_S,
    }


def as_json(figure: dict[str, Any]) -> dict[str, Any]:
    """Figures of one way, steps/s as the median of its rounds."""
    rounds = sorted(figure["rounds"])
    return {
        "envs": figure["envs"],
        "create_s": round(figure["create_s"], 3),
        "rss_mb": round(figure["rss_mb"], 1),
        "steps_per_s": round(rounds[len(rounds) // 2], 1),
        "steps_per_s_rounds": [round(rate, 1) for rate in rounds],
        "checked": figure["checked"],
    }


def gates(figures: dict[str, dict[str, Any]], real: dict[str, Any]) -> list[Gate]:
    """The claims: per environment for start and memory, per round for steps."""
    one, actors = figures[""], figures["actor_per_env"]

    def per_env(name: str) -> float:
        return (actors[name] / actors["envs"]) / (one[name] / one["envs"])

    ratios = [ours / theirs for ours, theirs in zip(one["rounds"], actors["rounds"], strict=True)]
    return [
        at_least("start of an env: actor per env over one host", 50.0, [per_env("create_s")]),
        at_least("memory of an env: actor per env over one host", 20.0, [per_env("rss_mb")]),
        at_least("steps/s: one host over actor per env", 10.0, ratios),
        below("loop lag p99 with real sandboxes, ms", 20.0, [real["loop_lag_p99_ms"]]),
    ]


def show(line: dict[str, Any]) -> None:
    """The table for people."""
    table = Table(title="simulated sandboxes that take no time", title_justify="left")
    for column in ("", "envs", "start s", "ms an env", "MB", "MB an env", "steps/s", "by round"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    names = {"one host": line, "actor per env": line["actor_per_env"], "host per env": line["actor_per_env_line"]}
    for name, figure in names.items():
        envs, rounds = figure["envs"], figure["steps_per_s_rounds"]
        table.add_row(
            name,
            f"{envs}",
            f"{figure['create_s']:.2f}",
            f"{figure['create_s'] / envs * 1e3:,.1f}",
            f"{figure['rss_mb']:,.0f}",
            f"{figure['rss_mb'] / envs:,.2f}",
            f"{figure['steps_per_s']:,.0f}",
            f"{rounds[0]:,.0f} - {rounds[-1]:,.0f}",
        )
    console.print(table)
    real = line["real"]
    console.print(
        f"{real['envs']} local sandboxes, {real['output_bytes']:,} bytes a step, {real['steps_per_s']:,} steps/s: the "
        f"host's loop wakes up {real['loop_lag_p50_ms']} ms late at p50, {real['loop_lag_p99_ms']} ms at p99"
    )
    show_gates(console, line.get("gates", []))
    machine = line["machine"]
    console.print(
        f"{machine['cpus']} x {machine['cpu']}, {machine['kernel']}, {machine['commit']}, "
        f"load {machine['load_before']} before, {machine['load_after']} after",
        style="dim",
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--envs", type=int, default=1000, help="environments of the one host [1000]")
    add("--actors", type=int, default=16, help="environments with an actor each [16]")
    add("--rounds", type=int, default=5, help="turns of each way, at least 5 for a claim [5]")
    add("--turn-s", type=float, default=4.0, help="seconds of each turn [4]")
    add("--real", type=int, default=100, help="local sandboxes of the loop-lag run [100]")
    add("--real-s", type=float, default=65.0, help="seconds of the loop-lag run; the figure covers the last 60 [65]")
    add("--output-bytes", type=int, default=64 << 10, help="bytes that a command prints in the loop-lag run [65536]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="few of everything, no claims: does it work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.envs, options.actors, options.rounds, options.turn_s = min(options.envs, 20), 1, 1, 0.5
        options.real, options.real_s = min(options.real, 2), 1.0
    if min(options.envs, options.actors, options.rounds, options.real, options.output_bytes) < 1:
        parser.error("counts must be at least 1")
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether the claims hold (only with --gate)."""
    options = parse(argv)
    line = asyncio.run(measure(options))
    show(line)
    print(json.dumps(line))
    return int(options.gate and not all(gate["passed"] for gate in line["gates"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
