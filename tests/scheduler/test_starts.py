"""How many sandboxes may start at the same time: more while that starts more per second, else fewer."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from rayroll.scheduler.starts import StartConfig, StartLimit


def limit(**config: float) -> StartLimit:
    return StartLimit(StartConfig.parse(config))


def rounds(starts: StartLimit, number: int, took_s: Callable[[int], float]) -> list[int]:
    """As many sandboxes as may, all the time, each taking what it takes at that number; the limits after each round."""
    limits = []
    for _ in range(number):
        at_once = int(starts.limit)
        starts.began(at_once)
        for _ in range(max(at_once, 8)):
            starts.started(took_s(at_once), at_once - 1)
        limits.append(int(starts.limit))
    return limits


def test_it_doubles_while_more_cost_nothing() -> None:
    assert rounds(limit(first=4), 4, lambda n: 1.0) == [8, 16, 32, 64]


def test_it_never_exceeds_what_was_asked_for() -> None:
    assert rounds(limit(first=4, most=10), 3, lambda n: 1.0)[-1] == 10


def test_one_that_is_not_adaptive_stays() -> None:
    starts = limit(first=3, is_adaptive=False)
    assert rounds(starts, 5, lambda n: 1.0) == [3] * 5
    for _ in range(20):
        starts.failed(0.0, 1.0, 2)
    assert starts.limit == 3


def test_a_limit_that_nobody_reaches_says_nothing_about_a_higher_one() -> None:
    starts = limit(first=4)
    for _ in range(100):
        starts.began(1)
        starts.started(0.2, 0)
    assert starts.limit == 4


@pytest.mark.parametrize("knee", [2, 6, 40])
def test_it_settles_about_the_knee_and_does_not_drift(knee: int) -> None:
    """Work is shared among ``knee`` processors: beyond, all only wait. At a knee of 2, steps of 1 are coarse."""
    starts = limit(first=4)
    limits = rounds(starts, 600, lambda n: max(1.0, n / knee))
    late = limits[300:]
    assert 0.75 * knee <= sum(late) / len(late) <= 1.3 * knee + 4
    assert max(late) <= 1.5 * knee + 6


def test_a_machine_that_is_busy_with_something_else_gets_no_lower_limit_for_it() -> None:
    starts = limit(first=4)
    before = rounds(starts, 20, lambda n: max(1.0, n / 8))[-1]
    after = rounds(starts, 40, lambda n: 5.0 * max(1.0, n / 8))
    assert before >= 6
    assert sum(after[-20:]) / 20 >= 6


def test_one_start_in_twenty_that_fails_does_not_lower_it() -> None:
    starts = limit(first=8)
    for number in range(1, 401):
        starts.began(int(starts.limit))
        if number % 20:
            starts.started(1.0, int(starts.limit) - 1)
        else:
            starts.failed(0.0, None, int(starts.limit) - 1)
    assert starts.limit == 256


def test_a_round_in_which_every_second_start_fails_lowers_it() -> None:
    starts = limit(first=8)
    for number in range(8):
        if number % 2:
            starts.started(1.0, 7)
        else:
            starts.failed(0.0, None, 7)
    assert starts.limit == pytest.approx(4.8)


def test_starts_from_before_a_decrease_say_nothing_about_it() -> None:
    starts = limit(first=8)
    starts.failed(0.0, 1.0, 7)
    assert starts.limit == pytest.approx(4.8)
    for under_way in range(6, -1, -1):
        starts.started(100.0, under_way)
    rounds(starts, 1, lambda n: 1.0)
    assert starts._fastest_s == 1.0


def test_a_storm_of_refusals_lowers_it_once_and_rests_as_long_as_the_last_asks() -> None:
    starts = limit(first=100)
    for under_way in range(99, 49, -1):
        starts.failed(10.0, 3.0 if under_way > 50 else 7.0, under_way)
    assert starts.limit == 60
    assert not starts.allows(0, 16.9)
    assert starts.allows(0, 17.0)


def test_three_failures_in_a_row_are_a_rest_and_each_further_one_is_twice_as_long() -> None:
    starts = limit(first=4, rest_s=5.0, most_rest_s=12.0)
    rests = []
    now_s = 0.0
    for _ in range(4):
        for _ in range(3):
            starts.failed(now_s, None, 0)
        rests.append(starts.rests_until_s - now_s)
        now_s = starts.rests_until_s
    assert rests == [5.0, 10.0, 12.0, 12.0]
    starts.started(1.0, 0)
    for _ in range(3):
        starts.failed(now_s, None, 0)
    assert starts.rests_until_s - now_s == 5.0


def test_a_host_that_comes_up_anew_does_not_rest() -> None:
    starts = limit()
    starts.failed(0.0, 100.0, 0)
    starts.forgive()
    assert starts.allows(0, 0.0)


def test_on_a_shared_processor_it_starts_nearly_as_many_per_second_as_the_best_fixed_limit() -> None:
    best = max(starts_per_s(limit(first=fixed, is_adaptive=False)) for fixed in (1, 2, 3, 4, 6, 8, 16))
    assert starts_per_s(limit()) >= 0.9 * best


def starts_per_s(starts: StartLimit) -> float:
    """Two processors that lose a tenth of their work with each start beyond three; nothing but starts, all the time."""
    jobs: list[tuple[float, float]] = []
    now_s = work_s = 0.0
    for _ in range(2000):
        while starts.allows(len(jobs), now_s):
            heapq.heappush(jobs, (work_s + 0.19, now_s))
            starts.began(len(jobs))
        speed = min(len(jobs), 2) * 0.9 ** max(0, len(jobs) - 3) / len(jobs)
        due, began_s = heapq.heappop(jobs)
        now_s += (due - work_s) / speed
        work_s = due
        starts.started(now_s - began_s, len(jobs))
    return 2000 / now_s
