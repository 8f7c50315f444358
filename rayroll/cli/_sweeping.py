"""A sweep under way: cells played block by block on their substrates, and what came of them written and printed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rayroll.cli._plan import Block, SweepConfig, blocks, cells, choose_tasks
from rayroll.cli._replayed import replay_tables
from rayroll.cli._results import Results, in_job
from rayroll.cli._work import BugfixWork, TraceWork, Work
from rayroll.errors import ConfigError, Failure
from rayroll.executor import Executor, PlayConfig
from rayroll.metrics import Context
from rayroll.metrics.shares import in_slot_s
from rayroll.sinks import Sink, SinkWorker
from rayroll.sinks.console import ConsoleSink
from rayroll.sinks.jsonl import JsonlSink, finished_ids
from rayroll.types import Task

if TYPE_CHECKING:
    from rayroll.sinks.wandb import WandbConfig

__all__ = ["play"]


def play(
    config: SweepConfig,
    traced: TraceWork | None,
    kept: Mapping[str, Any],
    results: Results,
    wandb_mode: str | None,
    title: str = "sweep",
) -> None:
    """Play all cells, or those that a resumed results folder lacks, and write and print what came of it.

    Args:
        config: What is asked.
        traced: The sessions to play; None: the bug-fix workload.
        kept: Fields of ``PlayConfig`` for sandboxes that stay.
        results: The folder.
        wandb_mode: offline, online, disabled; None: online with a key.
        title: Stands in front of the progress.

    Raises:
        Exit: With 1 where a cell has no valid rollout, with 130 when interrupted.
        ConfigError: No task matches, or nothing starts.
    """
    if in_job():
        os.chdir(results.folder)  # Ray may take away the folder that a job began in, and W&B asks for the current one
    try:
        problem = asyncio.run(_sweep(config, traced or BugfixWork(config), kept, results, wandb_mode, title))
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the same command with --out {results.folder} goes on from here", err=True)
        raise typer.Exit(130) from None
    if problem:
        typer.echo(f"rayroll: {problem}", err=True)
        raise typer.Exit(1)


async def _sweep(
    config: SweepConfig, work: Work, kept: Mapping[str, Any], results: Results, wandb_mode: str | None, title: str
) -> str:
    """Returns what went wrong, "" if nothing did."""
    tasks = choose_tasks(config, work.tasks)
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
        aside = await _prepare(executors, work, tasks, results.prepared)
        tasks = work.without(tasks, aside)
        for task_id, failure in aside.items():
            typer.echo(f"set aside {task_id}: {failure.reason}", err=True)
        if not tasks:
            return "no task can be run; see above"
        planned = blocks(config, tasks)
        sinks = _sinks(config, results, planned, len(done), wandb_mode, title)
        with SinkWorker(sinks) as worker:
            for block in planned:
                executor = executors[block.cell.substrate]
                await _play(block, executor, config, work, kept, done, worker, results.folder)
        # Before the hosts are closed: Ray may remove a job's working folder, with this package in it, once its actors
        # are gone.
        return await asyncio.to_thread(_finish, config, work, results, wandb_mode)


async def _prepare(
    executors: dict[str, Executor], work: Work, tasks: Sequence[Task], record: Path
) -> dict[str, Failure]:
    """Bring every task's root filesystem to every substrate, so that no measured rollout pays for it.

    What that took is kept in ``record``: pulls, builds and cold starts are seen there and nowhere else. A task that
    does not start somewhere, or whose untouched state passes its tests, is set aside everywhere.
    """
    aside: dict[str, Failure] = {}
    tasks = work.to_prepare(tasks)
    with SinkWorker([JsonlSink(record)]) as worker:
        for kind, executor in executors.items():
            typer.echo(f"preparing {len(tasks)} tasks on {kind}", err=True)
            run = executor.submit(tasks, work.idle_policy(), max_in_flight=4, namespace="prepare", max_infra_retries=0)
            async for rollout in run.rollouts():
                await worker.put(rollout)
                if rollout.failure is not None and rollout.reward is None:
                    aside[rollout.task_id] = rollout.failure
                elif rollout.reward and not work.starts_solved:
                    aside[rollout.task_id] = Failure("task", "its tests pass before anything is repaired", "not_broken")
    if aside and all(failure.fault == "infra" for failure in aside.values()) and len(aside) == len(tasks):
        raise ConfigError("nothing starts", reason=next(iter(aside.values())).reason)
    return aside


def _sinks(
    config: SweepConfig, results: Results, planned: list[Block], done: int, wandb_mode: str | None, title: str
) -> list[Sink]:
    totals = {cell.id: config.rollouts for cell in cells(config)}
    sinks: list[Sink] = [
        JsonlSink(results.rollouts),
        ConsoleSink(
            total=sum(len(b.tasks) for b in planned),
            done=done,
            cell_totals=totals,
            title=title,
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
        sinks.append(WandbSink(where, run_id=results.run_id, run_config=config.question(), context=context))
    return sinks


async def _play(
    block: Block,
    executor: Executor,
    config: SweepConfig,
    work: Work,
    kept: Mapping[str, Any],
    done: set[str],
    worker: SinkWorker,
    folder: Path,
) -> None:
    cell = block.cell
    began_s, in_slots_s = time.monotonic(), 0.0
    run = executor.submit(
        block.tasks,
        work.policy(block.tasks, cell.actions, config.think_s),
        max_in_flight=cell.concurrency,
        config=PlayConfig(max_steps=work.most_actions(cell.actions) + 1, fingerprint=True, **kept),
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
    try:
        async for rollout in run.rollouts():
            await worker.put(rollout)
            in_slots_s += in_slot_s(rollout)
    finally:
        if isinstance(work, TraceWork) and in_slots_s:
            work.note_leg(folder, cell.id, began_s, in_slots_s)


def _finish(config: SweepConfig, work: Work, results: Results, wandb_mode: str | None) -> str:
    """Summary, report and the last line; returns what went wrong."""
    from rich.console import Console

    from rayroll.report import html, table

    html.write_report(results.folder)  # and the summary beside it
    made = json.loads(results.summary.read_bytes())
    # A file or a job's log has no width of its own, and rich would take 80 columns.
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
    console.print(table.comparison(made))
    line: dict[str, Any] = {"out": str(results.folder), "cells": made["cells"], "spread": made["spreads"]}
    if isinstance(work, TraceWork):
        line["replay"] = work.compared(results.folder, config)
        for shown in replay_tables(line["replay"]):
            console.print(shown)
    typer.echo(f"results in {results.folder}: summary.json, rollouts.jsonl, report.html", err=True)
    if wandb_mode != "disabled":
        _log_comparison(config, results, wandb_mode, made)
    empty = [cell["cell"] for cell in made["cells"] if not cell["valid"]]
    sys.stdout.write(json.dumps(line) + "\n")
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
        run_config=config.question(),
        html=results.report,
    )
    typer.echo(f"W&B: {at if at.startswith('http') else results.folder / 'wandb'}", err=True)
