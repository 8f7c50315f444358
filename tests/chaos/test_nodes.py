"""Machines that die, fall silent or answer late while rollouts on them are in every phase."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import little
import pytest
from chaos.stage import LONG_S, SOLVE, Stage, all_are_right, of
from executor.conftest import PLUGINS
from nodes import Nodes, wired_nodes

from rayroll import Executor

pytestmark = pytest.mark.timeout(240)

PROFILE = {
    "scripts": [
        {"match": SOLVE.partition(";")[0]},
        {"match": f"sleep {LONG_S}", "run": {"median_s": LONG_S}},
        {"match": r"test\.sh", "run": {"median_s": LONG_S}, "writes": {"/logs/verifier/reward.txt": "1"}},
    ]
}


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Ray opens sockets and threads of this process as it likes, and the cluster outlasts a test."""


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGINS)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    path = f"{PLUGINS}:{os.environ.get('PYTHONPATH', '')}"
    with wired_nodes(3, labels=[{"lasts": "yes"}], env={"PYTHONPATH": path}) as made:
        yield made


def opened(**options: Any) -> Executor:
    """Its sandboxes are not there: what is tried is between the nodes."""
    config = {"inner": "simulated", "inner_config": {"profile": PROFILE}}
    return Executor("disturbed", substrate_config=config, **options)


@pytest.mark.parametrize("how", ["cut", "stop"])
async def test_a_machine_that_is_silent_for_a_moment_costs_time_and_nothing_else(
    nodes: Nodes, stage: Stage, how: str
) -> None:
    begin, end = {"cut": (nodes[1].cut, nodes[1].mend), "stop": (nodes[1].stop, nodes[1].go_on)}[how]

    async def fault() -> None:
        await asyncio.to_thread(begin)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(end)

    async with opened(node_labels={"lasts": "yes"}) as executor:
        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts, attempts=1)


async def test_a_slow_network_is_infrastructure_in_every_phase(nodes: Nodes, stage: Stage) -> None:
    async def fault() -> None:
        await asyncio.to_thread(nodes[1].delay, 0.3)

    try:
        async with opened(node_labels={"lasts": "yes"}) as executor:
            rollouts = await stage.play(executor, fault)
    finally:
        nodes[1].delay(0.0)
    all_are_right(rollouts, attempts=1)
    for phase in ("policy", "between"):
        rollout = of(rollouts, phase)
        assert rollout.timing.infra_s >= 2 * 2 * 0.3, "a command and a grade, there and back"
        assert sum(step.phases_s.get("run", 0.0) for step in rollout.steps) < 0.3


@pytest.mark.parametrize(("how", "number"), [("kill", 2), ("cut", 3)])
async def test_a_machine_that_is_gone_spoils_no_rollout(nodes: Nodes, tmp_path: Path, how: str, number: int) -> None:
    """Last in this file: nobody brings the machines back."""
    gone = nodes[number].id[:8]
    alive = [node for node in nodes.workers if node.is_alive]
    stage = Stage(tmp_path, samples=len(alive))  # they are dealt out in turn, so that each machine has every phase
    async with opened() as executor:
        await little.until(lambda: len(executor.hosts) == len(alive))
        rollouts = await stage.play(executor, lambda: asyncio.to_thread(getattr(nodes[number], how)))
    all_are_right(rollouts)
    again = [rollout for rollout in rollouts if rollout.attempts > 1]
    assert again and not any(rollout.host.startswith(gone) for rollout in again)
    assert len(rollouts) - len(again) >= len(again), "those on other machines went on"
