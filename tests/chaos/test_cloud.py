"""Cloud machines whose SSH servers are killed, and an EC2 that is killed while it makes one; back after ten seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import little
import pytest
import pytest_asyncio
from chaos.stage import BYSTANDER, Stage, all_are_right, all_are_right_or_typed, of, phase_of, play_beside
from ec2_server import Ec2, own_ec2
from executor.conftest import Opened

from rayroll.errors import SubstrateError
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.ec2 import Ec2Config, Ec2Substrate

pytestmark = [pytest.mark.ec2, pytest.mark.docker, pytest.mark.timeout(240)]

AWAY_S = 10.0
MOST_SSH = 2 * 4
"""Processes: who listens and who serves, on the machines of those that wait for us; others may have gone on."""


@pytest_asyncio.fixture
async def ec2(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ec2]:
    async with own_ec2(tmp_path_factory.mktemp("ec2")) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", server.endpoint)
        yield server


async def test_ssh_servers_that_are_killed_and_come_back_within_the_lease_end_nothing(
    opened: Opened, stage: Stage, ec2: Ec2
) -> None:
    config = {"substrate_config": ec2.config, "session": {"lease_s": 30.0}}
    async with opened("ec2", disturbance={}, **config) as executor, opened() as others:

        async def fault() -> None:
            assert await ec2.kill_ssh() >= MOST_SSH
            beside, _ = await asyncio.gather(play_beside(others), asyncio.sleep(AWAY_S))
            assert {(rollout.reward, rollout.attempts) for rollout in beside} == {(1.0, 1)}
            await ec2.start_ssh()

        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts)
    assert {phase_of(rollout) for rollout in rollouts if rollout.attempts > 1} <= {"start"}
    assert {len(of(rollouts, phase).steps) for phase in ("exec", "between")} == {2}, "no command ran twice"
    assert await ec2.machines() == []


async def test_machines_whose_ssh_servers_stay_away_are_lost_with_the_lease_and_played_again(
    opened: Opened, stage: Stage, ec2: Ec2
) -> None:
    config = {"substrate_config": ec2.config, "session": {"lease_s": 5.0}}
    async with opened("ec2", disturbance={}, **config) as executor, opened() as others:

        async def fault() -> None:
            assert await ec2.kill_ssh() >= MOST_SSH
            beside, _ = await asyncio.gather(play_beside(others), asyncio.sleep(5.0))
            assert {(rollout.reward, rollout.attempts) for rollout in beside} == {(1.0, 1)}

        rollouts = await stage.play(executor, fault)
    all_are_right_or_typed(rollouts)
    assert {"policy", "between", BYSTANDER}.isdisjoint(
        phase_of(rollout) for rollout in rollouts if rollout.attempts < 2
    )
    assert await ec2.machines() == []


async def test_a_launch_that_ec2_does_not_survive_is_asked_for_again(ec2: Ec2, run_id: str) -> None:
    async with Ec2Substrate(Ec2Config(**ec2.config)) as substrate:
        ec2.hold()
        creating = asyncio.create_task(substrate.create(SandboxSpec(), Lease(run_id, "test")))
        await little.until(ec2.is_asked)
        await ec2.kill()
        await asyncio.sleep(AWAY_S)
        await ec2.start()
        sandbox = await creating
        assert len(await ec2.machines()) == 1
        runner = await RunnerClient.connect(sandbox.channel)
        assert (await runner.exec("echo up")).output == "up\n"
        await runner.close()
        await substrate.destroy(sandbox.ref)
    assert await ec2.machines() == []


async def test_a_machine_that_ec2_forgets_while_it_starts_is_a_typed_failure(ec2: Ec2, run_id: str) -> None:
    async with Ec2Substrate(Ec2Config(**ec2.config, visible_timeout_s=2.0)) as substrate:
        creating = asyncio.create_task(substrate.create(SandboxSpec(), Lease(run_id, "test")))
        await little.until_true(ec2.machines)
        await ec2.kill()
        await asyncio.sleep(3.0)  # longer than that is no other case
        assert not creating.done(), "it is waited for"
        await ec2.start()
        with pytest.raises(SubstrateError):
            await creating
    assert await ec2.machines() == []
