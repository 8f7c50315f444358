"""A Docker engine that is cut off, or stands still, while containers of rollouts are in every phase."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from chaos.stage import LONG_S, Stage, all_are_right, all_are_right_or_typed, of
from executor.conftest import Opened
from requirements import check

from rayroll.testing.tap import Tap


@pytest_asyncio.fixture
async def tap(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tap]:
    check("docker")
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        pytest.skip("the engine is not behind a unix socket")
    async with Tap(tmp_path_factory.mktemp("tap") / "s", host.removeprefix("unix://")) as opened:
        yield opened


@pytest.mark.parametrize("how", ["cut", "hold"])
async def test_an_engine_that_is_away_for_a_moment_is_waited_for(
    opened: Opened, stage: Stage, tap: Tap, how: str
) -> None:
    async def fault() -> None:
        if how == "cut":
            await tap.cut()
        else:
            tap.hold()
        await asyncio.sleep(1.0)
        await tap.mend()

    config = {"substrate_config": {"host": tap.url}, "session": {"lease_s": 20.0}}
    async with opened("docker", disturbance={}, **config) as executor:
        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts)
    for phase in ("exec", "between"):
        rollout = of(rollouts, phase)
        assert (rollout.attempts, len(rollout.steps)) == (1, 2), "found again, and no command ran twice"
    assert of(rollouts, "exec").timing.env_s >= 0.9 * LONG_S, "its run counts from when its exec was seen"


async def test_an_engine_that_is_away_for_longer_than_a_lease_costs_attempts(
    opened: Opened, stage: Stage, tap: Tap
) -> None:
    async def fault() -> None:
        await tap.cut()
        asyncio.get_running_loop().call_later(6.0, lambda: mending.append(asyncio.ensure_future(tap.mend())))

    mending: list[asyncio.Future[None]] = []
    async with opened("docker", disturbance={}, substrate_config={"host": tap.url}) as executor:
        rollouts = await stage.play(executor, fault)
        await asyncio.gather(*mending)
    all_are_right_or_typed(rollouts)
