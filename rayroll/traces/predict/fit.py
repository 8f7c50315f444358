"""Learns a predictor from recorded sessions: counts everything, and tunes what counts how much on sessions set aside.

Each level of the ladder has to earn its place. From the tool on, a level is used only if, on sessions that the counts
do not hold, it lowers the pinball loss by more than that gain's own standard error; so a trace that tells no more than
the tools' names gets a model of the tools. The loss is that of seconds and that of their logarithms, each relative to
what tools alone achieve: one is about the long calls, the other about all.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from rayroll.traces._allowed import TOOLS
from rayroll.traces.predict.examples import Recorded, in_time
from rayroll.traces.predict.features import LEVELS, Session, meaning
from rayroll.traces.predict.model import DEFAULT_WEIGHTS, QUANTILES, Forecast, Predictor
from rayroll.traces.predict.pace import Pace, Shares
from rayroll.traces.predict.sketch import BINS, EDGES, Array, bin_of, vague

__all__ = ["fit", "pinball", "shareable"]

_WEIGHTS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_SHARES = (0.0, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7)
_FOLDS = 3
_MOST_CALLS = 2500  # set aside in each fold; more tells little and takes minutes
_LEAST_SESSIONS = 6
_SURE = 1.0  # standard errors by which a gain must be above 0
_ALWAYS = ("all", "tool")
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class _Example:
    session: int
    keys: dict[str, int]
    seconds: float
    program: str
    command: str


@dataclass(slots=True)
class _Aside:
    """The held-out calls of a fold, and what its other sessions say of each."""

    session: Array
    log_s: Array
    seconds: Array
    mixed: Array
    """(calls, bins): chances by the levels that were taken in so far."""
    examples: list[_Example]
    rest: list[_Example]
    """What is not held out."""
    bins: Array
    """Of the rest's times."""
    base: tuple[float, float] = (1.0, 1.0)


def fit(sessions: Sequence[Recorded], *, seed: int = 0, facts: dict[str, Any] | None = None) -> Predictor:
    """Learn from sessions.

    Args:
        sessions: Of ``sessions_in``; with fewer than six nothing is set aside, and the weights are defaults.
        seed: Which sessions are set aside for tuning.
        facts: To be kept in the model file.
    """
    every = dict.fromkeys(LEVELS, 1.0)
    learned = Predictor(weights=every)
    examples = _examples(learned, sessions)
    many = len({example.session for example in examples})
    weights, shares = dict(DEFAULT_WEIGHTS), Shares()
    if many >= _LEAST_SESSIONS:
        folds = _folds(examples, random.Random(seed))
        weights = _weights(folds)
        shares = _tuned_shares(folds)
    calls = len(examples)
    found = Predictor(
        weights=weights,
        shares=shares,
        salt=learned.salt,
        facts={"sessions": many, "calls": calls, **(facts or {})},
    )
    for example in examples:
        found.learn(((level, key) for level, key in example.keys.items() if level in weights), example.seconds)
    return found


def shareable(sessions: Iterable[Recorded]) -> list[Recorded]:
    """The sessions with nothing in their calls but the names of agents' own tools, sizes and times.

    A model of these holds nothing that guesses could be tried on: hashed or not, keys of commands and projects tell
    whoever can guess them that they were there.
    """
    return [
        replace(
            session,
            project=None,
            calls=tuple(
                replace(
                    timed,
                    call=replace(
                        timed.call,
                        tool=timed.call.tool if timed.call.tool in TOOLS else "other",
                        input=None,
                        program=None,
                    ),
                )
                for timed in session.calls
            ),
        )
        for session in sessions
    ]


def pinball(actual: Array, predicted: Array, levels: Sequence[float] = QUANTILES) -> Array:
    """Of each call, the mean over the levels of what its quantiles cost: (calls,) from (calls,) and (calls, levels)."""
    off = actual[:, None] - predicted
    quantiles = np.asarray(levels)
    return np.asarray(np.maximum(quantiles * off, (quantiles - 1) * off).mean(axis=1))


def _examples(predictor: Predictor, sessions: Sequence[Recorded]) -> list[_Example]:
    """Each timed call with its keys as of its start."""
    states = [Session(project=session.project) for session in sessions]
    started: dict[tuple[int, int], Forecast] = {}
    nothing = np.zeros(0)
    found = []
    for at, timed, ended in in_time(sessions):
        if not ended:
            started[at, id(timed)] = Forecast((), (), meaning(timed.call, states[at]), nothing)
            continue
        said = started.pop((at, id(timed)))
        if timed.seconds is not None:
            keys = dict(predictor.keys(said.meaning))
            found.append(_Example(at, keys, timed.seconds, said.meaning.main, said.meaning.exact))
        predictor.observe(
            timed.call, states[at], timed.seconds, forecast=said, result_chars=timed.result_chars, learn=False
        )
    return found


def _folds(examples: list[_Example], draw: random.Random) -> list[_Aside]:
    by_session: dict[int, list[_Example]] = {}
    for example in examples:
        by_session.setdefault(example.session, []).append(example)
    sessions = list(by_session)
    draw.shuffle(sessions)
    found = []
    for fold in range(_FOLDS):
        aside: list[_Example] = []
        for session in sessions[fold::_FOLDS]:
            if len(aside) < _MOST_CALLS:
                aside += by_session[session][:_MOST_CALLS]
        out = set(sessions[fold::_FOLDS])
        rest = [example for example in examples if example.session not in out]
        seconds = np.array([example.seconds for example in aside])
        found.append(
            _Aside(
                session=np.array([example.session for example in aside]),
                log_s=np.log(seconds),
                seconds=seconds,
                mixed=np.tile(vague(), (len(aside), 1)),
                examples=aside,
                rest=rest,
                bins=np.array([bin_of(example.seconds) for example in rest]),
            )
        )
    return found


def _counts(fold: _Aside, level: str) -> tuple[Array, Array]:
    """What the rest says of a level's keys: which row is whose call's, and (rows, bins); row 0 is empty."""
    rows: dict[int, int] = {}
    of_call = np.zeros(len(fold.examples), int)
    for at, example in enumerate(fold.examples):
        if level in example.keys:
            of_call[at] = rows.setdefault(example.keys[level], len(rows) + 1)
    counts = np.zeros((len(rows) + 1, BINS), np.float32)
    row_of = np.array([rows.get(example.keys.get(level, -1), 0) for example in fold.rest], int)
    np.add.at(counts, (row_of, fold.bins), 1)
    counts[0] = 0
    return of_call, counts


def _weights(folds: list[_Aside]) -> dict[str, float]:
    """Level by level, from the general to the specific: the best m, or none."""
    weights: dict[str, float] = {}
    best = [_losses(fold, fold.mixed) for fold in folds]
    for level in LEVELS:
        tried = []
        counts = [_counts(fold, level) for fold in folds]
        for weight in (1.0,) if level == "all" else _WEIGHTS:
            losses = [_losses(f, _with(f.mixed, own, weight)) for f, own in zip(folds, counts, strict=True)]
            tried.append((float(np.concatenate(losses).mean()), weight, losses))
        _, weight, losses = min(tried, key=lambda one: one[0])
        if level in _ALWAYS or _is_gain(folds, best, losses):
            weights[level], best = weight, losses
            for fold, own in zip(folds, counts, strict=True):
                fold.mixed = _with(fold.mixed, own, weight)
        if level == "tool":
            for fold in folds:
                quantiles = _quantiles(fold.mixed, QUANTILES)
                fold.base = (
                    float(pinball(fold.seconds, np.exp(quantiles)).mean()) or 1.0,
                    float(pinball(fold.log_s, quantiles).mean()) or 1.0,
                )
            best = [_losses(fold, fold.mixed) for fold in folds]
    return weights


def _with(mixed: Array, level: tuple[Array, Array], weight: float) -> Array:
    of_call, counts = level
    totals = counts.sum(axis=1)
    share = (totals / (totals + weight))[of_call][:, None]
    return np.asarray((1 - share) * mixed + (counts / (totals + weight)[:, None])[of_call])


def _losses(fold: _Aside, mixed: Array, levels: Array | None = None) -> Array:
    """(calls,) what the fold's quantiles cost, in shares of what tools alone cost."""
    quantiles = _quantiles(mixed, QUANTILES if levels is None else levels)
    seconds, logs = fold.base
    return pinball(fold.seconds, np.exp(quantiles)) / seconds + pinball(fold.log_s, quantiles) / logs


def _quantiles(mixed: Array, levels: Any) -> Array:
    """(calls, levels) natural logarithms; ``levels`` are the same for each call, or (calls, levels)."""
    cumulative = mixed.cumsum(axis=1)
    cumulative /= cumulative[:, -1:]
    wanted = np.broadcast_to(np.asarray(levels), (len(mixed), len(QUANTILES)))
    rows = np.arange(len(mixed))
    found = np.empty(wanted.shape)
    for column in range(wanted.shape[1]):
        level = wanted[:, column]
        at = np.minimum((cumulative < level[:, None]).sum(axis=1), BINS - 1)
        below = np.where(at > 0, cumulative[rows, at - 1], 0.0)
        inside = np.clip((level - below) / np.maximum(cumulative[rows, at] - below, 1e-12), 0, 1)
        found[:, column] = EDGES[at] + inside * (EDGES[1] - EDGES[0])
    return found * math.log(2)


def _is_gain(folds: list[_Aside], before: list[Array], after: list[Array]) -> bool:
    """Whether sessions gain, and by more than chance would have it."""
    gains = np.concatenate([old - new for old, new in zip(before, after, strict=True)])
    sessions = np.concatenate([fold.session for fold in folds])
    sums = np.bincount(sessions, gains)[np.unique(sessions)]
    error = float(sums.std(ddof=1)) * math.sqrt(len(sums)) if len(sums) > 1 else math.inf
    return float(sums.sum()) > max(_SURE * error, 5e-4 * len(gains))


def _tuned_shares(folds: list[_Aside]) -> Shares:
    """How much sessions' calls have in common: one share after the other, twice, for each changes what is left."""
    scores = [_scores(fold) for fold in folds]
    best = Shares()
    losses = [_losses(fold, fold.mixed) for fold in folds]
    for name in ("command", "session", "program", "command", "session"):
        for value in _SHARES:
            tried = replace(best, **{name: value})
            if tried == best or tried.session + tried.program + tried.command > 0.95:
                continue
            now = [_losses(fold, fold.mixed, _moved(fold, own, tried)) for fold, own in zip(folds, scores, strict=True)]
            if np.concatenate(now).mean() < np.concatenate(losses).mean() and _is_gain(folds, losses, now):
                best, losses = tried, now
    return best


def _scores(fold: _Aside) -> Array:
    cumulative = fold.mixed.cumsum(axis=1)
    cumulative /= cumulative[:, -1:]
    said = [Forecast((), (), None, row) for row in cumulative]  # type: ignore[arg-type]
    return np.array([one.score(s) for one, s in zip(said, fold.seconds.tolist(), strict=True)])


def _moved(fold: _Aside, scores: Array, shares: Shares) -> Array:
    """(calls, levels) where the session's pace has each call's levels read off."""
    paces: dict[int, Pace] = {}
    moves = np.empty((len(fold.examples), 2))
    for at, (example, score) in enumerate(zip(fold.examples, scores.tolist(), strict=True)):
        pace = paces.setdefault(example.session, Pace())
        moves[at] = pace.next(example.program, example.command, shares)
        pace.add(example.program, example.command, score, shares)
    normal = np.array([_NORMAL.inv_cdf(level) for level in QUANTILES])
    wanted = moves[:, :1] + moves[:, 1:] * normal
    return np.array([[_NORMAL.cdf(value) for value in row] for row in wanted.tolist()])
