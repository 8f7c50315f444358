"""Plays commands that were written down beforehand, the same on every substrate: for tests, sweeps and known fixes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from rayroll.errors import ConfigError
from rayroll.types import Act, Turn

__all__ = ["ScriptedPolicy"]


class ScriptedPolicy:
    """The n-th turn of a task gets the n-th command of its script, and after the last one ``submit``."""

    def __init__(
        self,
        script: Sequence[str] | Mapping[str, Sequence[str]] | Callable[[str], Sequence[str]],
        *,
        submit: bool = True,
        think_s: float = 0.0,
    ) -> None:
        """
        Args:
            script: Commands for every task, or by task id.
            submit: Submit after the last command; False: repeat ``true`` until a limit ends the rollout.
            think_s: Seconds to wait before each answer, in place of a model's generation.

        Raises:
            ConfigError: The script is one string, whose letters would be commands.
        """
        if isinstance(script, str):
            raise ConfigError("a script is a list of commands, not one string", script=script)
        self._script = script
        self._submit = submit
        self._think_s = think_s

    async def act(self, turn: Turn) -> Act:
        """The turn's command. Raises ConfigError for a task without a script."""
        if self._think_s:
            await asyncio.sleep(self._think_s)
        commands = self._commands(turn.task_id)
        if turn.index < len(commands):
            return Act(commands[turn.index])
        return Act(submit=True) if self._submit else Act("true")

    def _commands(self, task_id: str) -> Sequence[str]:
        if callable(self._script):
            return self._script(task_id)
        if isinstance(self._script, Mapping):
            if task_id not in self._script:
                raise ConfigError("there is no script for this task", task=task_id)
            return self._script[task_id]
        return self._script
