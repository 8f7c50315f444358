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
from rayroll.traces.categories import category
from rayroll.traces.sanitize import check, sanitize_rows
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

    def each(
        name: str, values: Any, percents: tuple[int, ...], published: list[float]
    ) -> Iterator[tuple[str, float, float]]:
        found = np.percentile(values, percents)
        yield from ((f"{name} p{p}", float(f), e) for p, f, e in zip(percents, found, published, strict=True))

    counts, timing, tools, lengths = FACTS["counts"], FACTS["timing_seconds"], FACTS["tools"], FACTS["token_lengths"]
    requests = np.bincount(made.session, made.is_user)
    yield from each("requests per session", requests, P_ALL, counts["per_session"]["requests"][1:])
    for of, by in itertools.product(("tool_initiated_steps", "tool_calls"), ("session", "request")):
        yield from each(f"{of} per {by}", made.sums(by, of), P_ALL, counts[f"per_{by}"][of][1:])
    yield from each("tool_calls per step", made.calls, P_ALL, counts["per_step"]["tool_calls"][1:])

    yield from each(
        "generation s", made.generation_s, (50, 90, 99), timing["per_individual_event"]["generation_span"][1:4]
    )
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
        yield (
            f"share above 0, {provider}",
            positive[of].mean(),
            published["n_positive"] / FACTS["scope"]["tool_calls"][provider],
        )
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
    seen = Counter(category(name) for name in made.tool.tolist())
    for name, (_, share) in ((k, v) for k, v in tools["category_calls"].items() if isinstance(v[0], int)):
        yield f"calls of {name}, %", 100 * seen[name] / len(made.tool), share

    for kind, column in (("prefix", made.prefix), ("output", made.output)):
        published = lengths["merged_digitised"][kind]
        yield from each(f"{kind} tokens", column, P_ALL, [published[f"p{p}"] for p in P_ALL])
    yield from each("append tokens", made.append, (50,), [lengths["median_all"]["append"]])
    for provider in ("claude", "codex"):
        of = made.of(provider)
        for kind, column in (("prefix", made.prefix), ("append", made.append), ("output", made.output)):
            yield from each(
                f"{kind} tokens, {provider}", column[of], (50,), [lengths["by_provider"][f"{kind}_p50"][provider]]
            )
        yield from each(
            f"prefix tokens, {provider}", made.prefix[of], (99,), [lengths["by_provider"]["prefix_p99"][provider]]
        )
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


def test_the_sums_of_providers_come_out(made: Measured):
    scope = FACTS["scope"]
    steps = scope["steps"]["codex"] / scope["steps"]["all"]
    assert made.is_codex.mean() == pytest.approx(steps, rel=0.05)
    for provider in ("claude", "codex"):
        per_step = scope["tool_calls"][provider] / scope["steps"][provider]
        assert made.calls[made.of(provider)].mean() == pytest.approx(per_step, rel=0.05)


def test_what_takes_long_says_more(made: Measured):
    for tool in ("Bash", "exec_command", "Read"):
        timed = (made.tool == tool) & (made.call_ms > 0)
        logs = np.log(made.call_ms[timed]), np.log(made.result_chars[timed] + 1)
        assert np.corrcoef(*logs)[0, 1] > 0.15


def test_the_calls_of_a_session_are_fast_or_slow_together(made: Measured):
    timed = (made.tool == "Bash") & (made.call_ms > 0)
    logs, owner = np.log(made.call_ms[timed]), made.call_session[timed]
    sizes = np.bincount(owner)
    means = np.bincount(owner, logs)[sizes >= 20] / sizes[sizes >= 20]
    assert means.std() > 2 * logs.std() / np.sqrt(20)  # what chance alone leaves of it


def test_a_tool_depends_on_the_one_before(made: Measured):
    same = made.call_session[1:] == made.call_session[:-1]
    for first, second in (("Read", "Edit"), ("write_stdin", "write_stdin"), ("WebSearch", "WebFetch")):
        after = made.tool[1:][same & (made.tool[:-1] == first)]
        provider = made.call_is_codex[made.tool == second][0]
        assert (after == second).mean() > 1.1 * (made.tool[made.call_is_codex == provider] == second).mean()


def test_tools_are_of_the_stores_categories():
    for name, tool in itertools.chain.from_iterable(own.items() for own in calibration.TOOLS.values()):
        assert tool.category == category(name)


@pytest.mark.parametrize("provider", ["claude", "codex"])
def test_transitions_keep_the_shares(provider: str):
    _, shares, chances = transitions(provider)
    assert chances.sum(1) == pytest.approx(np.ones(len(shares)))
    assert shares @ chances == pytest.approx(shares)


def test_contexts_grow_step_by_step_and_are_sometimes_compacted(made: Measured):
    total = made.prefix + made.append
    growth = np.diff(total)[made.session[1:] == made.session[:-1]]
    growing = FACTS["context_dynamics"]["growth"]["steps_growing_pct"]
    assert 100 * (growth > 0).mean() == pytest.approx(min(growing.values()), rel=0.05)
    drops = FACTS["context_dynamics"]["compaction"]["merged"]["major"] / FACTS["scope"]["sessions"]["all"]
    assert (growth <= -64_000).sum() / made.sessions == pytest.approx(drops, rel=0.25)


def test_a_long_wait_loses_the_cache(made: Measured):
    steps = np.flatnonzero(made.is_user[1:] & (made.session[1:] == made.session[:-1])) + 1
    low = made.prefix[steps] < 0.1 * (made.prefix + made.append)[steps]
    assert np.median(made.wait_s[low]) > 3 * np.median(made.wait_s)


def by_session(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [list(own) for _, own in itertools.groupby(rows, lambda row: row["session_id"])]


SOME = list(synthesize(60, seed=5))


def test_rows_have_the_fields_of_tracelabs_public_rows():
    public = [json.loads(line) for line in (DATA / "sanitized_rounds.jsonl").read_text().splitlines()]

    def shape(row: dict[str, Any]) -> Any:
        events = {
            (e["event_type"], tuple(sorted(e.keys() - {"content_chars", "is_error"}))) for e in row["timing_events"]
        }
        return sorted(row), events, {tuple(sorted(tool)) for tool in row["tools"]}

    for provider in ("claude", "codex"):
        theirs = [shape(row) for row in public if row["provider"] == provider]
        for fields, events, tools in (shape(row) for row in SOME if row["provider"] == provider):
            assert fields == theirs[0][0]
            assert events <= set().union(*(seen for _, seen, _ in theirs))
            assert tools <= set().union(*(seen for _, _, seen in theirs))


def test_each_result_answers_a_call_of_the_step_before():
    for session in by_session(SOME):
        for before, row in itertools.pairwise(session):
            answers = [e for e in row["timing_events"] if e["event_type"] == "tool_result"]
            assert sorted(e["tool_call_id"] for e in answers) == sorted(t["tool_call_id"] for t in before["tools"])
            assert sorted(e["timestamp"] for e in answers) == sorted(t["result_at"] for t in before["tools"])


def test_no_clock_runs_backwards():
    for session in by_session(SOME):
        assert [row["round_index"] for row in session] == list(range(len(session)))
        newest = ""
        for row in session:
            times = [event["timestamp"] for event in row["timing_events"]]
            outputs = [e["timestamp"] for e in row["timing_events"] if e["event_type"] in OUTPUTS]
            assert newest <= min(outputs) and times == sorted(times)
            newest = max(outputs)


def test_numbers_of_a_row_agree_with_each_other():
    for row in SOME:
        assert row["input_tokens_total"] == row["prefix_tokens"] + row["newly_append_tokens"]
        assert min(row["prefix_tokens"], row["newly_append_tokens"] - 1, row["output_tokens"] - 1) >= 0
        assert (row["reasoning_output_tokens"] or 0) <= row["output_tokens"]
        parts = [row[f"claude_{part}_input_tokens"] for part in ("uncached", "cache_creation", "cache_read")]
        assert parts == [None] * 3 if row["provider"] == "codex" else sum(parts) == row["input_tokens_total"]
        inputs = [event for event in row["timing_events"] if event["event_type"] in INPUTS]
        assert row["current_input_event_count"] == len(inputs)


def test_keys_of_rows_are_their_own():
    assert len({row["trace_key"] for row in SOME}) == len(SOME)


def test_synthetic_rows_hold_nothing_that_may_not_be_shared():
    assert check(SOME[:500], sanitize_rows(SOME[:500])) == []


def test_the_seed_says_it_all():
    assert list(synthesize(60, seed=5)) == SOME
    assert next(synthesize(60, seed=6)) != SOME[0]


@pytest.mark.parametrize("sessions", [1, 2, 7])
def test_a_few_sessions_are_enough(sessions: int):
    assert len(by_session(list(synthesize(sessions, seed=0)))) == sessions


@pytest.mark.parametrize(("weights", "expected"), [({"codex": 1}, {"codex"}), ({"claude": 3, "codex": 0}, {"claude"})])
def test_the_mix_of_providers_is_the_callers(weights: dict[str, float], expected: set[str]):
    assert {row["provider"] for row in synthesize(5, seed=0, providers=weights)} == expected


@pytest.mark.parametrize("weights", [{}, {"claude": 0}, {"claude": -1, "codex": 2}, {"codex": float("nan")}])
def test_weights_that_leave_no_provider_are_refused(weights: dict[str, float]):
    with pytest.raises(ConfigError, match="0 or more"):
        synthesize(5, seed=0, providers=weights)


def test_bad_arguments_are_refused_before_the_first_row():
    with pytest.raises(ConfigError, match="did you mean 'codex'"):
        synthesize(5, seed=0, providers={"codx": 1})
    with pytest.raises(ConfigError, match="one session at least"):
        synthesize(0, seed=0)
    with pytest.raises(ConfigError, match="seed"):
        synthesize(1, seed=-1)
