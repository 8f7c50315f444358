"""What the rollouts of a sweep do: repair bugs, or act out the sessions of a trace."""

from __future__ import annotations

import fnmatch
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rayroll.cli._plan import BUGFIX, SweepConfig, cells
from rayroll.cli._refused import refused_lines
from rayroll.errors import ConfigError, unknown_name
from rayroll.policies import Policy
from rayroll.policies.bugfix import BugfixPolicy
from rayroll.policies.recorded import RecordedPolicy
from rayroll.policies.replay import ReplayPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.tasks import load_pack
from rayroll.types import Task

if TYPE_CHECKING:
    from rayroll.traces.workload import Pace, Workload

__all__ = ["BugfixWork", "TraceWork", "Work", "given_only", "present", "read_trace", "trace_source"]

TRACELAB = "tracelab"


class Work(ABC):
    """Tasks, and who acts on them."""

    tasks: Sequence[Task]
    """To choose from."""
    starts_solved = False
    """Whether tests may pass before anything is done."""

    def to_prepare(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Those that bring everything to a node that any of them needs."""
        return tasks

    def without(self, tasks: Sequence[Task], aside: Collection[str]) -> list[Task]:
        """Those that are left where some of the prepared ones were set aside."""
        return [task for task in tasks if task.id not in aside]

    def idle_policy(self) -> Policy:
        """Submits at once."""
        return ScriptedPolicy([])

    @abstractmethod
    def policy(self, tasks: Sequence[Task], actions: int, think_s: float) -> Policy:
        """Who plays a cell's block."""

    @abstractmethod
    def most_actions(self, actions: int) -> int:
        """Most commands of a rollout in a cell of so many."""


class BugfixWork(Work):
    """The tasks of a pack, each repaired in as many commands as its cell says."""

    def __init__(self, config: SweepConfig) -> None:
        """Raises ConfigError when no task of the pack matches."""
        pack = load_pack(config.pack)
        for line in refused_lines(r for r in pack.refused if _matches(r.task_id, config)):
            typer.echo(f"refused {line}", err=True)
        self.tasks = [task for task in pack.tasks if _matches(task.id, config)]
        if not self.tasks:
            known = [task.id for task in pack.tasks][:8]
            raise ConfigError("no task matches", pattern=config.tasks, pack=config.pack, tasks=known)

    def policy(self, tasks: Sequence[Task], actions: int, think_s: float) -> Policy:
        return BugfixPolicy(tasks, actions, think_s=think_s)

    def most_actions(self, actions: int) -> int:
        return actions


def _matches(task_id: str, config: SweepConfig) -> bool:
    return fnmatch.fnmatch(task_id.partition("/")[2], config.tasks)


class TraceWork(Work):
    """Sessions of a trace. They all stand on one image, and there is nothing to solve."""

    starts_solved = True

    def __init__(self, workload: Workload, pace: Pace, image: str | None = None) -> None:
        from rayroll.traces.workload import IMAGE, task_of

        self.workload = workload
        self.pace = pace
        self.image = image or IMAGE
        self.tasks = [task_of(session, image=self.image) for session in workload.sessions]
        self._steps = {session.task_id: session.steps for session in workload.sessions}

    def question(self) -> dict[str, Any]:
        """What a results folder is about. A file is named without its folder: reports show this."""
        actions = self.workload.actions
        return {
            "workload": TRACELAB if self.workload.source == TRACELAB else f"trace:{self.workload.source}",
            "trace": {**self.workload.facts(), "pace": asdict(self.pace), "image": self.image},
            "actions": (max(1, round(sum(actions) / len(actions))),),
        }

    def to_prepare(self, tasks: Sequence[Task]) -> Sequence[Task]:
        return tasks[:1]

    def without(self, tasks: Sequence[Task], aside: Collection[str]) -> list[Task]:
        return [] if aside else list(tasks)

    def idle_policy(self) -> Policy:
        # Of the kind that will play: where recorded commands may not run, that is to be seen before anything is.
        nothing: dict[str, tuple[()]] = {task.id: () for task in self.tasks}
        return RecordedPolicy(nothing) if self.workload.commands else ReplayPolicy(nothing)

    def policy(self, tasks: Sequence[Task], actions: int, think_s: float) -> Policy:
        return RecordedPolicy(self._steps) if self.workload.commands else ReplayPolicy(self._steps)

    def most_actions(self, actions: int) -> int:
        return max(self.workload.actions)

    def note_leg(self, folder: Path, cell: str, began_s: float, in_slot_s: float) -> None:
        """Keep how long a block took, for the concurrency it reached; ``began_s`` by ``time.monotonic``."""
        from rayroll.traces.slowdown import Leg

        leg = Leg(cell, time.monotonic() - began_s, in_slot_s)
        with (folder / "legs.jsonl").open("a") as file:
            file.write(json.dumps(asdict(leg)) + "\n")

    def compared(self, folder: Path, config: SweepConfig) -> list[dict[str, Any]]:
        """The replay in a results folder against its recording, which is also written there, as ``replay.json``."""
        from rayroll.record import read_rollouts
        from rayroll.traces.slowdown import Leg, Recorded, compare

        legs = folder / "legs.jsonl"
        lines = legs.read_text().splitlines() if legs.exists() else []
        found = compare(
            read_rollouts(folder / "rollouts.jsonl"),
            {session.task_id: Recorded(session.think_s, session.tool_s) for session in self.workload.sessions},
            legs=[Leg(**json.loads(line)) for line in lines],
            target_rollouts=config.target_rollouts,
            seed=config.seed,
        )
        place = {cell.id: number for number, cell in enumerate(cells(config))}
        found.sort(key=lambda cell: place.get(cell["cell"], len(place)))
        told = {
            "workload": config.workload,
            "trace": config.trace,
            "session_ids": {session.task_id: session.session_id for session in self.workload.sessions},
            "cells": found,
        }
        (folder / "replay.json").write_text(json.dumps(told, indent=2) + "\n")
        return found


def trace_source(workload: str) -> str | None:
    """The file of ``trace:FILE``, or ``tracelab``; None: the bug-fix workload.

    Raises:
        ConfigError: It is no workload.
    """
    kind, colon, file = workload.partition(":")
    if workload in (BUGFIX, TRACELAB):
        return None if workload == BUGFIX else TRACELAB
    if kind == "trace" and colon and file:
        return file
    if Path(workload).exists():
        raise ConfigError(f"unknown workload {workload!r}", fix=f"trace:{workload}")
    raise unknown_name("workload", workload, [BUGFIX, TRACELAB, "trace:FILE"])


def read_trace(
    source: str,
    *,
    sessions: int | None,
    seed: int,
    pace: Mapping[str, Any],
    image: str | None = None,
    recorded_commands: bool = False,
) -> TraceWork:
    """The sessions of a file, or of ``tracelab``, and what is said of them. Raises ConfigError as ``playable.read``."""
    from rayroll.traces.playable import read
    from rayroll.traces.workload import Pace

    asked = Pace(**pace)
    workload = read(source, sessions=sessions, seed=seed, pace=asked, recorded_commands=recorded_commands)
    typer.echo(workload.sentence(), err=True)
    return TraceWork(workload, asked, image)


def given_only(options: Mapping[str, Any], why: str) -> None:
    """Raises ConfigError when one of these options was given, which mean nothing here."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(f"{', '.join(given)}: {why}")


def present(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value is not None}
