"""What hosts have before it is needed, as the scheduler says: images, and idle sandboxes, which are taken down too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from rayroll.errors import HostLostError, RayrollError
from rayroll.executor.hosts import Hosts
from rayroll.executor.messages import Bring, CoolDown, WarmUp
from rayroll.scheduler import Event, Fetched, Warmed
from rayroll.types import Task

__all__ = ["IdleKeeper"]

logger = logging.getLogger(__name__)

START_S = 960.0
"""Longest start ahead of need, its image's pull and build included."""
END_S = 60.0


class IdleKeeper:
    """Does what the scheduler decides about images and idle sandboxes."""

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[Task, bool]] = {}
        self._in_need: dict[str, tuple[Task, bool]] = {}
        """A task for each image."""
        self._working: set[asyncio.Task[None]] = set()
        self._hosts: Hosts
        self._post: Callable[[Event], None]

    def open(self, hosts: Hosts, post: Callable[[Event], None]) -> None:
        """Before the first command."""
        self._hosts, self._post = hosts, post

    def know(self, task: Task, image: str | None, *, trusted: bool) -> None:
        """Sandboxes may be wanted for this task, on this image; a shape's name is its task's id."""
        self._tasks[task.id] = (task, trusted)
        if image is not None:
            self._in_need[image] = (task, trusted)

    def warm(self, host: str, shape: str) -> None:
        """See ``Keeper``."""
        self._begin(self._warm(host, shape))

    def cool(self, host: str, shape: str) -> None:
        """See ``Keeper``."""
        self._begin(self._cool(host, shape))

    def fetch(self, host: str, image: str) -> None:
        """See ``Keeper``."""
        self._begin(self._fetch(host, image))

    async def close(self) -> None:
        """Give up what is under way; the hosts end what they keep."""
        for work in self._working:
            work.cancel()
        if self._working:
            await asyncio.wait(self._working)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="idle sandbox")
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _warm(self, host: str, shape: str) -> None:
        task, trusted = self._tasks[shape]
        took_s, retry_after_s = None, None
        try:
            async with self._hosts.lend(host) as loan:
                message = WarmUp(await loan.link.teach(task), trusted)
                done = await loan.link.call(message, deadline_s=START_S)
            if done.error is not None:
                raise done.error
            if done.value is None:  # the scheduler had not heard of some
                self._post(Warmed(host, shape, None, is_full=True))
                return
            took_s = done.value
        except RayrollError as error:
            logger.warning("no sandbox could be started ahead of need: host=%s task=%s %s", host, shape, error)
            retry_after_s = error.facts.get("retry_after_s")
        self._post(Warmed(host, shape, took_s, retry_after_s))

    async def _cool(self, host: str, shape: str) -> None:
        task, trusted = self._tasks[shape]
        try:
            async with self._hosts.lend(host) as loan:
                await loan.link.call(CoolDown(await loan.link.teach(task), trusted), deadline_s=END_S)
        except RayrollError as error:
            logger.info("an idle sandbox is left to its host: host=%s %s", host, error)

    async def _fetch(self, host: str, image: str) -> None:
        task, trusted = self._in_need[image]
        is_there = is_put_off = False
        try:
            async with self._hosts.lend(host) as loan:
                done = await loan.link.call(Bring(await loan.link.teach(task), trusted), deadline_s=START_S)
            if done.error is not None:
                raise done.error
            is_there, is_put_off = done.value, not done.value
        except RayrollError as error:
            logger.warning("an image could not be brought ahead of need: host=%s image=%s %s", host, image, error)
            is_put_off = isinstance(error, HostLostError)
        self._post(Fetched(host, image, is_there, is_put_off))
