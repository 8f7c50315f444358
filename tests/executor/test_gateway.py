"""A gateway in the process of its trainer: what it holds, and for how long."""

from __future__ import annotations

import gc
import weakref

import little
import pytest

import rayroll
from rayroll.executor import Run
from rayroll.executor.gateway import Gateway
from rayroll.executor.remote import RemoteRun
from rayroll.policies.scripted import ScriptedPolicy

pytestmark = pytest.mark.usefixtures("ray_cluster")


def runs_of(run_id: str) -> list[object]:
    gc.collect()
    return [
        each for each in gc.get_objects() if isinstance(each, Run | RemoteRun) and each.state_dict()["run_id"] == run_id
    ]


async def test_a_run_that_is_over_is_held_by_nobody() -> None:
    gateway = Gateway(b"secret")
    address = await gateway.open("127.0.0.1", 0)
    where = f"{address.ip}:{address.port}"
    async with rayroll.connect(where, "simulated", secret="secret", run_id="forgotten") as executor:
        run = executor.submit([little.task()], ScriptedPolicy(["true"]), samples_per_task=3)
        assert len([rollout async for rollout in run.rollouts()]) == 3
        await run.cancel()
        gone = weakref.ref(run)
        del run
        await little.until(lambda: not runs_of("forgotten"))
        assert gone() is None
    await gateway.close()
