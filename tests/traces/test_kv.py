"""Hold or drop: each policy by hand, and against the statistic that it must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces.four_steps import ROWS
from traces.tiny import session, step, store, text, user

from rayroll.errors import ConfigError
from rayroll.traces import kv, statistics
from rayroll.traces.kv import Gap, Gaps

OTHER = session(
    "b",
    step(user(0), text(1.5), append=700, output=20),
    step(user(300), text(303.25), append=900, output=20),
    step(user(363.25), text(364), prefix=100, append=900),
    provider="codex",
)


@pytest.fixture(scope="module")
def gaps() -> Iterator[Gaps]:
    with store(ROWS) as traces:
        yield Gaps.read(traces.connection)


def outcome(gaps: Gaps, policy: kv.Policy) -> tuple[float | None, float | None, float | None]:
    [found] = [one for one in kv.study(gaps, [policy]) if one.provider == "all"]
    return found.hit_rate, found.storage_ratio, found.amplification


def test_gaps_are_read_in_the_order_of_the_steps(gaps: Gaps) -> None:
    assert [(gap.trigger, gap.gap_us, gap.total_tokens, gap.fresh_tokens) for gap in gaps.gaps] == [
        ("tool", 3_000_000, 1500, 400),
        ("user", 93_000_000, 1700, 150),
        ("tool", 600_000_000, 1800, 0),
    ]
    assert [gap.step_id - gap.previous_step_id for gap in gaps.gaps] == [1, 1, 1]
    assert gaps.generation_us == {"all": 10_000_000, "claude": 10_000_000}


def test_fixed_times_equal_the_statistic_to_the_last_bit() -> None:
    times_s = [0, 0.5, 3, 60, 92.999999, 93, 300, 3600, 1e6]
    with store(ROWS, OTHER) as traces:
        swept = statistics.compute(traces.connection, "eviction_sweep", ttl_s=times_s)
        studied = kv.study(Gaps.read(traces.connection), [kv.fixed(ttl_s) for ttl_s in times_s])
    rows = {(kv.fixed(row["ttl_s"]).name, row["provider"]): row for row in swept}
    assert len(studied) == len(rows) == len(times_s) * 3
    for one in studied:
        row = rows[one.policy, one.provider]
        numbers = (one.steps, one.hit_rate, one.storage_ratio, one.amplification)
        assert numbers == (row["steps"], row["hit_rate"], row["storage_ratio"], row["amplification"])


def test_tools_and_people_may_have_times_of_their_own(gaps: Gaps) -> None:
    # both tools hit, the user does not: 1100 + 1800 tokens; held 3 + 10 + 600 s
    assert outcome(gaps, kv.by_trigger(user_s=10, tool_s=600)) == (2900 / 5000, 61.3, 2100 / 550)


def test_the_oracle_hits_as_often_as_its_break_even_and_holds_nothing_in_vain(gaps: Gaps) -> None:
    assert outcome(gaps, kv.oracle(100)) == (2650 / 5000, 9.6, 2350 / 550)  # 3 + 93 s
    assert outcome(gaps, kv.fixed(100)) == (2650 / 5000, 19.6, 2350 / 550)  # and 100 s of the 600


def test_a_right_prediction_is_as_good_as_the_oracle(gaps: Gaps) -> None:
    told = kv.predicted(lambda gap: gap.gap_us / 1e6, 100)
    assert outcome(gaps, told) == outcome(gaps, kv.oracle(100))


def test_a_wrong_prediction_costs_a_hit_or_the_break_even(gaps: Gaps) -> None:
    # The 3 s are thought long and dropped, the 600 s short and held for 100 s in vain.
    wrong = kv.predicted(lambda gap: 603 - gap.gap_us / 1e6 if gap.trigger == "tool" else 93, 100)
    assert outcome(gaps, wrong) == (1550 / 5000, 19.3, 3450 / 550)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_without_a_prediction_a_gap_is_held_for_the_break_even(gaps: Gaps, unknown: float | None) -> None:
    assert outcome(gaps, kv.predicted(lambda gap: unknown, 100)) == outcome(gaps, kv.fixed(100))
    assert outcome(gaps, kv.predicted(lambda gap: unknown, 100, otherwise_s=5)) == outcome(gaps, kv.fixed(5))


def test_predictions_may_be_made_for_all_gaps_at_once(gaps: Gaps) -> None:
    foretold = kv.predicted(kv.told(gaps, [600, 93, None]), 100)  # the 3 s are thought long
    assert outcome(gaps, foretold) == (1550 / 5000, 19.3, 3450 / 550)
    with pytest.raises(ConfigError, match=r"gaps=3, predictions=1"):
        kv.told(gaps, [1.0])


def test_a_cache_that_is_never_dropped_prefills_only_what_is_fresh(gaps: Gaps) -> None:
    assert outcome(gaps, kv.fixed(math.inf)) == (4450 / 5000, 69.6, 1)
    assert outcome(gaps, kv.oracle(math.inf)) == outcome(gaps, kv.fixed(math.inf))


def test_what_is_worth_comparing_names_itself(gaps: Gaps) -> None:
    names = [one.policy for one in kv.study(gaps, kv.standard(predict=lambda gap: 1.0)) if one.provider == "all"]
    assert names == [
        "fixed 60 s",
        "fixed 300 s",
        "fixed 3600 s",
        "user 0 s, tool 300 s",
        "predicted 300 s",
        "oracle 300 s",
    ]


def test_what_was_published_of_fixed_times_stands_beside_them(gaps: Gaps) -> None:
    beside = kv.beside_published(kv.study(gaps, kv.standard()))
    assert [(policy, one.published.column, one.published.value) for policy, one in beside] == [
        (policy, column, value)
        for policy, values in {
            "fixed 60 s": (0.854, 0.74, 18.9),
            "fixed 300 s": (0.94, 1.9, 7.4),
            "fixed 3600 s": (0.986, 5.07, 1.8),
        }.items()
        for column, value in zip(("hit_rate", "storage_ratio", "amplification"), values, strict=True)
    ]
    assert [one.ours for _, one in beside[:3]] == [*outcome(gaps, kv.fixed(60))]
    assert kv.beside_published(kv.study(gaps, [kv.fixed(61), kv.oracle(60)])) == []


def test_a_trace_without_gaps_has_no_outcome() -> None:
    with store() as traces:
        assert kv.study(Gaps.read(traces.connection), kv.standard()) == []


def test_without_generation_the_storage_ratio_is_unknown() -> None:
    gap = Gap(1, 0, "claude", "s", "user", 5, total_tokens=10, fresh_tokens=0)
    assert outcome(Gaps((gap,), {}), kv.fixed(1)) == (1, None, None)


@pytest.mark.parametrize("time_s", [-1, math.nan])
def test_no_cache_is_held_for_less_than_no_time(time_s: float) -> None:
    with pytest.raises(ConfigError, match="ttl_s"):
        kv.fixed(time_s)
    with pytest.raises(ConfigError, match="tool_s"):
        kv.by_trigger(user_s=1, tool_s=time_s)


@given(
    lengths_us=st.lists(st.integers(0, 10**10), min_size=1, max_size=20),
    tokens=st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=20, max_size=20),
    shorter_s=st.floats(0, 1e4),
    longer_s=st.floats(0, 1e4),
)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_more_time_never_hits_less_and_the_oracle_never_holds_more(
    lengths_us: list[int], tokens: list[tuple[int, int]], shorter_s: float, longer_s: float
) -> None:
    each = zip(lengths_us, tokens, strict=False)
    made = [Gap(n, n - 1, "claude", "s", "user", us, a + b, b) for n, (us, (a, b)) in enumerate(each)]
    gaps = Gaps(tuple(made), {"all": 10**6, "claude": 10**6})
    low, high = sorted((shorter_s, longer_s))
    less, more, knowing = (outcome(gaps, policy) for policy in (kv.fixed(low), kv.fixed(high), kv.oracle(high)))
    assert less[0] <= more[0] == knowing[0]  # type: ignore[operator]
    assert less[1] <= more[1] >= knowing[1]  # type: ignore[operator]
