"""The soak sees what it is there to see: what is lost, invented, left and grown."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from _faults import MARK, LocalGround, traces
from soak import Course, Known, growth, passed

from rayroll import Rollout, Turn
from rayroll.errors import Failure


@pytest.fixture
def course() -> Course:
    policy = Known(0, deque())
    return Course("local", policy, {told(index, 0.0).id: index for index in range(4)})


def told(index: int, reward: float | None) -> Rollout:
    made = synthetic.rollout(sample=index)
    return replace(made, reward=reward, valid=reward is not None, failure=None)


def test_a_run_that_is_told_as_it_was_played_has_nothing_against_it(course: Course) -> None:
    for index in range(4):
        course.take(told(index, course.policy.reward(index)))
    assert (course.lost, course.invented) == (0, [])


def test_samples_that_are_missing_or_told_twice_are_lost(course: Course) -> None:
    for index in (0, 1, 1, 2):
        course.take(told(index, course.policy.reward(index)))
    assert course.lost == 2


def test_a_reward_that_the_script_contradicts_is_invented_and_so_is_one_of_a_spoilt_rollout(course: Course) -> None:
    course.take(told(0, 1.0 - course.policy.reward(0)))
    course.take(replace(told(1, 0.0), valid=False, failure=Failure("infra", "gone", "HostLostError")))
    course.take(told(2, None))
    assert len(course.invented) == 2


async def test_who_was_told_to_do_harm_earns_nothing() -> None:
    policy = Known(0, deque(["harm"]))
    sample = next(index for index in range(9) if policy.reward(index))
    turn = Turn("id", "task", "", 0, "", sample_index=sample)
    await policy.act(turn)
    acts = [(await policy.act(replace(turn, index=index))).command for index in range(3)]
    assert "harm" in acts
    assert policy.reward(sample) == 0.0


async def test_processes_and_folders_that_are_left_are_found(tmp_path: Path) -> None:
    ground = LocalGround(tmp_path)
    assert traces(ground, "mine", set()) == []
    (tmp_path / "sandbox").mkdir()
    left = await asyncio.create_subprocess_exec("sleep", "60", env={**os.environ, MARK: "mine"})
    try:
        found = await asyncio.to_thread(traces, ground, "mine", set())
    finally:
        left.kill()
        await left.wait()
    assert [word.partition(" ")[0] for word in found] == ["folder", "process"]


def test_growth_is_from_after_the_first_tenth_to_the_last() -> None:
    assert growth([(told, 50 if told < 10 else 100 + told // 5) for told in range(101)]) == pytest.approx(
        0.16, abs=0.01
    )
    assert growth([(told, 100) for told in range(10)]) is None


def test_one_leak_is_enough_to_fail() -> None:
    line = {"leaks": 0, "lost": 0, "invented": 0, "host_growth": 0.01, "driver_growth": 0.0, "runs": {"local": {}}}
    assert passed(line, smoke=False)
    for wrong in ({"leaks": 1}, {"lost": 1}, {"invented": 1}, {"host_growth": 0.2}, {"driver_growth": None}):
        assert not passed({**line, **wrong}, smoke=False)
