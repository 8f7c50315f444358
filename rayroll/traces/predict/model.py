"""How long will this call take? What is known of the most specific thing it is, backed up by all that is more general.

Each key (features.LEVELS) has a sketch of the times its calls took. A prediction mixes them from the most specific to
the most general: one that has counted n calls gets n / (n + m) of what is left, with an m of its level that ``fit`` has
tuned on sessions it had set aside. Where the session's last calls stood within their predictions then moves the levels
that are read off (pace.py). ``observe`` is the update: of the sketches and of the session.

>>> predictor, session = Predictor.load("calls.model"), Session(project="p")
>>> predictor.predict(Call("Bash", "pytest -q"), session).quantiles_s
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from rayroll.traces.predict import _file
from rayroll.traces.predict.features import LEVELS, Call, Meaning, Session, meaning
from rayroll.traces.predict.pace import Shares
from rayroll.traces.predict.sketch import BINS, EDGES, Array, Sketch, bin_of, vague

__all__ = ["QUANTILES", "Forecast", "Predictor"]

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "all": 1.0,
    "tool": 1.0,
    "program": 10.0,
    "main": 10.0,
    "shape": 10.0,
    "exact": 3.0,
}
"""Of a model that was not tuned, because there were too few sessions to set some aside."""

_NORMAL = NormalDist()
_FURTHEST = 3.0  # a score beyond is one of these: the sketch's ends are not that sure


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a call's time is thought to be."""

    levels: tuple[float, ...]
    quantiles_s: tuple[float, ...]
    """Seconds that the call is no longer than with the chance of the level; not falling."""
    meaning: Meaning
    cumulative: Array
    """Before the session's pace: chances below the upper edge of each bin of the grid."""

    @property
    def median_s(self) -> float:
        """As likely longer as shorter."""
        return float(np.interp(0.5, self.levels, self.quantiles_s))

    def score(self, seconds: float) -> float:
        """Where a time stands in what was thought before the pace, as a normal score within -3 and 3."""
        at = bin_of(seconds)
        below = float(self.cumulative[at - 1]) if at else 0.0
        inside = min(max((math.log2(seconds) - EDGES[at]) / (EDGES[1] - EDGES[0]), 0.0), 1.0)
        rank = below + (float(self.cumulative[at]) - below) * inside
        return max(-_FURTHEST, min(_FURTHEST, _NORMAL.inv_cdf(min(max(rank, 1e-6), 1 - 1e-6))))


class Predictor:
    """Sketches by key. Not for several threads at once."""

    def __init__(
        self,
        *,
        weights: Mapping[str, float] = DEFAULT_WEIGHTS,
        shares: Shares | None = None,
        salt: bytes | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """One that has seen nothing.

        Args:
            weights: Of each level the m of the module's docstring; a level without one is not used.
            shares: How much a session's calls have in common.
            salt: Of the keys' hashes, 16 bytes; None: a new one.
            facts: Where the model comes from, in plain JSON; kept in its file.
        """
        self.weights = dict(weights)
        self.shares = shares or Shares()
        self.salt = salt or os.urandom(16)
        self.facts = dict(facts or {})
        self._stored = _file.Stored.empty()
        self._own: dict[int, Sketch] = {}
        self._vague = vague()
        self._salts = {level: self.salt + level.encode() for level in LEVELS}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Raises ConfigError: there is no such file, it is none of ours, damaged, or of a newer version."""
        head, stored = _file.read(Path(path))
        made = cls(weights=head.weights, shares=Shares(*head.shares), salt=head.salt, facts=head.facts)
        made._stored = stored
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that was learned; readable by its owner only. No text of a call is in it, only salted hashes."""
        sketches = self._stored.sketches() if len(self._stored) else {}
        sketches.update({key: sketch.items() for key, sketch in self._own.items()})
        shares = (self.shares.session, self.shares.program, self.shares.command)
        _file.write(Path(path), _file.Head(self.weights, shares, self.salt, self.facts), sketches)

    def __len__(self) -> int:
        """How many keys are known."""
        return len(self._stored) + sum(key not in self._stored for key in self._own)

    def predict(self, call: Call, session: Session, levels: Sequence[float] = QUANTILES) -> Forecast:
        """Quantiles of the time a call that starts now will take; nothing is changed."""
        meant = meaning(call, session)
        cumulative = self.mixed(self.keys(meant), session.taught).cumsum()
        cumulative /= cumulative[-1]
        mean, spread = 0.0, 1.0
        if self.shares.noise < 1:
            mean, spread = session.pace.next(meant.main, meant.exact, self.shares)
        moved = [_NORMAL.cdf(mean + spread * _NORMAL.inv_cdf(level)) for level in levels]
        return Forecast(tuple(levels), tuple(_seconds(cumulative, moved).tolist()), meant, cumulative)

    def observe(
        self,
        call: Call,
        session: Session,
        seconds: float | None,
        *,
        forecast: Forecast | None = None,
        result_chars: int | None = None,
        learn: bool = True,
    ) -> None:
        """A call ended.

        Args:
            call: As at its start.
            session: Which now remembers it.
            seconds: How long it took; None, or not above 0: unknown, which is remembered, and teaches nothing.
            forecast: What ``predict`` said at its start. None: it is asked now, as if nothing had come between.
            result_chars: Size of what came back, for the next call.
            learn: Update the sketches too, not only the session.
        """
        known = seconds is not None and 0 < seconds < math.inf
        if known:
            assert seconds is not None
            said = forecast or self.predict(call, session)
            meant = said.meaning
            if self.shares.noise < 1:
                session.pace.add(meant.main, meant.exact, said.score(seconds), self.shares)
            if learn:
                self.learn(self.keys(meant), seconds, session if self.shares.noise < 1 else None)
        else:
            meant = forecast.meaning if forecast else meaning(call, session)
        session.calls += 1
        session.last_tool, session.last_result_chars = call.tool[:200], result_chars
        session.ran[meant.main] = None if call.at_s is None else call.at_s + (seconds or 0.0)

    def learn(self, keys: Iterable[tuple[str, int]], seconds: float, session: Session | None = None) -> None:
        """Count a time under its keys; in the session whose pace it is part of, it will not count a second time."""
        at = bin_of(seconds)
        for _, key in keys:
            self._sketch(key).add(at)
            if session is not None:
                session.taught.setdefault(key, []).append(at)

    def keys(self, meant: Meaning) -> list[tuple[str, int]]:
        """Levels that this model uses, and their keys' hashes."""
        weights, salts = self.weights, self._salts
        return [
            (level, int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8, key=salts[level]).digest()))
            for level, text in meant.keys
            if level in weights
        ]

    def mixed(self, keys: Iterable[tuple[str, int]], without: Mapping[int, Sequence[int]]) -> Array:
        """Chances of the grid's bins, in the light of all that was counted but for these bins of these keys."""
        into = np.zeros(BINS)
        left = 1.0
        for level, key in reversed(list(keys)):
            sketch = self._own.get(key)
            at = -1 if sketch is not None else self._stored.find(key)
            total = sketch.total if sketch is not None else self._stored.total(at) if at >= 0 else 0.0
            own = without.get(key, ())
            total -= len(own)
            if total <= 0:
                continue
            share = total / (total + self.weights[level])
            if sketch is not None:
                sketch.mix_into(into, left * share / total)
            else:
                self._stored.mix_into(at, into, left * share / total)
            for bin_ in own:
                into[bin_] -= left * share / total
            left *= 1 - share
            if left < 1e-4:
                break
        # A sketch that has forgotten half may hold less than the session takes out of it.
        return np.asarray(np.maximum(into, 0.0) + left * self._vague)

    def _sketch(self, key: int) -> Sketch:
        sketch = self._own.get(key)
        if sketch is None:
            at = self._stored.find(key)
            sketch = self._own[key] = Sketch(*self._stored.counts(at)) if at >= 0 else Sketch()
        return sketch


def _seconds(cumulative: Array, levels: Sequence[float]) -> Array:
    at = cumulative.searchsorted(levels)
    np.minimum(at, BINS - 1, out=at)
    above = cumulative[at]
    below = np.where(at > 0, cumulative[at - 1], 0.0)
    inside = (np.asarray(levels) - below) / np.maximum(above - below, 1e-12)
    return np.asarray(np.exp2(EDGES[at] + np.clip(inside, 0.0, 1.0) * (EDGES[1] - EDGES[0])))
