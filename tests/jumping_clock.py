"""A clock for simulated sandboxes, whose hours take no time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any


class JumpingClock:
    """Jumps to the next call that is due whenever nothing else is left to do."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, JumpingClock.Call]] = []
        self._numbers = itertools.count()

    class Call:
        def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
            self.callback, self.args, self.cancelled = callback, args, False

        def cancel(self) -> None:
            self.cancelled = True

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> JumpingClock.Call:
        call = self.Call(callback, args)
        heapq.heappush(self._due, (self.now_s + delay, next(self._numbers), call))
        return call

    async def jump(self) -> None:
        while True:
            for _ in range(50):  # let everybody do what they can without time
                await asyncio.sleep(0)
            if self._due:
                self.now_s, _, call = heapq.heappop(self._due)
                if not call.cancelled:
                    call.callback(*call.args)
