"""A session's context grows by what is appended, shrinks when compacted, and is prefilled anew when a cache lets go.

Growth comes from the sizes of results and outputs. The contexts that this gives are then bent, by one smooth rising
function for each provider, onto the published distribution of prefixes: what grew still grows, what was reset is reset.
Cache misses are picked, the likeliest first, until the published share of tokens is prefilled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rayroll.traces import _calibration as calibration
from rayroll.traces._synth_counts import ranked

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Tokens", "outputs", "prefixes"]

_ROUNDS = 4  # the median of what is appended is within 2 % after 3


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
        fresh: tokens of that message, or of the tools' results, as far as their sizes tell.
        output: tokens that each step generates; the next request holds them.
        idle_s: seconds without a model call before it: who waits longer is likelier to have lost its cache.
    """
    import numpy as np

    prefix, append = np.zeros((2, len(session)), int)
    odds = np.log(idle_s + 1) + 1.5 * rng.gumbel(size=len(session))
    for provider, wanted in calibration.APPEND_P50.items():
        own = np.flatnonzero(is_codex == (provider == "codex"))
        seed = int(rng.integers(2**32))
        scale = 1.0
        # How many tokens a character makes is fitted: bending stretches what is appended.
        for _ in range(_ROUNDS if len(own) else 0):
            contexts = _contexts(provider, session[own], is_user[own], scale * fresh[own], output[own], seed)
            hit, whole = _settled(provider, contexts, is_user[own], odds[own])
            prefix[own] = np.rint(hit)
            append[own] = np.maximum(np.rint(whole) - prefix[own], 1)
            scale *= min(max(wanted / float(np.median(append[own])), 0.5), 2.0) ** 1.5  # outputs are appended, too
    return Tokens(prefix, append)


class _Contexts(NamedTuple):
    """Of each step, before bending."""

    kept: Array
    """What is left of the context before it."""
    total: Array
    base: Array
    """What a step that misses the cache still finds there: nearly nothing, or the system prompt."""
    is_reset: Array
    """Whether its context starts anew: the session's first, and those after a compaction."""


def _contexts(provider: str, session: Array, is_user: Array, fresh: Array, output: Array, seed: int) -> _Contexts:
    import numpy as np

    rng = np.random.default_rng(seed)
    steps = len(session)
    begins = np.diff(session, prepend=-1) != 0
    number = np.cumsum(begins) - 1
    lengths = np.bincount(number)
    start = calibration.START_TOKENS[provider] * np.exp(0.35 * rng.standard_normal(len(lengths)))
    limit = _windows(provider, lengths, rng) * rng.uniform(0.85, 1.0, len(lengths))
    base = np.where(rng.random(steps) < 0.3, 300, start[number] * rng.uniform(0.4, 0.9, steps))
    shrink = np.where(is_user & (rng.random(steps) < calibration.SHRINKS[provider]), rng.uniform(0, 0.06, steps), 0)
    left = rng.uniform(0.12, 0.3, steps)
    grows = fresh + np.concatenate(([0], output[:-1])) + 60

    kept, total, is_reset = np.zeros(steps), np.zeros(steps), begins.copy()
    context = 0.0
    columns = (begins, start[number], limit[number], shrink, left, grows)
    for index, (begin, first, most, less, keep, grow) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        if begin:
            context = first + grow
        elif context + grow > most:
            context = keep * most + grow
            is_reset[index] = True
        else:
            kept[index] = context * (1 - less)
            context = kept[index] + grow
        total[index] = context
    return _Contexts(kept, total, np.minimum(base, total - 1), is_reset)


def _windows(provider: str, lengths: Array, rng: np.random.Generator) -> Array:
    """Each session's window, so that the shares hold of steps: a few long sessions hold most of them."""
    import numpy as np

    shares, sizes = zip(*calibration.WINDOW_TOKENS[provider], strict=True)
    given = np.zeros(len(shares))
    chosen = np.zeros(len(lengths), int)
    for index in np.argsort(-lengths * np.exp(0.1 * rng.standard_normal(len(lengths)))).tolist():
        chosen[index] = np.argmin(given / shares)
        given[chosen[index]] += lengths[index]
    return np.array(sizes)[chosen]


def _settled(provider: str, contexts: _Contexts, is_user: Array, odds: Array) -> tuple[Array, Array]:
    """Prefixes and contexts as published. Bending moves the share of missed tokens a little, and misses the curve."""
    import numpy as np

    miss = contexts.is_reset
    for _ in range(4):
        bend = _bending(np.where(miss, contexts.base, contexts.kept), calibration.PREFIX_TOKENS[provider])
        hit, whole, least = bend(contexts.kept), bend(contexts.total), bend(contexts.base)
        miss = contexts.is_reset.copy()
        for rate, part in zip(calibration.HIT_RATE[provider], (is_user, ~is_user), strict=True):
            _pick(miss, np.flatnonzero(part), hit, whole, least, odds, rate)
    return np.where(miss, least, hit), whole


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
