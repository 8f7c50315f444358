"""An attempt's hold on its sandbox: through one host, and through the next one where that dies.

A sandbox outlives its host by one lease. Within it another host of the same node takes it over, with whatever runs in
it: the driver has the ticket for that, from the host before. A command that was under way is not run again, and its
result is not lost: it has a number, by which its runner knows it. Grading begins anew, after all that ran is killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from rayroll._live import Ticket
from rayroll.errors import HostLostError
from rayroll.executor.hosts import Loan
from rayroll.executor.link import HostLink
from rayroll.executor.messages import Adopt, Close, Completion, Exec, Judge, Open
from rayroll.types import Task

__all__ = ["Grip"]

logger = logging.getLogger(__name__)


class Grip:
    """See the module. One attempt's."""

    def __init__(self, loan: Loan, task: Task, *, lease_s: float, left_s: Callable[[], float]) -> None:
        """It holds nothing yet.

        Args:
            loan: Where the host is, and who comes after it.
            task: What the sandbox is for.
            lease_s: How long a sandbox outlives its host.
            left_s: Says how many seconds are left to the rollout's deadline.
        """
        self._loan, self._task, self._lease_s, self._left_s = loan, task, lease_s, left_s
        self._open: Open | None = None
        self._ticket: Ticket | None = None
        self._under_way: int | None = None
        self._moving: asyncio.Task[None] | None = None
        self._tries = 0
        self.moves = 0
        """How often a host died and another one went on."""

    @property
    def link(self) -> HostLink:
        """To the host that has the sandbox now, or had it last."""
        return self._loan.link

    def hold(self, open: Open, ticket: Ticket | None) -> None:
        """There is a sandbox now; with a ticket it is followed from host to host."""
        self._open = open
        self._follow(ticket)

    def let_go(self) -> None:
        """Follow it no more. Idempotent."""
        self._ticket = None
        self.link.forget(self._on_lost)
        if self._moving is not None:
            self._moving.cancel()

    async def call(self, message: Exec | Judge | Close, *, deadline_s: float | None = None) -> Completion:
        """As ``HostLink.call``, of the host that has the sandbox.

        Raises:
            HostLostError: It is gone and no other took the sandbox over; or it took longer than ``deadline_s``.
            InfraFailure: The sandbox could not be taken over.
        """
        while True:
            if self._moving is not None:
                await asyncio.shield(self._moving)
            link = self.link
            self._under_way = message.number if isinstance(message, Exec) else None
            try:
                return await link.call(message, deadline_s=deadline_s)
            except HostLostError:
                if self._moving is None:
                    raise
            finally:
                self._under_way = None
            if isinstance(message, Judge):  # the tests may have begun to change what the agent left
                message = replace(message, fingerprint=False)

    def _follow(self, ticket: Ticket | None) -> None:
        self._ticket = ticket
        if ticket is not None:
            self.link.tell(self._on_lost)

    def _on_lost(self) -> None:
        # Called before whoever waits for an answer hears of it, so the command is still known.
        self._moving = asyncio.get_running_loop().create_task(self._move(self._under_way), name="move a sandbox")
        self._moving.add_done_callback(self._on_moved)

    def _on_moved(self, moving: asyncio.Task[None]) -> None:
        if moving.cancelled():
            return
        if (error := moving.exception()) is None:
            if self._moving is moving:  # else the next host was lost at once
                self._moving = None
        else:
            logger.warning("a sandbox was lost with its host: %s", error)

    async def _move(self, under_way: int | None) -> None:
        try:
            async with asyncio.timeout(self._lease_s):
                while not await self._is_adopted(under_way):
                    pass
        except TimeoutError:
            raise HostLostError("no other host took the sandbox over within its lease", lease_s=self._lease_s) from None
        self.moves += 1

    async def _is_adopted(self, under_way: int | None) -> bool:
        """Whether the next host has it; False: that one died as well."""
        assert self._open is not None and self._ticket is not None
        link = await self._loan.renew()
        # Each try says hello in a generation of its own: the runner heeds only the latest.
        resume = replace(self._ticket.resume, generation=self._ticket.resume.generation + self._tries)
        self._tries += 1
        try:
            opened = replace(self._open, task=await link.teach(self._task), deadline_s=self._left_s())
            done = await link.call(Adopt(opened, replace(self._ticket, resume=resume), under_way))
        except HostLostError:
            if not link.is_lost:
                raise
            return False
        if done.error is not None:
            raise done.error
        self._tries = 0
        self._follow(done.value)
        return True
