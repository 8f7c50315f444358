"""The proof of the timing split: 50 ms put in at a known place make its phase grow by 50 ms, and no other by 5.

What is compared are pairs, made one right after the other, and the median of their differences. Where the machine is
not quiet, more pairs are made, up to ``MOST_PAIRS``, and the quickest of them count: what others do to this machine
comes and goes, while 50 ms in the wrong phase stay there however many pairs there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import little
import pytest
import pytest_asyncio
from executor.conftest import PLUGINS, opened_executor
from requirements import require

from rayroll import Act, Executor, Task, Turn
from rayroll.executor import PlayConfig
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.substrates import _leftovers as leftovers
from rayroll.testing.disturbed import DISTURB

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

PUT_IN_S = 0.050
TOLERANCE_S = 0.005
LEAST_PAIRS = 9
MOST_PAIRS = 108

Phases = Mapping[str, float]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(ray_cluster: Any) -> AsyncIterator[Executor]:
    """One host for all pairs; what is put in is told per task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGINS)
        async with opened_executor(disturbance={}, session={"lease_s": 30.0}) as executor:
            yield executor


def growth_s(pairs: list[tuple[Phases, Phases]]) -> dict[str, float]:
    """Median difference of each phase, with minus without, over the quickest third of the pairs and at least nine."""
    quickest = sorted(pairs, key=lambda pair: sum(pair[0].values()) + sum(pair[1].values()))
    quickest = quickest[: max(LEAST_PAIRS, len(pairs) // 3)]
    names = sorted({name for pair in quickest for phases in pair for name in phases})
    return {name: statistics.median(w.get(name, 0.0) - o.get(name, 0.0) for o, w in quickest) for name in names}


def wrong(pairs: list[tuple[Phases, Phases]], where: str) -> dict[str, float]:
    """Phases that did not grow as they should have, with what they grew by in milliseconds."""
    return {
        name: round(seconds * 1e3, 2)
        for name, seconds in growth_s(pairs).items()
        if abs(seconds - (PUT_IN_S if name == where else 0.0)) >= TOLERANCE_S
    }


# --- places within an action: pairs of commands in one rollout ---


class Pairs:
    """A policy that plays pairs of actions, without and with, until they show what they should or there are enough."""

    def __init__(self, without: Callable[[], Any], with_it: Callable[[], Any], where: str) -> None:
        self.pairs: list[tuple[Phases, Phases]] = []
        self._makers, self._where = (without, with_it), where

    async def act(self, turn: Turn) -> Act:
        if turn.index == 2 * MOST_PAIRS:
            return Act(submit=True)
        made = self._makers[turn.index % 2]()
        return await made if asyncio.iscoroutine(made) else made


async def assert_an_action_grows(
    executor: Executor,
    where: str,
    without: Callable[[], Any],
    with_it: Callable[[], Any],
    *,
    task: Task | None = None,
) -> None:
    pairs: list[tuple[Phases, Phases]] = []
    while len(pairs) < MOST_PAIRS:
        policy = Pairs(without, with_it, where)
        run = executor.submit(
            [task or little.task()],
            policy,
            namespace=f"{where} {len(pairs)}",
            config=PlayConfig(max_steps=2 * LEAST_PAIRS),
        )
        (rollout,) = [r async for r in run.rollouts()]
        assert rollout.valid
        phases = [step.phases_s for step in rollout.steps]
        pairs += zip(phases[0::2], phases[1::2], strict=True)
        if not wrong(pairs, where):
            return
    pytest.fail(f"after {len(pairs)} pairs, grown by ms: {wrong(pairs, where)}")


async def test_the_network_both_ways_is_transport(executor: Executor) -> None:
    late = {"mark": "LATE", "there_s": PUT_IN_S / 2, "back_s": PUT_IN_S / 2}
    task = little.task(env={DISTURB: json.dumps(late)})
    await assert_an_action_grows(executor, "transport", lambda: Act(":"), lambda: Act(": LATE"), task=task)


async def test_a_command_s_own_time_is_run(executor: Executor) -> None:
    await assert_an_action_grows(executor, "run", lambda: Act("sleep 0"), lambda: Act(f"sleep {PUT_IN_S}"))


async def test_the_grace_of_a_command_that_was_ended_is_drain(executor: Executor) -> None:
    def ended(goodbye: str) -> Act:
        return Act(f"trap '{goodbye} exit 0' TERM; sleep 9 & wait", timeout_s=0.1)

    await assert_an_action_grows(executor, "drain", lambda: ended(""), lambda: ended(f"sleep {PUT_IN_S};"))


async def test_a_policy_s_thinking_is_policy(executor: Executor) -> None:
    async def think() -> Act:
        await asyncio.sleep(PUT_IN_S)
        return Act(":")

    await assert_an_action_grows(executor, "policy", lambda: Act(":"), think)


async def test_a_host_that_stands_still_before_it_hears_of_an_action_is_dispatch(executor: Executor) -> None:
    def stop_and_go() -> Act:
        os.kill(executor.host.pid, signal.SIGSTOP)
        going = threading.Timer(PUT_IN_S, os.kill, (executor.host.pid, signal.SIGCONT))
        going.start()
        timers.append(going)
        return Act(":")

    timers: list[threading.Timer] = []
    try:
        await assert_an_action_grows(executor, "dispatch", lambda: Act(":"), stop_and_go)
    finally:
        for timer in timers:
            timer.join()


async def test_what_holds_up_a_new_process_before_its_program_is_spawn(executor: Executor) -> None:
    able = shutil.which("strace") is not None and os.geteuid() == 0
    require("strace", None if able else "holding up another process takes root and strace; apt-get install strace")
    tracers: list[asyncio.subprocess.Process] = []

    async def traced(delay_us: int) -> Act:
        """Both of a pair run under a tracer, which costs time of its own; only one's new session is held up."""
        await let_go()
        processes = await asyncio.to_thread(processes_of, executor.run_id)
        tracers.append(
            await asyncio.create_subprocess_exec(
                *("strace", "-f", "-qqq", "-e", "trace=setsid", "-e", f"inject=setsid:delay_enter={delay_us}"),
                *("-o", "/dev/null", *(word for pid in processes for word in ("-p", str(pid)))),
                stderr=subprocess.DEVNULL,
            )
        )
        await little.until_true(lambda: asyncio.to_thread(all_are_traced, processes))
        await asyncio.sleep(2 * PUT_IN_S)  # thinking, for the tracer takes a while to settle, which would be in the run
        return Act(":")

    async def let_go() -> None:
        for tracer in tracers:
            with contextlib.suppress(ProcessLookupError):  # it has ended with the sandbox of an earlier rollout
                tracer.send_signal(signal.SIGINT)
            await tracer.wait()
        tracers.clear()

    try:
        await assert_an_action_grows(executor, "spawn", lambda: traced(1), lambda: traced(round(PUT_IN_S * 1e6)))
    finally:
        await let_go()


def processes_of(run_id: str) -> list[int]:
    """The runner of the one sandbox of a run, and the keepers it has."""
    end_s = time.monotonic() + 30
    while not (pids := [r.pid for r in leftovers.find(leftovers.base_dir(), {"run": run_id}) if r.pid]):
        assert time.monotonic() < end_s, "no sandbox was seen"
        time.sleep(0.01)
    for pid in pids:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += [int(child) for child in children.read_text().split()]
    return pids


def all_are_traced(pids: list[int]) -> bool:
    return all("TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text() for pid in pids)


# --- places around the actions: pairs of rollouts ---


async def assert_a_rollout_grows(executor: Executor, where: str, without: Task, with_it: Task) -> None:
    pairs: list[tuple[Phases, Phases]] = []
    while len(pairs) < MOST_PAIRS:
        pairs += [
            (await one_s_phases(executor, without), await one_s_phases(executor, with_it)) for _ in range(LEAST_PAIRS)
        ]
        if not wrong(pairs, where):
            return
    pytest.fail(f"after {len(pairs)} pairs, grown by ms: {wrong(pairs, where)}")


async def one_s_phases(executor: Executor, task: Task) -> Phases:
    (rollout,) = [r async for r in executor.submit([task], ScriptedPolicy([":"])).rollouts()]
    assert rollout.valid
    return rollout.timing.phases


@pytest.mark.parametrize(
    ("place", "where"), [("before_create_s", "queue"), ("create_s", "create"), ("destroy_s", "teardown")]
)
async def test_the_substrate_s_work_is_where_it_was_done(executor: Executor, place: str, where: str) -> None:
    late = little.task(place, env={DISTURB: json.dumps({place: PUT_IN_S})})
    await assert_a_rollout_grows(executor, where, little.task(), late)


async def test_what_the_tests_take_is_the_grader_s_run(executor: Executor) -> None:
    slow = little.task("slow", grader=f"sleep {PUT_IN_S};{little.GRADER}")
    await assert_a_rollout_grows(executor, "grade_run", little.task(grader=f"sleep 0;{little.GRADER}"), slow)


async def test_the_wait_for_a_slot_that_is_held_is_queue(executor: Executor) -> None:
    """The second of two rollouts on one slot waits for as long as the first one lasts, whatever that does."""
    waits = []
    for number in range(LEAST_PAIRS):
        policy = ScriptedPolicy({"little/holder": [":"] * (number % 2), "little/waiter": [":"]}, think_s=PUT_IN_S)
        tasks = [little.task("holder"), little.task("waiter")]
        run = executor.submit(tasks, policy, max_in_flight=1, namespace=str(number))
        holder, waiter = [r async for r in run.rollouts()]
        waits.append(waiter.timing.phases["queue"] - holder.timing.wall_s)
    assert abs(statistics.median(waits)) < TOLERANCE_S
