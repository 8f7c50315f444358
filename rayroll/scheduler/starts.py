"""How many sandboxes a host may be starting at the same time: one more while that costs nothing, fewer where it does.

Additive increase, multiplicative decrease, as TCP finds the width of a path it cannot see. Two things say "too many": a
start that failed, and starts that take several times as long as they do alone. Beyond the knee a machine starts no more
sandboxes per second, it only makes all of them wait; before it, a higher limit is free. So the limit may settle a little
above the knee, and must not stay below.
"""

from __future__ import annotations

from pydantic import Field

from rayroll.config import Config

__all__ = ["StartConfig", "StartLimit"]

FORGET = 1.002
"""The floor rises by this with each start, so that a machine that has become slower is believed after some hundred."""


class StartConfig(Config):
    """How a host's starts are limited."""

    first: int = Field(default=4, ge=1)
    """Starts at the same time before anything is known."""
    most: int = Field(default=256, ge=1)
    """Never more than this."""
    is_adaptive: bool = True
    """False: ``first`` stays, whatever happens."""
    tolerance: float = Field(default=4.0, gt=1.0)
    """Starts may take this many times as long as the fastest."""
    strikes: int = Field(default=3, ge=1)
    """Failed starts in a row after which a host is left alone for a while: one that fails at once would attract all."""
    rest_s: float = Field(default=5.0, gt=0.0)
    """The first such while; each further one is twice as long, up to ``most_rest_s``."""
    most_rest_s: float = Field(default=300.0, gt=0.0)


class StartLimit:
    """The limit of one host."""

    def __init__(self, config: StartConfig) -> None:
        self._config = config
        self.limit = float(config.first)
        """Starts at the same time; the whole part counts."""
        self.rests_until_s = 0.0
        """No start before this, by the scheduler's time."""
        self._floor_s: float | None = None
        self._is_probing = True
        """Until the first sign of too many: the limit doubles, as in TCP's slow start."""
        self._round_s: list[float] = []
        self._failures_in_a_row = 0
        self._rests = 0
        self._deaf_until_s = 0.0

    def allows(self, starting: int, now_s: float) -> bool:
        """One more may start."""
        return starting < int(self.limit) and now_s >= self.rests_until_s

    def started(self, took_s: float) -> None:
        """One is up, after so long."""
        self._failures_in_a_row = self._rests = 0
        if not self._config.is_adaptive:
            return
        self._floor_s = took_s if self._floor_s is None else min(took_s, self._floor_s * FORGET)
        self._round_s.append(took_s)
        if len(self._round_s) >= int(self.limit):
            self._end_round()

    def _end_round(self) -> None:
        """As many have started as may at the same time, so all of them did under this limit, or the one before."""
        assert self._floor_s is not None
        took_s = sorted(self._round_s)[len(self._round_s) // 2]
        self._round_s.clear()
        if took_s > self._config.tolerance * self._floor_s:
            self._is_probing = False
            self._set(self.limit * 0.75)
        else:
            self._set(self.limit * 2 if self._is_probing else self.limit + 1)

    def failed(self, now_s: float, retry_after_s: float | None = None) -> None:
        """One failed; its provider may have said when to come back."""
        self._failures_in_a_row += 1
        self._is_probing = False
        if retry_after_s is not None:
            self.rests_until_s = max(self.rests_until_s, now_s + retry_after_s)
        elif self._failures_in_a_row >= self._config.strikes:
            rest_s = min(self._config.rest_s * 2**self._rests, self._config.most_rest_s)
            self.rests_until_s = max(self.rests_until_s, now_s + rest_s)
            self._rests += 1
            self._failures_in_a_row = 0
        # Those that began together fail together: one storm halves the limit once.
        if self._config.is_adaptive and now_s >= self._deaf_until_s:
            self._set(self.limit / 2)
            self._round_s.clear()
            self._deaf_until_s = now_s + (self._floor_s or 0.0)

    def _set(self, limit: float) -> None:
        self.limit = min(max(limit, 1.0), float(self._config.most))
