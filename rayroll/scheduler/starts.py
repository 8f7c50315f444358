"""How many sandboxes a host may be starting at the same time: more while that starts more per second, else fewer.

Beyond some number, the knee, a machine starts no more sandboxes per second, it only makes all of them wait; far beyond,
fewer. The knee is not known, differs from machine to machine, and moves with whatever else runs there. So the limit is
found as TCP finds the width of a path it cannot see, by additive increase and multiplicative decrease, in rounds:

* each round in which the limit was used, and starts did not take longer than they did lower down, raises it: doubled
  until the first sign of too many, by one after that;
* a round that took ``tolerance`` times as long as the fastest one since the last decrease lowers it. What decides is
  not how long starts take but whether they take longer *because* more run: so the next round, with fewer, is looked at,
  and where it is not faster by nearly as much as there are fewer (the machine is busy with something else, that was
  chance, or more do start more), the decrease is undone, and what it took is what is expected from then on;
* a round with many failures lowers it. A few do not: a share of creates that fails for its own reasons would otherwise
  hold the limit near its root, as losses do with TCP.
"""

from __future__ import annotations

import math

from pydantic import Field

from rayroll.config import Config

__all__ = ["StartConfig", "StartLimit"]

DECREASE = 0.6
"""Times ``tolerance`` it is below 1, so that from too high a reference the limit comes down by itself."""
FASTER = 1.5
"""Where too many were the reason, 0.6 times as many take 0.6 of the time, 1.67 times as fast; where not, as long. This
lies near the first: where fewer start fewer per second, it was not too many. A node that others use gives a little more
to whoever asks for more at once: in a model of one, 2,000 starts took 498 s, and 642 with 1.25."""
DOUBLED = 1.7
"""Before the first sign of too many: twice as many may take this many times as long, 18 % more per second. With
``tolerance`` (1.5, 33 % more) 200 starts stopped doubling one step too early on such a node: 59 s for 53."""
LEAST_ROUND = 8
"""Starts whose median is believed: of four it spreads more, and heavy tails give one false alarm in six."""
BAD_SHARE = 0.25
"""Failures of a round above which there are too many."""


class StartConfig(Config):
    """How a host's starts are limited."""

    first: int = Field(default=4, ge=1)
    """Starts at the same time before anything is known."""
    most: int = Field(default=256, ge=1)
    """Never more than this."""
    is_adaptive: bool = True
    """False: ``first`` stays, whatever happens."""
    tolerance: float = Field(default=1.5, gt=1.0)
    """A round may take this many times as long as the fastest since the last decrease."""
    strikes: int = Field(default=3, ge=1)
    """Failed starts in a row after which a host is left alone for a while: one that fails at once would attract all."""
    rest_s: float = Field(default=5.0, gt=0.0)
    """The first such while; each further one is twice as long, up to ``most_rest_s``."""
    most_rest_s: float = Field(default=300.0, gt=0.0)


class StartLimit:
    """The limit of one host."""

    def __init__(self, config: StartConfig) -> None:
        self._config = config
        self.limit = float(min(config.first, config.most))
        """Starts at the same time; the whole part counts."""
        self.rests_until_s = 0.0
        """No start before this, by the scheduler's time."""
        self._round_s: list[float] = []
        self._failures = 0
        """Of this round."""
        self._fastest_s = math.inf
        """The median of the fastest round since the last decrease."""
        self._is_used = False
        """The limit was reached in this round: one that nobody needed says nothing about a higher one."""
        self._is_probing = True
        """Until the first sign of too many."""
        self._on_trial: tuple[float, float, bool] | None = None
        """A decrease that has yet to prove itself: the limit before, the median it was for, whether it was probing."""
        self._older = 0
        """Starts still under way that began before the last decrease, and tell of the limit before it."""
        self._failures_in_a_row = 0
        self._rests = 0
        self._was_told_s = -math.inf

    def allows(self, starting: int, now_s: float) -> bool:
        """One more may start beside those that are starting."""
        return starting < int(self.limit) and now_s >= self.rests_until_s

    def began(self, starting: int) -> None:
        """One has begun; so many are starting now."""
        if starting >= int(self.limit):
            self._is_used = True

    def started(self, took_s: float, starting: int) -> None:
        """One is up, after so long; so many others are still starting."""
        self._failures_in_a_row = self._rests = 0
        if self._counts(starting):
            self._round_s.append(took_s)
            self._end_round(starting)

    def failed(self, now_s: float, retry_after_s: float | None, starting: int) -> None:
        """One failed; its provider may have said when to come back; so many others are still starting."""
        if retry_after_s is not None:
            self._told_off(now_s, retry_after_s, starting)
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._config.strikes:
            rest_s = min(self._config.rest_s * 2.0 ** min(self._rests, 30), self._config.most_rest_s)
            self.rests_until_s = max(self.rests_until_s, now_s + rest_s)
            self._rests += 1
            self._failures_in_a_row = 0
        if self._counts(starting):
            self._failures += 1
            self._end_round(starting)

    def forgive(self) -> None:
        """The host has come up anew: what it was left alone for may be mended."""
        self.rests_until_s, self._failures_in_a_row, self._rests = 0.0, 0, 0

    def _counts(self, starting: int) -> bool:
        self._older = min(self._older, starting + 1)  # some end without a word: stopped, or lost with their host
        if self._older:
            self._older -= 1
            return False
        return self._config.is_adaptive

    def _told_off(self, now_s: float, retry_after_s: float, starting: int) -> None:
        """Those that began together are told off together: only the first of them counts."""
        if self._config.is_adaptive and now_s >= self.rests_until_s and now_s > self._was_told_s:
            self._was_told_s = now_s
            self._lower(starting)
        self.rests_until_s = max(self.rests_until_s, now_s + retry_after_s)

    def _end_round(self, starting: int) -> None:
        """As many have ended as may start at the same time."""
        if len(self._round_s) + self._failures < max(int(self.limit), LEAST_ROUND):
            return
        is_bad = self._failures > BAD_SHARE * (len(self._round_s) + self._failures)
        took_s = sorted(self._round_s)[len(self._round_s) // 2] if self._round_s else math.inf
        is_used = self._is_used
        self._round_s, self._failures, self._is_used = [], 0, False
        if is_bad:
            self._lower(starting)
        elif self._on_trial is not None:
            self._judge(took_s)
        elif took_s > self._tolerance * self._fastest_s:
            trial = (self.limit, took_s, self._is_probing)
            self._lower(starting)
            self._on_trial = trial
        else:
            self._fastest_s = min(self._fastest_s, took_s)
            if is_used:
                self._set(self.limit * 2 if self._is_probing else self.limit + 1)

    @property
    def _tolerance(self) -> float:
        return max(self._config.tolerance, DOUBLED) if self._is_probing else self._config.tolerance

    def _judge(self, took_s: float) -> None:
        """The first round after a decrease: was it of use?"""
        assert self._on_trial is not None
        limit, before_s, was_probing = self._on_trial
        self._on_trial, self._fastest_s = None, took_s
        if took_s * FASTER > before_s:
            self._is_probing, self._fastest_s = was_probing, before_s
            self._set(limit)

    def _lower(self, starting: int) -> None:
        self._is_probing, self._on_trial, self._older = False, None, starting
        self._round_s, self._failures, self._fastest_s = [], 0, math.inf
        self._set(self.limit * DECREASE)

    def _set(self, limit: float) -> None:
        self.limit = min(max(limit, 1.0), float(self._config.most))
