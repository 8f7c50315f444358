"""Runs on a cluster of several machines whose links are slow, break and mend, and whose machines die."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import little
import pytest
from nodes import Nodes, wired_nodes

from rayroll import Act, Executor, Rollout, Turn
from rayroll.errors import InfraFailure
from rayroll.executor import PlayConfig
from rayroll.policies.scripted import ScriptedPolicy

pytestmark = pytest.mark.timeout(180)

DELAY_S = 0.02
STEPS = ScriptedPolicy(["true"] * 3)


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Ray opens sockets and threads of this process as it likes, and the cluster outlasts a test."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with wired_nodes(2, labels=[{"zone": "a"}, {"zone": "b"}], delay_s=DELAY_S) as made:
        yield made


def opened(**options: Any) -> Executor:
    """An executor whose sandboxes are not there: what is tried here is between the nodes."""
    return Executor("simulated", **{"node_labels": None, **options})


async def played(executor: Executor, policy: Any, count: int, **options: Any) -> list[Rollout]:
    run = executor.submit([little.task()], policy, samples_per_task=count, **options)
    return [rollout async for rollout in run.rollouts()]


async def until_up(executor: Executor, count: int) -> None:
    await little.until(lambda: sum(bool(host["is_up"]) for host in executor.snapshot().hosts.values()) >= count)


async def test_rollouts_are_spread_over_the_nodes_and_the_way_there_is_not_the_sandboxes_time(nodes: Nodes) -> None:
    async with opened() as executor:
        await until_up(executor, 2)
        rollouts = await played(executor, STEPS, 20)
    assert all(rollout.valid for rollout in rollouts)
    spread = Counter(rollout.host for rollout in rollouts)
    assert len(spread) == 2 and min(spread.values()) >= 5
    for step in rollouts[0].steps:
        away_s = step.phases_s["dispatch"] + step.phases_s["return"]
        assert away_s >= 2 * DELAY_S * 0.9
        assert step.phases_s.get("transport", 0.0) < DELAY_S


async def test_only_nodes_with_the_labels_get_hosts(nodes: Nodes) -> None:
    async with opened(node_labels={"zone": "b"}) as executor:
        rollouts = await played(executor, STEPS, 4)
        assert len(executor.snapshot().hosts) == 1
    assert {rollout.host.partition("-")[0] for rollout in rollouts} == {nodes[2].id[:8]}
    with pytest.raises(InfraFailure, match="no node"):
        await opened(node_labels={"zone": "c"}).__aenter__()


async def test_slots_of_a_node_bound_what_runs_there(nodes: Nodes) -> None:
    most: Counter[str] = Counter()

    class Watch:
        async def act(self, turn: Turn) -> Act:
            for name, host in executor.snapshot().hosts.items():
                most[name] = max(most[name], int(host["running"]))
            return Act("true") if turn.index < 2 else Act(submit=True)

    async with opened(slots_per_node=2, hosts_per_node=2) as executor:
        await until_up(executor, 4)
        await played(executor, Watch(), 12)
    assert sorted(most.values()) == [1, 1, 1, 1]


async def test_a_link_that_breaks_for_a_moment_costs_time_and_nothing_else(nodes: Nodes) -> None:
    async with opened(node_labels={"zone": "a"}) as executor:

        class Cut:
            async def act(self, turn: Turn) -> Act:
                if turn.index == 1:
                    await asyncio.to_thread(nodes[1].cut)
                    asyncio.get_running_loop().call_later(1.0, nodes[1].mend)
                return Act("true") if turn.index < 3 else Act(submit=True)

        (rollout,) = await played(executor, Cut(), 1, max_infra_retries=0)
    assert (rollout.valid, rollout.attempts, len(rollout.steps)) == (True, 1, 3)
    assert rollout.timing.infra_s > 1.0


async def test_a_machine_that_dies_costs_attempts_and_its_rollouts_are_played_elsewhere(nodes: Nodes) -> None:
    """Last in this file: nobody brings the machine back."""
    second_turns = 0

    async def act(turn: Turn) -> Act:
        nonlocal second_turns
        if turn.index == 1 and turn.attempt == 1:
            second_turns += 1
            if second_turns == 10:
                nodes[1].kill()
            await asyncio.sleep(0.1)
        return Act("true") if turn.index < 6 else Act(submit=True)

    policy = type("Kill", (), {"act": staticmethod(act)})()
    async with opened() as executor:
        await until_up(executor, 2)
        rollouts = await played(executor, policy, 40, max_in_flight=10, config=PlayConfig(exec_timeout_s=5.0))
        left = {name for name, host in executor.snapshot().hosts.items() if host["is_up"]}
    assert [rollout.reward for rollout in rollouts] == [1.0] * 40
    again = [rollout for rollout in rollouts if rollout.attempts > 1]
    assert again
    assert {rollout.host for rollout in again} == left
