"""A host that is killed: its sandboxes go on in the next one, and no command is lost or run twice."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import little
import pytest
from executor.conftest import opened_executor
from requirements import check

from rayroll import Act, Executor, Rollout, Turn
from rayroll.executor.play import PlayConfig
from rayroll.policies.scripted import ScriptedPolicy

LEASE_S = 12.0
"""A host takes some seconds to start where the machine is busy."""
COUNTED = "echo ran >> /tmp/log; {} wc -l < /tmp/log"
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture(params=["local", "docker"], autouse=True)
def kind(request: pytest.FixtureRequest) -> str:
    check(request.param)
    return str(request.param)


async def kill_host(executor: Executor) -> None:
    (host,) = executor.hosts
    os.kill(host.pid, signal.SIGKILL)
    await little.until(lambda: host not in executor.hosts)


class Murderer:
    """Counts its commands in the sandbox; kills the host at the given turns, before it answers or right after."""

    def __init__(self, before: tuple[int, ...] = (), during: tuple[int, ...] = (), pause_s: float = 3.0) -> None:
        self.executor: Executor
        self.seen: list[str] = []
        self._before, self._during, self._pause_s = before, during, pause_s

    async def act(self, turn: Turn) -> Act:
        self.seen.append(turn.observation.strip() if turn.index else "")
        if turn.index in self._before:
            await kill_host(self.executor)
        if turn.index in self._during:
            self._killing = asyncio.create_task(self._kill_soon())
        if turn.index == 4:
            return Act(submit=True)
        pause = f"sleep {self._pause_s};" if turn.index in self._during else ""
        return Act("echo 42 > answer.txt; cd /tmp; export N=$((N + 1)); " + COUNTED.format(pause))

    async def _kill_soon(self) -> None:
        await little.pause(1.0)  # the command is under way by then
        await kill_host(self.executor)


async def played(kind: str, policy: Murderer, **options: Any) -> Rollout:
    async with opened_executor(kind, session={"lease_s": LEASE_S}, **options) as executor:
        policy.executor = executor
        (rollout,) = [r async for r in executor.submit([little.task()], policy, max_infra_retries=0).rollouts()]
    return rollout


@pytest.mark.parametrize("isolation", ["node", "actor"])
async def test_a_command_goes_on_while_its_host_dies_and_its_result_arrives(kind: str, isolation: str) -> None:
    policy = Murderer(during=(1,), pause_s=3.0)
    rollout = await played(kind, policy, isolation=isolation)
    assert policy.seen == ["", "1", "2", "3", "4"]
    assert (rollout.reward, rollout.attempts, rollout.moves, rollout.failure) == (1.0, 1, 1, None)
    assert rollout.timing.phases["run"] > 3.0, "it ran while no host was there, too"


async def test_a_sandbox_waits_for_its_policy_although_its_host_died_and_longer_than_the_old_lease(
    kind: str,
) -> None:
    policy = Murderer(before=(1, 3), during=(2,), pause_s=LEASE_S + 8)
    rollout = await played(kind, policy)
    assert policy.seen == ["", "1", "2", "3", "4"]
    assert (rollout.reward, rollout.attempts, rollout.moves, rollout.failure) == (1.0, 1, 3, None)


async def test_grading_begins_anew_where_its_host_died_in_it(kind: str) -> None:
    grader = "sleep 4; " + little.GRADER
    async with opened_executor(kind, session={"lease_s": LEASE_S}) as executor:
        policy = ScriptedPolicy(["echo 42 > answer.txt"])
        run = executor.submit(
            [little.task(grader=grader)], policy, max_infra_retries=0, config=PlayConfig(fingerprint=True)
        )
        await little.until(lambda: executor.snapshot().stages.get("grade"))
        await kill_host(executor)
        (rollout,) = [r async for r in run.rollouts()]
    assert (rollout.reward, rollout.attempts, rollout.moves) == (1.0, 1, 1)
    assert rollout.work_digest == "", "what the tests left may be among the files by then"


async def test_one_that_was_starting_is_tried_again(kind: str) -> None:
    async with opened_executor(kind, session={"lease_s": LEASE_S}) as executor:
        run = executor.submit([little.task()], ScriptedPolicy(["echo 42 > answer.txt"]))
        await little.until(lambda: executor.snapshot().stages.get("start"))
        await kill_host(executor)
        (rollout,) = [r async for r in run.rollouts()]
    assert (rollout.reward, rollout.attempts, rollout.moves) == (1.0, 2, 0)
