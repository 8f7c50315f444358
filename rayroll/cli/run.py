"""Plays rollouts of a pack with a built-in policy: to try a pack, a substrate or a node."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rayroll.cli._kept import keeping
from rayroll.cli._refused import refused_lines
from rayroll.cli._results import Results
from rayroll.cli._settings import Given, settings
from rayroll.errors import unknown_name
from rayroll.executor import Executor, PlayConfig
from rayroll.policies import Policy
from rayroll.policies.oracle import OraclePolicy
from rayroll.policies.random import RandomPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.sinks import SinkWorker
from rayroll.sinks.console import ConsoleSink
from rayroll.sinks.jsonl import JsonlSink, finished_ids
from rayroll.tasks import load_pack
from rayroll.types import Rollout, Task

__all__ = ["run"]


def run(
    pack: Annotated[str, typer.Option(help="Pack of tasks, by name or folder.")] = "hello_shell",
    substrate: Annotated[str, typer.Option(help="Where sandboxes come from.")] = "local",
    policy: Annotated[
        str, typer.Option(help="oracle (the known fix), random, or nothing (submits at once).")
    ] = "oracle",
    task: Annotated[list[str] | None, typer.Option(help="Only these tasks.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Rollouts at once.")] = 4,
    max_steps: Annotated[int, typer.Option(min=1, help="Commands after which a rollout is truncated.")] = 50,
    given_settings: Given = None,
    keep: Annotated[
        str,
        typer.Option(
            help="never, on-failure or always: which sandboxes stay for `rayroll shell`. Failed is what has a failure, "
            "or a reward of 0 or less."
        ),
    ] = "never",
    keep_for: Annotated[str, typer.Option(help="How long, such as 45m, 2h; then they remove themselves.")] = "1h",
    keep_most: Annotated[int, typer.Option(min=1, help="At most so many at a time, of each substrate: the first.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Results folder; one that holds this run is resumed.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random policy and the sandboxes.")] = 0,
) -> None:
    """Play every task of a pack and say what each got. Exit code 1 when a rollout had no verdict."""
    loaded = load_pack(pack)
    tasks = [loaded.by_id(name) for name in task] if task else list(loaded.tasks)
    for reason in refused_lines(loaded.refused):
        typer.echo(f"refused {reason}", err=True)
    configs = settings(given_settings)
    question = {
        "pack": pack,
        "substrate": substrate,
        "policy": policy,
        "tasks": [t.id for t in tasks],
        "samples": samples,
        "max_steps": max_steps,
        "seed": seed,
        "settings": configs,
    }
    chosen = _policy(policy, tasks, seed)
    rules = PlayConfig(max_steps=max_steps, **keeping(keep, keep_for, keep_most, [substrate]))
    results = Results.open(out, "run", question)
    try:
        rollouts = asyncio.run(
            _play(results, substrate, configs.get(substrate, {}), tasks, chosen, samples, concurrency, rules, seed)
        )
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the same command with --out {results.folder} goes on from here", err=True)
        raise typer.Exit(130) from None
    invalid = [r for r in rollouts if not r.valid]
    for rollout in invalid:
        assert rollout.failure is not None
        typer.echo(f"{rollout.task_id}: {rollout.failure.fault}: {rollout.failure.reason}", err=True)
    typer.echo(f"results in {results.folder}", err=True)
    rewards = [r.reward for r in rollouts if r.reward is not None]
    line: dict[str, Any] = {"out": str(results.folder), "rollouts": len(rollouts), "invalid": len(invalid)}
    line["mean_reward"] = sum(rewards) / len(rewards) if rewards else None
    sys.stdout.write(json.dumps(line) + "\n")
    if invalid:
        raise typer.Exit(1)


def _policy(name: str, tasks: Sequence[Task], seed: int) -> Policy:
    if name == "oracle":
        return OraclePolicy(tasks)
    if name == "random":
        return RandomPolicy(seed)
    if name == "nothing":
        return ScriptedPolicy([])
    raise unknown_name("policy", name, ["oracle", "random", "nothing"])


async def _play(
    results: Results,
    substrate: str,
    substrate_config: Mapping[str, Any],
    tasks: Sequence[Task],
    policy: Policy,
    samples: int,
    concurrency: int,
    rules: PlayConfig,
    seed: int,
) -> list[Rollout]:
    done = finished_ids(results.rollouts)
    total = len(tasks) * samples
    sinks = [JsonlSink(results.rollouts), ConsoleSink(total=total, done=len(done), title="run", results=results.folder)]
    rollouts: list[Rollout] = []
    async with Executor(substrate, substrate_config=substrate_config, run_id=results.run_id) as executor:
        with SinkWorker(sinks) as worker:
            under_way = executor.submit(
                tasks,
                policy,
                samples_per_task=samples,
                max_in_flight=concurrency,
                config=rules,
                seed=seed,
                finished=done,
            )
            async for rollout in under_way.rollouts():
                await worker.put(rollout)
                rollouts.append(rollout)
    return rollouts
