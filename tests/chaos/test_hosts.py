"""A host that is killed, or stands still, while its rollouts are in every phase."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import ray
from chaos.stage import Stage, all_are_right, of, phase_of
from executor.conftest import Opened
from requirements import check

from rayroll import Executor
from rayroll.executor.link import HOST_PREFIX, NAMESPACE


@pytest.mark.parametrize("kind", ["local", "docker"])
async def test_sandboxes_go_on_in_the_next_host_and_only_what_was_starting_is_played_again(
    kind: str, opened: Opened, stage: Stage
) -> None:
    check(kind)
    async with opened(kind, disturbance={}, session={"lease_s": 20.0}) as executor:

        async def fault() -> None:
            os.kill(executor.hosts[0].pid, signal.SIGKILL)

        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts)
    assert {phase_of(rollout) for rollout in rollouts if rollout.attempts > 1} <= {"start"}
    assert {of(rollouts, phase).moves for phase in ("policy", "exec", "between", "grade")} == {1}


async def test_a_host_that_ray_ends_spoils_no_rollout(opened: Opened, stage: Stage) -> None:
    def end() -> None:
        names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        (name,) = [name for name in names if name.startswith(HOST_PREFIX)]
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))

    async with opened(disturbance={}) as executor:
        rollouts = await stage.play(executor, lambda: asyncio.to_thread(end))
    all_are_right(rollouts)


async def stopped(executor: Executor, seconds: float) -> None:
    pid = executor.hosts[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_host_that_stands_still_for_a_moment_costs_time_and_nothing_else(opened: Opened, stage: Stage) -> None:
    async with opened(disturbance={}, session={"lease_s": 20.0}) as executor:
        rollouts = await stage.play(executor, lambda: stopped(executor, 1.5))
    all_are_right(rollouts, attempts=1)


async def test_a_host_that_stands_still_for_longer_than_a_lease_costs_attempts(opened: Opened, stage: Stage) -> None:
    async with opened(disturbance={}) as executor:
        rollouts = await stage.play(executor, lambda: stopped(executor, 6.0))
    all_are_right(rollouts)
