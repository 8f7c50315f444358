"""Draws harmless commands at random: a floor for rewards, and noise for schedulers."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rayroll.types import Act, Turn

__all__ = ["RandomPolicy"]

COMMANDS = (
    "ls -la",
    "pwd",
    "env | sort | head",
    "cat README* 2>/dev/null | head -50",
    "true",
    "git status 2>&1 | head",
)


class RandomPolicy:
    """Equal seeds, tasks and samples give equal commands, in whatever order rollouts run."""

    def __init__(self, seed: int = 0, *, commands: Sequence[str] = COMMANDS, submit_probability: float = 0.1) -> None:
        self._seed = seed
        self._commands = tuple(commands)
        self._submit_probability = submit_probability

    async def act(self, turn: Turn) -> Act:
        """A command, or now and then the wish to submit."""
        draw = random.Random(f"{self._seed}/{turn.task_id}/{turn.sample_index}/{turn.index}")
        if draw.random() < self._submit_probability:
            return Act(submit=True)
        return Act(draw.choice(self._commands))
