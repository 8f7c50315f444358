"""Sandboxes that are killed, stopped or filled in every phase of their rollouts; their neighbour is left alone."""

from __future__ import annotations

import asyncio
import os
import signal

import little
import nodes
import pytest
from chaos.stage import BYSTANDER, CONFIG, VICTIM, Stage, all_are_right, phase_of
from executor.conftest import Opened

from rayroll import Act, Executor, Turn
from rayroll.substrates import _leftovers as leftovers


def signal_runners(run_id: str, signum: signal.Signals) -> int:
    """To all of a run that may be picked. Returns how many there were."""
    runners = [remains.pid for remains in leftovers.find(leftovers.base_dir(), {"run": run_id}) if remains.pid]
    victims = [pid for pid in runners if f"{VICTIM}=" in nodes.read(f"/proc/{pid}/environ")]
    for pid in victims:
        os.kill(pid, signum)
    return len(victims)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped for good"])
async def test_runners_that_are_gone_spoil_no_rollout_and_not_their_neighbour(
    opened: Opened, stage: Stage, signum: signal.Signals
) -> None:
    async with opened(disturbance={}, session={"hello_timeout_s": 5.0}) as executor:

        async def fault() -> None:
            count = await asyncio.to_thread(signal_runners, executor.run_id, signum)
            assert count == 5

        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts)
    assert {phase_of(r) for r in rollouts if r.attempts == 1} == {"close", BYSTANDER}


HOGS = {
    "memory": "tail /dev/zero",
    "pids": "for i in $(seq 700); do sleep 60 & done",
    "disk": "head -c 200M /dev/zero > /tmp/big",
}


class Hog:
    """Solves the task, and fills something from then on: while the policy thinks, in a command, as it is graded."""

    def __init__(self, filling: str) -> None:
        self._filling = filling

    async def act(self, turn: Turn) -> Act:
        where = phase_of(turn)
        if where == BYSTANDER or turn.index != 1:
            if turn.index == 2 and where == "policy":
                await asyncio.sleep(2.0)
            work = "echo 42 > answer.txt"
            return Act(work) if turn.index < (3 if where == "policy" else 2) else Act(submit=True)
        begin = {"exec": "", "policy": "sleep 0.5; ", "grade": "sleep 0.5; "}[where]
        command = f"{begin}{self._filling}"
        return Act(command if where == "exec" else f"({command}) > /dev/null 2>&1 &", timeout_s=5.0)


@pytest.mark.parametrize("what", HOGS)
async def test_what_an_agent_does_to_its_own_sandbox_is_its_own_fault_and_nobody_elses(
    opened: Opened, what: str
) -> None:
    tasks = [
        little.task(name, grader=f"sleep 1\n{little.GRADER}", memory_mib=128, disk_mib=64)
        for name in ("exec", "policy", "grade", BYSTANDER)
    ]
    async with opened() as executor:
        run = executor.submit(tasks, Hog(HOGS[what]), config=CONFIG)
        rollouts = {phase_of(rollout): rollout async for rollout in run.rollouts()}
    assert rollouts.keys() == {"exec", "policy", "grade", BYSTANDER}
    bystander = rollouts.pop(BYSTANDER)
    assert (bystander.reward, bystander.attempts) == (1.0, 1)
    for rollout in rollouts.values():
        assert (rollout.valid, rollout.attempts) == (True, 1)
        assert rollout.failure is None or (rollout.failure.fault, rollout.reward) == ("policy", 0.0)


async def freed(executor: Executor) -> bool:
    return not await asyncio.to_thread(lambda: [*leftovers.find(leftovers.base_dir(), {"run": executor.run_id})])


class Broken(Exception):
    """What a policy raises."""


async def test_a_policy_that_raises_ends_the_run_and_frees_every_phase(opened: Opened, stage: Stage) -> None:
    async with opened(disturbance={}) as executor:
        run = stage.submit(executor)
        await stage.is_set(executor)
        stage.error = Broken()
        await stage.go_on()
        with pytest.raises(Broken):
            async for rollout in run.rollouts():
                assert rollout.reward == 1.0
        await little.until_true(lambda: freed(executor))


async def test_a_program_that_is_cancelled_twice_in_every_phase_leaves_nothing(opened: Opened, stage: Stage) -> None:
    async def program() -> None:
        async with opened(disturbance={}) as executor:
            run = stage.submit(executor)
            running.set_result(executor)
            async for _ in run.rollouts():
                pass

    running: asyncio.Future[Executor] = asyncio.get_running_loop().create_future()
    going = asyncio.create_task(program())
    executor = await running
    await stage.is_set(executor)
    going.cancel()
    await asyncio.sleep(0.2)  # it frees what it has
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    await stage.go_on()
    await little.until_true(lambda: freed(executor))
