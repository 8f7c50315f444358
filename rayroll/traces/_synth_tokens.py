"""A session's context grows by what is appended, shrinks when it is compacted, and is prefilled anew when a cache lets go.

Growth comes from the sizes of results and outputs. The contexts that this gives are then bent, by one smooth rising
function for each provider, onto the published distribution of prefixes: what grew still grows, what was reset is reset.
Cache misses are picked, the likeliest first, until the published share of tokens is prefilled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayroll.traces import _calibration as calibration
from rayroll.traces._synth_counts import ranked

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Tokens", "outputs", "prefixes"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of each step."""

    prefix: Array
    append: Array


def outputs(is_codex: Array, calls: Array, rng: np.random.Generator) -> Array:
    """Generated tokens; a step that calls more tools, or ends a request, generates more."""
    import numpy as np

    tokens = np.zeros(len(is_codex), int)
    score = 0.25 * np.minimum(calls, 4) + 0.5 * (calls == 0) + rng.standard_normal(len(is_codex))
    for provider, curve in calibration.OUTPUT_TOKENS.items():
        own = is_codex == (provider == "codex")
        tokens[own] = np.rint(ranked(score[own], curve))
    return tokens


def prefixes(
    session: Array,
    is_codex: Array,
    is_user: Array,
    fresh: Array,
    output: Array,
    idle_s: Array,
    rng: np.random.Generator,
) -> Tokens:
    """What each step's request held, and how much of it a cache did.

    Args:
        session: of each step, from 0, rising.
        is_codex: of each step.
        is_user: whether a user's message began the step.
        fresh: tokens of that message, or of the tools' results.
        output: tokens that each step generates; the next request holds them.
        idle_s: seconds without a model call before it: who waits longer is likelier to have lost its cache.
    """
    import numpy as np

    kept, total, base, is_reset = _contexts(session, is_codex, is_user, fresh, output, rng)
    odds = np.log(idle_s + 1) + 1.5 * rng.gumbel(size=len(session))
    prefix, append = np.zeros((2, len(session)), int)
    for provider, (user_rate, tool_rate) in calibration.HIT_RATE.items():
        own = np.flatnonzero(is_codex == (provider == "codex"))
        if not len(own):
            continue
        raw = kept[own], total[own], base[own]
        miss = is_reset[own]
        for _ in range(4):  # bending moves the share of missed tokens a little, and the misses move the curve
            bend = _bending(np.where(miss, raw[2], raw[0]), calibration.PREFIX_TOKENS[provider])
            hit, whole, least = (bend(values) for values in raw)
            miss = is_reset[own].copy()
            for rate, part in ((user_rate, is_user[own]), (tool_rate, ~is_user[own])):
                _pick(miss, np.flatnonzero(part), hit, whole, least, odds[own], rate)
        prefix[own] = np.rint(np.where(miss, least, hit))
        append[own] = np.maximum(np.rint(whole) - prefix[own], 1)
    return Tokens(prefix, append)


def _contexts(
    session: Array, is_codex: Array, is_user: Array, fresh: Array, output: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array, Array]:
    """Of each step: what is left of the context before it, its context, what a miss finds, and whether it starts anew."""
    import numpy as np

    steps, sessions = len(session), int(session[-1]) + 1
    begins = np.diff(session, prepend=-1) != 0
    codex_session = is_codex[begins]
    start = np.where(codex_session, calibration.START_TOKENS["codex"], calibration.START_TOKENS["claude"])
    start = start * np.exp(0.35 * rng.standard_normal(sessions))
    limit = np.zeros(sessions)
    for provider, windows in calibration.LIMIT_TOKENS.items():
        shares, sizes = zip(*windows, strict=True)
        drawn = np.array(sizes)[np.searchsorted(shares, rng.random(sessions))]
        limit = np.where(codex_session == (provider == "codex"), drawn, limit)
    limit *= rng.uniform(0.85, 1.0, sessions)
    base = np.where(rng.random(steps) < 0.3, 300, start[session] * rng.uniform(0.4, 0.9, steps))
    shrinks = np.where(
        is_user & is_codex & (rng.random(steps) < calibration.CODEX_SHRINKS), rng.uniform(0, 0.06, steps), 0
    )
    left = rng.uniform(0.12, 0.3, steps)
    grows = fresh + np.concatenate(([0], output[:-1])) + 60

    kept, total, is_reset = np.zeros(steps), np.zeros(steps), begins.copy()
    context = 0.0
    columns = (begins, start[session], limit[session], shrinks, left, grows)
    for index, (begin, first, most, shrink, keep, grow) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if begin:
            context = first + grow
        elif context + grow > most:
            context = keep * most + grow
            is_reset[index] = True
        else:
            kept[index] = context * (1 - shrink)
            context = kept[index] + grow
        total[index] = context
    return kept, total, np.minimum(base, total - 1), is_reset


def _bending(raw: Array, curve: calibration.Curve) -> Callable[[Array], Array]:
    """The function that takes the raw values' quantiles to the curve's; beyond its ends, a constant factor."""
    import numpy as np

    shares, values = zip(*curve, strict=True)
    before = np.log(np.maximum(np.quantile(raw, shares), 1))
    before = np.maximum.accumulate(before + 1e-6 * np.arange(len(before)))
    after = np.log(values)
    before = np.concatenate(([before[0] - 30], before, [before[-1] + 30]))
    after = np.concatenate(([after[0] - 30], after, [after[-1] + 30]))
    return lambda wanted: np.exp(np.interp(np.log(np.maximum(wanted, 1)), before, after))


def _pick(miss: Array, part: Array, hit: Array, whole: Array, least: Array, odds: Array, rate: float) -> None:
    """Marks the likeliest of a part's steps as missed, until only ``rate`` of its tokens come from the cache."""
    import numpy as np

    hits = part[~miss[part]]
    hits = hits[np.argsort(-odds[hits])]
    prefilled = (whole[part] - np.where(miss[part], least[part], hit[part])).sum()
    budget = (1 - rate) * whole[part].sum() - prefilled
    miss[hits[np.cumsum(np.maximum(hit[hits] - least[hits], 0)) <= budget]] = True
