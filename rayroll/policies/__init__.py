"""Who acts: one file is one policy, found by its name or through the entry-point group ``rayroll.policies``."""

from __future__ import annotations

from typing import Protocol

from rayroll.types import Act, Turn

__all__ = ["Policy"]


class Policy(Protocol):
    """Chooses the next command of one rollout. One object serves many rollouts at the same time."""

    async def act(self, turn: Turn) -> Act:
        """Answer one observation.

        An error that is raised here ends the run: retries of an endpoint belong inside.
        """
