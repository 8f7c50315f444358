"""The main job: the same bug-fix rollouts on several substrates, and what the infrastructure of each costs."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayroll.cli._kept import keeping
from rayroll.cli._plan import Block, SweepConfig, blocks, cells, choose_tasks
from rayroll.cli._refused import refused_lines
from rayroll.cli._results import Results, in_job
from rayroll.cli._settings import Given, settings
from rayroll.cli.doctor import probe_all
from rayroll.errors import ConfigError, Failure
from rayroll.executor import Executor, PlayConfig
from rayroll.metrics import Context
from rayroll.policies.bugfix import BugfixPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.sinks import Sink, SinkWorker
from rayroll.sinks.console import ConsoleSink
from rayroll.sinks.jsonl import JsonlSink, finished_ids
from rayroll.tasks import load_pack
from rayroll.types import Task

if TYPE_CHECKING:
    from rayroll.sinks.wandb import WandbConfig

__all__ = ["sweep"]

logger = logging.getLogger(__name__)

SMOKE = {"actions": (10, 30), "concurrency": (1, 4), "rollouts": 8, "rounds": 2, "tasks": "spanset-*"}
"""The quick form: a few minutes on two cores, with the tasks that need no network."""


def sweep(
    substrates: Annotated[
        str | None, typer.Option(help="Comma-separated kinds. [local and docker, where this node runs them]")
    ] = None,
    actions: Annotated[str | None, typer.Option(help="Commands of a rollout, comma-separated. [10,50,150]")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Rollouts at once, comma-separated. [1,8]")] = None,
    rollouts: Annotated[int | None, typer.Option(help="Rollouts of each cell. [24]")] = None,
    target_rollouts: Annotated[int, typer.Option(help="Rollouts of the run that is projected.")] = 1_000_000,
    target_actions: Annotated[int, typer.Option(help="Commands of each of them.")] = 150,
    price_per_slot_hour: Annotated[float | None, typer.Option(help="For the cost, in any currency.")] = None,
    pack: Annotated[str, typer.Option(help="Pack of repo_fix tasks, by name or folder.")] = "repo_fix",
    tasks: Annotated[str | None, typer.Option(help="Pattern of task names to choose from. [*]")] = None,
    think_s: Annotated[float, typer.Option(help="Seconds of policy time per action, in place of a model.")] = 0.0,
    given_settings: Given = None,
    wandb: Annotated[str | None, typer.Option(help="offline, online or disabled. [online with a key]")] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="never, on-failure or always: which sandboxes stay for `rayroll shell`. Failed is what has a failure, "
            "or a reward of 0 or less."
        ),
    ] = "never",
    keep_for: Annotated[str, typer.Option(help="How long, such as 45m, 2h; then they remove themselves.")] = "1h",
    keep_most: Annotated[int, typer.Option(min=1, help="At most so many at a time, of each substrate: the first.")] = 8,
    out: Annotated[Path | None, typer.Option(help="Results folder; one that holds this sweep is resumed.")] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of tasks, the order of cells, and the bootstrap.")] = 0,
    smoke: Annotated[bool, typer.Option("--smoke", help="The quick form: small cells, tasks without network.")] = False,
) -> None:
    """Compare what substrates cost: cold start, overhead per action, share of infrastructure, worker-hours.

    Interrupt it when you like: the same command with the same --out goes on where it stopped.
    """
    given: dict[str, Any] = {
        "substrates": _names(substrates) if substrates is not None else _runnable(),
        "actions": _numbers("--actions", actions),
        "concurrency": _numbers("--concurrency", concurrency),
        "rollouts": rollouts,
        "target_rollouts": target_rollouts,
        "target_actions": target_actions,
        "price_per_slot_hour": price_per_slot_hour,
        "pack": pack,
        "tasks": tasks,
        "think_s": think_s,
        "settings": settings(given_settings),
        "seed": seed,
    }
    chosen = (SMOKE if smoke else {}) | {name: value for name, value in given.items() if value is not None}
    config = SweepConfig.parse(chosen, where="sweep")
    wandb_mode = _wandb_mode(wandb)
    kept = keeping(keep, keep_for, keep_most, config.substrates)
    results = Results.open(out, "sweep", config.model_dump(mode="json"))
    if in_job():
        os.chdir(results.folder)  # Ray may take away the folder that a job began in, and W&B asks for the current one
    try:
        problem = asyncio.run(_sweep(config, kept, results, wandb_mode))
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the same command with --out {results.folder} goes on from here", err=True)
        raise typer.Exit(130) from None
    if problem:
        typer.echo(f"rayroll: {problem}", err=True)
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} takes whole numbers separated by commas", given=text) from None


def _runnable() -> tuple[str, ...]:
    probes = asyncio.run(probe_all())
    able = tuple(kind for kind in ("local", "docker") if kind in probes and probes[kind].ok)
    for kind in ("local", "docker"):
        if kind not in able:
            reason, fix = probes[kind].reason, probes[kind].fix
            typer.echo(f"without {kind}: {reason}" + (f" (to have it: {fix})" if fix else ""), err=True)
    if not able:
        raise ConfigError("this node can run no sandbox", fix="rayroll doctor")
    return able


def _wandb_mode(text: str | None) -> str | None:
    if text is not None and text not in ("offline", "online", "disabled"):
        raise ConfigError("--wandb takes offline, online or disabled", given=text)
    return text


async def _sweep(config: SweepConfig, kept: Mapping[str, Any], results: Results, wandb_mode: str | None) -> str:
    """Returns what went wrong, "" if nothing did."""
    pack = load_pack(config.pack)
    for line in refused_lines(r for r in pack.refused if _matches(r.task_id, config)):
        typer.echo(f"refused {line}", err=True)
    tasks = choose_tasks(config, _matching(pack.tasks, config))
    done = finished_ids(results.rollouts)
    async with contextlib.AsyncExitStack() as stack:
        executors = {}
        for kind in config.substrates:
            executor = Executor(
                kind,
                substrate_config=config.settings.get(kind, {}),
                session={"first_action": True},
                run_id=results.run_id,
            )
            executors[kind] = await stack.enter_async_context(executor)
        tasks, aside = await _prepare(executors, tasks, results.prepared)
        for task_id, failure in aside.items():
            typer.echo(f"set aside {task_id}: {failure.reason}", err=True)
        if not tasks:
            return "no task can be run; see above"
        planned = blocks(config, tasks)
        sinks = _sinks(config, results, planned, len(done), wandb_mode)
        with SinkWorker(sinks) as worker:
            for block in planned:
                await _play(block, executors[block.cell.substrate], config, kept, done, worker)
        # Before the hosts are closed: Ray may remove a job's working folder, with this package in it, once its actors
        # are gone.
        return await asyncio.to_thread(_finish, config, results, wandb_mode)


def _matches(task_id: str, config: SweepConfig) -> bool:
    return fnmatch.fnmatch(task_id.partition("/")[2], config.tasks)


def _matching(tasks: Sequence[Task], config: SweepConfig) -> list[Task]:
    found = [task for task in tasks if _matches(task.id, config)]
    if not found:
        raise ConfigError("no task matches", pattern=config.tasks, pack=config.pack, tasks=[t.id for t in tasks][:8])
    return found


async def _prepare(
    executors: dict[str, Executor], tasks: list[Task], record: Path
) -> tuple[list[Task], dict[str, Failure]]:
    """Bring every task's root filesystem to every substrate, so that no measured rollout pays for it.

    What that took is kept in ``record``: pulls, builds and cold starts are seen there and nowhere else. A task that
    does not start somewhere, or whose untouched state passes its tests, is set aside everywhere.
    """
    aside: dict[str, Failure] = {}
    with SinkWorker([JsonlSink(record)]) as worker:
        for kind, executor in executors.items():
            typer.echo(f"preparing {len(tasks)} tasks on {kind}", err=True)
            run = executor.submit(tasks, ScriptedPolicy([]), max_in_flight=4, namespace="prepare", max_infra_retries=0)
            async for rollout in run.rollouts():
                await worker.put(rollout)
                if rollout.failure is not None and rollout.reward is None:
                    aside[rollout.task_id] = rollout.failure
                elif rollout.reward:
                    aside[rollout.task_id] = Failure("task", "its tests pass before anything is repaired", "not_broken")
    if aside and all(failure.fault == "infra" for failure in aside.values()) and len(aside) == len(tasks):
        raise ConfigError("nothing starts", reason=next(iter(aside.values())).reason)
    return [task for task in tasks if task.id not in aside], aside


def _sinks(
    config: SweepConfig, results: Results, planned: list[Block], done: int, wandb_mode: str | None
) -> list[Sink]:
    totals = {cell.id: config.rollouts for cell in cells(config)}
    sinks: list[Sink] = [
        JsonlSink(results.rollouts),
        ConsoleSink(
            total=sum(len(b.tasks) for b in planned),
            done=done,
            cell_totals=totals,
            title="sweep",
            results=results.folder,
        ),
    ]
    if wandb_mode != "disabled":
        from rayroll.sinks.wandb import WandbSink

        where = _wandb_config(results, wandb_mode)
        context = Context(
            target_rollouts=config.target_rollouts,
            target_actions=config.target_actions,
            price_per_slot_hour=config.price_per_slot_hour,
            seed=config.seed,
        )
        sinks.append(
            WandbSink(where, run_id=results.run_id, run_config=config.model_dump(mode="json"), context=context)
        )
    return sinks


async def _play(
    block: Block,
    executor: Executor,
    config: SweepConfig,
    kept: Mapping[str, Any],
    done: set[str],
    worker: SinkWorker,
) -> None:
    cell = block.cell
    run = executor.submit(
        block.tasks,
        BugfixPolicy(block.tasks, cell.actions, think_s=config.think_s),
        max_in_flight=cell.concurrency,
        config=PlayConfig(max_steps=cell.actions + 1, fingerprint=True, **kept),
        seed=config.seed,
        labels={
            "cell": cell.id,
            "substrate": cell.substrate,
            "actions": str(cell.actions),
            "concurrency": str(cell.concurrency),
            "block": str(block.round),
        },
        namespace=block.namespace,
        finished=done,
    )
    async for rollout in run.rollouts():
        await worker.put(rollout)


def _finish(config: SweepConfig, results: Results, wandb_mode: str | None) -> str:
    """Summary, report and the last line; returns what went wrong."""
    from rich.console import Console

    from rayroll.report import html, table

    html.write_report(results.folder)  # and the summary beside it
    made = json.loads(results.summary.read_bytes())
    # A file or a job's log has no width of its own, and rich would take 80 columns.
    Console(stderr=True, width=None if sys.stderr.isatty() else 140).print(table.comparison(made))
    typer.echo(f"results in {results.folder}: summary.json, rollouts.jsonl, report.html", err=True)
    if wandb_mode != "disabled":
        _log_comparison(config, results, wandb_mode, made)
    empty = [cell["cell"] for cell in made["cells"] if not cell["valid"]]
    sys.stdout.write(json.dumps({"out": str(results.folder), "cells": made["cells"], "spread": made["spreads"]}) + "\n")
    sys.stdout.flush()
    return f"cells without a valid rollout: {', '.join(empty)}" if empty else ""


def _wandb_config(results: Results, mode: str | None) -> WandbConfig:
    from rayroll.sinks.wandb import WandbConfig

    return WandbConfig.parse({"dir": str(results.folder), "mode": mode, "group": f"sweep-{results.run_id}"})


def _log_comparison(config: SweepConfig, results: Results, mode: str | None, made: dict[str, Any]) -> None:
    from rayroll.report import table
    from rayroll.sinks.wandb import log_report

    where = _wandb_config(results, mode)
    at = log_report(
        where,
        table.report_rows(made),
        group=where.group or results.run_id,
        summary=table.report_values(made),
        run_config=config.model_dump(mode="json"),
        html=results.report,
    )
    typer.echo(f"W&B: {at if at.startswith('http') else results.folder / 'wandb'}", err=True)
