"""Projections: the paper's figures come out, parts add up, and intervals mean what they say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayroll.errors import Failure
from rayroll.projection import (
    Cell,
    Sample,
    cost,
    phase_sample,
    project,
    retry_sample,
    slot_sample,
    spread,
    worker_sample,
)
from rayroll.timing import PHASES
from rayroll.types import Rollout, Timing

unhurried = settings(deadline=None)  # a busy machine stalls; how long is not what is tested


def rollout(phases: dict[str, float], *, valid: bool = True, retry_s: float = 0.0, task: str = "t") -> Rollout:
    kinds = {kind: sum(s for n, s in phases.items() if PHASES[n].kind == kind) for kind in ("env", "infra", "policy")}
    return Rollout(
        id="r",
        run_id="run",
        task_id=task,
        substrate="docker",
        reward=1.0 if valid else None,
        valid=valid,
        timing=Timing(sum(phases.values()), kinds["env"], kinds["infra"], kinds["policy"], 0.0, phases),
        failure=None if valid else Failure("infra", "engine gone"),
        infra_retry_s=retry_s,
    )


def cell(actions: float, fixed_s: float, action_s: float, *, concurrency: int = 1, task: str = "t") -> Cell:
    return Cell(actions, concurrency, (Sample(task, True, fixed_s, action_s),))


# -- the formula -------------------------------------------------------------------------------------------------


def test_the_papers_seconds_per_rollout_give_the_papers_hours() -> None:
    slow = project([cell(150, 2.5, 40.0)], rollouts=1_000_000, actions=150)
    fast = project([cell(150, 1.4, 22.0)], rollouts=1_000_000, actions=150)
    assert slow and fast
    assert (round(slow.hours), round(fast.hours)) == (11_806, 6_500)
    assert round(slow.hours / fast.hours, 2) == 1.82


@pytest.mark.parametrize(
    ("fixed_s", "per_action_s", "hours"), [(0.0, 0.010, 417), (0.0, 0.100, 4_167), (1.0, 0.0, 278)]
)
def test_what_an_action_or_a_rollout_costs_at_a_million_rollouts(
    fixed_s: float, per_action_s: float, hours: int
) -> None:
    estimate = project([cell(150, fixed_s, 150 * per_action_s)], rollouts=1_000_000, actions=150)
    assert estimate and round(estimate.hours) == hours


def test_workers_are_not_charged_for_the_queue_nor_for_the_policy_but_slots_wait_for_the_policy() -> None:
    record = rollout({"queue": 100.0, "boot": 1.0, "run": 2.0, "policy": 30.0, "other": 0.5}, retry_s=4.0)
    assert worker_sample(record) == Sample("t", True, fixed_s=5.5, action_s=2.0)
    assert slot_sample(record) == Sample("t", True, fixed_s=5.5, action_s=32.0)
    assert retry_sample(record) == Sample("t", True, fixed_s=4.0, action_s=0.0)


def test_the_time_of_spoilt_rollouts_is_paid_by_the_valid_ones() -> None:
    records = [rollout({"run": 10.0}), rollout({"boot": 2.0}, valid=False), rollout({"run": 12.0}, retry_s=6.0)]
    pooled = Cell(1, 1, tuple(map(worker_sample, records)))
    estimate = project([pooled], rollouts=3600, actions=1)
    assert estimate and (estimate.hours, estimate.rollouts) == (15.0, 2)


def test_without_a_valid_rollout_there_is_no_projection() -> None:
    spoilt = worker_sample(rollout({"boot": 2.0}, valid=False))
    assert project([Cell(1, 1, (spoilt,))], rollouts=10, actions=1) is None
    assert project([], rollouts=10) is None


@unhurried
@given(
    st.lists(st.dictionaries(st.sampled_from(sorted(PHASES)), st.floats(0, 100), min_size=1), min_size=1, max_size=5),
    st.sampled_from([1.0, 4.0, 37.0, 150.0]),
)
def test_the_projections_of_all_phases_add_up_to_the_whole(rollouts: list[dict[str, float]], actions: float) -> None:
    records = [rollout(phases, retry_s=1.0) for phases in rollouts]

    def hours(sample: object) -> float:
        cells = [Cell(n, 1, tuple(map(sample, records[:n]))) for n in range(1, len(records) + 1)]
        estimate = project(cells, rollouts=1000, actions=actions, resamples=0)
        assert estimate
        return estimate.hours

    parts = [hours(phase_sample(name)) for name, p in PHASES.items() if name != "queue" and p.kind != "policy"]
    assert sum(parts) + hours(retry_sample) == pytest.approx(hours(worker_sample), rel=1e-9, abs=1e-6)


def test_cost_is_hours_times_price_with_its_interval() -> None:
    samples = tuple(Sample(f"t{i}", True, float(i), 0.0) for i in range(20))
    hours = project([Cell(1, 1, samples)], rollouts=3600, actions=1)
    assert hours and hours.lo and hours.hi
    money = cost(hours, 0.25)
    assert (money.hours, money.lo, money.hi) == (hours.hours / 4, hours.lo / 4, hours.hi / 4)


# -- the basis ---------------------------------------------------------------------------------------------------


def test_the_cell_with_that_many_actions_at_concurrency_1_is_the_basis() -> None:
    cells = [cell(150, 0, 40), cell(150, 0, 90, concurrency=8), cell(10, 0, 1)]
    estimate = project(cells, rollouts=3600, actions=150)
    assert estimate and (estimate.hours, estimate.extrapolated) == (40.0, False)
    assert estimate.basis == "measured at 150 actions"


def test_other_counts_are_extrapolated_by_a_line_and_say_so() -> None:
    cells = [cell(10, 2, 3), cell(50, 2, 15), cell(50, 9, 99, concurrency=8)]
    estimate = project(cells, rollouts=3600, actions=150)
    assert estimate and estimate.hours == pytest.approx(2 + 150 * 0.3)
    assert (estimate.extrapolated, estimate.basis) == (True, "extrapolated from 10, 50 actions")


def test_from_a_single_count_only_the_action_phases_are_scaled() -> None:
    estimate = project([cell(10, 2, 3, concurrency=4)], rollouts=3600, actions=150)
    assert estimate and estimate.hours == pytest.approx(2 + 150 * 0.3)
    assert estimate.basis == "extrapolated from 10 actions, concurrency 4"


def test_without_a_target_the_actions_are_as_measured() -> None:
    estimate = project([cell(23.4, 2, 3)], rollouts=3600)
    assert estimate and (estimate.hours, estimate.basis) == (5.0, "as measured")


# -- the interval ------------------------------------------------------------------------------------------------


def tasks_cell(seconds: dict[str, list[float]]) -> Cell:
    return Cell(10, 1, tuple(Sample(task, True, s, 0.0) for task, values in seconds.items() for s in values))


def test_equal_rollouts_have_an_interval_of_no_width() -> None:
    estimate = project([tasks_cell({"a": [3.0, 3.0], "b": [3.0]})], rollouts=3600, actions=10)
    assert estimate and (estimate.lo, estimate.hours, estimate.hi) == (3.0, 3.0, 3.0)


def test_tasks_are_drawn_whole_so_repeats_of_a_task_do_not_narrow_the_interval() -> None:
    once = project([tasks_cell({"a": [1.0], "b": [2.0], "c": [3.0]})], rollouts=3600, actions=10)
    often = project([tasks_cell({"a": [1.0] * 50, "b": [2.0] * 50, "c": [3.0] * 50})], rollouts=3600, actions=10)
    assert once and often
    assert (once.lo, once.hi) == (often.lo, often.hi) == (1.0, 3.0)


def test_with_one_task_its_rollouts_are_drawn_and_one_rollout_has_no_interval() -> None:
    several = project([tasks_cell({"a": [1.0, 2.0, 3.0, 4.0]})], rollouts=3600, actions=10)
    single = project([tasks_cell({"a": [1.0]})], rollouts=3600, actions=10)
    assert several and several.lo is not None and several.lo < several.hours
    assert single and (single.lo, single.hi) == (None, None)


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    cells = [tasks_cell({f"t{i}": [i**1.5] for i in range(60)})]
    first, again, other = (project(cells, rollouts=1000, actions=10, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(7)
    covered = 0
    for trial in range(100):
        seconds = {f"t{i}": [rng.gauss(10, 2)] for i in range(40)}
        estimate = project([tasks_cell(seconds)], rollouts=3600, actions=10, seed=trial, resamples=400)
        assert estimate and estimate.lo is not None and estimate.hi is not None
        covered += estimate.lo <= 10 <= estimate.hi
    assert 85 <= covered <= 100


# -- one substrate against another -------------------------------------------------------------------------------


def test_a_spread_paired_by_task_does_not_widen_with_how_different_the_tasks_are() -> None:
    fast = tasks_cell({f"t{i}": [10.0**i] for i in range(5)})
    slow = tasks_cell({f"t{i}": [1.82 * 10.0**i] for i in range(5)})
    found = spread([slow], [fast], actions=10)
    assert found and found.tasks == 5
    assert (found.lo, found.ratio, found.hi) == pytest.approx((1.82, 1.82, 1.82))


def test_a_spread_counts_only_tasks_that_both_sides_did() -> None:
    left = tasks_cell({"a": [2.0], "b": [4.0], "left only": [1000.0]})
    right = tasks_cell({"a": [1.0], "b": [2.0], "right only": [1.0]})
    found = spread([left], [right], actions=10)
    assert found and (found.ratio, found.tasks) == (2.0, 2)


def test_substrates_without_a_task_in_common_have_no_spread_and_one_task_has_no_interval() -> None:
    one, other = tasks_cell({"a": [2.0]}), tasks_cell({"b": [2.0]})
    assert spread([one], [other], actions=10) is None
    found = spread([one], [tasks_cell({"a": [1.0, 1.0]})], actions=10)
    assert found and (found.ratio, found.lo, found.hi, found.tasks) == (2.0, None, None, 1)


def test_a_noisy_start_does_not_tilt_the_line() -> None:
    few, many = cell(5, 9, 0.5), cell(10, 1, 1.0)  # the few actions had the slow starts
    estimate = project([few, many], rollouts=3600, actions=150)
    assert estimate and estimate.hours == pytest.approx(5 + 150 * 0.1)
