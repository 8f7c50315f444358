"""A session is acted out: its commands in order, its waits before them, and stand-ins that are what they stand for."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest

from rayroll import Act, Turn
from rayroll.errors import ConfigError
from rayroll.executor.play import is_trusted
from rayroll.policies.recorded import RecordedPolicy
from rayroll.policies.replay import MOST_OUTPUT_BYTES, ModelStep, ReplayPolicy, ToolCall, acts, stand_in

SESSION = (
    ModelStep(1.0, (ToolCall(0.5, 3), ToolCall(0.25, 0, "make test", 9.0))),
    ModelStep(2.0),
    ModelStep(4.0, (ToolCall(0.0, 0),)),
    ModelStep(8.0),
)


def turn(index: int, task: str = "trace/1") -> Turn:
    return Turn("rollout", task, "Do it.", index, "")


def test_a_steps_calls_follow_one_another_and_a_step_without_any_leaves_its_time_to_the_next() -> None:
    waits = [think_s for think_s, _ in acts(SESSION, lambda call: Act(str(call.duration_s)))]
    commands = [act.command for _, act in acts(SESSION, lambda call: Act(str(call.duration_s)))]
    assert waits == [1.0, 0.0, 6.0, 8.0]
    assert commands == ["0.5", "0.25", "0.0", ""]


async def played(policy: ReplayPolicy | RecordedPolicy) -> list[Act]:
    return [await policy.act(turn(index)) for index in range(4)]


NO_WAITS = tuple(ModelStep(0.0, step.calls) for step in SESSION)


async def test_stand_ins_are_played_whatever_is_known_of_a_call_and_then_it_submits() -> None:
    first, second, third, last = await played(ReplayPolicy({"trace/1": NO_WAITS}))
    assert [first.command, second.command, third.command] == ["sleep 0.500; printf %03d 0", "sleep 0.250", ":"]
    assert last == Act(submit=True)


async def test_recorded_commands_run_as_they_were_with_their_own_limit() -> None:
    first, second, _, last = await played(RecordedPolicy({"trace/1": NO_WAITS}))
    assert first.command.startswith("sleep")
    assert second == Act("make test", timeout_s=9.0)
    assert last == Act(submit=True)


def test_only_stand_ins_count_as_commands_of_our_own() -> None:
    """What is trusted may run without isolation."""
    assert is_trusted(ReplayPolicy({}))
    assert not is_trusted(RecordedPolicy({}))


async def test_the_policy_waits_as_long_as_the_model_thought() -> None:
    policy = ReplayPolicy({"trace/1": [ModelStep(3600.0, (ToolCall(0.0, 0),))]})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(policy.act(turn(0)), 0.01)


async def test_a_task_without_a_session_is_refused() -> None:
    with pytest.raises(ConfigError, match="no session for this task"):
        await ReplayPolicy({}).act(turn(0))


@pytest.mark.parametrize("shell", [("sh",), ("bash",), ("dash",), ("busybox", "sh")], ids=" ".join)
def test_a_stand_in_prints_as_much_as_it_says_in_any_shell(shell: tuple[str, ...]) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"there is no {shell[0]} here")
    for count in (0, 1, 7, 70_000):
        done = subprocess.run([*shell, "-c", stand_in(0.001, count)], capture_output=True, check=True)
        assert (len(done.stdout), done.stderr) == (count, b"")


def test_a_stand_in_prints_no_more_than_any_exec_keeps() -> None:
    assert stand_in(0.0, 10**12) == f"printf %0{MOST_OUTPUT_BYTES}d 0"
