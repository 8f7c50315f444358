"""Is the predictor worth it? On sessions that it has not seen, against the quantiles of all calls, tools and programs.

Every forecaster is asked when a call starts and told when it ends, in the order in which that happened. Frozen ones
learn from held-out sessions nothing but what the session itself did so far; online ones, baselines too, learn from
every call that ended before.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from rayroll.errors import ConfigError
from rayroll.traces.predict.examples import Recorded, Timed, in_time
from rayroll.traces.predict.features import Session, meaning
from rayroll.traces.predict.fit import fit, pinball
from rayroll.traces.predict.model import QUANTILES, Predictor
from rayroll.traces.predict.sketch import Array

__all__ = ["SPLITS", "Evaluation", "Gain", "Score", "Split", "evaluate", "split"]

Split = Literal["session", "time", "project"]
SPLITS: tuple[str, ...] = get_args(Split)

_LEAST = 5  # fewer calls of a tool or a program are no quantiles
_DRAWS = 400


@dataclass(frozen=True, slots=True)
class Score:
    """How a forecaster did on the held-out calls."""

    name: str
    pinball_s: float
    """Mean over calls and quantiles, in seconds: about the long calls."""
    pinball_log: float
    """The same of natural logarithms: about all calls alike."""
    coverage: dict[float, float]
    """Of each level, the share of calls that took no longer than its quantile; calibrated: the level itself."""
    calibration: float
    """Mean distance of the two."""
    inside_80: float
    """Share of calls between the quantiles of 0.1 and 0.9; to be 0.8."""


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much the predictor's loss is below a baseline's, as a share of it; 90 % over sessions drawn again."""

    over: str
    seconds: float
    seconds_low: float
    seconds_high: float
    log: float
    log_low: float
    log_high: float

    @property
    def least(self) -> float:
        """Of the two losses the one that gained less."""
        return min(self.seconds, self.log)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One split, all forecasters."""

    train_sessions: int
    test_sessions: int
    test_calls: int
    scores: tuple[Score, ...]
    """The predictor's first."""
    gains: tuple[Gain, ...]
    weights: dict[str, float]
    shares: dict[str, float]

    def gain(self, over: str) -> Gain:
        """The gain over that baseline."""
        return next(gain for gain in self.gains if gain.over == over)


def split(
    sessions: Sequence[Recorded],
    by: Split = "session",
    *,
    seed: int = 0,
    held_out: float = 0.3,
    group: Callable[[Recorded], str] | None = None,
) -> tuple[list[Recorded], list[Recorded]]:
    """Sessions to learn from and sessions to be judged on.

    Args:
        sessions: In the order of their beginnings.
        by: ``session`` draws them; ``time`` takes the last ones; ``project`` draws projects, so that none is on
            both sides.
        seed: Of the draw.
        held_out: Share that is held out.
        group: What counts as one project, in place of ``Recorded.project``.

    Raises:
        ConfigError: One of the two would be empty.
    """
    if by == "time":
        cut = len(sessions) - max(1, round(held_out * len(sessions)))
        parts = list(sessions[:cut]), list(sessions[cut:])
    else:
        name = (lambda s: s.id) if by == "session" else group or (lambda s: s.project or "")
        names = sorted({name(session) for session in sessions})
        random.Random(seed).shuffle(names)
        out = set(names[: max(1, round(held_out * len(names)))])
        parts = [s for s in sessions if name(s) not in out], [s for s in sessions if name(s) in out]
    if not parts[0] or not parts[1]:
        raise ConfigError(
            f"{len(sessions)} sessions cannot be split by {by}", fix="load more sessions, or split by session"
        )
    return parts


class _Forecaster(Protocol):
    def start(self, at: int, timed: Timed) -> Sequence[float]: ...

    def end(self, at: int, timed: Timed) -> None: ...


class _Ours:
    def __init__(self, predictor: Predictor, sessions: Sequence[Recorded], *, learn: bool) -> None:
        self.predictor, self.learn = predictor, learn
        self.sessions = [Session(project=session.project) for session in sessions]
        self.said: dict[int, Any] = {}

    def start(self, at: int, timed: Timed) -> Sequence[float]:
        said = self.said[id(timed)] = self.predictor.predict(timed.call, self.sessions[at])
        return said.quantiles_s

    def end(self, at: int, timed: Timed) -> None:
        said = self.said.pop(id(timed))
        self.predictor.observe(
            timed.call,
            self.sessions[at],
            timed.seconds,
            forecast=said,
            result_chars=timed.result_chars,
            learn=self.learn,
        )


class _Baseline:
    """Exact quantiles of the calls with the same key; of a key that is hardly known, those of the next general one."""

    def __init__(self, levels: Sequence[str], train: Sequence[Recorded], *, learn: bool) -> None:
        self.levels, self.learn = levels, learn
        self.known: dict[tuple[str, str], list[float]] = {}
        for session in train:
            for timed in session.calls:
                self._add(timed)
        for times in self.known.values():
            times.sort()

    def _keys(self, timed: Timed) -> list[tuple[str, str]]:
        found = dict(meaning(timed.call, Session()).keys)
        return [(level, found[level]) for level in self.levels if level in found]

    def _add(self, timed: Timed) -> None:
        if timed.seconds is not None:
            for key in self._keys(timed):
                self.known.setdefault(key, []).append(timed.seconds)

    def start(self, at: int, timed: Timed) -> Sequence[float]:
        for key in reversed(self._keys(timed)):
            times = self.known.get(key, [])
            if len(times) >= _LEAST or (key[0] == "all" and times):
                return [_of_sorted(times, level) for level in QUANTILES]
        return [1.0] * len(QUANTILES)

    def end(self, at: int, timed: Timed) -> None:
        if self.learn and timed.seconds is not None:
            for key in self._keys(timed):
                insort(self.known.setdefault(key, []), timed.seconds)


def _of_sorted(times: list[float], level: float) -> float:
    place = level * (len(times) - 1)
    low = int(place)
    high = min(low + 1, len(times) - 1)
    return times[low] + (place - low) * (times[high] - times[low])


BASELINES = {"global": ("all",), "per tool": ("all", "tool"), "per program": ("all", "tool", "program")}


def evaluate(
    train: Sequence[Recorded], test: Sequence[Recorded], *, seed: int = 0, predictor: Predictor | None = None
) -> Evaluation:
    """Fit on some sessions, and judge on others.

    Args:
        train: Also what the baselines know.
        test: No session of ``train``.
        seed: Of the fit, and of the intervals.
        predictor: Already fitted on ``train``, or a copy that may be changed; None: fitted here.

    Raises:
        ConfigError: No held-out call has a time.
    """
    if not any(timed.seconds is not None for session in test for timed in session.calls):
        raise ConfigError("no held-out call has a time", sessions=len(test))
    predictor = predictor or fit(train, seed=seed)
    weights, shares = predictor.weights, predictor.shares
    names: dict[str, _Forecaster] = {"predictor": _Ours(predictor, test, learn=False)}
    names |= {name: _Baseline(levels, train, learn=False) for name, levels in BASELINES.items()}
    outcomes = {name: _play(forecaster, test) for name, forecaster in names.items()}
    online: dict[str, _Forecaster] = {"predictor, online": _Ours(predictor, test, learn=True)}
    online |= {f"{name}, online": _Baseline(levels, train, learn=True) for name, levels in BASELINES.items()}
    outcomes |= {name: _play(forecaster, test) for name, forecaster in online.items()}
    scores = tuple(_score(name, *outcome[1:]) for name, outcome in outcomes.items())
    gains = []
    for name in BASELINES:
        gains.append(_gain(name, outcomes["predictor"], outcomes[name], seed))
        gains.append(_gain(f"{name}, online", outcomes["predictor, online"], outcomes[f"{name}, online"], seed))
    return Evaluation(
        len(train),
        len(test),
        len(outcomes["predictor"][1]),
        scores,
        tuple(gains),
        dict(weights),
        {"session": shares.session, "program": shares.program, "command": shares.command},
    )


Outcome = tuple[Array, Array, Array]
"""Of each held-out call: its session, its seconds, its quantiles."""


def _play(forecaster: _Forecaster, test: Sequence[Recorded]) -> Outcome:
    said: dict[int, Sequence[float]] = {}
    sessions, actual, predicted = [], [], []
    for at, timed, ended in in_time(test):
        if not ended:
            said[id(timed)] = forecaster.start(at, timed)
            continue
        if timed.seconds is not None:
            sessions.append(at)
            actual.append(timed.seconds)
            predicted.append(said.pop(id(timed)))
        forecaster.end(at, timed)
    return np.array(sessions), np.array(actual), np.array(predicted)


def _score(name: str, actual: Array, predicted: Array) -> Score:
    below = (actual[:, None] <= predicted).mean(axis=0)
    return Score(
        name,
        float(pinball(actual, predicted).mean()),
        float(pinball(np.log(actual), np.log(predicted)).mean()),
        {level: float(share) for level, share in zip(QUANTILES, below, strict=True)},
        float(np.abs(below - np.array(QUANTILES)).mean()),
        float(((actual >= predicted[:, 0]) & (actual <= predicted[:, QUANTILES.index(0.9)])).mean()),
    )


def _gain(over: str, ours: Outcome, theirs: Outcome, seed: int) -> Gain:
    sessions = ours[0]
    draws = np.random.default_rng(seed).multinomial(
        len(np.unique(sessions)), np.full(len(np.unique(sessions)), 1 / len(np.unique(sessions))), _DRAWS
    )
    found: list[float] = []
    for change in (lambda x: x, np.log):
        sums = []
        for _, actual, predicted in (ours, theirs):
            losses = pinball(change(actual), change(predicted))
            sums.append(np.bincount(sessions, losses)[np.unique(sessions)])
        mine, other = sums
        drawn = 1 - (draws @ mine) / (draws @ other)
        found += [float(1 - mine.sum() / other.sum()), *np.quantile(drawn, (0.05, 0.95)).tolist()]
    return Gain(over, *found)
