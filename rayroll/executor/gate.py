"""Where a paused run's rollouts wait before they ask the policy: a trainer swaps its weights while nobody generates."""

from __future__ import annotations

import asyncio
from typing import Literal

__all__ = ["Gate", "PauseMode"]

PauseMode = Literal["drain", "abort_turn"]
"""What becomes of answers that the policy is working on. ``drain``: they are waited for. ``abort_turn``: they are
cancelled, and the same turns are asked again when the run goes on."""


class Gate:
    """Open; or closed, and soon with nobody inside."""

    def __init__(self) -> None:
        self.policy_version: int | None = None
        """Of the policy that is asked now, as ``open`` was told; for turns."""
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._inside: set[asyncio.Timeout] = set()
        self._sent_out: set[asyncio.Timeout] = set()

    async def close(self, mode: PauseMode) -> None:
        """Let nobody in any more, and return when nobody is inside."""
        self._open.clear()
        if mode == "abort_turn":
            for limit in self._inside:
                self._sent_out.add(limit)
                limit.reschedule(asyncio.get_running_loop().time())
        while self._inside:
            self._empty.clear()
            await self._empty.wait()

    def open(self, policy_version: int | None = None) -> None:
        """Let everybody in; a version that is None stays what it was."""
        if policy_version is not None:
            self.policy_version = policy_version
        self._open.set()

    async def enter(self, limit: asyncio.Timeout) -> None:
        """Wait until the gate is open and be inside, to be sent out by way of ``limit``. ``leave`` it then."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside.add(limit)

    def leave(self, limit: asyncio.Timeout) -> None:
        """Be inside no more."""
        self._inside.discard(limit)
        if not self._inside:
            self._empty.set()

    def has_sent_out(self, limit: asyncio.Timeout) -> bool:
        """Whoever was inside under this limit was sent out, and is to come again. Asked once."""
        is_sent_out = limit in self._sent_out
        self._sent_out.discard(limit)
        return is_sent_out
