"""A deadline that moves at every turn costs nothing until it is due."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from rayroll.scheduler.deadlines import Deadlines


def test_what_is_due_is_told_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    assert (list(deadlines.pop_due(0.9)), list(deadlines.pop_due(1.0)), list(deadlines.pop_due(2.0))) == ([], ["a"], [])


def test_one_that_was_moved_away_is_due_when_it_was_moved_to() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    assert list(deadlines.pop_due(4.0)) == []
    assert deadlines.next_s == 5.0
    assert list(deadlines.pop_due(5.0)) == ["a"]


def test_moving_away_a_thousand_times_makes_no_heap() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for turn in range(1000):
        deadlines.set("a", 10.0 + turn)
    assert len(deadlines._heap) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0.5, 2.0, 9.0, math.inf]), st.sampled_from([0.0, 0.4, 3.0]))
    )
)
def test_nothing_is_due_early_late_or_twice(steps: list[tuple[str, float, float]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    due_s: dict[str, float] = {}
    now_s = 0.0
    for key, within_s, passes_s in steps:
        due_s[key] = now_s + within_s
        deadlines.set(key, due_s[key])
        assert deadlines.next_s <= min(due_s.values(), default=math.inf)
        now_s += passes_s
        told = list(deadlines.pop_due(now_s))
        assert sorted(told) == sorted(key for key, at_s in due_s.items() if at_s <= now_s)
        due_s = {key: at_s for key, at_s in due_s.items() if at_s > now_s}
