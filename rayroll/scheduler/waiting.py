"""Who is next: the rollouts of one run in the order they were asked for, in one line for each set of needs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from rayroll.scheduler.events import Needs

__all__ = ["Waiting"]


class Waiting:
    """First come, first served, but nobody waits behind one whose needs no host can meet now."""

    def __init__(self) -> None:
        self._lines: dict[Needs, list[tuple[int, str]]] = {}
        self._heads: list[tuple[int, int, Needs]] = []
        """First of each line by place; entries whose line has another first by now are stale."""
        self._gone: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, place: int, rollout: str, needs: Needs) -> None:
        """Queue a rollout at its place; one that is tried again comes with the place it had, and so is soon first."""
        line = self._lines.setdefault(needs, [])
        heapq.heappush(line, (place, rollout))
        self._count += 1
        self._gone.discard(rollout)
        if line[0][1] == rollout:
            heapq.heappush(self._heads, (place, id(needs), needs))

    def drop(self, rollout: str) -> None:
        """A waiting rollout is no longer wanted."""
        self._gone.add(rollout)
        self._count -= 1

    def heads(self) -> Iterator[tuple[str, Needs]]:
        """The first of each line, in the order of their places.

        Whoever takes one calls ``take`` with its needs before asking for the next, which may then be of the same line.
        Those not taken keep their places.
        """
        passed: list[tuple[int, int, Needs]] = []
        try:
            while self._heads:
                head = heapq.heappop(self._heads)
                first = self._first(head[2])
                if first is None or first[0] != head[0]:
                    continue
                passed.append(head)
                yield first[1], head[2]
                if self._first(head[2]) is not first:
                    passed.pop()
        finally:
            for head in passed:
                heapq.heappush(self._heads, head)

    def take(self, needs: Needs) -> None:
        """The first of a line has found its host."""
        heapq.heappop(self._lines[needs])
        self._count -= 1
        following = self._first(needs)
        if following is not None:
            heapq.heappush(self._heads, (following[0], id(needs), needs))

    def upcoming(self) -> Iterator[tuple[int, str, Needs]]:
        """Everybody in the order of places, with needs: who will be next if all find a host."""
        return heapq.merge(*(self._in_order(needs, line) for needs, line in self._lines.items()))

    def _in_order(self, needs: Needs, line: list[tuple[int, str]]) -> Iterator[tuple[int, str, Needs]]:
        """A heap from its smallest, without emptying it: only as far as somebody reads."""
        ahead = [(line[0], 0)] if line else []
        while ahead:
            (place, rollout), at = heapq.heappop(ahead)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(line):
                    heapq.heappush(ahead, (line[child], child))
            if rollout not in self._gone:
                yield place, rollout, needs

    def lines(self) -> Iterator[tuple[Needs, list[str]]]:
        """Every line and who stands in it."""
        for needs, line in list(self._lines.items()):
            yield needs, [rollout for _, rollout in line if rollout not in self._gone]

    def _first(self, needs: Needs) -> tuple[int, str] | None:
        line = self._lines.get(needs)
        while line:
            if line[0][1] not in self._gone:
                return line[0]
            self._gone.discard(heapq.heappop(line)[1])
        if line is not None:
            del self._lines[needs]
        return None
