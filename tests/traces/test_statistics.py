"""Statistics of counts, time and tools, each checked by hand on a trace one can keep in one's head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from traces.tiny import call, reasoning, result, session, step, store, text, usage, user

from rayroll.errors import ConfigError
from rayroll.traces import statistics
from rayroll.traces.store import Store

# Claude, one session of two requests, 100 s:
#   0 user, 10 Bash until 12, 10 Read until 11 (its runner says 500 ms)      generation 10   tools 2 + 0.5
#   12 result, 20 text                                                       generation 8
#   60 user (after 40 s), 64 Bash, never finished                            generation 4
#   100 user (after 36 s), no answer: no request
CLAUDE = session(
    "a",
    step(
        user(0),
        call(10, "Bash", result=12, error=True),
        call(10, "Read", result=11, internal_ms=500),
        model="opus-20250929",
    ),
    step(result(11), result(12), reasoning(15), text(20), model="opus"),
    step(user(60), call(64, "Bash"), model="opus"),
    step(user(100), model="opus"),
)
# Codex, two sessions: one of a request and 7,210 s, of which 7,200 between two messages; one of a single moment.
#   0 user, 2 exec until 3 (its runner says 600 ms), 2 usage                 generation 2    tools 0.6
#   3 result, 10 text                                                        generation 7
#   7210 user (after 7,200 s), 7211 exec for 90 s                            generation 1    tools 90
CODEX = session(
    "b",
    step(user(0), call(2, "exec_command", result=3, internal_ms=600), usage(2)),
    step(result(3), text(10)),
    step(user(7210), call(7211, "exec_command", result=7301), usage(7211)),
    provider="codex",
    user="bob",
) + session("c", step(text(5)), provider="codex", user="ann")

KEYS = ("n", "total", "avg", "p25", "p50", "p90", "p99", "max")


@pytest.fixture(scope="module")
def traces() -> Iterator[Store]:
    """``CLAUDE`` and ``CODEX`` in one store."""
    with store(CLAUDE, CODEX) as opened:
        yield opened


def compute(traces: Store, name: str, **parameters: Any) -> list[dict[str, Any]]:
    return statistics.compute(traces.connection, name, **parameters)


def table(traces: Store, name: str, *columns: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in compute(traces, name, **parameters)]


# The frame


def test_each_statistic_says_what_it_is_and_where_its_definition_comes_from() -> None:
    for name in statistics.names():
        assert len(statistics.definition(name)) > 40, name
        assert "Source:" in statistics.definition(name), name


def test_each_statistic_answers_over_an_empty_store_and_over_steps_that_lack_everything() -> None:
    with Store.open() as empty, store([{"session_id": "s", "tools": [{"tool_name": "X"}]}]) as bare:
        for name in statistics.names():
            compute(empty, name)
            compute(bare, name)


def test_a_parameter_has_a_default_and_may_be_given(traces: Store) -> None:
    assert statistics.parameters("tools_top_calls") == {"top": 5}
    assert len(compute(traces, "tools_top_calls")) == 3
    assert len(compute(traces, "tools_top_calls", top=1)) == 2


def test_an_unknown_statistic_or_parameter_is_named_with_the_known_ones(traces: Store) -> None:
    with pytest.raises(ConfigError, match="did you mean 'human_waits'"):
        compute(traces, "human_wait")
    with pytest.raises(ConfigError, match=r"no parameter 'tpo' \(known=\['top'\]\)"):
        compute(traces, "tools_top_calls", tpo=1)


def test_percentiles_interpolate_between_neighbours() -> None:
    with store(session("a", step(user(0), *(call(1, result=1 + n) for n in (1, 2, 3, 4))))) as four:
        [row] = [row for row in compute(four, "tools_latency") if row["provider"] == "all"]
    # Of 1, 2, 3 and 4 s: a quarter of the way through three gaps is 0.75 gaps, and so on.
    assert [row[key] for key in KEYS] == pytest.approx([4, 10_000, 2500, 1750, 2500, 3700, 3970, 4000])


# Counts


def test_scope(traces: Store) -> None:
    start = datetime(2026, 1, 1)
    counts = ("users", "sessions", "sessions_with_time", "requests", "steps", "tool_calls")
    assert table(traces, "counts_scope", "provider", *counts) == [
        ("all", 2, 3, 2, 4, 8, 5),
        ("claude", 1, 1, 1, 2, 4, 3),
        ("codex", 2, 2, 1, 2, 4, 2),
    ]
    assert [(at - start).total_seconds() for at in table(traces, "counts_scope", "first_at", "last_at")[0]] == [0, 7211]


def test_events_by_type(traces: Store) -> None:
    assert [row[1:] for row in table(traces, "counts_events", "provider", "type", "events") if row[0] == "codex"] == [
        ("all", 9),
        ("text", 2),
        ("tool_call", 2),
        ("usage_report", 2),
        ("user_message", 2),
        ("tool_result", 1),
    ]


def test_first_input_events(traces: Store) -> None:
    assert table(traces, "counts_first_input_event", "provider", "first_event_type", "steps") == [
        ("all", "tool_result", 2),
        ("all", "user_message", 5),
        ("all", None, 1),
        ("claude", "tool_result", 1),
        ("claude", "user_message", 3),
        ("codex", "tool_result", 1),
        ("codex", "user_message", 2),
        ("codex", None, 1),
    ]


def test_steps_with_a_tool(traces: Store) -> None:
    assert table(traces, "counts_steps_with_a_tool", "provider", "with_a_tool", "share") == [
        ("all", 4, 0.5),
        ("claude", 2, 0.5),
        ("codex", 2, 0.5),
    ]


def test_models(traces: Store) -> None:
    assert table(traces, "counts_models", "provider", "model", "steps", "calls_per_step") == [
        ("codex", "model-1", 4, 0.5),
        ("claude", "opus", 3, pytest.approx(1 / 3)),
        ("claude", "opus-20250929", 1, 2),
    ]


def test_dated_versions_of_a_model_are_one_in_calls_per_step(traces: Store) -> None:
    assert table(traces, "counts_calls_per_step_by_model", "model", "steps", "calls_per_step") == [
        ("opus", 4, 0.75),
        ("model-1", 4, 0.5),
    ]


def test_longest_sessions(traces: Store) -> None:
    assert table(traces, "counts_longest_sessions", "session_id", "steps", top=2) == [("claude:a", 4), ("codex:b", 3)]


def test_what_a_session_holds(traces: Store) -> None:
    found = table(traces, "counts_per_session", "provider", "counted", "n", "avg", "p50")
    assert [row[1:] for row in found if row[0] == "all"] == [
        ("requests", 3, pytest.approx(4 / 3), 2),  # 2, 2, 0
        ("user_initiated_steps", 3, pytest.approx(5 / 3), 2),  # 3, 2, 0
        ("tool_initiated_steps", 3, pytest.approx(2 / 3), 1),  # 1, 1, 0
        ("tool_calls", 3, pytest.approx(5 / 3), 2),  # 3, 2, 0
    ]


def test_what_a_request_holds(traces: Store) -> None:
    found = table(traces, "counts_per_request", "provider", "counted", "n", "total")
    # The message without an answer is a step of the request before it.
    assert [row[1:] for row in found if row[0] == "claude"] == [
        ("steps", 2, 4),
        ("user_initiated_steps", 2, 3),
        ("tool_initiated_steps", 2, 1),
        ("tool_calls", 2, 3),
    ]


def test_calls_of_a_step(traces: Store) -> None:
    assert table(traces, "counts_per_step", "provider", "n", "avg", "p50", "max") == [
        ("all", 8, 5 / 8, 0.5, 2),
        ("claude", 4, 3 / 4, 0.5, 2),
        ("codex", 4, 1 / 2, 0.5, 1),
    ]


# Time


def test_time_of_a_session(traces: Store) -> None:
    found = table(traces, "timing_per_session", "provider", "part", "n", "total", "share")
    assert [row[1:] for row in found if row[0] == "claude"] == [
        ("elapsed", 1, 100, 1),
        ("human", 1, 76, 0.76),
        ("generation", 1, 22, 0.22),
        ("tool", 1, 2.5, 0.025),
    ]
    # The session of one moment lasts for nothing, and is none.
    assert [row[1:4] for row in found if row[0] == "codex"] == [
        ("elapsed", 1, 7211),
        ("human", 1, 7200),
        ("generation", 1, 10),
        ("tool", 1, 90.6),
    ]


def test_time_of_a_session_whose_waits_count_an_hour_at_most(traces: Store) -> None:
    found = table(traces, "timing_per_session_capped", "provider", "part", "total", "share")
    assert [row[1:] for row in found if row[0] == "codex"] == [
        ("elapsed", 3700.6, 1),
        ("human", 3600, pytest.approx(3600 / 3700.6)),
        ("generation", 10, pytest.approx(10 / 3700.6)),
        ("tool", 90.6, pytest.approx(90.6 / 3700.6)),
    ]
    shorter = table(traces, "timing_per_session_capped", "provider", "part", "total", human_cap_s=30)
    assert ("claude", "human", 60) in shorter


def test_time_of_a_request(traces: Store) -> None:
    found = table(traces, "timing_per_request", "provider", "part", "n", "total", "max", "share")
    # Claude's two last 20 s and 4 s.
    assert [row[1:] for row in found if row[0] == "claude"] == [
        ("e2e", 2, 24, 20, 1),
        ("generation", 2, 22, 18, pytest.approx(22 / 24)),
        ("tool", 2, 2.5, 2.5, pytest.approx(2.5 / 24)),
    ]


def test_time_of_a_step(traces: Store) -> None:
    found = table(traces, "timing_per_step", "provider", "part", "n", "total", "share")
    assert [row[1:] for row in found if row[0] == "claude"] == [
        ("generation", 4, 22, pytest.approx(22 / 24.5)),
        ("tool", 4, 2.5, pytest.approx(2.5 / 24.5)),
    ]


def test_time_of_single_events(traces: Store) -> None:
    found = table(traces, "timing_per_event", "provider", "part", "n", "avg", "p50", "max")
    assert [row[1:] for row in found if row[0] == "all"] == [
        ("human_wait", 3, pytest.approx(7276 / 3), 40, 7200),
        ("generation_span", 6, pytest.approx(32 / 6), 5.5, 10),  # 1, 2, 4, 7, 8, 10
        ("tool_call", 4, pytest.approx(93.1 / 4), 1.3, 90),  # 0.5, 0.6, 2, 90
    ]


def test_a_subagent_s_prompt_is_no_user_s_message() -> None:
    rows = session(
        "a", step(user(0), text(2)), step(user(10), text(15), is_subagent=True, agent_id="x"), step(user(50), text(60))
    )
    with store(rows) as traces:
        assert table(traces, "human_waits", "provider", "n", "total") == [("all", 1, 35), ("claude", 1, 35)]
        assert table(traces, "counts_scope", "requests")[0] == (2,)


def test_a_message_sent_while_the_agent_works_opens_a_request_with_the_step_that_reads_it() -> None:
    rows = session(
        "a", step(user(0), call(2, result=9)), step(user(5), result(9), user(10), text(13)), step(user(20), text(21))
    )
    with store(rows) as traces:
        # 0 to 2; 10 to 13; 20 to 21.
        assert table(traces, "timing_per_request", "part", "n", "total")[0] == ("e2e", 3, 6)
        # 3 s after the call at 2; 1 s after the result at 9; 7 s after the text at 13.
        assert table(traces, "human_waits", "n", "total")[0] == (3, 11)


def test_steps_before_the_first_message_belong_to_no_request() -> None:
    with store(session("a", step(result(0), text(2)), step(user(5), text(6)))) as traces:
        assert table(traces, "counts_per_request", "counted", "total")[0] == ("steps", 1)


def test_nothing_is_negative_where_a_clock_runs_backwards() -> None:
    rows = session(
        "a", step(user(100), text(90)), step(user(50), call(60, result=40), text(70)), step(user(65), text(80))
    )
    with store(rows) as traces:
        for name in (name for name in statistics.names() if name.startswith(("counts", "human", "timing", "tools"))):
            for row in compute(traces, name):
                numbers = [value for value in row.values() if isinstance(value, (int, float))]
                assert all(value >= 0 for value in numbers), (name, row)


# The human


def test_waits_for_the_user(traces: Store) -> None:
    found = table(traces, "human_waits", "provider", *KEYS)
    assert found[0] == (
        "all",
        3,
        7276,
        pytest.approx(7276 / 3),
        38,
        40,
        pytest.approx(5768),
        pytest.approx(7056.8),
        7200,
    )
    assert found[1][:4] == ("claude", 2, 76, 38)


def test_short_waits_are_most_of_the_waits_and_little_of_the_time(traces: Store) -> None:
    assert table(traces, "human_waits_at_or_below", "provider", "limit_s", "count_share", "time_share") == [
        ("all", 300, pytest.approx(2 / 3), pytest.approx(76 / 7276)),
        ("all", 3600, pytest.approx(2 / 3), pytest.approx(76 / 7276)),
        ("claude", 300, 1, 1),
        ("claude", 3600, 1, 1),
        ("codex", 300, 0, 0),
        ("codex", 3600, 0, 0),
    ]
    assert table(traces, "human_waits_at_or_below", "count_share", limits_s=[36])[1] == (0.5,)


def test_sessions_without_a_wait(traces: Store) -> None:
    assert table(traces, "human_sessions_without_wait", "provider", "sessions", "without_wait", "share") == [
        ("all", 3, 1, pytest.approx(1 / 3)),
        ("claude", 1, 0, 0),
        ("codex", 2, 1, 0.5),
    ]


# Tools


def test_tools_and_their_errors(traces: Store) -> None:
    assert table(traces, "tools_overview", "provider", "calls", "names", "top3_share", "errors", "error_rate") == [
        ("all", 5, 3, 1, 1, 0.2),
        ("claude", 3, 2, 1, 1, pytest.approx(1 / 3)),
        ("codex", 2, 1, 1, 0, 0),
    ]


def test_most_called_tools(traces: Store) -> None:
    assert table(traces, "tools_top_calls", "provider", "name", "calls", "share") == [
        ("claude", "Bash", 2, pytest.approx(2 / 3)),
        ("claude", "Read", 1, pytest.approx(1 / 3)),
        ("codex", "exec_command", 2, 1),
    ]


def test_effective_latency(traces: Store) -> None:
    found = table(traces, "tools_latency", "provider", "calls", "n", "total", "p50", "hours")
    assert found == [
        ("all", 5, 4, 93_100, 1300, pytest.approx(93.1 / 3600)),
        ("claude", 3, 2, 2500, 1250, pytest.approx(2.5 / 3600)),
        ("codex", 2, 2, 90_600, 45_300, pytest.approx(90.6 / 3600)),
    ]


def test_effective_latency_of_each_tool(traces: Store) -> None:
    assert table(traces, "tools_latency_by_tool", "name", "calls", "n", "p50", "share_of_time") == [
        ("exec_command", 2, 2, 45_300, pytest.approx(90.6 / 93.1)),
        ("Bash", 2, 1, 2000, pytest.approx(2 / 93.1)),
        ("Read", 1, 1, 500, pytest.approx(0.5 / 93.1)),
    ]


def test_latency_bins_hold_every_positive_call_once(traces: Store) -> None:
    found = table(traces, "tools_latency_bins", "provider", "bin", "calls", "share_of_calls", "share_of_time")
    assert [row[1:] for row in found if row[0] == "all"] == [
        ("<1s", 2, 0.5, pytest.approx(1.1 / 93.1)),
        ("1-10s", 1, 0.25, pytest.approx(2 / 93.1)),
        ("10s-1m", 0, 0, 0),
        (">1m", 1, 0.25, pytest.approx(90 / 93.1)),
    ]
    assert len(found) == 12


@pytest.mark.parametrize(("took_s", "bin"), [(0.999, "<1s"), (1, "1-10s"), (10, "10s-1m"), (60, ">1m")])
def test_a_bin_holds_its_lower_bound(took_s: float, bin: str) -> None:
    with store(session("a", step(user(0), call(1, result=1 + took_s)))) as traces:
        assert ("claude", bin, 1) in table(traces, "tools_latency_bins", "provider", "bin", "calls")


def test_categories(traces: Store) -> None:
    found = table(
        traces, "tools_categories", "provider", "category", "calls", "share_of_calls", "n", "p50", "share_of_time"
    )
    assert found[:2] == [
        ("all", "shell_command", 4, 0.8, 3, 2, pytest.approx(92.6 / 93.1)),
        ("all", "file_read_search", 1, 0.2, 1, 0.5, pytest.approx(0.5 / 93.1)),
    ]
    assert [row[:3] for row in found[2:]] == [
        ("claude", "shell_command", 2),
        ("claude", "file_read_search", 1),
        ("codex", "shell_command", 2),
    ]


def test_wall_time_beyond_what_the_runner_reported(traces: Store) -> None:
    found = table(traces, "tools_wall_vs_internal", "provider", "name", "calls", "coverage", "residual_h", "p50_s")
    assert found == [
        ("claude", "all", 1, pytest.approx(1 / 3), pytest.approx(0.5 / 3600), 0.5),
        ("claude", "Read", 1, 1, pytest.approx(0.5 / 3600), 0.5),
        ("codex", "all", 1, 0.5, pytest.approx(0.4 / 3600), pytest.approx(0.4)),
        ("codex", "exec_command", 1, 0.5, pytest.approx(0.4 / 3600), pytest.approx(0.4)),
    ]
    assert table(traces, "tools_wall_vs_internal", "residual_share_of_wall")[2] == (pytest.approx(0.4),)


def test_an_internal_time_beyond_the_wall_s_is_no_negative_gap() -> None:
    with store(session("a", step(user(0), call(1, result=2, internal_ms=1500)))) as traces:
        assert table(traces, "tools_wall_vs_internal", "avg_s", "wall_h", "internal_h")[0] == (0, 1 / 3600, 1.5 / 3600)


def test_the_published_facts_have_a_statistic_each() -> None:
    """Each block of facts.json that is about counts, time or tools is named by the statistic that computes it."""
    facts = json.loads((Path(__file__).parent / "data" / "facts.json").read_text())
    said = " ".join(statistics.definition(name) for name in statistics.names())
    blocks = [
        *(f"timing_seconds.{name}" for name in facts["timing_seconds"] if name.startswith("per_")),
        *(f"counts.{name}" for name in facts["counts"] if name.startswith("per_")),
        *("scope.timing_events", "scope.first_input_event", "scope.steps_with_a_tool", "scope.models_steps"),
        *("scope.tool_calls_per_step_by_model", "scope.longest_sessions_steps"),
    ]
    assert [block for block in blocks if block not in said] == []
