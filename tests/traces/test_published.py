"""Every number that TraceLab published is at hand beside the statistic of ours that is the same number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayroll.traces import prices, statistics
from rayroll.traces.published import compare, is_public_data, numbers
from rayroll.traces.store import Store
from rayroll.traces.synth import synthesize

FACTS = json.loads((Path(__file__).parent / "data" / "facts.json").read_text())
LEFT_OUT = {
    "counts/headline/tool_calls_per_request_mean": "counts/per_request/tool_calls has it",
    "timing_seconds/per_request/e2e/0": "request_e2e_exact is the same, with more digits",
    "timing_seconds/per_request/e2e/2": "request_e2e_exact is the same, with more digits",
    "timing_seconds/per_individual_event/tool_call/1": "p25_individual has it in milliseconds",
    "tools/latency_bins/>1m/2": "exact_gt_1min is the same, with more digits",
    "tools/latency_bins/>1m/3": "exact_gt_1min is the same, with more digits",
    "tools/latency_bins_by_provider_approx/codex/<10s/calls_pct": "two of our bins together",
    "tools/latency_bins_by_provider_approx/codex/<10s/time_pct": "two of our bins together",
    "tools/mean_seconds/per_positive_call": "timing_seconds/per_individual_event has it",
    "tools/mean_seconds/per_step": "timing_seconds/per_step has it",
    "tools/category_hours/other_incl_planning_and_user_questions/0": "two of our categories together",
    "tools/category_hours/other_incl_planning_and_user_questions/1": "two of our categories together",
    "token_lengths/by_provider/output_p90_upper_bound": "a bound, not a value",
    "token_lengths/merged_digitised/prefix/p50": "median_all has it, typeset",
    "token_lengths/merged_digitised/output/p50": "median_all has it, typeset",
    "context_dynamics/compaction/merged/tool_initiated_pct": "tool_initiated by compactions, both of which are there",
}
"""Numbers that are not taken over, and why."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of ``facts.json``, and where it is."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | float):
        yield path, value


def tag(path: str) -> str | None:
    """How exact ``facts.json`` says that a number is: the nearest tag above it."""
    found, value = None, FACTS
    for key in path.split("/"):
        found = value.get("tag", found) if isinstance(value, dict) else found
        value = value[int(key) if isinstance(value, list) else key]
    return found


def test_every_published_number_is_taken_over_once_or_left_out_for_a_reason() -> None:
    taken = Counter(number.facts for number in numbers())
    assert {*taken, *LEFT_OUT} == set(dict(leaves(FACTS)))
    assert set(taken.values()) == {1} and not set(taken) & set(LEFT_OUT)


def test_each_is_the_number_as_it_was_printed() -> None:
    printed = dict(leaves(FACTS))
    for number in numbers():
        assert number.value == pytest.approx(printed[number.facts] * number.factor, rel=1e-11), number.facts
        # What facts.json computed by a difference is C, whatever stands around it.
        assert number.exactness == ("C" if "by_difference" in number.facts else tag(number.facts)), number.facts


def test_no_two_of_them_are_for_one_cell() -> None:
    cells = Counter((n.statistic, *n.row.items(), n.column) for n in numbers())
    assert [cell for cell, count in cells.items() if count > 1] == []


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    """Every statistic of made-up sessions, which have all of the published tools and models."""
    table = prices.load().rows()
    with Store.open() as store:
        store.load_rows(synthesize(120, seed=3))
        return {
            name: statistics.compute(
                store.connection, name, **({"prices": table} if "prices" in statistics.parameters(name) else {})
            )
            for name in statistics.names()
        }


def test_each_stands_in_a_row_and_a_column_that_its_statistic_has(found: dict[str, list[dict[str, Any]]]) -> None:
    """A row that were misspelt would be compared with nothing, for ever."""
    absent: Counter[str] = Counter()
    for name, rows in found.items():
        for comparison in compare(name, rows):
            assert not rows or {comparison.published.column, *comparison.published.row} - {"#"} <= set(rows[0])
            absent[name] += comparison.ours is None
    # Users have no names, no step lacks an input, two bins of Codex's lack steps, one model is too rare, and too few
    # steps are alike.
    assert +absent == {
        "append_against_prefix": 6,
        "counts_scope": 3,
        "counts_first_input_event": 2,
        "append_by_prefix_bin": 8,
        "counts_calls_per_step_by_model": 1,
        "counts_models": 1,
    }


def test_made_up_sessions_are_not_the_public_data_set(found: dict[str, list[dict[str, Any]]]) -> None:
    assert not is_public_data(found["counts_scope"])


def test_the_difference_is_relative_to_what_was_published() -> None:
    [all_steps] = [
        c
        for c in compare("prefix_hit_rate", [{"provider": "all", "trigger": "all", "hit_rate": 0.95746 * 1.1}])
        if c.published.label == "all, all"
    ]
    assert all_steps.difference == pytest.approx(0.1)


def test_what_a_trace_lacks_has_no_difference_and_neither_has_a_published_0() -> None:
    assert {comparison.difference for comparison in compare("cost", [])} == {None}
    zero = [{"provider": "all", "unit": "step", "part": "append", **dict.fromkeys(("avg_usd", "p90_usd", "p99_usd"))}]
    zero[0] |= {"p50_usd": 0.1, "share": None}
    assert [c.difference for c in compare("cost", zero) if c.ours is not None] == [None]


def test_units_are_those_of_the_statistic() -> None:
    values = {number.facts: number.value for number in numbers()}
    assert values["timing_seconds/total_response_time_h"] == pytest.approx(2782.7 * 3600)
    assert values["prefix_cache/redundant_prefill/overall/append/2"] == 2269.6e6
    assert values["human_wait/max_days"] == 31 * 86400


def test_the_public_data_set_is_known_by_its_counts() -> None:
    scope = [
        {"provider": p, **{c: FACTS["scope"][c][p] for c in ("users", "sessions", "steps", "tool_calls")}}
        | {"requests": 39202, "sessions_with_time": 4258}
        for p in ("all", "claude", "codex")
    ]
    assert is_public_data(scope)
    scope[0]["steps"] -= 200
    assert is_public_data(scope), "a release may lack a few rows"
    scope[2]["steps"] -= 2000
    assert not is_public_data(scope)
    assert not is_public_data([])
