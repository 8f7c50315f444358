"""The main job: the same rollouts on several substrates, and what the infrastructure of each costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from rayroll.cli._kept import keeping
from rayroll.cli._plan import BUGFIX, SweepConfig
from rayroll.cli._replayed import HumanWaits, MaxCall, MaxSteps, ThinkScale, ToolScale
from rayroll.cli._results import Results
from rayroll.cli._settings import Given, settings
from rayroll.cli._sweeping import play
from rayroll.cli._work import TraceWork, given_only, present, read_trace, trace_source
from rayroll.cli.doctor import probe_all
from rayroll.errors import ConfigError

__all__ = ["sweep"]

SMOKE: dict[str, Any] = {"actions": (10, 30), "concurrency": (1, 4), "rollouts": 8, "rounds": 2, "tasks": "spanset-*"}
"""The quick form: a few minutes on two cores, with the tasks that need no network."""
SMOKE_OF_TRACE: dict[str, Any] = {"concurrency": (1, 4), "rollouts": 8, "rounds": 2}
SMOKE_PACE: dict[str, Any] = {"think_scale": 0.05, "tool_scale": 0.25, "max_call_s": 2.0, "max_steps": 8}
"""Of a trace: the beginnings of a few sessions, with short waits."""


def sweep(
    substrates: Annotated[
        str | None, typer.Option(help="Comma-separated kinds. [local and docker, where this node runs them]")
    ] = None,
    actions: Annotated[str | None, typer.Option(help="Commands of a rollout, comma-separated. [10,50,150]")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Rollouts at once, comma-separated. [1,8]")] = None,
    rollouts: Annotated[int | None, typer.Option(help="Rollouts of each cell. [24]")] = None,
    target_rollouts: Annotated[int, typer.Option(help="Rollouts of the run that is projected.")] = 1_000_000,
    target_actions: Annotated[
        int | None, typer.Option(help="Commands of each of them. [150; of a trace: as recorded]")
    ] = None,
    price_per_slot_hour: Annotated[float | None, typer.Option(help="For the cost, in any currency.")] = None,
    workload: Annotated[
        str,
        typer.Option(
            help="bugfix; tracelab (made-up sessions with the published statistics); trace:FILE (rows or a store). "
            "A trace's session is a rollout, with a command for each of its tool calls."
        ),
    ] = BUGFIX,
    pack: Annotated[str | None, typer.Option(help="Pack of repo_fix tasks, by name or folder. [repo_fix]")] = None,
    tasks: Annotated[str | None, typer.Option(help="Pattern of task names to choose from. [*]")] = None,
    think_s: Annotated[
        float | None, typer.Option(help="Seconds of policy time per action, in place of a model. [0]")
    ] = None,
    think_scale: ThinkScale = None,
    tool_scale: ToolScale = None,
    human_waits: HumanWaits = None,
    max_call_s: MaxCall = None,
    max_steps: MaxSteps = None,
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
    source = trace_source(workload)
    of_trace = {
        "think_scale": think_scale,
        "tool_scale": tool_scale,
        "human_waits": human_waits,
        "max_call_s": max_call_s,
        "max_steps": max_steps,
    }
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
    traced: TraceWork | None = None
    if source is None:
        given_only(of_trace, "these go with --workload tracelab or trace:FILE")
        chosen = (SMOKE if smoke else {}) | present(given)
    else:
        bugfix = {"actions": actions, "pack": pack, "tasks": tasks, "think_s": think_s}
        given_only(bugfix, "a trace has its own actions and think times; see --max-steps and --think-scale")
        chosen = (SMOKE_OF_TRACE if smoke else {}) | present(given)
        pace = (SMOKE_PACE if smoke else {}) | present(of_trace)
        traced = read_trace(source, sessions=int(chosen.get("rollouts", 24)), seed=seed, pace=pace)
        chosen |= traced.question() | {"target_actions": target_actions}
    config = SweepConfig.parse(chosen, where="sweep")
    wandb_mode = _wandb_mode(wandb)
    kept = keeping(keep, keep_for, keep_most, config.substrates)
    results = Results.open(out, "sweep", config.question())
    play(config, traced, kept, results, wandb_mode)


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
