"""Who is prefilled first: small queues served by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces.tiny import result, session, step, store, text, user

from rayroll.errors import ConfigError
from rayroll.traces.prefill import (
    FIRST_COME,
    SHORTEST_APPEND,
    Arrival,
    CostModel,
    append_batches,
    arrivals,
    first_tokens,
    load_cost,
    pace_s,
    serve,
)

# A second for each batch, and one for each ten tokens: alone they take 11, 2, 3 and 2 s.
COST = CostModel(batch_s=1, token_s=0.1, pair_s=0)
LONG, SHORT, MIDDLE, LATE = QUEUE = (
    Arrival(0, at_s=0, prefix_tokens=0, append_tokens=100),
    Arrival(1, at_s=1, prefix_tokens=0, append_tokens=10),
    Arrival(2, at_s=2, prefix_tokens=0, append_tokens=20),
    Arrival(3, at_s=3, prefix_tokens=0, append_tokens=10),
)


def test_first_come_is_first_served() -> None:
    assert first_tokens(QUEUE, FIRST_COME, COST) == [(0, 11), (1, 13), (2, 16), (3, 18)]


def test_the_shortest_append_goes_first_of_those_that_wait() -> None:
    assert first_tokens(QUEUE, SHORTEST_APPEND, COST) == [(0, 11), (1, 13), (3, 15), (2, 18)]


@pytest.mark.parametrize(
    ("budget_tokens", "served"),
    [
        (1, [(0, 11), (1, 13), (3, 15), (2, 18)]),  # each alone
        (25, [(0, 11), (1, 14), (3, 14), (2, 17)]),  # both short ones in 3 s
        (40, [(0, 11), (1, 16), (3, 16), (2, 16)]),  # all three in 5 s
        (1000, [(0, 11), (1, 16), (3, 16), (2, 16)]),  # the first was alone when it came
    ],
)
def test_short_appends_go_together_within_a_budget(budget_tokens: int, served: list[tuple[int, float]]) -> None:
    assert first_tokens(QUEUE, append_batches(budget_tokens, patience_s=math.inf), COST) == served


def test_who_waited_longer_than_patience_goes_first() -> None:
    # At 11 the short one and the middle one have waited for 10 and 9 s: the middle one goes before the late one.
    served = first_tokens(QUEUE, append_batches(25, patience_s=8.5), COST)
    assert served == [(0, 11), (1, 13), (2, 16), (3, 18)]


def test_the_server_waits_when_nobody_does() -> None:
    queue = (SHORT, Arrival(9, at_s=50, prefix_tokens=0, append_tokens=10))
    served = serve(queue, FIRST_COME, COST)
    assert first_tokens(queue, FIRST_COME, COST) == [(1, 3), (9, 52)]
    assert (served.busy_share, served.tokens_per_s) == (4 / 51, 20 / 51)


def test_waits_are_percentiles_from_arrival_to_first_token() -> None:
    served = serve(QUEUE, FIRST_COME, COST)  # 11 12 14 15
    assert (served.ttft_p50_s, served.ttft_p95_s, served.ttft_p99_s) == (
        13,
        pytest.approx(14.85),
        pytest.approx(14.97),
    )
    assert (served.steps, served.batches, served.tokens) == (4, 4, 140)
    assert (served.tokens_per_s, served.busy_share) == (140 / 18, 1)


def test_batches_save_what_every_batch_costs() -> None:
    served = serve(QUEUE, append_batches(40), COST)
    assert (served.batches, served.tokens_per_s) == (2, 140 / 16)


def test_a_token_looks_at_its_prefix_and_half_of_what_is_appended_with_it() -> None:
    assert CostModel(batch_s=3, token_s=0.5, pair_s=1).seconds([Arrival(0, 0, 10, 2)]) == 3 + 1 + 2 * 11


def test_the_default_costs_are_those_of_the_server_they_name() -> None:
    cost = CostModel()
    assert cost.batch_s == pytest.approx(140e9 / 27e12, rel=0.05)
    assert cost.token_s == pytest.approx(2 * 70e9 / 4e15, rel=0.05)
    assert cost.pair_s == pytest.approx(4 * 80 * 8192 / 4e15, rel=0.05)


def test_an_empty_queue_has_no_waits() -> None:
    served = serve([], FIRST_COME)
    assert (served.steps, served.tokens, served.ttft_p50_s, served.tokens_per_s) == (0, 0, None, None)


TRACE = (
    session("a", step(user(0), text(1), append=5), step(result(4), text(5), prefix=5, append=7)),
    session("b", step(user(100), text(101), append=9), step(user(None), text(None), append=9), step(user(105))),
)


def test_a_trace_s_steps_arrive_as_recorded() -> None:
    with store(*TRACE) as traces:
        found = arrivals(traces.connection)
    assert [(one.at_s, one.prefix_tokens, one.append_tokens) for one in found] == [(0, 0, 5), (4, 5, 7), (100, 0, 9)]


def test_sessions_may_start_at_a_pace_and_keep_their_own() -> None:
    with store(*TRACE) as traces:
        found = arrivals(traces.connection, session_every_s=3)
    assert [(one.at_s, one.append_tokens) for one in found] == [(0, 5), (4, 7), (3, 9)]


def test_sessions_start_again_when_the_last_has_had_its_time() -> None:
    with store(*TRACE) as traces:
        assert [one.at_s for one in arrivals(traces.connection, session_every_s=1.5)] == [
            0,
            1,
            1.5,
        ]  # 4 s in rounds of 3
        assert [one.at_s for one in arrivals(traces.connection, session_every_s=0)] == [0, 4, 0]


def test_days_between_steps_take_no_load_off_the_server() -> None:
    days = [session(f"{n}", step(user(0), append=9), step(user(n * 1e5), append=9)) for n in range(1, 50)]
    with store(*days) as traces:
        queue = arrivals(traces.connection, session_every_s=pace_s(traces.connection, 0.5, COST))
    assert serve(queue, FIRST_COME, COST).busy_share == pytest.approx(0.5, rel=0.05)


def test_a_pace_gives_the_server_its_load() -> None:
    with store(*TRACE) as traces:  # 5, 7 and 9 tokens: 1.5 + 1.7 + 1.9 s of work in two sessions
        assert pace_s(traces.connection, 0.5, COST) == pytest.approx(5.1)
        with pytest.raises(ConfigError, match="load"):
            pace_s(traces.connection, 0, COST)
    with store() as nothing:
        assert pace_s(nothing.connection, 0.5, COST) == 0


def test_a_cost_model_may_be_replaced_in_part(tmp_path: Path) -> None:
    (tmp_path / "cost.toml").write_text("batch_s = 1\ntoken_s = 0.1")
    assert load_cost(tmp_path / "cost.toml") == CostModel(batch_s=1, token_s=0.1)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("token_ms = 1", "did you mean 'token_s'"),
        ("token_s = 'fast'", "token_s is no number of seconds: 'fast'"),
        ("token_s = -1", "token_s: -1 is no time"),
        ("token_s = fast", "cannot read the cost model .*line 1"),
    ],
)
def test_a_wrong_cost_model_says_what_is_wrong(tmp_path: Path, written: str, message: str) -> None:
    (tmp_path / "cost.toml").write_text(written)
    with pytest.raises(ConfigError, match=message):
        load_cost(tmp_path / "cost.toml")


@pytest.mark.parametrize("name", ["batch_s", "token_s", "pair_s"])
def test_costs_are_times(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        CostModel(**{name: -1.0})


def test_a_budget_and_a_pace_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="budget"):
        append_batches(0)
    with pytest.raises(ConfigError, match="patience"):
        append_batches(1, patience_s=math.nan)
    with store() as traces, pytest.raises(ConfigError, match="pace"):
        arrivals(traces.connection, session_every_s=-1)


@given(
    queue=st.lists(
        st.builds(
            Arrival,
            step_id=st.integers(0, 99),
            at_s=st.floats(0, 20),
            prefix_tokens=st.integers(0, 10**5),
            append_tokens=st.integers(1, 200),
        ),
        unique_by=lambda arrival: arrival.step_id,
        max_size=30,
    ),
    budget_tokens=st.integers(1, 400),
    patience_s=st.sampled_from([0.0, 2.0, math.inf]),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_every_order_serves_the_same_tokens(queue: list[Arrival], budget_tokens: int, patience_s: float) -> None:
    by_step = {arrival.step_id: arrival for arrival in queue}
    for order in (FIRST_COME, SHORTEST_APPEND, append_batches(budget_tokens, patience_s=patience_s)):
        served = first_tokens(queue, order, COST)
        assert sorted(step_id for step_id, _ in served) == sorted(by_step)
        assert serve(queue, order, COST).tokens == sum(arrival.append_tokens for arrival in queue)
        for step_id, at_s in served:
            assert at_s >= by_step[step_id].at_s + COST.seconds([by_step[step_id]]) - 1e-9
