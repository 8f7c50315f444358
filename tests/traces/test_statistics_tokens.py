"""Statistics of token lengths, decode speed and cost, each checked by hand on a trace one can keep in one's head."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from traces.four_steps import PRICES, ROWS, UNKNOWN, row, rows
from traces.tiny import call, reasoning, result, session, step, store, text, usage, user

from rayroll.traces import statistics
from rayroll.traces.store import Store


@pytest.fixture(scope="module")
def traces() -> Iterator[Store]:
    """``ROWS`` in a store."""
    with store(ROWS) as opened:
        yield opened


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


def test_steps_alike_but_for_their_append_are_compared_pair_by_pair() -> None:
    def steps(prefix: int, append: int, times: tuple[float, ...]) -> list[dict[str, Any]]:
        return [step(user(0), call(s), prefix=prefix, append=append, output=100) for s in times]

    # 25 pairs: 4 beats 1, 2, 3 and ties with 4; 5 beats four and ties with 5; 6 (three times) beats all five.
    made = session(
        "a",
        *steps(8000, 200, (1, 2, 3, 4, 5)),
        *steps(4000, 4200, (4, 5, 6, 6, 6)),
        *steps(40_000, 200, (1, 1, 1, 1, 1)),  # another bucket, and nobody to compare with
        step(user(0), call(900), prefix=8000, append=200, output=100),  # beyond the 99th percentile
        step(user(0), text(9), prefix=8000, append=200, output=100),  # no call
    )
    assert row(made, "append_against_prefix") == {
        "buckets": 1,
        "p_slower": (3.5 + 4.5 + 15) / 25,
        "cliffs_delta": 2 * 23 / 25 - 1,
        "slower_buckets": 1,
        "median_ratio": 2,
        "best_balanced_accuracy": 0.8,  # from 4 on: all five, and three of the others are below
    }


def alike(*times: float, append: int, began: float | None = None) -> list[dict[str, Any]]:
    """Steps of one size of input and output; with ``began``, a result came then, and the user's message after it."""
    before = () if began is None else (result(began),)
    return [step(*before, user(0), call(s), prefix=8200 - append, append=append, output=100) for s in times]


def test_a_bucket_is_slower_by_its_medians_whatever_its_pairs_say() -> None:
    beyond = alike(900, append=200)  # the 99th percentile
    made = session("a", *alike(1, 2, 3, 4, 5, append=200), *alike(1, 1, 3.5, 3.5, 3.5, append=4200), *beyond)
    found = row(made, "append_against_prefix")
    assert found["p_slower"] == (2 * 0.5 + 3 * 3) / 25
    assert (found["median_ratio"], found["slower_buckets"]) == (3.5 / 3, 1)


def test_steps_are_alike_if_their_newest_input_is_of_one_type() -> None:
    # These began with a result, 9 s before: they are a user's all the same, and timed from what the user wrote.
    made = session("a", *alike(1, 2, 3, 4, 5, append=200), *alike(1, 2, 3, 4, 5, append=4200, began=-9))
    found = row(made, "append_against_prefix")
    assert (found["buckets"], found["p_slower"], found["slower_buckets"]) == (1, 0.5, 0)


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
