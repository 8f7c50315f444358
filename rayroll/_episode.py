"""What a single environment and one of many say alike: which task an episode is about, and the facts of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rayroll.errors import ConfigError, Failure, unknown_name
from rayroll.session import MOST_COMMAND_BYTES, SessionConfig
from rayroll.spaces import UnicodeText
from rayroll.tasks import Pack, load_pack
from rayroll.types import CommandTiming, ExecResult, Task

__all__ = ["MOST_OBSERVATION", "TaskChoice", "command_info", "failure_info", "spaces"]

MOST_OBSERVATION = 1 << 20
"""Room for an instruction or a command's kept output, in characters; output is capped far below it."""


class TaskChoice:
    """The tasks that episodes are about: those of a pack, or given ones."""

    def __init__(self, pack: str | None, tasks: Sequence[Task] | None) -> None:
        """Raises ConfigError: neither or both are given, the pack is unknown, or there is no task."""
        if (pack is None) == (tasks is None):
            raise ConfigError("give either a pack or tasks")
        self._pack: Pack | None = load_pack(pack) if pack is not None else None
        self.tasks = tuple(self._pack.tasks if self._pack is not None else tasks or ())
        if not self.tasks:
            raise ConfigError("there is no task to choose from", pack=pack)

    def choose(self, rng: np.random.Generator, options: dict[str, Any]) -> Task:
        """At random, or as ``options={"task": id}`` says. Raises ConfigError: no such task or option."""
        unknown = set(options) - {"task"}
        if unknown:
            raise unknown_name("reset option", sorted(unknown)[0], ["task"])
        if "task" not in options:
            return self.tasks[int(rng.integers(len(self.tasks)))]
        wanted = str(options["task"])
        if self._pack is not None:
            return self._pack.by_id(wanted)
        for task in self.tasks:
            if task.id == wanted:
                return task
        raise unknown_name("task", wanted, (task.id for task in self.tasks))


def spaces(config: SessionConfig) -> tuple[UnicodeText, UnicodeText]:
    """Of actions and of observations."""
    most_characters = max(MOST_OBSERVATION, config.output_cap_bytes + 4096)  # notes and the cut's own line
    return UnicodeText(MOST_COMMAND_BYTES), UnicodeText(most_characters)


def command_info(result: ExecResult) -> dict[str, Any]:
    """The facts of a command, for ``info``: new objects at every call, as Gymnasium wants them."""
    # Floats stay floats and absent facts stay absent: Gymnasium's vector infos take the first env's types for all.
    info: dict[str, Any] = {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "truncated_bytes": max(0, result.output_bytes - len(result.raw)),
        "state_saved": result.state_saved,
        "timing_s": _seconds(result.timing),
    }
    if result.notice:
        info["notice"] = result.notice
    return info


def failure_info(failure: Failure) -> dict[str, str]:
    """Why an episode ended, for ``info``."""
    return {"fault": failure.fault, "reason": failure.reason, "error": failure.error}


def _seconds(timing: CommandTiming) -> dict[str, float]:
    return {
        "run": timing.run_ns / 1e9,
        "spawn": (timing.queued_ns + timing.spawn_ns) / 1e9,
        "drain": timing.drain_ns / 1e9,
        "transport": max(0, timing.round_trip_ns - timing.busy_ns) / 1e9,
    }
