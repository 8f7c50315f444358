"""Clean-up that a cancellation cannot cut short, and that goes on behind its caller's back where it takes long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Chores", "finish"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end however often the caller is cancelled, then raise the cancellation.

    A second Ctrl-C, or a TaskGroup that gives up while a destroy is under way, must not leave a sandbox behind.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.cancelled() or task.exception()  # mark it as seen: the cancellation is what the caller hears
        raise cancelled
    return task.result()


class Chores:
    """Clean-up under way of one substrate.

    Args:
        failed: What is logged, with the reason, where one fails: nobody waits for it any more.
    """

    def __init__(self, failed: str) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin one."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def run(self, work: Coroutine[Any, Any, None], patience_s: float) -> None:
        """Begin one, and wait for its end, but not for longer than that; also when cancelled meanwhile."""
        await finish(_wait({self.start(work)}, patience_s))

    async def wait(self, patience_s: float) -> None:
        """Until all have ended, at most for so long."""
        if self._tasks:
            await _wait(self._tasks, patience_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("%s: %s", self._failed, error)


async def _wait(tasks: set[asyncio.Task[None]], patience_s: float) -> None:
    await asyncio.wait(tasks, timeout=patience_s)
