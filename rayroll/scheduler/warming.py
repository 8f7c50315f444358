"""How many sandboxes to start ahead of need: as many as will be wanted while one starts, of the shapes that come next.

Rollouts end at some rate, and each is followed by the next of a known order. A sandbox that takes ``s`` seconds to
start has to be begun ``s`` seconds before its rollout's turn, so ``rate x s`` of them are on their way at any moment;
twice that, because neither the rate nor the time is even. Where starting is fast this is next to none, and where it
takes a minute it is many, up to the bound.
"""

from __future__ import annotations

import math
from collections import deque

from pydantic import Field

from rayroll.config import Config

__all__ = ["Demand", "WarmConfig"]

MARGIN = 2.0
REMEMBERED = 64


class WarmConfig(Config):
    """How many sandboxes are kept warm."""

    most_per_host: int = Field(default=0, ge=0)
    """Most sandboxes of one host that are idle or on their way to be; 0: none are started ahead of need."""


class Demand:
    """How fast rollouts end, and how long starts take, lately."""

    def __init__(self) -> None:
        self._ends_s: deque[float] = deque(maxlen=REMEMBERED)
        self._starts_s: deque[float] = deque(maxlen=REMEMBERED)

    def ended(self, now_s: float) -> None:
        """A rollout has left its slot."""
        self._ends_s.append(now_s)

    def started(self, took_s: float) -> None:
        """A start took so long."""
        self._starts_s.append(took_s)

    def ahead(self, now_s: float, hosts: int) -> int:
        """Sandboxes to have warm or on their way, over all hosts: at least one for each, since it serves no other."""
        if len(self._ends_s) < 2 or not self._starts_s:
            return hosts
        rate = len(self._ends_s) / max(now_s - self._ends_s[0], 1e-9)
        slow_s = sorted(self._starts_s)[len(self._starts_s) * 9 // 10]
        return hosts * max(1, math.ceil(MARGIN * rate * slow_s / max(1, hosts)))
