"""Five thousand synthetic sessions have the published statistics, computed here from their rows and nothing else."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayroll.errors import ConfigError
from rayroll.traces import _calibration as calibration
from rayroll.traces._synth_tools import transitions
from rayroll.traces.synth import synthesize

DATA = Path(__file__).parent / "data"
FACTS = json.loads((DATA / "facts.json").read_text())
INPUTS = {"user_message", "tool_result"}
OUTPUTS = {"reasoning", "text", "tool_call"}
P50_90, P_ALL = (50, 90), (25, 50, 90, 99)


class Measured:
    """Columns of steps and calls, read off the rows by the definitions in facts.json."""

    def __init__(self, rows: Iterator[dict[str, Any]]) -> None:
        steps, times, calls = [], [], []
        numbers: dict[str, int] = {}
        request = -1
        for row in rows:
            session = numbers.setdefault(row["session_id"], len(numbers))
            events = row["timing_events"]
            is_user = events[0]["event_type"] == "user_message"
            request += is_user
            first = next(i for i, event in enumerate(events) if event["event_type"] in OUTPUTS)
            last = len(events) - 1 - (events[-1]["event_type"] == "usage_report")
            times.append([events[i]["timestamp"][:-1] for i in (0, first - 1, last, -1)])
            provider = row["provider"] == "codex"
            tools = row["tools"]
            tokens = row["prefix_tokens"], row["newly_append_tokens"], row["output_tokens"]
            steps.append((session, request, provider, is_user, len(tools), *tokens))
            for tool in tools:
                internal = tool["tool_internal_latency_ms"]
                effective = tool["tool_wall_latency_ms"] if internal is None else internal
                size = tool["result_chars"]
                calls.append((provider, tool["tool_name"], effective, tool["is_error"], size, session))
        columns = np.array(steps).T
        self.session, self.request, self.is_codex, self.is_user, self.calls = columns[:5]
        self.is_codex, self.is_user = self.is_codex.astype(bool), self.is_user.astype(bool)
        self.prefix, self.append, self.output = columns[5:]
        self.sessions = len(numbers)
        at = np.array(times, "datetime64[ms]").astype(np.int64) / 1000
        self.generation_s = at[:, 2] - at[:, 1]
        self.wait_s = (at[1:, 0] - at[:-1, 3])[self.is_user[1:] & (self.session[1:] == self.session[:-1])]
        self.wait_is_codex = self.is_codex[1:][self.is_user[1:] & (self.session[1:] == self.session[:-1])]
        providers, names, effective, errors, sizes, owners = zip(*calls, strict=True)
        self.call_is_codex, self.tool = np.array(providers), np.array(names)
        self.call_ms, self.is_error = np.array(effective), np.array(errors)
        self.result_chars, self.call_session = np.array(sizes), np.array(owners)

    def sums(self, by: str, of: str) -> Any:
        weights = ~self.is_user if of == "tool_initiated_steps" else self.calls
        return np.bincount(getattr(self, by), weights)

    def of(self, provider: str) -> Any:
        return self.is_codex == (provider == "codex")

    def hit_rate(self, where: Any) -> float:
        return float(self.prefix[where].sum() / (self.prefix[where] + self.append[where]).sum())


@pytest.fixture(scope="module")
def made() -> Measured:
    return Measured(synthesize(5_000, seed=20260604))


def claims(made: Measured) -> Iterator[tuple[str, float, float]]:
    """Each figure that is followed: its name, what it is here, what was published."""

    def each(name: str, values: Any, percents: tuple[int, ...], published: list[float]) -> Iterator[tuple[str, float, float]]:
        found = np.percentile(values, percents)
        yield from ((f"{name} p{p}", float(f), e) for p, f, e in zip(percents, found, published, strict=True))

    counts, timing, tools, lengths = FACTS["counts"], FACTS["timing_seconds"], FACTS["tools"], FACTS["token_lengths"]
    requests = np.bincount(made.session, made.is_user)
    yield from each("requests per session", requests, P_ALL, counts["per_session"]["requests"][1:])
    for of, by in itertools.product(("tool_initiated_steps", "tool_calls"), ("session", "request")):
        yield from each(f"{of} per {by}", made.sums(by, of), P_ALL, counts[f"per_{by}"][of][1:])
    yield from each("tool_calls per step", made.calls, P_ALL, counts["per_step"]["tool_calls"][1:])

    yield from each("generation s", made.generation_s, (50, 90, 99), timing["per_individual_event"]["generation_span"][1:4])
    yield from each("generation s", made.generation_s, (25,), [timing["p25_individual"]["generation_span_s"]])
    yield from each("human wait s", made.wait_s, (50, 90, 99), timing["per_individual_event"]["human_wait"][1:4])
    yield from each("human wait s", made.wait_s, (25,), [timing["p25_individual"]["human_wait_s"]])
    for provider in ("claude", "codex"):
        codex = provider == "codex"
        waits = made.wait_s[made.wait_is_codex == codex]
        yield from each(f"human wait s, {provider}", waits, (50,), [FACTS["human_wait"]["p50"][provider]])
        for bound, published in FACTS["human_wait"]["count_share_at_or_below"].items():
            seconds = {"5min": 300, "1h": 3600}[bound]
            yield f"human waits up to {bound}, {provider}", (waits <= seconds).mean(), published[provider]

    positive = made.call_ms > 0
    for provider in ("claude", "codex"):
        of = made.call_is_codex == (provider == "codex")
        published = tools["effective_latency_ms_by_provider"][provider]
        figures = [published[f"p{p}"] for p in (50, 90, 99)]
        yield from each(f"tool ms, {provider}", made.call_ms[of & positive], (50, 90, 99), figures)
        yield f"share above 0, {provider}", positive[of].mean(), published["n_positive"] / FACTS["scope"]["tool_calls"][provider]
        yield f"errors, {provider}", made.is_error[of].mean(), tools["error_rate"][provider]["rate"]
        for tool, calls in tools["top_calls"][provider].items():
            share = calls / FACTS["scope"]["tool_calls"][provider]
            yield f"share of calls, {tool}", (made.tool[of] == tool).mean(), share
    for tool, figures in tools["effective_latency_ms_by_tool"].items():
        if tool not in ("tag", "columns", "note"):
            yield from each(f"tool ms, {tool}", made.call_ms[positive & (made.tool == tool)], P50_90, figures[1:])
    edges = {"<1s": (0, 1e3), "1-10s": (1e3, 1e4), "10s-1m": (1e4, 6e4), ">1m": (6e4, np.inf)}
    for name, (low, high) in edges.items():
        inside = (made.call_ms[positive] >= low) & (made.call_ms[positive] < high)
        yield f"calls of {name}, %", 100 * inside.mean(), tools["latency_bins"][name][2]
    category = {name: tool.category for own in calibration.TOOLS.values() for name, tool in own.items()}
    seen = Counter(category[name] for name in made.tool.tolist())
    for name, (_, share) in ((k, v) for k, v in tools["category_calls"].items() if isinstance(v[0], int)):
        yield f"calls of {name}, %", 100 * seen[name] / len(made.tool), share

    for kind, column in (("prefix", made.prefix), ("output", made.output)):
        published = lengths["merged_digitised"][kind]
        yield from each(f"{kind} tokens", column, P_ALL, [published[f"p{p}"] for p in P_ALL])
    yield from each("append tokens", made.append, (50,), [lengths["median_all"]["append"]])
    for provider in ("claude", "codex"):
        of = made.of(provider)
        for kind, column in (("prefix", made.prefix), ("append", made.append), ("output", made.output)):
            yield from each(f"{kind} tokens, {provider}", column[of], (50,), [lengths["by_provider"][f"{kind}_p50"][provider]])
        yield from each(f"prefix tokens, {provider}", made.prefix[of], (99,), [lengths["by_provider"]["prefix_p99"][provider]])
    published = FACTS["prefix_cache"]["hit_rate"]
    for trigger, steps in (("user_initiated", made.is_user), ("tool_initiated", ~made.is_user)):
        yield f"hit rate, {trigger}", made.hit_rate(steps), published[trigger]["all"]
        for provider in ("claude", "codex"):
            rate = made.hit_rate(steps & made.of(provider))
            yield f"hit rate, {trigger}, {provider}", rate, published[trigger][provider]
    yield "hit rate", made.hit_rate(made.prefix >= 0), published["all"]


def test_every_figure_that_is_followed_is_met_within_a_tenth(made: Measured):
    off = {name: (round(found, 4), want) for name, found, want in claims(made) if abs(found - want) > 0.1 * abs(want)}
    assert off == {}
