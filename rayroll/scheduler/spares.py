"""When a rollout is so late that a second attempt is started against it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from pydantic import Field

from rayroll.config import Config

__all__ = ["Group", "SpareConfig", "Typical"]

REMEMBERED = 200


class SpareConfig(Config):
    """How late is too late."""

    start_factor: float = Field(default=3.0, gt=1.0)
    """A start is late after this many times what nine of ten starts take."""
    least_start_s: float = Field(default=1.0, ge=0.0)
    """And never before this."""
    group_factor: float = Field(default=2.0, gt=1.0)
    """A rollout is late after this many times what the middle one of its group took."""
    group_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the group that must have finished before anybody in it is late."""


class Typical:
    """What most starts take, over the last few hundred."""

    def __init__(self) -> None:
        self._in_order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, took_s: float) -> None:
        """One more."""
        self._in_order.append(took_s)
        insort(self._sorted, took_s)
        if len(self._in_order) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]

    def p90_s(self) -> float | None:
        """Nine of ten are done by then; None before there are ten."""
        return self._sorted[len(self._sorted) * 9 // 10] if len(self._sorted) >= 10 else None


class Group:
    """The samples of one task, as far as lateness goes."""

    def __init__(self) -> None:
        self.open: dict[str, None] = {}
        """Rollouts that are not settled, in the order they were asked for."""
        self._took_s: list[float] = []

    def settled(self, rollout: str, took_s: float | None) -> None:
        """One is over, after so long; None: how long it took says nothing."""
        self.open.pop(rollout, None)
        if took_s is not None:
            insort(self._took_s, took_s)

    def late_after_s(self, config: SpareConfig) -> float | None:
        """How long a rollout of this group may take; None: too few have finished to tell."""
        finished = len(self._took_s)
        if not finished or finished < config.group_share * (finished + len(self.open)):
            return None
        return config.group_factor * self._took_s[finished // 2]
