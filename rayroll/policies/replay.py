"""Acts a recorded session out: thinks as long as the model did, then calls what takes and prints as much as its tools.

A stand-in is one small command of ours: it sleeps and prints, and does nothing else. It costs no CPU where the real
command did, so that a replay loads a machine less than the recorded work would.

The calls of one step go one after another, each an action of its own, also where they ran side by side when they were
recorded. A session's ``exec`` could take several at the same time, but a turn is one command (``Act``), and that is
right here: every call makes its own trip to the sandbox, which is what a replay measures; directory and variables that
one call leaves are there for the next, in the order of the record; and the recorded time of a step's calls is their sum
(``tool_effective_latency``: attributed work, not elapsed time), so that a replay and its recording are the same parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rayroll.errors import ConfigError
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.types import Act, Turn

__all__ = ["MOST_OUTPUT_BYTES", "ModelStep", "ReplayPolicy", "ToolCall", "acts", "answer", "stand_in", "stand_in_act"]

MOST_OUTPUT_BYTES = 16 << 20
"""A stand-in prints no more: no ``exec`` keeps more (``SessionConfig.output_cap_bytes``)."""
SPARE_S = 120.0
"""What a stand-in may take beyond its sleep: a machine may be slow, or emulated."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool."""

    duration_s: float
    output_bytes: int
    command: str | None = None
    """What was run, where that is known and asked for; None: a stand-in."""
    timeout_s: float | None = None
    """Limit of the command; a stand-in brings its own."""


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One call of the model: how long it was waited for, and what it called."""

    think_s: float
    calls: tuple[ToolCall, ...] = ()


class ReplayPolicy(ScriptedPolicy):
    """Plays stand-ins for every call, whatever is known of it: commands of ours, which run wherever scripts do."""

    def __init__(self, sessions: Mapping[str, Sequence[ModelStep]]) -> None:
        """
        Args:
            sessions: Steps by task id.
        """
        self._acts = {task: acts(steps, stand_in_act) for task, steps in sessions.items()}
        super().__init__({task: [act.command for _, act in acted[:-1]] for task, acted in self._acts.items()})

    async def act(self, turn: Turn) -> Act:
        """The turn's call, after the time that the model took for it; after the last one ``submit``."""
        return await answer(self._acts, turn)


async def answer(played: Mapping[str, Sequence[tuple[float, Act]]], turn: Turn) -> Act:
    """Waits and answers with what the turn's task has there. Raises ConfigError for a task without a session."""
    if turn.task_id not in played:
        raise ConfigError("there is no session for this task", task=turn.task_id)
    acted = played[turn.task_id]
    think_s, act = acted[min(turn.index, len(acted) - 1)]
    if think_s > 0:
        await asyncio.sleep(think_s)
    return act


def acts(steps: Sequence[ModelStep], act_of: Callable[[ToolCall], Act]) -> list[tuple[float, Act]]:
    """Seconds to think and the act after them, call by call; the last is ``submit``.

    A step that calls nothing leaves its time to the next act.
    """
    made: list[tuple[float, Act]] = []
    think_s = 0.0
    for step in steps:
        think_s += step.think_s
        for call in step.calls:
            made.append((think_s, act_of(call)))
            think_s = 0.0
    return [*made, (think_s, Act(submit=True))]


def stand_in_act(call: ToolCall) -> Act:
    """What is played where a call's own command is not."""
    return Act(stand_in(call.duration_s, call.output_bytes), timeout_s=call.duration_s + SPARE_S)


def stand_in(duration_s: float, output_bytes: int) -> str:
    """A command that takes so long, to a millisecond, and prints so many bytes; any POSIX shell runs it.

    ``printf`` is a builtin wherever ``sh`` is dash, bash or busybox: the only process is ``sleep``. What starting that
    takes, about a millisecond, comes on top.
    """
    parts = []
    if (millis := round(duration_s * 1000)) > 0:
        parts.append(f"sleep {millis // 1000}.{millis % 1000:03}")
    if (count := min(output_bytes, MOST_OUTPUT_BYTES)) > 0:
        parts.append(f"printf %0{count}d 0")
    return "; ".join(parts) or ":"
