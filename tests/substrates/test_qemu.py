"""Virtual machines for real: how they start, what differs between those of one saved state, what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from requirements import needs

from rayroll.errors import ConfigError, SubstrateError
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._door import connect
from rayroll.substrates._qemu_machine import QEMU_MIB, Hardware
from rayroll.substrates.qemu import QemuConfig, QemuSubstrate
from rayroll.testing.sandboxes import Live, open_sandbox
from rayroll.types import FileTree

pytestmark = pytest.mark.qemu
needs_qemu = needs("qemu")

RUN = f"run-{secrets.token_hex(4)}"
SPEC = SandboxSpec(image="busybox:latest", memory_mib=128, disk_mib=64)


@pytest.fixture
async def qemu() -> AsyncIterator[QemuSubstrate]:
    async with QemuSubstrate(QemuConfig()) as substrate:
        yield substrate
        assert await substrate.list({"run": RUN}) == []


def machine(qemu: QemuSubstrate, spec: SandboxSpec = SPEC, lease_s: float = 30.0):
    return open_sandbox(qemu, spec, run_id=RUN, lease_s=lease_s)


async def said(live: Live, script: str) -> str:
    result = await live.sh(script)
    assert result.exit_code == 0, result.output
    return result.output.strip()


async def test_machines_of_one_saved_state_differ_in_all_that_must_differ(qemu: QemuSubstrate) -> None:
    async with machine(qemu) as one, machine(qemu) as other:
        assert (one.sandbox.rung, other.sandbox.facts["start"]) == ("snapshot", "snapshot")
        assert one.client.resume().instance != other.client.resume().instance
        for what in (
            "cat /proc/sys/kernel/random/boot_id",
            "head -c 32 /dev/urandom | md5sum",
            "cat /proc/sys/kernel/random/uuid",
            "hostname",
        ):
            assert await said(one, what) != await said(other, what), what


async def test_a_machine_s_clock_is_the_node_s_however_old_its_saved_state_is(qemu: QemuSubstrate) -> None:
    async with machine(qemu) as live:
        before_unix_s = int(time.time())
        inside_unix_s = int(await said(live, "date +%s"))
        assert before_unix_s - 1 <= inside_unix_s <= time.time() + 1


async def test_what_one_machine_writes_another_does_not_see(qemu: QemuSubstrate) -> None:
    async with machine(qemu) as one, machine(qemu) as other:
        await said(one, "rm /bin/vi; echo mine > /etc/mine")
        assert await said(other, "ls /bin/vi /etc/mine 2>/dev/null || true") == "/bin/vi"


async def test_a_machine_may_be_started_from_its_beginning_every_time() -> None:
    async with QemuSubstrate(QemuConfig(snapshot=False)) as qemu, machine(qemu) as live:
        assert (live.sandbox.facts["start"], live.sandbox.facts["accelerator"] in ("kvm", "tcg")) == ("boot", True)
        assert await said(live, "echo hello") == "hello"


async def test_a_disk_is_as_large_as_was_asked_for(qemu: QemuSubstrate) -> None:
    async with machine(qemu) as live:
        result = await live.sh("dd if=/dev/zero of=/big bs=1M count=80")
        assert "No space left on device" in result.output
        assert (await live.client.stat("/big")).size_bytes < 64 << 20


async def test_commands_are_the_image_s_user_and_its_files_are_theirs(qemu: QemuSubstrate) -> None:
    tree = FileTree.from_files(
        {"Dockerfile": "FROM busybox:latest\nUSER root\nRUN mkdir -p /srv\nWORKDIR /srv\nENV MODE=test\nUSER agent\n"}
    )
    spec = SandboxSpec(environment=tree, memory_mib=128, disk_mib=64)
    async with machine(qemu, spec) as live:
        assert await said(live, 'id -u; pwd; echo "$MODE"; touch here && stat -c %u here') == "1000\n/srv\ntest\n1000"


async def test_a_directory_that_the_image_lacks_is_made_and_is_the_user_s(qemu: QemuSubstrate) -> None:
    tree = FileTree.from_files({"Dockerfile": "FROM busybox:latest\nUSER agent\n"})
    spec = SandboxSpec(environment=tree, memory_mib=128, disk_mib=64, workdir="/app/of it")
    async with machine(qemu, spec) as live:
        assert await said(live, 'pwd; id -u; stat -c %u "$PWD"; touch here') == "/app/of it\n1000\n1000"


async def test_a_machine_ends_with_its_lease_and_leaves_nothing(qemu: QemuSubstrate) -> None:
    sandbox = await qemu.create(SPEC, Lease(RUN, "test", 2.0))
    pid = int(sandbox.facts["pid"])
    start = await asyncio.to_thread(leftovers.started_at, pid)
    assert start is not None
    sandbox.channel.close()
    async with asyncio.timeout(30):
        while await qemu.list({"run": RUN}):  # noqa: ASYNC110 - its lease
            await asyncio.sleep(0.05)
    assert not await asyncio.to_thread(leftovers.is_alive, pid, start)


async def test_a_cancelled_create_leaves_nothing(qemu: QemuSubstrate) -> None:
    await qemu.destroy((await qemu.create(SPEC, Lease(RUN, "test"))).ref)
    for after_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        creating = asyncio.create_task(qemu.create(SPEC, Lease(RUN, "test")))
        await asyncio.sleep(after_s)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        if not creating.cancelled():
            await qemu.destroy(creating.result().ref)
        assert await qemu.list({"run": RUN}) == []


async def test_a_former_host_that_knocks_all_the_time_does_not_keep_its_heir_out(qemu: QemuSubstrate) -> None:
    async with machine(qemu) as live, QemuSubstrate(qemu.config) as other:
        remains = await asyncio.to_thread(qemu._opened().machines.recorded, live.ref)
        stop = threading.Event()
        knocking = asyncio.create_task(asyncio.to_thread(knock, Path(remains.folder), stop))
        try:
            channel = await other.adopt(live.ref, Lease(live.ref.run_id, "heir", 30.0))
            heir = await RunnerClient.connect(channel, resume=live.client.resume())
            assert (await heir.exec("echo mine")).output == "mine\n"
            await heir.close()
        finally:
            stop.set()
            await knocking
        await other.destroy(live.ref)


def knock(folder: Path, stop: threading.Event) -> None:
    """Take every free place at a machine's door."""
    with contextlib.ExitStack() as held:
        while not stop.wait(0.0002):
            with contextlib.suppress(OSError):
                held.enter_context(connect(folder))


async def test_a_machine_that_does_not_come_up_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "qemu"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exec qemu-system-x86_64 --version\necho no such luck >&2\n')
    broken.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o711)
    async with QemuSubstrate(QemuConfig(program=str(broken), snapshot=False, accelerator="tcg")) as qemu:
        with pytest.raises(SubstrateError, match="no such luck"):
            await qemu.create(SPEC, Lease(RUN, "test"))
        assert await qemu.list({"run": RUN}) == []


def test_what_qemu_keeps_of_translated_code_fits_into_what_its_process_may_take() -> None:
    hardware = Hardware("qemu", "tcg", Path("kernel"), Path("initramfs"), None, memory_mib=128, cpus=1)
    argv = " ".join(hardware.argv(Path("folder"), memory="memory", door_fd=3, qmp_fd=4))
    found = re.search(r"-accel tcg,thread=multi,tb-size=(\d+) ", argv)
    assert found is not None and int(found[1]) <= QEMU_MIB // 2


async def test_a_network_is_refused_by_name(qemu: QemuSubstrate) -> None:
    with pytest.raises(ConfigError, match="network"):
        await qemu.create(SandboxSpec(network=True), Lease(RUN, "test"))


async def test_without_qemu_the_probe_says_what_to_install() -> None:
    found = await QemuSubstrate(QemuConfig(program="no-such-qemu")).probe()
    assert (found.ok, "apt-get install" in found.fix) == (False, True)
