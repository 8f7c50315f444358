"""How many requests a session has, how many steps a request, how many calls a step: three sums that must agree.

Each count has a published distribution of its own, and a session's is the sum of its requests'. Alternating between
them (rank the one and take its quantiles, scale its parts to the sum, rank those, ...) settles on counts with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayroll.traces import _calibration as calibration

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Counts", "count", "ranked"]

_ROUNDS = 40  # sessions' p90 is within 2 % after about 20


@dataclass(frozen=True, slots=True)
class Counts:
    """The skeleton of a set of sessions, as arrays."""

    is_codex: Array
    """Of each session."""
    request_session: Array
    """Of each request, in order of sessions."""
    request_steps: Array
    """Of each request: steps that begin with a tool's result; one that begins with its user comes before them."""
    step_calls: Array
    """Of each step that calls tools, in order: of a request, all but its last."""


def ranked(score: Array, curve: calibration.Curve) -> Array:
    """Values that follow the curve as exactly as their number allows, in the order of the scores."""
    import numpy as np

    shares, values = zip(*curve, strict=True)
    ranks = np.empty(len(score))
    ranks[np.argsort(score, kind="stable")] = (np.arange(len(score)) + 0.5) / max(1, len(score))
    return np.exp(np.interp(ranks, shares, np.log(values)))


def count(sessions: int, codex_share: float, rng: np.random.Generator) -> Counts:
    """All counts of this many sessions."""
    import numpy as np

    drive = rng.standard_normal(sessions)
    requests = np.rint(ranked(drive, calibration.SESSION_REQUESTS)).astype(int)
    session = np.repeat(np.arange(sessions), requests)
    mixed = 0.72 * drive + 0.69 * rng.standard_normal(sessions)
    per_request = (ranked(mixed, calibration.SESSION_STEPS) / requests)[session]
    weights = per_request * np.exp(1.6 * rng.standard_normal(len(session)))
    for _ in range(_ROUNDS):
        weights = ranked(weights, calibration.REQUEST_STEPS)
        sums = np.bincount(session, weights, sessions)
        weights = weights * (ranked(sums, calibration.SESSION_STEPS) / sums)[session]
    steps = np.rint(ranked(weights, calibration.REQUEST_STEPS)).astype(int)
    totals = np.bincount(session, steps, sessions).astype(int)

    is_codex = _providers(totals + requests, codex_share, rng)
    return Counts(is_codex, session, steps, _calls(session, steps, totals, is_codex, rng))


def _providers(steps: Array, codex_share: float, rng: np.random.Generator) -> Array:
    """Which sessions are Codex's: the longer, by as much as gives Codex its share of the steps."""
    import numpy as np

    noise = rng.standard_normal(len(steps))
    wanted = codex_share * calibration.CODEX_LENGTH / (codex_share * calibration.CODEX_LENGTH + 1 - codex_share)
    best, least = np.zeros(len(steps), bool), np.inf
    for tilt in np.linspace(-0.3, 0.7, 201):
        is_codex = np.zeros(len(steps), bool)
        is_codex[np.argsort(tilt * np.log(steps) + noise)[len(steps) - round(codex_share * len(steps)) :]] = True
        off = abs(steps[is_codex].sum() / steps.sum() - wanted)
        if off < least:
            best, least = is_codex, off
    return best


def _calls(session: Array, steps: Array, totals: Array, is_codex: Array, rng: np.random.Generator) -> Array:
    """Short requests, short sessions and Codex call more at once; how much more is fitted to the sessions' own sums."""
    import numpy as np

    request = np.repeat(np.arange(len(session)), steps)
    owner = session[request]
    lean = -0.3 * np.log(totals + 1) + 1.6 * is_codex + 0.5 * rng.standard_normal(len(totals))
    base = -0.5 * np.log(np.maximum(steps, 1))[request] + rng.gumbel(size=len(request))
    bounds = np.cumsum(calibration.CALLS_OF_A_STEP)[:-1]
    tie = 0.3 * rng.random(len(totals))
    calls = np.ones(len(request), int)
    for _ in range(8):
        ranks = np.empty(len(request))
        ranks[np.argsort(base + lean[owner])] = (np.arange(len(request)) + 0.5) / max(1, len(request))
        calls = 1 + np.searchsorted(bounds, ranks)
        sums = np.bincount(owner, calls, len(totals))
        wanted = ranked(sums + tie, calibration.SESSION_CALLS)
        more = np.log(np.maximum(wanted - totals, 0.3) / np.maximum(sums - totals, 0.3))
        lean = lean + 0.7 * np.clip(more, -1, 1)
    return calls
