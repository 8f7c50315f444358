#!/usr/bin/env python3
"""What does one action cost, from the caller's call to the full result, beside the ways that people use today?

Every arm runs the same commands in the same kind of sandbox: distinct echoes, each checked, small or with 64 kB of
output, one after the other in 1 environment, then in 32 at the same time. The floor is ``runner bench``: fork and exec
of the same shell in the same sandbox, with nothing around them, and of this node's shell without a sandbox. Arms take
turns, in another order each round, and whatever is claimed is the median over rounds of ratios within a round: this
survives a machine that others use too.

Prints tables on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import importlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

from _arms import Arm, Burst, Load, Skipped
from _facts import facts, load_average
from _rayroll_arms import RayrollArm, RunnerArm, floor_in
from _stats import Gate, quantile, show_gates
from _step_claims import FLOOR, Cell, gates, p50_ms, steps_per_s
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from rayroll.cli._settings import settings
from rayroll.errors import ConfigError
from rayroll.runner.build import runner_path

SUBSTRATES: Mapping[str, Mapping[str, Any]] = {
    "local": {},
    "docker": {},
    "qemu": {},
    # A policy that denies the network needs an image of the server's own.
    "opensandbox": {"network": "open"},
    "kubernetes": {},
    "ec2": {},
}
"""What can be measured, with fields of its config."""


class Baseline(NamedTuple):
    """What people use today."""

    module: str
    arm: str
    substrate: str | None
    """It runs in the sandboxes of ``runner-<substrate>``. None: it has its own."""
    made_with: Literal["ids", "arm", "envs"] = "ids"
    """Those sandboxes' ids, the arm whose they are, or how many environments there are."""


BASELINES: Mapping[str, Baseline] = {
    "docker-exec": Baseline("_docker_arms", "DockerExec", "docker"),
    "docker-cli": Baseline("_docker_arms", "DockerCli", "docker"),
    "held-shell": Baseline("_docker_arms", "HeldShell", "docker"),
    "swe-rex": Baseline("_swerex_arms", "SweRexServers", None, "envs"),
    "opensandbox-sdk": Baseline("_hosted_arms", "OpenSandboxSdk", "opensandbox"),
    "pod-exec": Baseline("_kubernetes_arms", "PodExec", "kubernetes"),
    "ssh-exec": Baseline("_ec2_arms", "SshExec", "ec2", "arm"),
    "ssh-cli": Baseline("_ec2_arms", "SshCli", "ec2", "arm"),
}
ACTIONS, POLICY_S = 150, 5.0
"""A rollout as in "The Rollout Infrastructure Tax in Coding-Agent RL" (arXiv 2607.01415)."""

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run every cell. Returns the line to print."""
    line: dict[str, Any] = {"machine": facts(), "skipped": {}}
    cells: list[Cell] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for envs in options.envs:
            async with contextlib.AsyncExitStack() as stack:
                bar = progress.add_task("", total=None)
                say = functools.partial(_say, progress, bar, envs)
                arms = await start_arms(stack, envs, options, line["skipped"], say)
                line["machine"] |= {arm.substrate: arm.facts for arm in arms if isinstance(arm, RunnerArm)}
                progress.update(bar, total=len(options.output_bytes) * options.rounds * len(arms))
                for output_bytes in options.output_bytes:
                    cells.append(await measure_cell(Cell(envs, output_bytes), arms, options, say))
                    show_cell(cells[-1])
    line["machine"]["load_after"] = load_average()
    return line | summary(cells, [] if options.smoke else gates(cells, {*options.substrates, *options.baselines}))


def _say(progress: Progress, bar: TaskID, envs: int, what: str, *, advance: int = 0) -> None:
    progress.update(bar, description=f"{envs} envs: {what}", advance=advance)


async def measure_cell(cell: Cell, arms: Sequence[Arm], options: argparse.Namespace, say: Callable[..., None]) -> Cell:
    """Let the arms take turns, in another order each round."""
    for arm in arms:  # a turn of each that does not count: caches, connections, the first fork
        say(f"warming up {arm.name}")
        await arm.burst(Load(steps=2, output_bytes=cell.output_bytes, budget_s=1.0))
    load = Load(max(1, options.steps // options.rounds), cell.output_bytes, options.turn_s)
    for number in range(options.rounds):
        first = number % len(arms)
        floors = {arm.name: await arm.floor_s(options.floor_n) for arm in arms if isinstance(arm, RunnerArm)}
        host = {FLOOR: await asyncio.to_thread(host_floor_s, options.floor_n)}
        cell.floors_s.append(host | {name: floor for name, floor in floors.items() if floor})
        cell.rounds.append({})
        for arm in (*arms[first:], *arms[:first]):
            say(f"{size(cell.output_bytes)}, round {number + 1}: {arm.name}")
            cell.rounds[-1][arm.name] = await arm.burst(load)
            say(f"{size(cell.output_bytes)}, round {number + 1}: {arm.name}", advance=1)
    return cell


async def start_arms(
    stack: contextlib.AsyncExitStack,
    envs: int,
    options: argparse.Namespace,
    skipped: dict[str, str],
    say: Callable[..., None],
) -> list[Arm]:
    """Start every arm that this machine can run; why another cannot goes into ``skipped``."""
    arms: list[Arm] = []
    runners: dict[str, RunnerArm] = {}
    for substrate in options.substrates:
        say(f"starting {substrate}")
        config = {**SUBSTRATES[substrate], **options.settings.get(substrate, {})}
        try:
            arm = await stack.enter_async_context(RunnerArm(substrate, envs, config))
        except Skipped as reason:
            leave_out(skipped, substrate, reason)
        else:
            assert isinstance(arm, RunnerArm)
            runners[substrate] = arm
            arms += [arm, await stack.enter_async_context(RayrollArm(substrate, envs, config))]
    if not arms:
        raise SystemExit("nothing can be measured: " + "; ".join(f"{k}: {v}" for k, v in skipped.items()))
    for baseline in options.baselines:
        say(f"starting {baseline}")
        try:
            arms += await start_baseline(stack, baseline, envs, runners)
        except Skipped as reason:
            leave_out(skipped, baseline, reason)
    return arms


def leave_out(skipped: dict[str, str], name: str, reason: Skipped) -> None:
    """Say, now and in the last line, what is not measured and why."""
    skipped[name] = str(reason)
    console.print(f"[yellow]{name} is left out: {reason}")


async def start_baseline(
    stack: contextlib.AsyncExitStack, name: str, envs: int, runners: Mapping[str, RunnerArm]
) -> list[Arm]:
    """A baseline's arms. Raises Skipped."""
    module, arm, substrate, made_with = BASELINES[name]
    given: object = envs
    if substrate is not None:
        if substrate not in runners:
            raise Skipped(f"it runs in the sandboxes of runner-{substrate}; add {substrate} to --substrates")
        given = runners[substrate] if made_with == "arm" else await runners[substrate].sandbox_ids()
    made: Arm = await stack.enter_async_context(getattr(importlib.import_module(module), arm)(given))
    return made.arms()


def host_floor_s(n: int) -> list[float]:
    """``[p50, p95]`` of fork and exec on this node, without any sandbox."""
    done = subprocess.run([runner_path(), "bench", "--n", str(n)], capture_output=True, text=True, check=True)
    return floor_in(done.stdout)


# --- what it means ---


def summary(cells: Sequence[Cell], gates: Sequence[Gate]) -> dict[str, Any]:
    """The figures of all cells, and what may be claimed of them."""
    floors_s: dict[str, list[list[float]]] = defaultdict(list)
    for cell in cells:
        for floors in cell.floors_s:
            for name, floor in floors.items():
                floors_s[name].append(floor)
    floors_ms = {
        name: {q: round(median(floor[i] for floor in floors) * 1e3, 3) for i, q in enumerate(("p50", "p95"))}
        for name, floors in floors_s.items()
    }
    reference = next(name for name in ("runner-docker", "runner-local", FLOOR) if name in floors_ms)
    return {
        "floor_ms": floors_ms[reference] | {"in": reference.removeprefix("runner-")},
        "floors_ms": floors_ms,
        "gates": [gate.as_json() for gate in gates],
        "paths": [path for cell in cells for path in paths(cell)],
    }


def paths(cell: Cell) -> list[dict[str, Any]]:
    """One entry per arm."""
    pooled: dict[str, Burst] = defaultdict(Burst)
    for bursts in cell.rounds:
        for name, burst in bursts.items():
            whole = pooled[name]
            whole.wall_s += burst.wall_s
            whole.latencies_s += burst.latencies_s
            whole.checked += burst.checked
            whole.wrong += burst.wrong
    return [path(name, cell, burst) for name, burst in pooled.items()]


def path(name: str, cell: Cell, burst: Burst) -> dict[str, Any]:
    """Latencies, throughput, and the share of a rollout in which a policy thinks for 5 s before each of 150 actions."""
    mean_s = fmean(burst.latencies_s)
    medians_ms = [p50_ms(bursts[name]) for bursts in cell.rounds]
    return {
        "name": name,
        "envs": cell.envs,
        "output_bytes": cell.output_bytes,
        "p50_ms": round(p50_ms(burst), 3),
        "p95_ms": round(quantile(burst.latencies_s, 0.95) * 1e3, 3),
        "p99_ms": round(quantile(burst.latencies_s, 0.99) * 1e3, 3),
        "steps_per_s": round(steps_per_s(burst), 1),
        "rollout_share": round(ACTIONS * mean_s / (ACTIONS * (POLICY_S + mean_s)), 6),
        "round_p50_ms": [round(quantile(medians_ms, q), 3) for q in (0.0, 0.5, 1.0)],
        "steps": len(burst.latencies_s),
        "checked": burst.checked,
        "wrong": len(burst.wrong),
        **({"wrong_example": burst.wrong[0]} if burst.wrong else {}),
    }


def show_cell(cell: Cell) -> None:
    """The table of one cell, for people."""
    title = f"{cell.envs} environment{'s' * (cell.envs > 1)}, {size(cell.output_bytes)} of output"
    table = Table(title=title, title_justify="left")
    for column in ("path", "p50 ms", "p95 ms", "p99 ms", "steps/s", "of a rollout", "p50 by round"):
        table.add_column(column, justify="left" if column == "path" else "right", no_wrap=True)
    measured = paths(cell)
    for p in measured:
        low, _, high = p["round_p50_ms"]
        figures = (f"{p[k]:,.2f}" for k in ("p50_ms", "p95_ms", "p99_ms"))
        share = f"{p['rollout_share']:.3%}"
        table.add_row(p["name"], *figures, f"{p['steps_per_s']:,.0f}", share, f"{low:,.2f} - {high:,.2f}")
    console.print(table)
    for p in measured:
        if p["wrong"]:
            console.print(f"[red]{p['name']}: {p['wrong']} of {p['steps']} outputs were wrong: {p['wrong_example']}")


def show_claims(line: dict[str, Any]) -> None:
    """The floor, what may be claimed, and where it was measured."""
    floor, machine = line["floor_ms"], line["machine"]
    console.print(f"floor: fork and exec of the same shell in {floor['in']}: p50 {floor['p50']}, p95 {floor['p95']} ms")
    others = (f"{name.removeprefix('runner-')} {of['p50']}" for name, of in line["floors_ms"].items())
    console.print(f"  the same at p50, ms: {', '.join(others)}", highlight=False)
    show_gates(console, line["gates"])
    console.print(
        f"{machine['cpus']} x {machine['cpu']}, {machine['kernel']}, {machine['commit']}, "
        f"load {machine['load_before']} before, {machine['load_after']} after",
        style="dim",
    )


def size(output_bytes: int) -> str:
    """Words for a size."""
    return f"{output_bytes:,} bytes" if output_bytes else "one line"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""

    def words(known: Collection[str]) -> Callable[[str], list[str]]:
        def parse_words(text: str) -> list[str]:
            given = [word for word in text.split(",") if word]
            for word in given:
                if word not in known:
                    raise argparse.ArgumentTypeError(f"unknown: {word!r}; known: {', '.join(known)}")
            return given

        return parse_words

    def numbers(least: int) -> Callable[[str], list[int]]:
        def parse_numbers(text: str) -> list[int]:
            given = [int(word) for word in text.split(",")]
            if min(given) < least:
                raise argparse.ArgumentTypeError(f"at least {least}")
            return given

        return parse_numbers

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--substrates",
        type=words(SUBSTRATES),
        default=["local", "docker"],
        help=f"comma-separated: {','.join(SUBSTRATES)} [local,docker]",
    )
    add("--envs", type=numbers(1), default=[1, 32], help="environments at the same time, comma-separated [1,32]")
    add(
        "--baselines",
        type=words(BASELINES),
        help=f"comma-separated: {','.join(BASELINES)} [those of the substrates, and swe-rex beside docker]",
    )
    add(
        "--set",
        action="append",
        metavar="KIND.FIELD=VALUE",
        help="a field of a substrate's config, such as kubernetes.carrier=address; again for more",
    )
    add("--steps", type=int, default=200, help="steps of each environment over all rounds [200]")
    add(
        "--output-bytes",
        type=numbers(0),
        default=[0, 64 << 10],
        help="bytes that a command prints, comma-separated; 0: one short line [0,65536]",
    )
    add("--rounds", type=int, default=6, help="turns of each arm, at least 5 for a claim [6]")
    add("--turn-s", type=float, default=2.0, help="seconds after which an arm's turn takes no further step [2]")
    add("--floor-n", type=int, default=50, help="forks of each `runner bench` [50]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="few steps, no claims: does every arm work?")
    options = parser.parse_args(argv)
    try:
        options.settings = settings(options.set)
    except ConfigError as error:
        parser.error(str(error))
    if options.baselines is None:
        beside = {name: baseline.substrate or "docker" for name, baseline in BASELINES.items()}
        options.baselines = [name for name, substrate in beside.items() if substrate in options.substrates]
    if options.smoke:
        options.steps, options.rounds, options.turn_s, options.floor_n = 4, 2, 1.0, 5
        options.envs = [min(envs, 2) for envs in options.envs[:1]]
    if options.rounds < 1 or options.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether the claims hold (only with --gate)."""
    options = parse(argv)
    line = asyncio.run(measure(options))
    show_claims(line)
    print(json.dumps(line))
    return int(options.gate and not all(gate["passed"] for gate in line["gates"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
