"""Sessions of a trace as rollouts: think, call, and say how much longer that took than when it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rayroll.cli._replayed import HumanWaits, MaxCall, MaxSteps, ThinkScale, ToolScale
from rayroll.cli._settings import Given, settings
from rayroll.errors import ConfigError, unknown_name

__all__ = ["replay"]

_STAND_IN, _RECORDED = "stand-in", "recorded"


def replay(
    source: Annotated[
        str, typer.Argument(metavar="TRACE", help="Rows, a store, rollouts.jsonl; or tracelab: made-up sessions.")
    ],
    substrate: Annotated[str, typer.Option(help="Where sandboxes come from; several, comma-separated.")] = "local",
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 4,
    sessions: Annotated[int | None, typer.Option(min=1, help="So many, drawn by the seed. [all; 20 made up]")] = None,
    commands: Annotated[
        str,
        typer.Option(
            help="stand-in: what takes and prints as much. recorded: the shell commands themselves, where rows have "
            "them and sandboxes are shut off from their node."
        ),
    ] = "stand-in",
    image: Annotated[str | None, typer.Option(help="What sandboxes stand on, for recorded commands. [Debian]")] = None,
    think_scale: ThinkScale = None,
    tool_scale: ToolScale = None,
    human_waits: HumanWaits = None,
    max_call_s: MaxCall = None,
    max_steps: MaxSteps = None,
    target_rollouts: Annotated[int, typer.Option(min=1, help="Sessions of the run that is projected.")] = 1_000_000,
    given_settings: Given = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; one that holds this replay is resumed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of sessions, and of made-up ones.")] = 0,
) -> None:
    """Act recorded sessions out in sandboxes: slowdown against the recording, the tax by phase, worker-hours.

    Interrupt it when you like: the same command with the same --out goes on where it stopped.
    """
    # Executors bring Ray, which the other commands for traces do without.
    from rayroll.cli._plan import SweepConfig
    from rayroll.cli._results import Results
    from rayroll.cli._sweeping import play
    from rayroll.cli._work import present, read_trace
    from rayroll.substrates import load

    if commands not in (_STAND_IN, _RECORDED):
        raise unknown_name("--commands", commands, [_STAND_IN, _RECORDED])
    kinds = tuple(dict.fromkeys(name.strip() for name in substrate.split(",") if name.strip()))
    fields = settings(given_settings)
    for kind in kinds:
        load(kind)
        if commands == _RECORDED:
            _refuse_where_nothing_shuts_in(kind, fields.get(kind, {}))
    pace = {
        "think_scale": think_scale,
        "tool_scale": tool_scale,
        "human_waits": human_waits,
        "max_call_s": max_call_s,
        "max_steps": max_steps,
    }
    work = read_trace(
        source.removeprefix("trace:"),
        sessions=sessions,
        seed=seed,
        pace=present(pace),
        image=image,
        recorded_commands=commands == _RECORDED,
    )
    count = len(work.tasks)
    question = {
        "substrates": kinds,
        "concurrency": (concurrency,),
        "rollouts": count,
        "most_tasks": count,
        "rounds": 1,
        "target_rollouts": target_rollouts,
        "target_actions": None,
        "settings": fields,
        "seed": seed,
        **work.question(),
    }
    config = SweepConfig.parse(question, where="replay")
    results = Results.open(out, "replay", config.question())
    play(config, work, {}, results, "disabled", "replay")


def _refuse_where_nothing_shuts_in(kind: str, fields: Mapping[str, Any]) -> None:
    """Raises ConfigError where recorded commands would reach the node, or nothing would run them at all."""
    if kind == "local" and fields.get("isolation") == "none":
        raise ConfigError(
            "recorded commands run only where they are shut in, and local.isolation is none",
            fix="leave it out, where bubblewrap works; or another substrate; or stand-ins",
        )
    if kind == "simulated":
        raise ConfigError("nothing runs on the substrate 'simulated'", fix="--commands stand-in, or another substrate")
