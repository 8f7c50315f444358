"""Virtual machines whose QEMU is killed, in every phase of their rollouts and at every step of their making."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import little
import pytest
from chaos.stage import Stage, all_are_right, phase_of, play_beside
from executor.conftest import Opened
from requirements import check

from rayroll.errors import SubstrateError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._leftovers import Remains
from rayroll.substrates.qemu import QemuConfig, QemuSubstrate

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(240)]

BUSYBOX = "busybox:latest"


@pytest.fixture(autouse=True)
def needs_qemu() -> None:
    check("qemu")


def machines_of(run_id: str) -> list[Remains]:
    base = leftovers.base_dir()
    return [*leftovers.find(base.with_name(f"{base.name}-vm"), {"run": run_id})]


def kill_all(run_id: str) -> list[Remains]:
    """Their processes. Returns those that had one; another that ends at this moment has none."""
    killed = []
    for remains in machines_of(run_id):
        if remains.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(remains.pid, signal.SIGKILL)
                killed.append(remains)
    return killed


def traces(killed: list[Remains]) -> list[str]:
    folders = [remains.folder for remains in killed if Path(remains.folder).exists()]
    return folders + little.traces_in_the_system({remains.id for remains in killed})


async def test_machines_that_are_killed_are_played_again_and_others_go_on(opened: Opened, stage: Stage) -> None:
    killed: list[Remains] = []
    async with opened("qemu", disturbance={}, session={"lease_s": 20.0}) as executor, opened() as others:

        async def fault() -> None:
            killed.extend(await asyncio.to_thread(kill_all, executor.run_id))
            beside = await play_beside(others)
            assert {(rollout.reward, rollout.attempts) for rollout in beside} == {(1.0, 1)}

        rollouts = await stage.play(executor, fault)
    all_are_right(rollouts)
    assert len(killed) >= 6, "all but the one that is on its way down"
    assert {phase_of(rollout) for rollout in rollouts if rollout.attempts == 1} == {"close"}
    assert await asyncio.to_thread(traces, killed) == []


@pytest.mark.parametrize("how", ["as it boots", "as it is saved", "as it starts from there"])
async def test_a_machine_that_is_killed_on_its_way_up_is_a_typed_failure_that_leaves_nothing(
    how: str, run_id: str
) -> None:
    lease = Lease(run_id, "test")
    # Of this size there is no saved state, and will be none.
    memory_mib = random.randrange(129, 192) if how == "as it is saved" else 128
    spec = SandboxSpec(image=BUSYBOX, memory_mib=memory_mib, disk_mib=64)
    async with QemuSubstrate(QemuConfig(snapshot=how != "as it boots")) as qemu:
        if how == "as it starts from there":
            await qemu.destroy((await qemu.create(spec, lease)).ref)
        killed: list[Remains] = []
        creating = asyncio.create_task(qemu.create(spec, lease))
        while not killed:
            assert not creating.done(), "too late"
            killed = await asyncio.to_thread(kill_all, run_id)
        with pytest.raises(SubstrateError):
            await creating
        assert await qemu.list({"run": run_id}) == []
        assert await asyncio.to_thread(traces, killed) == []
        spare = SandboxSpec(image=BUSYBOX, memory_mib=128, disk_mib=64)
        await qemu.destroy((await qemu.create(spare, lease)).ref)
