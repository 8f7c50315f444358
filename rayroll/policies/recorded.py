"""Runs the commands that an agent once ran, as they were: a stranger's, and so only where they are shut in.

This is a policy of its own, and no ``ScriptedPolicy``, because commands of that one count as rayroll's own and may run
without isolation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rayroll.policies.replay import ModelStep, ToolCall, acts, answer, stand_in_act
from rayroll.types import Act, Turn

__all__ = ["RecordedPolicy"]


class RecordedPolicy:
    """Acts sessions out like ``ReplayPolicy``, but where a call brings its command, that is run."""

    def __init__(self, sessions: Mapping[str, Sequence[ModelStep]]) -> None:
        """
        Args:
            sessions: Steps by task id.
        """
        self._acts = {task: acts(steps, _act) for task, steps in sessions.items()}

    async def act(self, turn: Turn) -> Act:
        """The turn's call, after the time that the model took for it; after the last one ``submit``."""
        return await answer(self._acts, turn)


def _act(call: ToolCall) -> Act:
    return stand_in_act(call) if call.command is None else Act(call.command, timeout_s=call.timeout_s)
