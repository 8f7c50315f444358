"""Statistics of prefix cache, eviction and context, each checked by hand on a trace one can keep in one's head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from traces.four_steps import PRICES, ROWS, UNKNOWN, each, row, rows, totals
from traces.tiny import call, reasoning, result, session, step, store, text, user

from rayroll.traces.store import Store


@pytest.fixture(scope="module")
def traces() -> Iterator[Store]:
    """``ROWS`` in a store."""
    with store(ROWS) as opened:
        yield opened


def test_the_hit_rate_weighs_tokens_not_steps(traces: Store) -> None:
    assert row(traces, "prefix_hit_rate", trigger="all")["hit_rate"] == 2700 / 6000
    assert row(traces, "prefix_hit_rate", trigger="user")["hit_rate"] == 0
    assert row(traces, "prefix_hit_rate", trigger="tool")["hit_rate"] == 2700 / 3300


def test_a_step_that_starts_with_neither_counts_under_all_only() -> None:
    odd = session("b", step(reasoning(0), user(1), text(2), prefix=10, append=10), provider="codex")
    found = {r["trigger"]: r["hit_rate"] for r in rows(ROWS + odd, "prefix_hit_rate") if r["provider"] == "codex"}
    assert found == {"all": 0.5}


def test_an_idle_gap_ends_with_the_steps_own_first_event(traces: Store) -> None:
    assert row(traces, "prefix_idle_gap", trigger="user") == {
        "steps": 1,
        "avg_s": 93,
        "p50_s": 93,
        "p90_s": 93,
        "p99_s": 93,
    }
    assert row(traces, "prefix_idle_gap", trigger="tool")["p50_s"] == 301.5  # 3 and 600


def test_a_users_gap_starts_when_the_last_result_of_the_step_before_came() -> None:
    late = session("a", step(user(0), call(2, result=30), append=5), step(user(40), text(41), append=9))
    assert row(late, "prefix_idle_gap", trigger="user")["p50_s"] == 10


def test_a_tools_gap_is_the_longest_of_the_results_that_open_the_step() -> None:
    calls = (call(1, id="x", result=3), call(1, id="y", result=8), call(1, id="z", result=100))
    opened = step(result(3, id="x"), result(8, id="y"), text(9), result(100, id="z"), text(101), append=9)
    waited = session("a", step(user(0), *calls, append=5), opened)
    assert row(waited, "prefix_idle_gap", trigger="tool")["p50_s"] == 7


def test_an_id_that_is_used_again_is_the_newest_call_s() -> None:
    reused = session(
        "a",
        step(user(0), call(1, id="x", result=91), append=5),
        step(result(91, id="x"), call(92, id="x", result=94), append=9),
        step(result(94, id="x"), call(95, id="x", result=99), append=12),
    )
    assert row(reused, "prefix_idle_gap", trigger="tool")["avg_s"] == (90 + 2) / 2


def test_a_gap_that_cannot_be_known_is_none() -> None:
    first = step(user(0), call(2, id="x", result=1), append=5)
    seconds = (
        step(result(5, id="never"), text(6), append=9),  # whose call nobody saw
        step(result(1, id="x"), text(6), append=9),  # before its call: the clock was set back
        step(user(1), text(6), append=9),  # before the step it follows
        step(user(9), text(10)),  # without input
        step(user(9), text(10), **UNKNOWN),  # whose tokens are unknown
    )
    sessions = [session(f"s{n}", first, second) for n, second in enumerate(seconds)]
    assert row([*chain(*sessions)], "prefix_idle_gap", trigger="all")["steps"] == 0


def test_low_hit_user_steps_are_told_with_the_gaps_before_them() -> None:
    hit = session("b", step(user(0), text(1), append=100), step(user(8), text(9), prefix=100, append=100))
    assert row(ROWS + hit, "prefix_low_hit_user_steps") == {
        "user_steps": 2,
        "low_steps": 1,
        "low_gap_p50_s": 93,
        "low_gap_p90_s": 93,
        "gap_p50_s": 50,  # 7 and 93
        "gap_p90_s": pytest.approx(84.4),
    }


def test_a_prefix_longer_than_all_input_before_it_is_counted() -> None:
    grown = session("b", step(user(0), text(1), append=100), step(user(8), text(9), prefix=101))
    assert row(ROWS + grown, "prefix_exceeds_previous_total") == {
        "compared_steps": 4,
        "exceeding_steps": 1,
        "exceeding_share": 0.25,
    }


def test_redundant_prefill_divides_append_by_what_was_new(traces: Store) -> None:
    found = row(traces, "prefix_redundant_prefill", trigger="all")
    assert (found["append_tokens"], found["fresh_tokens"]) == (2300, 550)  # 400 + 150 + 0
    assert (found["fresh_share"], found["amplification"]) == (550 / 2300, 2300 / 550)
    assert row(traces, "prefix_redundant_prefill", trigger="user")["amplification"] == 1700 / 150
    assert row(traces, "prefix_redundant_prefill", trigger="tool")["amplification"] == 600 / 400


def test_the_printed_table_s_fresh_tokens_have_no_limits(traces: Store) -> None:
    # growth 500 + 200 + 100, output before 100 + 50 + 300
    found = row(traces, "prefix_redundant_prefill", trigger="all")
    assert (found["net_fresh_tokens"], found["net_amplification"]) == (350, 2300 / 350)


def test_fresh_tokens_are_never_more_than_was_appended() -> None:
    jump = session("a", step(user(0), append=100), step(user(5), prefix=900, append=50))
    assert row(jump, "prefix_redundant_prefill", trigger="all")["fresh_tokens"] == 50


def test_the_macro_amplification_divides_all_append_by_growth(traces: Store) -> None:
    assert row(traces, "prefix_amplification_macro") == {
        "append_tokens": 3300,
        "growth_tokens": 800,
        "amplification": 3300 / 800,
    }


def test_a_drop_grows_nothing() -> None:
    assert row(totals(100, 400, 50, 60), "prefix_amplification_macro")["growth_tokens"] == 310


def test_a_subagent_has_a_context_of_its_own() -> None:
    mixed = session(
        "a",
        step(user(0), text(1), append=1000),
        step(user(2), text(3), append=70, is_subagent=True),
        step(result(4), text(5), append=1100),
        step(result(6), text(7), append=80, is_subagent=True),
    )
    assert row(mixed, "prefix_amplification_macro")["growth_tokens"] == 110
    assert row(mixed, "growth", trigger="all")["shrinking_steps"] == 0


def test_subagents_at_the_same_time_have_a_context_each() -> None:
    def of(agent: str, at_s: float, append: int) -> dict[str, Any]:
        return step(user(at_s), text(at_s + 1), append=append, is_subagent=True, agent_id=agent)

    sizes = {"x": (100_000, 20_000, 30_000, 31_000), "y": (500, 600, 700, 800)}
    parallel = session("a", *(of(agent, n, sizes[agent][n]) for n in range(4) for agent in "xy"))
    assert row(parallel, "prefix_amplification_macro")["growth_tokens"] == 11_000 + 300
    compactions = [row(parallel, name)["compactions"] for name in ("compaction", "compaction_alternative")]
    assert compactions == [1, 1]


def test_a_cache_that_gives_up_after_a_minute_keeps_the_short_gaps(traces: Store) -> None:
    # Covered: contexts 1500, 1700, 1800 (5000 in all), of them fresh 400, 150, 0; gaps 3, 93, 600 s; generation 10 s.
    found = row(traces, "eviction_sweep", ttl_s=60.0)
    assert found["steps"] == 3
    assert found["hit_rate"] == 1100 / 5000
    assert found["storage_ratio"] == (3 + 60 + 60) / 10
    assert found["amplification"] == (5000 - 1100) / 550
    assert found["observed_hit_rate"] == 2700 / 5000
    assert found["observed_amplification"] == 2300 / 550


def test_a_longer_time_to_live_hits_more_and_holds_more(traces: Store) -> None:
    found = row(traces, "eviction_sweep", ttl_s=300.0)
    assert found["hit_rate"] == (1100 + 1550) / 5000
    assert found["storage_ratio"] == (3 + 93 + 300) / 10
    assert found["amplification"] == (5000 - 2650) / 550


def test_a_cache_that_never_gives_up_prefills_only_what_is_fresh(traces: Store) -> None:
    found = row(traces, "eviction_sweep", ttl_s=3600.0)
    assert found["hit_rate"] == found["optimal_hit_rate"] == 4450 / 5000
    assert found["amplification"] == 1


@pytest.mark.parametrize(("ttl_s", "hits"), [(93, 2650), (92.999999, 1100), (0, 0)])
def test_a_gap_as_long_as_the_time_to_live_is_a_hit(traces: Store, ttl_s: float, hits: int) -> None:
    assert row(traces, "eviction_sweep", parameters={"ttl_s": [ttl_s]})["hit_rate"] == hits / 5000


def test_a_provider_s_sweep_is_by_its_own_generation() -> None:
    other = session("b", step(user(0), text(90), append=5), provider="codex")
    found = {r["provider"]: r["storage_ratio"] for r in rows(ROWS + other, "eviction_sweep", ttl_s=[60])}
    assert found == {"all": 123 / 100, "claude": 12.3}


def test_the_equivalent_time_to_live_is_the_first_that_hits_as_often_as_the_real_cache(traces: Store) -> None:
    # The real one hit 2700 of 5000; a ttl of 3 s hits 1100, of 93 s 2650, of 600 s 4450.
    assert row(traces, "eviction_equivalent_ttl") == {"ttl_s": 600}


def test_the_active_ratio_drops_waits_above_its_limit(traces: Store) -> None:
    # generation 10 s; calls of 3 and 600 s; the user's wait from 7 to 100
    found = {r["limit_s"]: r["active_ratio"] for r in rows(traces, "kv_active_ratio") if r["provider"] == "all"}
    assert found == {60: 10 / 13, 600: 10 / (10 + 603 + 93), 3600: 10 / 706}


def test_the_idle_counterfactual_caps_a_user_s_append_at_growth(traces: Store) -> None:
    # Only step 2: 1700 appended, 200 grown, so 1500 would be read instead. At 10, 1 and 100 USD per million:
    # 3300 append 0.033, 2700 prefix 0.0027, 470 output 0.047; 1500 at 9 less are 0.0135.
    assert row(traces, "prefix_human_idle_counterfactual", parameters={"prices": PRICES}) == {
        "user_steps": 1,
        "append_tokens": 3300,
        "append_after_tokens": 1800,
        "append_reduction_tokens": 1500,
        "append_reduction_share": 1500 / 3300,
        "user_reduction_share": 1500 / 2700,
        "cost_usd": pytest.approx(0.0827),
        "cost_after_usd": pytest.approx(0.0692),
        "saving_share": pytest.approx(0.0135 / 0.0827),
    }


def test_a_drop_near_the_limit_that_stays_low_is_a_compaction() -> None:
    found = row(totals(100_000, 36_000, 40_000), "compaction")
    assert (found["major_reductions"], found["compactions"], found["tool_initiated"]) == (1, 1, 1)
    assert row(totals(100_000, 36_000, 40_000, trigger="user"), "compaction")["user_initiated"] == 1


def test_a_compaction_s_limits() -> None:
    cases = {
        (100_000, 36_001, 40_000): (0, 0),  # a drop of 63,999
        (100_000, 20_000): (1, 0),  # nothing follows
        (100_000, 20_000, 30_000, 30_000, 75_000): (1, 0),  # back within three steps
        (100_000, 20_000, 30_000, 30_000, 30_000, 75_000): (1, 1),  # back later
        (74_000, 1_000, 2_000, 3_000, 4_000, 100_000): (1, 0),  # from below 75 % of the largest
        (75_000, 1_000, 2_000, 3_000, 4_000, 100_000): (1, 1),
    }
    found = [(r["major_reductions"], r["compactions"]) for r in each("compaction", cases)]
    assert found == list(cases.values())


def test_compactions_are_averaged_over_all_sessions_and_over_those_with_any() -> None:
    twice = totals(100_000, 10_000, 100_000, 10_000, 20_000)  # the first is back at once
    found = row(twice + ROWS, "compaction")
    assert (found["sessions"], found["sessions_with_any"], found["sessions_with_any_share"]) == (2, 1, 0.5)
    assert (found["major_reductions"], found["compactions"], found["avg_all_sessions"]) == (2, 1, 0.5)
    assert found["avg_compacting"] == found["p90_compacting"] == found["p99_compacting"] == 1


def test_the_other_definition_of_a_compaction() -> None:
    cases = {
        (60_000, 10_000, 20_000, 20_000): 1,
        (60_000, 10_001, 20_000, 30_000): 0,  # a drop of 49,999
        (60_000, 10_000, 54_000, 60_000): 0,  # the next step is at 90 %
        (60_000, 10_000, 20_000): 0,  # one later step
        (60_000, 10_000, 19_999, 19_999): 0,  # never 10,000 above
    }
    assert [r["compactions"] for r in each("compaction_alternative", cases)] == list(cases.values())


def test_growth_says_which_way_contexts_go() -> None:
    assert row(totals(100_000, 100_500, 100_500, 10_000, 10_100), "growth", trigger="all") == {
        "steps": 4,
        "growing_steps": 2,
        "shrinking_steps": 1,
        "growing_share": 0.5,
        "shrinking_share": 0.25,
        "major_share": 0.25,
        "avg_added_tokens": 300,
    }
