"""Statistics of tokens, prefix cache, context and cost, each checked by hand on a trace one can keep in one's head."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from traces.tiny import call, reasoning, result, session, step, store, text, usage, user

from rayroll.traces import statistics
from rayroll.traces.store import Store

PRICES = [{"place": 0, "model": "model-*", "append_usd": 10, "prefix_usd": 1, "output_usd": 100}]

UNKNOWN: dict[str, Any] = dict.fromkeys(("input_tokens_total", "prefix_tokens", "newly_append_tokens", "output_tokens"))

# One session, everything in round numbers:
#   step  trigger  gap s  prefix  append  context  grew  output before  fresh
#   0     user     -      0       1000    1000     -     -              -
#   1     tool     3      1000    500     1500     500   100            400
#   2     user     93     0       1700    1700     200   50             150
#   3     tool     600    1700    100     1800     100   300            0
ROWS = session(
    "a",
    step(user(0), call(2, id="t1", result=5), append=1000, output=100),
    step(result(5, id="t1"), text(7), prefix=1000, append=500, output=50),
    step(user(100), call(104, id="t2", result=704), append=1700, output=300),
    step(result(704, id="t2"), text(706), prefix=1700, append=100, output=20),
)


@pytest.fixture(scope="module")
def traces() -> Iterator[Store]:
    """``ROWS`` in a store."""
    with store(ROWS) as opened:
        yield opened


def rows(source: Store | list[dict[str, Any]], name: str, **parameters: Any) -> list[dict[str, Any]]:
    if isinstance(source, Store):
        return statistics.compute(source.connection, name, **parameters)
    with store(source) as opened:
        return statistics.compute(opened.connection, name, **parameters)


def row(source: Store | list[dict[str, Any]], name: str, **keys: Any) -> dict[str, Any]:
    """The one row with these keys, its keys left out; ``parameters`` are the statistic's."""
    parameters = keys.pop("parameters", {})
    keys = {"provider": "all", **keys}
    [found] = [r for r in rows(source, name, **parameters) if keys.items() <= r.items()]
    return {column: value for column, value in found.items() if column not in keys}


def totals(*contexts: int, trigger: str = "tool", provider: str = "claude") -> list[dict[str, Any]]:
    """A session whose steps have these contexts, all but the first of this trigger."""
    event = result if trigger == "tool" else user
    later = [step(event(10 * n), text(10 * n + 1), append=size) for n, size in enumerate(contexts[1:], 1)]
    return session("t", step(user(0), text(1), append=contexts[0]), *later, provider=provider)


def each(name: str, cases: Iterable[tuple[int, ...]]) -> list[dict[str, Any]]:
    """The statistic's row of each case, a session whose steps have these contexts."""
    sessions = [totals(*contexts, provider=f"case {n:02}") for n, contexts in enumerate(cases)]
    return [r for r in rows([*chain(*sessions)], name) if r["provider"] != "all"]


def test_token_lengths_are_percentiles_over_steps(traces: Store) -> None:
    append = row(traces, "tokens_length", measure="append")  # 100 500 1000 1700
    assert append == {"steps": 4, "avg": 825, "p25": 400, "p50": 750, "p90": 1490, "p99": pytest.approx(1679)}
    assert row(traces, "tokens_length", measure="prefix")["p50"] == 500  # 0 0 1000 1700
    assert row(traces, "tokens_length", measure="output")["p50"] == 75  # 20 50 100 300


def test_adjusted_append_leaves_out_the_output_that_comes_back(traces: Store) -> None:
    adjusted = row(traces, "tokens_length", measure="adjusted_append")  # 500-100, 1700-50, 100-300 is not below 0
    assert (adjusted["steps"], adjusted["p50"], adjusted["avg"]) == (3, 400, pytest.approx((400 + 1650 + 0) / 3))


def test_only_models_that_send_their_output_again_are_adjusted() -> None:
    steps = (step(user(0), text(1), append=1000, output=100), step(user(2), text(3), append=500))
    models = ("gpt-5.5", "gpt-5.4", None)
    each = [session("a", {**steps[0], "model": model}, steps[1], provider=f"like {model}") for model in models]
    lengths = [r for r in rows([*chain(*each)], "tokens_length") if r["measure"] == "adjusted_append"]
    assert {r["provider"]: r["p50"] for r in lengths if r["provider"] != "all"} == {
        "like gpt-5.5": 400,
        "like gpt-5.4": 500,
        "like None": 500,
    }


def test_steps_with_another_between_them_are_not_adjusted_to_each_other() -> None:
    steps = session("a", step(user(0), text(1), append=9, output=5), step(user(2), text(3), append=9, round_index=2))
    assert [r["measure"] for r in rows(steps, "tokens_length") if r["provider"] == "all"] == [
        "append",
        "output",
        "prefix",
    ]


def test_totals_are_of_all_steps() -> None:
    thinking = session("b", step(user(0), text(1), prefix=100, append=0, output=50, reasoning=20), provider="codex")
    everything, claude, codex = rows(ROWS + thinking, "tokens_total")
    assert codex == {
        "provider": "codex",
        "steps": 1,
        "input_tokens": 100,
        "prefix_tokens": 100,
        "append_tokens": 0,
        "output_tokens": 50,
        "reasoning_tokens": 20,
        "reasoning_share": 0.4,
        "input_to_output": 2,
    }
    assert (everything["provider"], everything["input_tokens"]) == ("all", 6100)
    assert claude["reasoning_tokens"] is None


def test_append_is_described_by_bins_of_prefix_and_an_empty_bin_has_no_steps() -> None:
    sizes = [(0, 5), (1023, 7), (1024, 9), (262_144, 11)]
    bins = rows(session("a", *(step(user(0), prefix=p, append=a) for p, a in sizes)), "append_by_prefix_bin")
    claude = {r["bin"]: (r["steps"], r["avg"], r["p50"]) for r in bins if r["provider"] == "claude"}
    assert list(claude)[:2] + list(claude)[-2:] == ["<1k", "1-2k", "128-256k", ">256k"]
    assert (claude["<1k"], claude["1-2k"], claude[">256k"]) == ((2, 6, 6), (1, 9, 9), (1, 11, 11))
    assert claude["2-4k"] == (0, None, None)
    assert sum(r["steps"] for r in bins if r["provider"] == "all") == 4


def test_few_steps_bring_most_of_the_appended_tokens(traces: Store) -> None:
    found = row(traces, "append_mass", parameters={"min_tokens": [1000]})  # 100 500 1000 1700
    assert found == {"min_tokens": 1000, "steps": 2, "steps_share": 0.5, "tokens_share": 2700 / 3300}


def test_decode_speed_is_output_by_generation_span() -> None:
    # 100 in 2 s, 50 in 2 s, 300 in 4 s, 20 in 2 s; a step without output or without a span has none
    silent = session("b", step(user(0), text(1)), step(user(2), text(2), output=9))
    found = row(ROWS + silent, "decode_speed")  # 10 25 50 75
    assert (found["steps"], found["p50_tokens_per_s"], found["avg_tokens_per_s"]) == (4, 37.5, 40)


def test_decode_after_reasoning_leaves_the_first_token_out() -> None:
    # 30 tokens in 1 s after reasoning, 10 in 1 s without an event of it: 20 a second over both. The first one's
    # reasoning ends 6 s after the tool's result, of which 80 tokens take 4 s.
    thinking = session(
        "a",
        step(user(0), result(1), reasoning(7), text(8), output=110, reasoning=80),
        step(user(10), text(12), text(13), output=15, reasoning=5),
        step(user(20), text(21), output=99),
    )
    assert row(thinking, "decode_after_reasoning") == {
        "steps": 2,
        "p50_tokens_per_s": 20,
        "ttft_steps": 1,
        "ttft_residual_p50_s": 2,
    }


def test_decode_speed_is_binned_by_what_the_step_read() -> None:
    sizes = (1023, 1024, 2047)
    made = session("a", *(step(user(0), text(n + 1), prefix=size, output=60) for n, size in enumerate(sizes)))
    found = [r for r in rows(made, "decode_by_context") if r["provider"] == "all"]
    assert [(r["from_tokens"], r["steps"], r["p50_tokens_per_s"]) for r in found] == [(512, 1, 60), (1024, 2, 25)]


def test_output_comes_back_as_append_or_as_prefix() -> None:
    def pair(model: str, prefix: int, append: int, *, output: int = 3000, at_s: float = 9) -> list[dict[str, Any]]:
        first = step(user(0), text(5), append=1000, output=output, model=model)
        return session(model, first, step(user(at_s), text(at_s + 1), prefix=prefix, append=append))

    made = [
        pair("resends", 1000, 3100),
        pair("keeps", 4000, 100),
        pair("keeps nearly", 3488, 100),  # 512 less than all of it
        pair("neither", 1000, 2487),  # cannot hold it
        pair("little", 1000, 3100, output=1999),
        pair("late", 1000, 3100, at_s=245.001),
    ]
    found = {r["model"]: r for r in rows([*chain(*made)], "append_side_of_output")}
    assert {name: (r["prefix_side_share"], r["append_side_share"]) for name, r in found.items()} == {
        "resends": (0, 1),
        "keeps": (1, 0),
        "keeps nearly": (1, 0),
        "neither": (0, 0),
    }


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


def test_a_session_a_request_and_a_step_have_their_cost_by_part(traces: Store) -> None:
    # In thousandths of a USD, append + prefix + output: 10+0+10, 5+1+5 | 17+0+30, 1+1.7+2
    def cost(unit: str, part: str) -> tuple[float, ...]:
        found = row(traces, "cost", parameters={"prices": PRICES}, unit=unit, part=part)
        return found["units"], *(round(found[f"{column}_usd"] * 1000, 6) for column in ("avg", "p50"))

    assert cost("step", "total") == (4, 20.675, 15.5)  # 4.7 11 20 47
    assert cost("request", "total") == (2, 41.35, 41.35)  # 31 and 51.7
    assert cost("session", "total") == (1, 82.7, 82.7)
    assert cost("request", "append") == (2, 16.5, 16.5)  # 15 and 18


def test_the_shares_of_the_cost_are_the_same_for_every_unit(traces: Store) -> None:
    found = [r for r in rows(traces, "cost", prices=PRICES) if r["provider"] == "all"]
    for unit in ("step", "request", "session"):
        shares = {r["part"]: r["share"] for r in found if r["unit"] == unit}
        assert shares == {
            "append": pytest.approx(33 / 82.7),
            "prefix": pytest.approx(2.7 / 82.7),
            "output": pytest.approx(47 / 82.7),
            "total": 1,
        }


def test_a_model_without_a_price_is_counted_and_in_no_sum() -> None:
    other = session("b", step(user(0), text(1), append=1_000_000, model="secret"))
    found = row(ROWS + other, "cost_totals", parameters={"prices": PRICES})
    assert (found["steps"], found["priced_steps"], found["priced_share"]) == (5, 4, 0.8)
    assert found["total_usd"] == pytest.approx(0.0827)
    assert row(ROWS + other, "cost", parameters={"prices": PRICES}, unit="session", part="total")["units"] == 1
    models = rows(ROWS + other, "cost_by_model", prices=PRICES)
    assert [(r["model"], r["steps"]) for r in models] == [("model-1", 4), ("secret", 1)]
    assert models[1]["total_usd"] is None


def test_without_a_table_nothing_has_a_price(traces: Store) -> None:
    assert row(traces, "cost_totals") == {
        "steps": 4,
        "priced_steps": 0,
        "priced_share": 0,
        "append_usd": 0,
        "prefix_usd": 0,
        "output_usd": 0,
        "total_usd": 0,
    }


def test_the_published_totals_give_the_published_rates() -> None:
    facts = json.loads((Path(__file__).parent / "data" / "facts.json").read_text())
    cache, macro = facts["prefix_cache"], facts["prefix_cache"]["amplification_macro"]
    sessions = []
    for provider in ("claude", "codex"):
        told = facts["scope"]["tokens"][provider]
        tokens = {"prefix": told["prefix"], "append": told["append"], "output": told["output"]}
        whole = step(user(0), text(1), **tokens, reasoning=told.get("reasoning_output"))
        sessions += session("all", whole, provider=provider)
    with store(sessions) as published:
        for provider, digits in (("all", 5), ("claude", 6), ("codex", 6)):
            found = row(published, "prefix_hit_rate", provider=provider, trigger="all")
            assert round(found["hit_rate"], digits) == cache["hit_rate"][provider]
        assert round(row(published, "tokens_total")["input_to_output"]) == facts["scope"]["input_to_output_ratio"]
        shared = row(published, "tokens_total", provider="codex")["reasoning_share"]
        assert round(shared, 6) == facts["scope"]["tokens"]["codex"]["reasoning_share_of_output"]
    first = macro["append"] - macro["context_growth"]
    grown = session("a", step(user(0), append=first), step(user(1), prefix=first, append=macro["context_growth"]))
    assert round(row(grown, "prefix_amplification_macro")["amplification"], 3) == macro["value"]


def test_a_store_that_may_only_be_read_has_them_too(tmp_path: Path) -> None:
    with Store.open(tmp_path / "traces.duckdb") as written:
        written.load_rows(ROWS)
    with Store.open(tmp_path / "traces.duckdb", read_only=True) as read:
        assert row(read, "cost_totals", parameters={"prices": PRICES})["total_usd"] == pytest.approx(0.0827)
        assert row(read, "eviction_sweep", ttl_s=60.0)["steps"] == 3


NAMES = tuple(
    name
    for name in statistics.names()
    if name.split("_")[0] in ("append", "compaction", "cost", "decode", "eviction", "growth", "kv", "prefix", "tokens")
)


@pytest.fixture(scope="module")
def little() -> Iterator[tuple[Store, Store]]:
    """A store of nothing, and one of steps without times or tokens."""
    no_times = session("a", step(user(None), text(None)), step(usage(None)))
    no_tokens = session("b", step(user(0), text(1), model=None, **UNKNOWN), step(user(9)))
    with store() as empty, store(no_times, no_tokens) as bare:
        yield empty, bare


@pytest.mark.parametrize("name", NAMES)
def test_a_statistic_of_nothing_is_no_error(little: tuple[Store, Store], name: str) -> None:
    for source in little:
        for found in rows(source, name):
            assert not [value for value in found.values() if isinstance(value, float) and not math.isfinite(value)]
    assert "Source: " in statistics.definition(name)
