"""Clean-up that a cancellation cannot cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["finish"]

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
