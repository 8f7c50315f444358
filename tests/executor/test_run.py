"""Runs on a real host in real sandboxes: who is asked what, what is recorded, what bounds a run and what ends it."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import little
import pytest
import pytest_asyncio
from executor.conftest import opened_executor, sandboxes

from rayroll import Act, Executor, Rollout, Turn, collect
from rayroll.errors import CallerError, ClosedError, ConfigError, InfraFailure
from rayroll.executor import PlayConfig, Run, rollout_id
from rayroll.policies.random import RandomPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.timing import PHASES

pytestmark = pytest.mark.asyncio(loop_scope="module")
SOLVE = ScriptedPolicy(["echo 42 > answer.txt"])


class Asked:
    """A policy from a function, which remembers every turn."""

    def __init__(self, answer: Callable[[Turn], Any]) -> None:
        self.turns: list[Turn] = []
        self._answer = answer

    async def act(self, turn: Turn) -> Act:
        self.turns.append(turn)
        found = self._answer(turn)
        return await found if asyncio.iscoroutine(found) else found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor(ray_cluster: Any) -> AsyncIterator[Executor]:
    """One host for all tests of this file."""
    async with opened_executor() as executor:
        yield executor


def submit(executor: Executor, tasks: Any, policy: Any, **options: Any) -> Run:
    """Each test in a namespace of its own, as they share a run."""
    return executor.submit(tasks, policy, namespace=str(id(policy)), **options)


async def played(executor: Executor, policy: Any, tasks: Any = None, **options: Any) -> list[Rollout]:
    return [r async for r in submit(executor, tasks or [little.task()], policy, **options).rollouts()]


# --- what is recorded ---


async def test_a_rollout_says_what_happened(executor: Executor) -> None:
    policy = ScriptedPolicy(["echo 42 > answer.txt", "echo seen; exit 3"])
    (rollout,) = await played(executor, policy, seed=7, labels={"cell": "a"}, config=PlayConfig(fingerprint=True))
    assert (rollout.reward, rollout.valid, rollout.failure, rollout.submitted, rollout.truncated) == (
        (1.0, True, None, True, False)
    )
    assert (rollout.id, rollout.run_id) == (
        rollout_id(executor.run_id, "little/write", 0, str(id(policy))),
        executor.run_id,
    )
    assert (rollout.substrate, rollout.rung, rollout.node) == ("local", "cached", executor.host.node)
    assert (rollout.attempts, rollout.infra_retry_s, rollout.seed) == (1, 0.0, 7)
    assert rollout.labels == {"cell": "a", "system": "host"}
    assert rollout.cold_start_s is not None and rollout.reset_s is not None
    assert 0 < rollout.cold_start_s < rollout.reset_s
    assert [step.exit_code for step in rollout] == [0, 3]
    assert rollout.steps[1].output_digest == hashlib.sha256(b"3\0seen\n").hexdigest()
    assert len(rollout.work_digest) == 64


async def test_the_phases_of_a_rollout_add_up_and_almost_nothing_is_other(executor: Executor) -> None:
    tasks = [little.task(f"t{n}") for n in range(10)]
    rollouts = await played(executor, ScriptedPolicy(["ls", "pwd", "echo 42 > answer.txt"]), tasks, max_in_flight=3)
    for rollout in rollouts:
        assert math.isclose(sum(rollout.timing.phases.values()), rollout.timing.wall_s, rel_tol=1e-9)
        assert set(rollout.timing.phases) <= set(PHASES)
    other_s = sum(r.timing.phases["other"] for r in rollouts)
    assert other_s <= 0.01 * sum(r.timing.wall_s for r in rollouts)


async def test_the_boot_is_hidden_behind_the_first_generation(executor: Executor) -> None:
    (rollout,) = await played(executor, ScriptedPolicy(["true"], think_s=2.0))
    phases, timing = rollout.timing.phases, rollout.timing
    assert timing.policy_s >= 4.0
    assert rollout.reset_s is not None and rollout.reset_s < 2.0, "a start this slow proves nothing"
    assert not {"create", "boot", "connect"} & set(phases)
    assert timing.hidden_s >= rollout.cold_start_s  # type: ignore[operator]


async def test_a_step_has_its_own_seconds_and_none_of_the_start_s(executor: Executor) -> None:
    (rollout,) = await played(executor, ScriptedPolicy(["sleep 0.2"], think_s=0.1))
    phases_s = rollout.steps[0].phases_s
    assert phases_s["run"] >= 0.9 * 0.2 and phases_s["policy"] >= 0.1
    assert set(phases_s) <= {"policy", "dispatch", "transport", "spawn", "run", "drain", "host", "return", "other"}


async def test_tokens_are_carried_untouched(executor: Executor) -> None:
    tokens = {"ids": object(), "logprobs": [float("nan")]}
    acts = [Act("true", tokens=tokens, policy_version=3), Act(submit=True)]
    (rollout,) = await played(executor, Asked(lambda turn: acts[turn.index]))
    assert rollout.steps[0].act is acts[0]


# --- what a policy sees ---


async def test_a_policy_sees_the_instruction_and_then_what_each_command_printed(executor: Executor) -> None:
    script = ["echo one; exit 1", "echo two; sleep 9", "cd /app && rmdir /app; true"]
    policy = Asked(lambda turn: Act(script[turn.index], timeout_s=0.5) if turn.index < 3 else Act(submit=True))
    await played(executor, policy, [little.task(workdir="/app")], samples_per_task=1)
    assert [(t.index, t.observation, t.exit_code) for t in policy.turns[:3]] == [
        (0, "Write 42 into answer.txt.", None),
        (1, "one\n", 1),
        (2, "two\n[ended by its time limit]\n", 143),
    ]


async def test_samples_of_a_task_are_a_group_with_seeds_of_their_own(executor: Executor) -> None:
    policy = Asked(lambda turn: Act(submit=True))
    tasks = [little.task("a"), little.task("b")]
    rollouts = await played(executor, policy, tasks, samples_per_task=3, seed=100)
    assert {(r.task_id, r.group_id, r.sample_index, r.seed) for r in rollouts} == {
        (f"little/{name}", f"little/{name}", index, 100 + 3 * number + index)
        for number, name in enumerate("ab")
        for index in range(3)
    }
    assert {(t.group_id, t.sample_index, t.seed) for t in policy.turns} == {
        (r.group_id, r.sample_index, r.seed) for r in rollouts
    }


async def test_groups_come_whole_and_in_the_order_of_their_samples(executor: Executor) -> None:
    policy = RandomPolicy(1, submit_probability=0.5)
    tasks = [little.task(name) for name in "abc"]
    run = submit(executor, tasks, policy, samples_per_task=3, max_in_flight=4, config=PlayConfig(max_steps=3))
    groups = [group async for group in run.groups()]
    assert sorted(group[0].task_id for group in groups) == ["little/a", "little/b", "little/c"]
    assert all([r.sample_index for r in group] == [0, 1, 2] for group in groups)


@pytest.mark.parametrize("command", ["echo \0", "echo \udc80", "#" * (5 << 20)], ids=["nul", "surrogate", "5 MiB"])
async def test_any_text_is_a_command(executor: Executor, command: str) -> None:
    (rollout,) = await played(executor, ScriptedPolicy([command, "echo 42 > answer.txt"]))
    assert (rollout.reward, rollout.failure, rollout.steps[1].exit_code) == (1.0, None, 0)


# --- limits ---


@pytest.mark.parametrize(("grade_on", "reward"), [("end", 1.0), ("submit", 0.0)])
async def test_a_rollout_that_reaches_its_steps_is_truncated(executor: Executor, grade_on: Any, reward: float) -> None:
    policy = ScriptedPolicy(["echo 42 > answer.txt"], submit=False)
    (rollout,) = await played(executor, policy, config=PlayConfig(max_steps=2, grade_on=grade_on))
    assert (rollout.reward, rollout.truncated, rollout.submitted, len(rollout.steps)) == (reward, True, False, 2)


@pytest.mark.parametrize("turn_that_hangs", [0, 1])
async def test_a_policy_that_never_answers_is_cut_by_the_deadline(executor: Executor, turn_that_hangs: int) -> None:
    cancelled = []

    async def hang() -> Act:
        try:
            return await asyncio.Future()
        finally:
            cancelled.append(True)

    policy = Asked(lambda turn: hang() if turn.index == turn_that_hangs else Act("echo 42 > answer.txt"))
    (rollout,) = await played(executor, policy, config=PlayConfig(deadline_s=0.5))
    assert (rollout.truncated, rollout.valid, len(rollout.steps)) == (True, True, turn_that_hangs)
    assert (rollout.reward, cancelled) == (float(turn_that_hangs), [True])


async def test_the_deadline_does_not_count_the_wait_for_a_slot(executor: Executor) -> None:
    policy = ScriptedPolicy(["sleep 0.7; echo 42 > answer.txt"])
    tasks = [little.task("a"), little.task("b")]
    rollouts = await played(executor, policy, tasks, max_in_flight=1, config=PlayConfig(deadline_s=1.3))
    assert [r.reward for r in rollouts] == [1.0, 1.0]
    assert rollouts[1].timing.phases["queue"] > 0.7


async def test_the_session_s_limit_holds_for_commands_without_one(ray_cluster: Any) -> None:
    async with opened_executor(session={"exec_timeout_s": 0.3}) as executor:
        (rollout,) = await played(executor, ScriptedPolicy(["sleep 60"]))
    assert rollout.steps[0].timed_out


async def test_no_more_are_under_way_than_there_are_slots(executor: Executor) -> None:
    under_way: set[str] = set()
    most = 0

    async def act(turn: Turn) -> Act:
        nonlocal most
        under_way.add(turn.rollout_id)
        most = max(most, len(under_way))
        if turn.index == 0:
            return Act("true")
        under_way.discard(turn.rollout_id)
        return Act(submit=True)

    rollouts = await played(executor, Asked(act), samples_per_task=9, max_in_flight=3)
    assert (len(rollouts), most) == (9, 3)


async def test_a_reader_that_stops_holds_the_run_back(executor: Executor) -> None:
    policy = Asked(lambda turn: Act(submit=True))
    run = submit(executor, [little.task()], policy, samples_per_task=10, max_in_flight=2)
    reader = run.rollouts()
    await anext(reader)
    # One was read, two wait to be read, and two hold their slots until there is room.
    await little.until(lambda: len(policy.turns) >= 5 and run.in_flight == 0)
    assert len(policy.turns) == 5
    assert len([rollout async for rollout in reader]) == 9


# --- what ends a run ---


async def test_a_cancelled_run_tells_its_reader_and_frees_everything(executor: Executor) -> None:
    policy = Asked(lambda turn: Act("true") if turn.index == 0 and turn.sample_index == 0 else Act("sleep 60"))
    run = submit(executor, [little.task()], policy, samples_per_task=4, max_in_flight=2)
    reading = asyncio.create_task(anext(run.rollouts(), None))
    await little.until(lambda: len(policy.turns) >= 3)
    await run.cancel()
    assert await reading is None
    assert await sandboxes("local", executor.run_id) == []
    await run.cancel()


async def test_what_had_finished_before_a_cancel_is_still_read(executor: Executor) -> None:
    policy = Asked(lambda turn: Act(submit=True) if turn.sample_index == 0 else Act("sleep 60"))
    run = submit(executor, [little.task()], policy, samples_per_task=2)
    await little.until(lambda: run.in_flight == 1 and len(policy.turns) == 2)
    await run.cancel()
    assert [r.sample_index async for r in run.rollouts()] == [0]


class EndpointError(Exception):
    pass


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (EndpointError("503"), EndpointError),
        (InfraFailure("not the sandbox's"), InfraFailure),
        (TimeoutError(), TimeoutError),
        (None, CallerError),
        (Act(b"ls"), CallerError),  # type: ignore[arg-type]
        (Act("ls", timeout_s=float("nan")), CallerError),
    ],
    ids=["its own", "one of ours", "timeout", "none", "bytes", "nan"],
)
@pytest.mark.parametrize("index", [0, 1])
async def test_what_a_policy_raises_ends_the_run(executor: Executor, index: int, answer: Any, raised: Any) -> None:
    async def act(turn: Turn) -> Any:
        if turn.index < index:
            return Act("true")
        if isinstance(answer, Exception):
            raise answer
        return answer

    policy = Asked(act)
    run = submit(executor, [little.task()], policy, samples_per_task=3, max_in_flight=1)
    with pytest.raises(raised):
        async for _ in run.rollouts():
            pass
    assert len(policy.turns) == index + 1
    assert await sandboxes("local", executor.run_id) == []


async def test_a_broken_task_is_set_aside_and_the_others_go_on(executor: Executor) -> None:
    tasks = [little.task("broken", grader="true"), little.task("sound")]
    run = submit(executor, tasks, SOLVE, samples_per_task=4, max_in_flight=1)
    rollouts = [r async for r in run.rollouts()]
    assert [(r.task_id, r.reward, r.attempts) for r in rollouts] == [
        ("little/broken", None, 1),
        *[("little/broken", None, 0)] * 3,
        *[("little/sound", 1.0, 1)] * 4,
    ]
    assert {r.failure.fault for r in rollouts if r.failure} == {"grader"}
    assert set(run.set_aside) == {"little/broken"}


# --- several runs ---


async def test_finished_rollouts_are_not_played_again(executor: Executor) -> None:
    tasks = [little.task("a"), little.task("b")]
    ids = {rollout_id(executor.run_id, "little/a", 0, "resumed"), rollout_id(executor.run_id, "little/b", 1, "resumed")}
    run = executor.submit(tasks, SOLVE, samples_per_task=2, seed=5, namespace="resumed", finished=ids)
    found = {(r.task_id, r.sample_index, r.seed) async for r in run.rollouts()}
    assert (run.total, found) == (2, {("little/a", 1, 6), ("little/b", 0, 7)})


async def test_two_runs_of_the_same_samples_do_not_meet(executor: Executor) -> None:
    script = ScriptedPolicy(["[ -e mine ] && exit 9; touch mine; sleep 0.2; echo 42 > answer.txt"])
    runs = [executor.submit([little.task()], script, samples_per_task=3) for _ in range(2)]
    rollouts = [r for run in runs async for r in run.rollouts()]
    assert [(r.reward, r.steps[0].exit_code) for r in rollouts] == [(1.0, 0)] * 6


async def test_two_versions_of_a_task_are_two_tasks(executor: Executor) -> None:
    other = little.task(grader="echo 0.5 > /logs/verifier/reward.txt")
    rewards = [[r.reward for r in await played(executor, SOLVE, [t])] for t in (little.task(), other, little.task())]
    assert rewards == [[1.0], [0.5], [1.0]]


async def test_with_isolation_actor_each_rollout_under_way_has_a_host_of_its_own(ray_cluster: Any) -> None:
    async with opened_executor(isolation="actor") as executor:
        owners: set[str] = set()

        async def act(turn: Turn) -> Act:
            if turn.index == 1:
                await little.until_true(two_have_been_seen)
            return Act("true") if turn.index < 2 else Act(submit=True)

        async def two_have_been_seen() -> bool:
            owners.update(ref.owner for ref in await sandboxes("local", executor.run_id))
            return len(owners) == 2

        rollouts = await played(executor, Asked(act), samples_per_task=4, max_in_flight=2)
        assert [r.valid for r in rollouts] == [True] * 4
        assert (await executor.stats()).sessions == 0


async def test_an_executor_that_is_not_open_runs_nothing(executor: Executor) -> None:
    with pytest.raises(ClosedError):
        Executor("local").submit([little.task()], SOLVE)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"substrate": "locl"}, "did you mean 'local'"),
        ({"substrate": "local", "substrate_config": {"rotfs": "host"}}, "did you mean rootfs"),
        ({"substrate": "local", "session": {"leese_s": 3}}, "did you mean lease_s"),
        ({"substrate": "local", "session": {"lease_s": 0}}, "greater than or equal to 1"),
        ({"substrate": "local", "isolation": "process"}, "known=['actor', 'node']"),
    ],
)
async def test_bad_settings_are_refused_before_anything_starts(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        Executor(**options)
    assert hint in str(error.value)


@pytest.mark.parametrize("option", [{"samples_per_task": 0}, {"max_in_flight": 0}, {"max_infra_retries": -1}])
async def test_impossible_counts_are_refused(executor: Executor, option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        executor.submit([little.task()], SOLVE, **option)  # type: ignore[arg-type]


async def test_a_node_that_cannot_run_the_substrate_says_why(ray_cluster: Any) -> None:
    with pytest.raises(InfraFailure) as error:
        async with Executor("docker", substrate_config={"host": "unix:///nowhere.sock"}):
            pass
    assert "nowhere" in str(error.value) and error.value.facts["fix"]


async def test_collect_works_on_a_running_loop(ray_cluster: Any) -> None:
    (rollout,) = collect([little.task()], SOLVE, executor={"substrate_config": little.SUBSTRATE_CONFIG["local"]})
    assert rollout.reward == 1.0
