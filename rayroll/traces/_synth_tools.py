"""Which tool is called after which, how long it takes, how much it says, and whether it fails.

The next tool depends on the one before: affinities, balanced so that the tools' shares stay as published. Durations of
a session's calls go together, and what takes long says more; each tool's durations are ranks of such scores, and so
follow its curve whatever the scores are.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayroll.traces import _calibration as calibration
from rayroll.traces._synth_counts import ranked

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Calls", "call_tools", "transitions"]

_MOST_CHARS = 40_000  # where both agents cut a result off


@dataclass(frozen=True, slots=True)
class Calls:
    """Every tool call, as arrays."""

    name: list[str]
    wall_ms: Array
    """By the client's clock, in whole milliseconds."""
    internal_ms: Array
    """As the tool's runner reports it; NaN where it does not."""
    is_error: Array
    input_chars: Array
    result_chars: Array


def transitions(provider: str) -> tuple[list[str], Array, Array]:
    """The tools, their shares, and in each row the chances of the next; the shares are what the rows lead to."""
    import numpy as np

    tools = calibration.TOOLS[provider]
    names = list(tools)
    shares = np.array([tool.calls for tool in tools.values()], float)
    shares /= shares.sum()
    flow = np.outer(shares, shares)
    for (first, second), times in calibration.AFFINITY.items():
        if first in tools and second in tools:
            flow[names.index(first), names.index(second)] *= times
    for _ in range(300):  # Sinkhorn: rows and columns in turn, until both sum to the shares
        flow *= (shares / flow.sum(1))[:, None]
        flow *= shares / flow.sum(0)
    return names, shares, flow / flow.sum(1)[:, None]


def call_tools(session: Array, is_codex: Array, rng: np.random.Generator) -> Calls:
    """One tool for each call; the arrays say whose session, and whether Codex's, each call is."""
    import numpy as np

    total = len(session)
    calls = Calls(
        [""] * total, np.zeros(total), np.full(total, np.nan), np.zeros(total, bool), *np.zeros((2, total), int)
    )
    lengths = np.bincount(session)
    # Short sessions call what is fast, too: half of all published ones wait less than 15 s for all their tools.
    pace = rng.standard_normal(len(lengths)) + 0.5 * np.log(np.maximum(lengths, 1))
    for provider in ("claude", "codex"):
        own = np.flatnonzero(is_codex == (provider == "codex"))
        if not len(own):
            continue
        names, kinds = _chain(provider, session[own], rng)
        for kind, name in enumerate(names):
            _fill(
                calls,
                calibration.TOOLS[provider][name],
                name,
                own[kinds == kind],
                pace[session[own[kinds == kind]]],
                rng,
            )
        for index, kind in zip(own.tolist(), kinds.tolist(), strict=True):
            calls.name[index] = names[kind]
        odds = np.log([calibration.ERROR_ODDS.get(name, 1.0) for name in names])[kinds]
        failing = np.argsort(odds + rng.gumbel(size=len(own)))[
            len(own) - round(calibration.ERROR_RATE[provider] * len(own)) :
        ]
        calls.is_error[own[failing]] = True
    return calls


def _chain(provider: str, session: Array, rng: np.random.Generator) -> tuple[list[str], Array]:
    import numpy as np

    names, shares, chances = transitions(provider)
    first = np.cumsum(shares).tolist()
    following = [row[:-1] for row in np.cumsum(chances, axis=1).tolist()]
    starts = np.diff(session, prepend=-1) != 0
    kinds = np.empty(len(session), int)
    kind = 0
    for index, (start, draw) in enumerate(zip(starts.tolist(), rng.random(len(session)).tolist(), strict=True)):
        kind = bisect(first[:-1] if start else following[kind], draw)
        kinds[index] = kind
    return names, kinds


def _fill(calls: Calls, tool: calibration.Tool, name: str, at: Array, pace: Array, rng: np.random.Generator) -> None:
    import numpy as np

    count = len(at)
    if not count:
        return
    score = 0.5 * pace + rng.standard_normal(count)
    order = np.argsort(score)
    zeros, longer = order[: round((1 - tool.positive) * count)], order[round((1 - tool.positive) * count) :]
    effective = np.zeros(count)
    effective[longer] = ranked(score[longer], tool.latency_ms)
    # Rounding may not move a call to 0, nor a poll of 60,001 ms into another bin.
    effective[longer] = np.maximum(np.rint(effective[longer]), 1)
    is_reported = rng.random(count) < tool.reported
    if tool.reported > 0.5:
        is_reported[zeros] = True  # only a runner that reports a duration rounds it to 0
    middle, high, highest = tool.residual_s
    residual = ranked(
        rng.random(count), ((0, middle / 3), (0.5, middle), (0.9, high), (0.99, highest), (1, 3 * highest))
    )
    calls.internal_ms[at] = np.where(is_reported, effective, np.nan)
    calls.wall_ms[at] = np.where(is_reported, effective + np.rint(1000 * residual), effective)
    score = (score - score.mean()) / max(float(score.std()), 1e-9)
    size = np.exp(np.log(tool.result_chars) + 0.5 * score + 1.25 * rng.standard_normal(count))
    calls.result_chars[at] = np.minimum(np.rint(size), _MOST_CHARS)
    typed = 900 if tool.category == "file_edit" else 120
    calls.input_chars[at] = np.rint(typed * np.exp(0.8 * rng.standard_normal(count)))
