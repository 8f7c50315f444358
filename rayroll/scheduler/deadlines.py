"""Who has waited too long: one deadline for each attempt, moved at every turn, looked at only when the first is due."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """A deadline for each of many keys.

    Moving one further away, as every turn does, costs a dictionary entry: the heap hears of it when the old one is due.
    """

    def __init__(self) -> None:
        self._due_s: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._heard_s: dict[K, float] = {}
        self._tie = itertools.count()

    def __len__(self) -> int:
        return len(self._due_s)

    @property
    def next_s(self) -> float:
        """No deadline is due before this; infinity where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, key: K, due_s: float) -> None:
        """Give a key its deadline, instead of the one it had. Infinity: none."""
        if due_s == math.inf:
            self.clear(key)
            return
        self._due_s[key] = due_s
        if due_s < self._heard_s.get(key, math.inf):
            self._heard_s[key] = due_s
            heapq.heappush(self._heap, (due_s, next(self._tie), key))

    def clear(self, key: K) -> None:
        """A key has no deadline any more."""
        self._due_s.pop(key, None)

    def pop_due(self, now_s: float) -> Iterator[K]:
        """Every key whose deadline has come; it has none after that."""
        while self._heap and self._heap[0][0] <= now_s:
            heard_s, _, key = heapq.heappop(self._heap)
            if self._heard_s.get(key) != heard_s:
                continue  # an earlier deadline of the same key was heard of later, and has been dealt with
            del self._heard_s[key]
            due_s = self._due_s.get(key)
            if due_s is None:
                continue
            if due_s > now_s:
                self._heard_s[key] = due_s
                heapq.heappush(self._heap, (due_s, next(self._tie), key))
                continue
            del self._due_s[key]
            yield key
