"""What a trainer does with a run that is under way: pause it, change the policy, give groups up, go on another day."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import little
import pytest
import pytest_asyncio
from executor.conftest import opened_executor

from rayroll import Act, Executor, Rollout, Turn
from rayroll.errors import CallerError, ConfigError
from rayroll.executor import PlayConfig, Run

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(ray_cluster: Any) -> AsyncIterator[Executor]:
    async with opened_executor("simulated", run_id="steering") as executor:
        yield executor


class Thinker:
    """A policy that thinks until it is told to stop, from its second turn on."""

    def __init__(self, steps: int = 2) -> None:
        self.turns: list[Turn] = []
        self.aborted = 0
        self.go_on = asyncio.Event()
        self._steps = steps

    async def act(self, turn: Turn) -> Act:
        self.turns.append(turn)
        if turn.index == 1:
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.aborted += 1
                raise
        return Act("true") if turn.index < self._steps else Act(submit=True)

    @property
    def thinking(self) -> int:
        return sum(turn.index == 1 for turn in self.turns) - self.aborted


def submit(executor: Executor, policy: Any, *, tasks: int = 1, **options: Any) -> Run:
    names = [little.task(name) for name in "abcdefgh"[:tasks]]
    return executor.submit(names, policy, **{"namespace": str(id(policy)), **options})


async def read(run: Run) -> list[Rollout]:
    return [rollout async for rollout in run.rollouts()]


# --- pause ---


async def test_a_drained_run_has_no_answer_under_way_and_goes_on_with_the_new_version(executor: Executor) -> None:
    policy = Thinker()
    run = submit(executor, policy, samples_per_task=3)
    await little.until(lambda: policy.thinking == 3)
    pausing = asyncio.create_task(run.pause("drain"))
    await little.pause(0.05)
    assert not pausing.done(), "answers are under way"
    policy.go_on.set()
    await pausing
    asked = len(policy.turns)
    await little.pause(0.1)
    assert len(policy.turns) == asked, "nobody is asked while the run is paused"
    run.resume(policy_version=7)
    rollouts = await read(run)
    assert [[step.policy_version for step in rollout.steps] for rollout in rollouts] == [[None, None]] * 3
    assert {turn.policy_version for turn in policy.turns if turn.index == 2} == {7}


async def test_an_aborted_turn_is_asked_again_by_the_new_version(executor: Executor) -> None:
    policy = Thinker()
    run = submit(executor, policy, samples_per_task=3)
    await little.until(lambda: policy.thinking == 3)
    await run.pause("abort_turn")
    assert policy.aborted == 3
    policy.go_on.set()
    run.resume(policy_version=2)
    rollouts = await read(run)
    assert [rollout.reward for rollout in rollouts] == [1.0] * 3
    assert [[step.policy_version for step in rollout.steps] for rollout in rollouts] == [[None, 2]] * 3
    assert Counter(turn.index for turn in policy.turns) == {0: 3, 1: 6, 2: 3}


async def test_a_paused_run_begins_no_rollout(executor: Executor) -> None:
    policy = Thinker(steps=0)
    run = submit(executor, policy, samples_per_task=4, max_in_flight=1)
    reader = run.rollouts()
    await anext(reader)
    await run.pause()
    seen = len(policy.turns)
    await little.pause(0.1)
    assert len(policy.turns) == seen < 4
    run.resume()
    assert len([rollout async for rollout in reader]) == 3


# --- cancel ---


async def test_a_cancelled_group_is_given_up_and_the_others_go_on(executor: Executor) -> None:
    policy = Thinker()
    run = submit(executor, policy, tasks=2, samples_per_task=3)
    await little.until(lambda: policy.thinking == 6)
    await run.cancel("little/a")
    policy.go_on.set()
    groups = [group async for group in run.groups()]
    assert [[rollout.task_id for rollout in group] for group in groups] == [["little/b"] * 3]


async def test_what_a_cancelled_group_has_can_be_kept(executor: Executor) -> None:
    policy = Thinker()
    run = submit(executor, policy, tasks=2, samples_per_task=2, max_in_flight=3)
    await little.until(lambda: policy.thinking == 3)
    await run.cancel("little/a", keep_partial=True)
    policy.go_on.set()
    groups = {group[0].task_id: group async for group in run.groups()}
    assert set(groups) == {"little/a", "little/b"}
    for rollout in groups["little/a"]:
        assert (rollout.reward, rollout.valid, rollout.truncated, len(rollout.steps)) == (None, False, True, 1)
        assert rollout.failure is not None and (rollout.failure.fault, rollout.failure.error) == ("caller", "cancelled")


async def test_of_a_whole_run_that_is_cancelled_everything_can_be_kept(executor: Executor) -> None:
    policy = Thinker()
    run = submit(executor, policy, samples_per_task=5, max_in_flight=2)
    await little.until(lambda: policy.thinking == 2)
    await run.cancel(keep_partial=True)
    assert [len(rollout.steps) for rollout in await read(run)] == [1, 1]


async def test_a_group_nobody_knows_cannot_be_cancelled(executor: Executor) -> None:
    policy = Thinker(steps=0)
    run = submit(executor, policy)
    with pytest.raises(CallerError, match="no such group"):
        await run.cancel("little/z")
    assert len(await read(run)) == 1


# --- another day ---


async def test_a_run_goes_on_where_another_was_left(ray_cluster: Any) -> None:
    policy = Thinker(steps=0)
    options: dict[str, Any] = {"samples_per_task": 6, "max_in_flight": 2, "namespace": "day"}
    async with opened_executor("simulated", run_id="days") as first:
        run = submit(first, policy, **options)
        reader = run.rollouts()
        done = [await anext(reader) for _ in range(2)]
        state = json.loads(json.dumps(run.state_dict()))
        await run.cancel()
    async with opened_executor("simulated", run_id="days") as second:
        run = submit(second, policy, state=state, **options)
        rest = await read(run)
    assert len(rest) == run.total == 4
    assert {rollout.sample_index for rollout in [*done, *rest]} == set(range(6))
    assert len(run.state_dict()["finished"]) == 6


async def test_the_state_of_another_run_is_refused(executor: Executor) -> None:
    with pytest.raises(ConfigError, match="another run"):
        submit(executor, Thinker(), state={"run_id": "days", "finished": []})


# --- spares ---


async def test_a_start_that_hangs_is_overtaken_by_a_spare(ray_cluster: Any) -> None:
    """The policy is asked for the first turn by both, one after the other, and the record says what it cost."""
    profile = {"boot": {"median_s": 0.02, "straggler_share": 0.05, "straggler_factor": 5000}}
    config = {"profile": profile, "seed": 3}
    scheduler = {"spares": {"least_start_s": 0.2}}
    async with opened_executor("simulated", substrate_config=config, scheduler=scheduler) as executor:
        policy = Thinker(steps=0)
        rollouts = await read(submit(executor, policy, samples_per_task=60, max_in_flight=8, spares="start"))
        spares = executor.snapshot().spares
    assert [rollout.reward for rollout in rollouts] == [1.0] * 60
    spared = [rollout for rollout in rollouts if rollout.attempts == 2]
    assert len(spared) >= 1 and spares >= len(spared)
    assert all(rollout.infra_retry_s > 0.1 for rollout in spared)


async def test_the_last_of_a_group_is_overtaken_by_a_spare_where_that_is_wanted(ray_cluster: Any) -> None:
    hangs = asyncio.Event()

    class OneHangs:
        async def act(self, turn: Turn) -> Act:
            if turn.sample_index == 3 and turn.attempt == 1:
                await hangs.wait()
            return Act(submit=True)

    async with opened_executor("simulated", scheduler={"spares": {"least_start_s": 0.2}}) as executor:
        run = submit(executor, OneHangs(), samples_per_task=4, spares="group")
        (group,) = [group async for group in run.groups()]
    assert [rollout.attempts for rollout in group] == [1, 1, 1, 2]


# --- limits ---


async def test_a_policy_that_does_not_answer_in_time_is_truncated_and_graded(executor: Executor) -> None:
    policy = Thinker()
    run = submit(executor, policy, config=PlayConfig(policy_timeout_s=0.2))
    (rollout,) = await read(run)
    assert (rollout.reward, rollout.truncated, len(rollout.steps), policy.aborted) == (1.0, True, 1, 1)
