"""Images: brought before their task's turn, used where they are, and harmless to others where they cannot be had."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import docker as docker_py
import little
import pytest
from executor.conftest import Opened
from requirements import check, use_testbed

from rayroll import Act, Turn
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.substrates import _endpoint as endpoints

use_testbed()
SOLVE = ScriptedPolicy(["echo 42 > answer.txt"])
REGISTRY = os.environ.get("RAYROLL_TESTBED_REGISTRY", "")
needs_registry = pytest.mark.skipif(not REGISTRY, reason="needs the test bed's registry")


@pytest.fixture
def api() -> Iterator[Any]:
    check("docker")
    client = docker_py.APIClient(base_url=endpoints.find(None).url, version="auto")
    yield client
    client.close()


@pytest.fixture
def remote(api: Any) -> Iterator[str]:
    """An image that the registry has, and the engine does not."""
    name = f"{REGISTRY}/pulled-{secrets.token_hex(4)}"
    api.tag("busybox:latest", name, "1")
    for told in api.push(name, "1", stream=True, decode=True):
        assert "error" not in told, told
    api.remove_image(f"{name}:1")
    yield f"{name}:1"
    if has(api, f"{name}:1"):
        api.remove_image(f"{name}:1")


def has(api: Any, image: str) -> bool:
    return any(image in (found["RepoTags"] or ()) for found in api.images())


@pytest.mark.docker
@needs_registry
async def test_the_image_of_the_next_task_is_brought_while_the_one_before_is_played(
    opened: Opened, api: Any, remote: str
) -> None:
    class Waits:
        async def act(self, turn: Turn) -> Act:
            if turn.task_id == "little/first":
                await little.until_true(lambda: asyncio.to_thread(has, api, remote))
            return Act(submit=True)

    tasks = [little.task("first"), little.task("second", image=remote)]
    async with opened("docker") as executor:
        first, second = [r async for r in executor.submit(tasks, Waits(), max_in_flight=1).rollouts()]
    assert (first.task_id, second.task_id, second.failure) == ("little/first", "little/second", None)
    assert second.rung == "cached" and "pull" not in second.timing.phases


@pytest.mark.docker
@needs_registry
async def test_many_rollouts_of_an_absent_image_share_one_pull(opened: Opened, api: Any, remote: str) -> None:
    async with opened("docker") as executor:
        run = executor.submit([little.task("many", image=remote)], SOLVE, samples_per_task=6)
        rollouts = [rollout async for rollout in run.rollouts()]
    assert [rollout.reward for rollout in rollouts] == [1.0] * 6
    assert sorted(rollout.rung for rollout in rollouts) == ["cached"] * 5 + ["cold"]


@pytest.mark.docker
async def test_images_that_cannot_be_had_cost_nobody_else_a_try(opened: Opened, api: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    bad = {"unreachable": f"{nobody}/image:1"} | ({"unknown": f"{REGISTRY}/no-such-image:1"} if REGISTRY else {})
    tasks = [*(little.task(name, image=image) for name, image in bad.items()), *(little.task(n) for n in "abc")]
    async with opened("docker", substrate_config={"pull_pause_s": 0.05}) as executor:
        run = executor.submit(tasks, SOLVE, samples_per_task=4, max_infra_retries=3)
        rollouts = [rollout async for rollout in run.rollouts()]
        snapshot = executor.snapshot()
    for rollout in rollouts:
        image = bad.get(rollout.task_id.partition("/")[2])
        assert rollout.attempts == 1
        if image is None:
            assert (rollout.reward, rollout.failure) == (1.0, None)
        else:
            assert rollout.failure is not None and not rollout.valid
            assert (rollout.failure.fault, rollout.failure.error) == ("infra", "ImageError")
            assert image in rollout.failure.reason and image.partition("/")[0] in rollout.failure.reason
    assert snapshot.retries == 0 and all(host["rests_s"] == 0 for host in snapshot.hosts.values())


async def test_the_host_that_has_an_image_gets_its_rollouts(opened: Opened) -> None:
    config = {"profile": {"pull": {"median_s": 0.2}}}
    tasks = [little.task(f"{image}{number}", image=image) for number in range(4) for image in "ab"]
    async with opened("simulated", substrate_config=config, hosts_per_node=2) as executor:
        await little.until(lambda: len(executor.snapshot().hosts) == 2)
        rollouts = [r async for r in executor.submit(tasks, SOLVE, max_in_flight=2).rollouts()]
    hosts = {image: {r.host for r in rollouts if r.task_id.startswith(f"little/{image}")} for image in "ab"}
    assert len(hosts["a"]) == len(hosts["b"]) == 1 and hosts["a"] != hosts["b"]
    assert Counter(rollout.rung for rollout in rollouts)["cold"] <= 2
