"""One pull, build or export however many want its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["SingleFlight"]

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Callers that ask for the same key at the same time share one run of the work, and its result or error.

    A caller that is cancelled leaves the others alone; when the last one leaves, the work is cancelled.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, tuple[asyncio.Task[T], list[None]]] = {}

    async def __call__(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of ``start()``, or of the run for ``key`` that is under way."""
        if key not in self._flights:
            self._flights[key] = (asyncio.ensure_future(start()), [])
        task, waiting = self._flights[key]
        waiting.append(None)
        try:
            return await asyncio.shield(task)
        finally:
            waiting.pop()
            if not waiting:
                self._flights.pop(key, None)
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
