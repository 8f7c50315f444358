"""What the machine does wrong: sandboxes, streams and hosts that end in the middle, and what is made of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

import little
import pytest
from executor.conftest import Opened, sandboxes
from requirements import check

from rayroll import Act, Executor, Rollout, Task, Turn
from rayroll.errors import InfraFailure
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.substrates import _leftovers as leftovers

SOLVE = ScriptedPolicy(["echo 42 > answer.txt"])


class Saboteur:
    """Solves every task in three commands; does something to the machine at one turn of one sample."""

    def __init__(self, deed: Any, *, sample: int = 1, turn: int = 1, command: str = "sleep 1") -> None:
        self.turns: list[Turn] = []
        self._deed, self._sample, self._turn, self._command = deed, sample, turn, command
        self._done = False

    async def act(self, turn: Turn) -> Act:
        self.turns.append(turn)
        if (turn.sample_index, turn.index) == (self._sample, self._turn) and not self._done:
            self._done = True
            await self._deed(turn)
            return Act(self._command)
        first = "echo 42 > answer.txt; sleep 600 > /dev/null &"  # what ``sandbox_of`` finds it by
        return Act([first, "true", "true"][turn.index]) if turn.index < 3 else Act(submit=True)


async def played(executor: Executor, policy: Any, tasks: list[Task] | None = None, **options: Any) -> list[Rollout]:
    run = executor.submit(tasks or [little.task()], policy, **options)
    return sorted([r async for r in run.rollouts()], key=lambda r: (r.task_id, r.sample_index))


async def sandbox_of(executor: Executor, turn: Turn) -> leftovers.Remains:
    """The local sandbox of a turn's rollout: the one in which a command runs that has its seed."""

    def look() -> leftovers.Remains:
        sandboxes = {r.pid: r for r in leftovers.find(leftovers.base_dir(), {"run": executor.run_id})}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                pid = int(path.parent.name) if f"RAYROLL_SEED={turn.seed}\0".encode() in path.read_bytes() else 0
                while pid > 1:
                    if pid in sandboxes:
                        return sandboxes[pid]
                    pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        raise AssertionError("no such sandbox")

    return await asyncio.to_thread(look)


async def test_one_sandbox_that_vanishes_spoils_its_own_rollout_and_no_other(opened: Opened) -> None:
    async with opened() as executor:

        async def kill(turn: Turn) -> None:
            os.kill((await sandbox_of(executor, turn)).pid, signal.SIGKILL)

        rollouts = await played(executor, Saboteur(kill), samples_per_task=4, seed=10, max_infra_retries=0)
    spoilt = rollouts.pop(1)
    assert (spoilt.reward, spoilt.valid, spoilt.truncated, spoilt.submitted) == (None, False, False, False)
    assert spoilt.failure is not None and (spoilt.failure.fault, spoilt.failure.error) == ("infra", "SandboxLostError")
    assert len(spoilt.steps) == 1, "the step that was lost is not recorded, and not run again"
    assert [(r.reward, r.attempts) for r in rollouts] == [(1.0, 1)] * 3


async def test_a_spoilt_attempt_is_made_again_from_the_beginning_and_counted(opened: Opened) -> None:
    async with opened() as executor:

        async def kill(turn: Turn) -> None:
            os.kill((await sandbox_of(executor, turn)).pid, signal.SIGKILL)

        policy = Saboteur(kill, sample=0)
        (rollout,) = await played(executor, policy, seed=10)
    assert (rollout.reward, rollout.attempts, len(rollout.steps)) == (1.0, 2, 3)
    assert [turn.index for turn in policy.turns] == [0, 1, 0, 1, 2, 3]
    assert rollout.infra_retry_s > 0


async def test_the_machine_is_given_so_many_attempts_and_no_more(opened: Opened) -> None:
    async with opened(disturbance={"creates_that_fail": 3}) as executor:
        (given_up,) = await played(executor, SOLVE, max_infra_retries=1)
        (made,) = await played(executor, SOLVE, max_infra_retries=1)
    assert (given_up.valid, given_up.attempts, given_up.reward) == (False, 2, None)
    assert given_up.failure is not None and given_up.failure.error == "SubstrateError"
    assert (made.valid, made.attempts, made.reward) == (True, 2, 1.0)


async def test_a_failed_start_cancels_the_generation_that_nobody_could_use(opened: Opened) -> None:
    cancelled = []

    class Slow:
        async def act(self, turn: Turn) -> Act:
            try:
                return await asyncio.Future()
            finally:
                cancelled.append(turn.index)

    async with opened(disturbance={"creates_that_fail": 1}) as executor:
        (rollout,) = await played(executor, Slow(), max_infra_retries=0)
    assert (rollout.valid, cancelled) == (False, [0])


async def test_a_stream_that_breaks_is_found_again_and_the_wait_is_infrastructure(opened: Opened) -> None:
    # It breaks in the middle of the run, and whoever comes back is let in when that is long over.
    flaky = {"profile": {"stream_break_per_command": 1.0, "run": {"median_s": 0.1}, "hello": {"median_s": 0.3}}}
    async with opened("simulated", substrate_config=flaky) as executor:
        (rollout,) = await played(executor, ScriptedPolicy(["true"] * 3), max_infra_retries=0)
    assert (rollout.valid, rollout.attempts, [s.exit_code for s in rollout]) == (True, 1, [0, 0, 0])
    assert rollout.timing.phases["transport"] > 3 * 0.2


async def test_a_node_of_which_a_third_fails_still_plays_every_rollout(opened: Opened) -> None:
    profile = {"create_failure": 0.3, "death_per_command": 0.05, "solve_share": 0.5}
    async with opened("simulated", substrate_config={"profile": profile, "seed": 3}) as executor:
        rollouts = await played(
            executor, ScriptedPolicy(["true"] * 3), samples_per_task=100, max_in_flight=20, max_infra_retries=2
        )
    assert len(rollouts) == 100
    assert all((r.reward is None) == (not r.valid) for r in rollouts)
    assert {r.failure.fault for r in rollouts if r.failure is not None} <= {"infra"}
    assert {r.reward for r in rollouts if r.valid} == {0.0, 1.0}
    assert max(r.attempts for r in rollouts) == 3


async def test_a_missing_image_is_not_asked_for_twice(opened: Opened) -> None:
    check("docker")
    async with opened("docker") as executor:
        (rollout,) = await played(executor, SOLVE, [little.task(image="localhost:1/no-such-image:1")])
    assert (rollout.valid, rollout.attempts, rollout.reward) == (False, 1, None)
    assert rollout.failure is not None and rollout.failure.error == "ImageError"


# --- hosts: what becomes of sandboxes that no other host can take over (test_reattach.py is about the others) ---

PLAIN = {"rootfs": "host", "isolation": "none"}


async def kill_host(executor: Executor) -> None:
    os.kill(executor.host.pid, signal.SIGKILL)


async def test_a_host_that_dies_is_replaced_and_what_it_spoilt_is_made_again(opened: Opened) -> None:
    async with opened("simulated") as executor:
        policy = Saboteur(lambda turn: kill_host(executor))
        rollouts = await played(executor, policy, samples_per_task=6, max_in_flight=3)
    assert [r.reward for r in rollouts] == [1.0] * 6
    assert sorted({r.attempts for r in rollouts}) == [1, 2]


def connections() -> dict[str, int]:
    """Descriptors of this process that are TCP connections, by their inode."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as copy:
            if copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM:
                copy.getpeername()
                found[os.readlink(entry)] = int(entry.name)  # noqa: PTH115
    return found


async def test_a_connection_to_a_host_that_breaks_costs_time_and_not_the_run(opened: Opened) -> None:
    before = await asyncio.to_thread(connections)
    async with opened() as executor:

        async def cut(turn: Turn) -> None:
            for inode, fd in (await asyncio.to_thread(connections)).items():
                if inode not in before:
                    with socket.socket(fileno=os.dup(fd)) as ours:
                        ours.shutdown(socket.SHUT_RDWR)
                    lines.append(fd)

        lines: list[int] = []
        rollouts = await played(executor, Saboteur(cut), samples_per_task=3)
    assert lines, "there was no direct line to cut"
    assert [r.reward for r in rollouts] == [1.0] * 3


async def test_a_command_that_was_under_way_when_its_host_died_ran_once(opened: Opened, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    async with opened(substrate_config=PLAIN) as executor:  # in which a command can leave a mark outside its sandbox

        async def kill_when_it_runs(turn: Turn) -> None:
            async def soon() -> None:
                await little.until_true(lambda: asyncio.to_thread(ran.exists))
                await kill_host(executor)

            killing.append(asyncio.create_task(soon()))

        killing: list[asyncio.Task[None]] = []
        policy = Saboteur(kill_when_it_runs, sample=0, command=f"echo ran >> {ran}; sleep 60")
        (rollout,) = await played(executor, policy, max_infra_retries=0)
        await killing[0]
    assert ran.read_text() == "ran\n"
    assert rollout.failure is not None and (rollout.failure.fault, rollout.failure.error) == ("infra", "HostLostError")
    assert [turn.index for turn in policy.turns] == [0, 1]


async def test_a_rollout_whose_host_died_between_two_steps_does_not_go_on_elsewhere(opened: Opened) -> None:
    async with opened(substrate_config=PLAIN) as executor:

        async def kill_and_wait(turn: Turn) -> None:
            await kill_host(executor)
            await little.until_gone(executor.host.pid)

        policy = Saboteur(kill_and_wait, sample=0)
        (rollout,) = await played(executor, policy, max_infra_retries=0)
    assert (rollout.valid, [turn.index for turn in policy.turns]) == (False, [0, 1])


async def test_with_a_host_each_only_the_rollout_of_the_dead_host_is_spoilt(opened: Opened) -> None:
    all_there = asyncio.Barrier(3)

    class Gathered:
        async def act(self, turn: Turn) -> Act:
            if (turn.attempt, turn.index) == (1, 1) and await all_there.wait() == 0:
                os.kill(executor.hosts[0].pid, signal.SIGKILL)
            return Act("sleep 1", submit=turn.index == 2)

    async with opened("simulated", isolation="actor") as executor:
        rollouts = await played(executor, Gathered(), samples_per_task=3, max_in_flight=3)
    assert sorted((r.reward, r.attempts) for r in rollouts) == [(1.0, 1), (1.0, 1), (1.0, 2)]


async def test_a_host_that_stands_still_loses_its_sandboxes_one_lease_later(opened: Opened) -> None:
    async with opened() as executor:
        stopped = asyncio.Event()

        async def stop(turn: Turn) -> None:
            async def soon() -> None:
                await little.pause(0.3)  # output is on its way
                os.kill(executor.host.pid, signal.SIGSTOP)
                stopped.set()

            stopping.append(asyncio.create_task(soon()))

        stopping: list[asyncio.Task[None]] = []
        run = executor.submit([little.task()], Saboteur(stop, sample=0, command="yes"), max_infra_retries=0)
        await stopped.wait()
        (sandbox,) = await asyncio.to_thread(lambda: [*leftovers.find(leftovers.base_dir(), {"run": executor.run_id})])
        try:
            await little.until_gone(sandbox.pid)
        finally:
            os.kill(executor.host.pid, signal.SIGCONT)
        (rollout,) = [r async for r in run.rollouts()]
    assert rollout.failure is not None and rollout.failure.fault == "infra"


async def test_a_run_ends_when_no_host_can_be_started_any_more(opened: Opened, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with opened(disturbance={"gate": str(gate)}) as executor:

        async def close_the_gate(turn: Turn) -> None:
            await asyncio.to_thread(gate.unlink)
            await kill_host(executor)

        run = executor.submit([little.task()], Saboteur(close_the_gate, sample=0), samples_per_task=50, max_in_flight=2)
        with pytest.raises(InfraFailure, match="gate"):
            async for _ in run.rollouts():
                pass


async def test_closing_frees_what_runs_and_a_second_executor_is_untouched(opened: Opened) -> None:
    async with opened() as other:
        bystander = other.submit([little.task()], ScriptedPolicy(["sleep 3; echo 42 > answer.txt"]))
        async with opened() as executor:
            run = executor.submit([little.task()], ScriptedPolicy(["sleep 60"]), samples_per_task=5, max_in_flight=3)
            await little.until_true(lambda: are_up(executor.run_id, 3))
        assert [r async for r in run.rollouts()] == []
        assert await sandboxes("local", executor.run_id) == []
        assert [r.reward async for r in bystander.rollouts()] == [1.0]


async def are_up(run_id: str, count: int) -> bool:
    return len(await sandboxes("local", run_id)) >= count
