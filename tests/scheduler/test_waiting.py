"""First come, first served, in one line for each set of needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayroll.scheduler.events import Needs
from rayroll.scheduler.waiting import Waiting

A, B, C = Needs(shape="a"), Needs(shape="b"), Needs(shape="c")


def filled(*entries: tuple[int, Needs]) -> Waiting:
    waiting = Waiting()
    for place, needs in entries:
        waiting.add(place, f"r{place}", needs)
    return waiting


def heads(waiting: Waiting) -> list[str]:
    return [rollout for rollout, _ in waiting.heads()]


def test_the_first_of_each_line_is_offered_in_the_order_of_places() -> None:
    assert heads(filled((0, B), (1, A), (2, B))) == ["r0", "r1"]


def test_whoever_is_taken_makes_room_for_the_next_of_the_same_line() -> None:
    waiting, seen = filled((0, A), (1, A), (2, B)), []
    for rollout, needs in waiting.heads():
        seen.append(rollout)
        if rollout != "r2":
            waiting.take(needs)
    assert (seen, len(waiting), heads(waiting)) == (["r0", "r1", "r2"], 1, ["r2"])


def test_one_that_is_tried_again_stands_where_it_stood() -> None:
    waiting = filled((0, A), (1, A), (2, B))
    waiting.take(A)
    waiting.add(0, "r0", A)
    assert heads(waiting) == ["r0", "r2"]
    waiting.take(A)
    assert heads(waiting) == ["r1", "r2"]


def test_one_that_leaves_from_the_middle_is_passed_over() -> None:
    waiting = filled((0, A), (1, A), (2, A))
    waiting.drop("r1", A)
    waiting.take(A)
    assert (heads(waiting), len(waiting), waiting.line(A)) == (["r2"], 1, ["r2"])


def test_the_next_ones_are_known_across_lines_without_those_that_left() -> None:
    waiting = filled((0, B), (1, A), (2, B), (3, A), (4, C))
    waiting.drop("r2", B)
    assert waiting.upcoming(3) == [(0, B), (1, A), (3, A)]


@given(
    st.lists(st.tuples(st.sampled_from(["add", "take", "drop"]), st.integers(0, 2), st.integers(0, 30)), max_size=60)
)
def test_it_agrees_with_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    waiting, listed = Waiting(), dict[int, Needs]()
    everybody: dict[int, Needs] = {}
    for step, line, place in steps:
        needs = (A, B, C)[line]
        in_line = sorted(p for p, n in listed.items() if n == needs)
        if step == "add" and place not in listed and place not in everybody:
            listed[place] = everybody[place] = needs
            waiting.add(place, f"r{place}", needs)
        elif step == "take" and in_line:
            del listed[in_line[0]]
            waiting.take(needs)
        elif step == "drop" and in_line:
            gone = in_line[place % len(in_line)]
            del listed[gone]
            waiting.drop(f"r{gone}", needs)
        first: dict[Needs, int] = {}
        for place in sorted(listed):
            first.setdefault(listed[place], place)
        assert heads(waiting) == [f"r{place}" for place in first.values()]
        assert waiting.upcoming(5) == [(place, listed[place]) for place in sorted(listed)[:5]]
        assert len(waiting) == len(listed)
