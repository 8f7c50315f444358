"""An OpenSandbox server that is killed and is back after ten seconds: sandboxes in every phase, one on its way up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import docker
import little
import pytest
import pytest_asyncio
from chaos.stage import Stage, all_are_right, of, phase_of, play_beside
from executor.conftest import Opened
from hosted_server import Server, own_server

from rayroll.errors import EngineDownError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.opensandbox import OpenSandboxConfig, OpenSandboxSubstrate

pytestmark = [pytest.mark.opensandbox, pytest.mark.docker, pytest.mark.timeout(240)]

AWAY_S = 10.0


@pytest_asyncio.fixture
async def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    async with own_server(tmp_path_factory.mktemp("hosted")) as server:
        monkeypatch.setenv("OPEN_SANDBOX_DOMAIN", server.domain)
        yield server


async def containers_of(run_id: str) -> list[Any]:
    """In any state; asked of the engine, which knows better than the server."""

    def ask() -> list[Any]:
        client = docker.from_env()
        try:
            found: list[Any] = client.api.containers(all=True, filters={"label": f"rayroll.run={run_id}"})
            return found
        finally:
            client.close()

    return await asyncio.to_thread(ask)


async def test_a_server_that_is_killed_ends_nothing_that_runs(opened: Opened, stage: Stage, server: Server) -> None:
    config = {"domain": server.domain, "network": "open"}
    async with (
        opened("opensandbox", disturbance={}, substrate_config=config, session={"lease_s": 20.0}) as executor,
        opened() as others,
    ):

        async def fault() -> None:
            await server.kill()
            beside, _ = await asyncio.gather(play_beside(others), asyncio.sleep(AWAY_S))
            assert {(rollout.reward, rollout.attempts) for rollout in beside} == {(1.0, 1)}
            await server.start()

        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts)
    assert {phase_of(rollout) for rollout in rollouts if rollout.attempts > 1} <= {"start"}
    assert {len(of(rollouts, phase).steps) for phase in ("exec", "between")} == {2}, "no command ran twice"
    assert await containers_of(executor.run_id) == []


async def test_a_create_that_its_server_does_not_survive_says_so_at_once_and_leaves_nothing(
    server: Server, run_id: str
) -> None:
    lease = Lease(run_id, "test")
    async with OpenSandboxSubstrate(OpenSandboxConfig(network="open")) as hosted:
        await hosted.destroy((await hosted.create(SandboxSpec(), lease)).ref)  # from now on it has read execd's image
        creating = asyncio.create_task(hosted.create(SandboxSpec(), lease))
        await little.until_true(lambda: containers_of(run_id))
        await server.kill()
        with pytest.raises(EngineDownError):
            await creating
        with pytest.raises(EngineDownError):
            await hosted.create(SandboxSpec(), lease)
        await asyncio.sleep(AWAY_S)
        await server.start()
        await little.until_true(lambda: is_free_of(run_id))
        await hosted.destroy((await hosted.create(SandboxSpec(), lease)).ref)
    assert await containers_of(run_id) == []


async def test_a_sandbox_is_removed_by_the_next_server_where_its_own_is_away(server: Server, run_id: str) -> None:
    async with OpenSandboxSubstrate(OpenSandboxConfig(network="open")) as hosted:
        sandbox = await hosted.create(SandboxSpec(), Lease(run_id, "test"))
        await server.kill()
        removing = asyncio.create_task(hosted.destroy(sandbox.ref))
        await server.start()
        await removing
    assert await containers_of(run_id) == []


async def is_free_of(run_id: str) -> bool:
    return not await containers_of(run_id)
