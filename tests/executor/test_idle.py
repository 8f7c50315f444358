"""Sandboxes that are there before a rollout needs them: started ahead, or used and clean again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import little
import pytest
from executor.conftest import Opened, sandboxes
from requirements import check

from rayroll import Executor, Rollout
from rayroll.errors import ConfigError
from rayroll.policies.scripted import ScriptedPolicy

SLOW_BOOT = {"profile": {"boot": {"median_s": 0.3}}}


async def played(executor: Executor, policy: Any, **options: Any) -> list[Rollout]:
    run = executor.submit([little.task("a"), little.task("b")], policy, **options)
    return [rollout async for rollout in run.rollouts()]


async def test_the_next_in_line_find_their_sandboxes_warm_and_the_last_leaves_none(opened: Opened) -> None:
    scheduler = {"warm": {"most_per_host": 4}}
    async with opened("simulated", substrate_config=SLOW_BOOT, scheduler=scheduler) as executor:
        rollouts = await played(executor, ScriptedPolicy(["true"], think_s=0.1), samples_per_task=12, max_in_flight=2)
        snapshot = executor.snapshot()
        await little.until(lambda: not any(host["warm"] for host in executor.snapshot().hosts.values()))
    rungs = Counter(rollout.rung for rollout in rollouts)
    assert all(rollout.valid for rollout in rollouts)
    assert rungs["warm"] >= 12
    assert (snapshot.warm_hits, snapshot.warm_misses) == (rungs["warm"], rungs["cached"])


async def test_without_asking_nothing_is_started_ahead(opened: Opened) -> None:
    async with opened("simulated") as executor:
        rollouts = await played(executor, ScriptedPolicy(["true"]), samples_per_task=4, max_in_flight=2)
    assert {rollout.rung for rollout in rollouts} == {"cached"}


@pytest.mark.parametrize("kind", ["local", "docker"])
async def test_a_used_sandbox_is_clean_for_the_next_rollout_of_its_task(opened: Opened, kind: str) -> None:
    check(kind)
    policy = ScriptedPolicy(["ls -a", "echo 42 > answer.txt; touch /tmp/left; sleep 600 & true"])
    async with opened(kind, session={"reset": "recycle"}) as executor:
        rollouts = await played(executor, policy, samples_per_task=3, max_in_flight=1)
        assert len(await sandboxes(kind, executor.run_id)) == 2
    rungs = [(rollout.task_id, rollout.rung) for rollout in rollouts]
    assert rungs == [(f"little/{name}", rung) for name in "ab" for rung in ("cached", "recycled", "recycled")]
    assert [rollout.reward for rollout in rollouts] == [1.0] * 6
    seen = {rollout.steps[0].output_digest for rollout in rollouts}
    assert len(seen) == 1, "each saw what the first one saw"


def test_more_warm_sandboxes_than_a_host_keeps_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_idle"):
        Executor("local", scheduler={"warm": {"most_per_host": 20}})
