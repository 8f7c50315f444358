"""Who is next: the rollouts of one run in the order they were asked for, in one line for each set of needs."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice

from rayroll.scheduler.events import Needs

__all__ = ["Waiting"]


class Waiting:
    """First come, first served, but nobody waits behind one whose needs no host can meet now."""

    def __init__(self) -> None:
        self._lines: dict[Needs, list[tuple[int, str]]] = {}
        """Heaps of places and rollouts, none of them empty, and none with a first that has gone."""
        self._heads: list[tuple[int, Needs]] = []
        """The first place of each line, sorted. Places are unique, so needs are never compared."""
        self._gone: set[str] = set()
        """Those that left from the middle of a line and still stand in its heap."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, place: int, rollout: str, needs: Needs) -> None:
        """Queue a rollout at its place; one that is tried again comes with the place it had, and so is soon first."""
        self._count += 1
        line = self._lines.get(needs)
        if line is None:
            self._lines[needs] = [(place, rollout)]
            insort(self._heads, (place, needs))
            return
        if place < line[0][0]:
            self._drop_head(line[0][0])
            insort(self._heads, (place, needs))
        heapq.heappush(line, (place, rollout))

    def drop(self, rollout: str, needs: Needs) -> None:
        """A waiting rollout is no longer wanted."""
        if self._lines[needs][0][1] == rollout:
            self.take(needs)
        else:
            self._gone.add(rollout)
            self._count -= 1

    def take(self, needs: Needs) -> None:
        """The first of a line has found its host."""
        line = self._lines[needs]
        self._count -= 1
        self._drop_head(heapq.heappop(line)[0])
        while line and line[0][1] in self._gone:
            self._gone.discard(heapq.heappop(line)[1])
        if line:
            insort(self._heads, (line[0][0], needs))
        else:
            del self._lines[needs]

    def heads(self) -> Iterator[tuple[str, Needs]]:
        """The first of each line, in the order of their places.

        Whoever takes one calls ``take`` before asking for the next, which may then be of the same line.
        """
        at = 0
        while at < len(self._heads):
            head = self._heads[at]
            yield self._lines[head[1]][0][1], head[1]
            if at < len(self._heads) and self._heads[at] is head:
                at += 1  # not taken; else another one stands here now, and those before it are as they were

    def upcoming(self, most: int) -> list[tuple[int, Needs]]:
        """Places and needs of the next ones, if all find a host."""
        lines = (self._in_order(needs) for _, needs in self._heads[:most])
        return list(islice(heapq.merge(*lines, key=lambda item: item[0]), most))

    def _in_order(self, needs: Needs) -> Iterator[tuple[int, Needs]]:
        """A heap from its smallest, without emptying it: only as far as somebody reads."""
        line = self._lines[needs]
        ahead = [(line[0], 0)]
        while ahead:
            (place, rollout), at = heapq.heappop(ahead)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(line):
                    heapq.heappush(ahead, (line[child], child))
            if rollout not in self._gone:
                yield place, needs

    def kinds(self) -> list[Needs]:
        """The needs that somebody waits with."""
        return list(self._lines)

    def line(self, needs: Needs) -> list[str]:
        """Who waits with these needs, in no order."""
        return [rollout for _, rollout in self._lines.get(needs, ()) if rollout not in self._gone]

    def _drop_head(self, place: int) -> None:
        del self._heads[bisect_left(self._heads, place, key=lambda head: head[0])]
