"""The numbers that one asks for first, of the 716 that were published: what a report shows at the top."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from rayroll.traces.published import Comparison

__all__ = ["MAIN", "Main", "main"]

Unit = Literal["count", "s", "ms", "tokens", "share", "ratio", "usd", "hours", "tokens/s"]


class Main(NamedTuple):
    """A number by what it is called."""

    label: str
    facts: str
    """Where ``facts.json`` has it."""
    unit: Unit


MAIN = (
    Main("sessions", "scope/sessions/all", "count"),
    Main("requests", "scope/requests", "count"),
    Main("steps", "scope/steps/all", "count"),
    Main("tool calls", "scope/tool_calls/all", "count"),
    Main("tool calls per session, p50", "counts/per_session/tool_calls/2", "count"),
    Main("tool calls per request, mean", "counts/per_request/tool_calls/0", "count"),
    Main("session, p50", "timing_seconds/per_session/elapsed/1", "s"),
    Main("request, p50", "timing_seconds/per_request/e2e/1", "s"),
    Main("generation of a step, p50", "timing_seconds/per_individual_event/generation_span/1", "s"),
    Main("human wait, p50", "timing_seconds/per_individual_event/human_wait/1", "s"),
    Main("human wait, p90", "timing_seconds/per_individual_event/human_wait/2", "s"),
    Main("human share of sessions' time", "timing_seconds/per_session/human/4", "share"),
    Main("tool call, p50", "timing_seconds/p25_individual/tool_call_p50_ms", "s"),
    Main("tool call, p90", "timing_seconds/per_individual_event/tool_call/2", "s"),
    Main("tool time", "tools/total_hours/all", "hours"),
    Main("calls over a minute, of all calls", "tools/latency_bins/exact_gt_1min/calls_pct", "share"),
    Main("calls over a minute, of all tool time", "tools/latency_bins/exact_gt_1min/time_pct", "share"),
    Main("shell commands, of all calls", "tools/category_calls/shell_command/1", "share"),
    Main("prefix of a step, p50", "token_lengths/median_all/prefix", "tokens"),
    Main("append of a step, p50", "token_lengths/median_all/append", "tokens"),
    Main("output of a step, p50", "token_lengths/median_all/output", "tokens"),
    Main("decode speed, normalised, p50", "decode/median_normalised_tok_s", "tokens/s"),
    Main("prefix-cache hits", "prefix_cache/hit_rate/all", "share"),
    Main("prefix-cache hits, a user's step", "prefix_cache/hit_rate/user_initiated/all", "share"),
    Main("prefix-cache hits, a tool's step", "prefix_cache/hit_rate/tool_initiated/all", "share"),
    Main("prefill amplification, append by context growth", "prefix_cache/amplification_macro/value", "ratio"),
    Main("prefill amplification, append by fresh", "prefix_cache/redundant_prefill/overall/amplification/2", "ratio"),
    Main("hit rate if idle caches live 5 min", "prefix_cache/eviction_sweep/5min/0", "share"),
    Main("storage ratio R if idle caches live 5 min", "prefix_cache/eviction_sweep/5min/1", "ratio"),
    Main("compactions", "context_dynamics/compaction/merged/compactions", "count"),
    Main("sessions with a compaction", "context_dynamics/compaction/merged/sessions_pct", "share"),
    Main("cost of a session, mean", "cost_usd/per_session/total/0", "usd"),
    Main("cost of all", "cost_usd/totals/all", "usd"),
)


def main(comparisons: Iterable[Comparison]) -> list[tuple[Main, Comparison]]:
    """Each main number with its comparison, in their order."""
    by_place = {comparison.published.facts: comparison for comparison in comparisons}
    return [(number, by_place[number.facts]) for number in MAIN if number.facts in by_place]
