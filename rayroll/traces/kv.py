"""Hold or drop: what a session's KV cache costs while the session waits for a tool or a person, and what that saves.

A policy says, when a session goes idle, for how long its cache is held. The step after the gap hits if the gap was no
longer than that, and then prefills only its fresh tokens; else it prefills its whole input. Each gap is judged by
itself. Hit rate, storage ratio R and prefill amplification are those of the statistic ``eviction_sweep``, whose numbers
fixed times reproduce.

>>> with Store.open("traces.duckdb", read_only=True) as store:
...     gaps = Gaps.read(store.connection)
>>> study(gaps, [fixed(60), fixed(300), by_trigger(user_s=60, tool_s=600), oracle(300)])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Self

from rayroll.errors import ConfigError
from rayroll.traces.published import Comparison, compare, numbers

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "Gap",
    "Gaps",
    "Outcome",
    "Policy",
    "beside_published",
    "by_trigger",
    "fixed",
    "oracle",
    "predicted",
    "standard",
    "study",
    "told",
]


@dataclass(frozen=True, slots=True)
class Gap:
    """An idle session, and the step that ended it (the view ``idle_gaps``)."""

    step_id: int
    """The step that the gap ends with."""
    previous_step_id: int
    """The step that it starts after: its calls are what a tool's gap waits for."""
    provider: str
    session_id: str
    trigger: Literal["user", "tool"]
    """Whom the session waited for."""
    gap_us: int
    """How long, in whole microseconds. Of the policies here only ``oracle`` may look at it."""
    total_tokens: int
    """The step's input."""
    fresh_tokens: int
    """What no cache can serve of it."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """All known gaps of a trace, and how long its models were at work."""

    gaps: tuple[Gap, ...]
    generation_us: Mapping[str, int]
    """By provider, and of ``all``."""

    @classmethod
    def read(cls, connection: duckdb.DuckDBPyConnection) -> Self:
        """Those of an open store, in the order of its steps."""
        gaps = connection.execute("""
            SELECT step_id, previous_step_id, provider, session_id, trigger, gap_us, total_tokens, fresh_tokens
            FROM idle_gaps ORDER BY step_id
        """).fetchall()
        spans = connection.execute("SELECT provider, generation_us FROM generation_totals").fetchall()
        return cls(tuple(Gap(*gap) for gap in gaps), {provider: span for provider, span in spans if span is not None})


@dataclass(frozen=True, slots=True)
class Policy:
    """For how long an idle session's cache is held."""

    name: str
    hold_s: Callable[[Gap], float]
    """Seconds from the start of the gap; 0: dropped at once, inf: held until the session is back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did to the gaps of a provider, or of all."""

    policy: str
    provider: str
    steps: int
    hits: int
    hit_rate: float | None
    """Input tokens that the cache served, of all input tokens."""
    storage_ratio: float | None
    """R: time that caches were held while idle, by time that models were at work. None: they never were."""
    amplification: float | None
    """Tokens prefilled for each fresh one. None: there is no fresh one."""


def fixed(ttl_s: float) -> Policy:
    """Every gap is held for the same time."""
    _check(ttl_s=ttl_s)
    return Policy(f"fixed {ttl_s:.9g} s", lambda gap: ttl_s)


def by_trigger(*, user_s: float, tool_s: float) -> Policy:
    """One time for people, another for tools."""
    _check(user_s=user_s, tool_s=tool_s)
    return Policy(f"user {user_s:.9g} s, tool {tool_s:.9g} s", lambda gap: user_s if gap.trigger == "user" else tool_s)


def oracle(break_even_s: float) -> Policy:
    """Who knows the future holds a gap exactly if it is no longer than the break-even, and else drops it at once.

    Nothing hits as often for less: it hits as ``fixed(break_even_s)`` does, and holds nothing in vain. Rebuilding a
    cache and holding it both grow with its tokens, so that where they cost the same is one time for all contexts.
    """
    _check(break_even_s=break_even_s)
    limit_us = _microseconds(break_even_s)
    return Policy(
        f"oracle {break_even_s:.9g} s",
        lambda gap: break_even_s if limit_us is None or gap.gap_us <= limit_us else 0.0,
    )


def predicted(
    predict: Callable[[Gap], float | None], break_even_s: float, *, otherwise_s: float | None = None
) -> Policy:
    """Drop at once what is predicted to outlast the break-even; hold the rest, but no longer than that.

    Args:
        predict: The seconds that a gap will last, as far as can be known when it starts; None: no idea.
        break_even_s: From which length of a gap on dropping is cheaper.
        otherwise_s: How long to hold where there is no prediction; None: the break-even.
    """
    _check(break_even_s=break_even_s, otherwise_s=0.0 if otherwise_s is None else otherwise_s)
    unknown_s = break_even_s if otherwise_s is None else otherwise_s

    def hold_s(gap: Gap) -> float:
        expected_s = predict(gap)
        if expected_s is None or math.isnan(expected_s):
            return unknown_s
        return break_even_s if expected_s <= break_even_s else 0.0

    return Policy(f"predicted {break_even_s:.9g} s", hold_s)


def told(gaps: Gaps, seconds: Sequence[float | None]) -> Callable[[Gap], float | None]:
    """Predictions that were made for all gaps at once, as ``predicted`` takes them.

    Args:
        gaps: Of the trace.
        seconds: How long each will last, in the order of ``gaps.gaps``; None or NaN: no idea.

    Raises:
        ConfigError: There are more or fewer of them than gaps.
    """
    if len(seconds) != len(gaps.gaps):
        raise ConfigError("each gap needs a prediction", gaps=len(gaps.gaps), predictions=len(seconds))
    by_step = {gap.step_id: expected_s for gap, expected_s in zip(gaps.gaps, seconds, strict=True)}
    return lambda gap: by_step.get(gap.step_id)


def standard(
    *, break_even_s: float = 300.0, predict: Callable[[Gap], float | None] | None = None
) -> tuple[Policy, ...]:
    """What is worth comparing: the three times of TraceLab's table, patience with tools alone, and who knows more."""
    _check(break_even_s=break_even_s)
    foretold = () if predict is None else (predicted(predict, break_even_s),)
    return (
        *(fixed(ttl_s) for ttl_s in (60.0, 300.0, 3600.0)),
        by_trigger(user_s=0.0, tool_s=break_even_s),
        *foretold,
        oracle(break_even_s),
    )


def study(gaps: Gaps, policies: Iterable[Policy]) -> list[Outcome]:
    """What each policy would have done, for ``all`` and each provider, in the policies' order."""
    providers = ["all", *sorted({gap.provider for gap in gaps.gaps})] if gaps.gaps else []
    return [
        _outcome(policy, sums, provider, gaps.generation_us.get(provider))
        for policy in policies
        for sums in [_sums(policy, gaps.gaps)]
        for provider in providers
    ]


def beside_published(outcomes: Iterable[Outcome]) -> list[tuple[str, Comparison]]:
    """What TraceLab published of fixed times beside their outcomes, each with its policy's name.

    Only with the whole public data set (``published.is_public_data``) are they to be equal.
    """
    times_s = {fixed(number.row["ttl_s"]).name: number.row["ttl_s"] for number in numbers("eviction_sweep")}
    names = {ttl_s: name for name, ttl_s in times_s.items()}
    rows = [asdict(one) | {"ttl_s": times_s[one.policy]} for one in outcomes if one.policy in times_s]
    compared = compare("eviction_sweep", rows)
    return [(names[one.published.row["ttl_s"]], one) for one in compared if one.ours is not None]


@dataclass(slots=True)
class _Sums:
    steps: int = 0
    hits: int = 0
    total_tokens: int = 0
    fresh_tokens: int = 0
    hit_tokens: int = 0
    held_us: int = 0


def _sums(policy: Policy, gaps: Iterable[Gap]) -> dict[str, _Sums]:
    sums: dict[str, _Sums] = {"all": _Sums()}
    for gap in gaps:
        held_us = _microseconds(policy.hold_s(gap))
        hit = held_us is None or gap.gap_us <= held_us
        for part in (sums["all"], sums.setdefault(gap.provider, _Sums())):
            part.steps += 1
            part.total_tokens += gap.total_tokens
            part.fresh_tokens += gap.fresh_tokens
            part.held_us += gap.gap_us if held_us is None else min(gap.gap_us, held_us)
            if hit:
                part.hits += 1
                part.hit_tokens += gap.total_tokens - gap.fresh_tokens
    return sums


def _outcome(policy: Policy, sums: dict[str, _Sums], provider: str, generation_us: int | None) -> Outcome:
    part = sums[provider]
    return Outcome(
        policy=policy.name,
        provider=provider,
        steps=part.steps,
        hits=part.hits,
        hit_rate=part.hit_tokens / part.total_tokens if part.total_tokens else None,
        storage_ratio=part.held_us / generation_us if generation_us else None,
        amplification=(part.total_tokens - part.hit_tokens) / part.fresh_tokens if part.fresh_tokens else None,
    )


def _microseconds(seconds: float) -> int | None:
    """None: without end."""
    return None if math.isinf(seconds) else round(seconds * 1e6)


def _check(**times_s: float) -> None:
    for name, time_s in times_s.items():
        if not time_s >= 0:
            raise ConfigError(f"{name}: a cache cannot be held for {time_s:.9g} s", fix="0 drops it at once, inf never")
