"""The lease: what keeps a sandbox alive, and what of it is left when nobody does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from runner.live import Peer, children, peer, sandbox, started, until

from rayroll.errors import ClosedError, SandboxLostError
from rayroll.runner.build import runner_path
from rayroll.runner.client import RunnerClient
from rayroll.runner.protocol import FrameType, Tag

pytestmark = pytest.mark.usefixtures("namespaces")


async def test_a_client_keeps_it_alive_for_longer_than_it_lasts() -> None:
    async with sandbox(lease_s=0.6) as box:
        assert (await box.sh("sleep 1.5; echo still")).output == "still\n"


async def test_without_a_word_it_ends_with_everything_in_it() -> None:
    mark = "sleep\x0098765444"
    async with peer() as host:
        await host.hello(lease_ms=400)
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"env -i setsid sleep 98765444 & sleep 98765444"})
        await until(lambda: bool(children(host.box.pid)))
        async with asyncio.timeout(20):
            assert await host.box.process.wait() == 0
        assert await host.box.running(mark) == 0


async def test_nobody_ever_comes() -> None:
    async with started("--lease-ms", "300") as box:
        async with asyncio.timeout(20):
            assert await box.process.wait() == 0


async def test_any_frame_renews_it_and_hello_sets_it() -> None:
    async with peer("--lease-ms", "60000") as host:
        await host.hello(lease_ms=600)
        for i in range(8):
            host.send((FrameType.LEASE, FrameType.CREDIT, FrameType.CANCEL, FrameType.ACK)[i % 4], 5)
            await asyncio.sleep(0.15)
        assert host.box.process.returncode is None
        async with asyncio.timeout(20):
            await host.box.process.wait()


async def test_a_lease_with_a_duration_lets_it_outlive_who_started_it_for_that_long() -> None:
    async with sandbox(lease_s=5.0) as box:
        await box.sh("sleep 98765445 &")
        (runner,) = children(box.pid)
        await box.client.leave(2.0)
        box.process.kill()  # bubblewrap, which was told to take the runner along
        await box.process.wait()
        assert await box.running("sleep\x0098765445") == 1
        await until(lambda: not Path(f"/proc/{runner}").exists())
        assert await box.running("sleep\x0098765445") == 0


async def test_frames_of_an_older_host_do_not_renew_it() -> None:
    async with peer() as host:
        await host.hello(epoch=2, lease_ms=500)

        async def chatter() -> None:
            while True:
                host.send(FrameType.LEASE, 1, epoch=1)
                await asyncio.sleep(0.05)

        chattering = asyncio.create_task(chatter())
        async with asyncio.timeout(20):
            assert await host.box.process.wait() == 0
        chattering.cancel()


async def test_a_host_that_is_stopped_is_left_by_its_sandbox() -> None:
    """Its stream is full, it answers nothing: one lease later nothing is left."""
    async with started() as box:
        client = await RunnerClient.connect(box.pipe, lease_s=0.8)
        floods = [asyncio.create_task(client.exec("yes", timeout_s=0.2)) for _ in range(4)]
        await asyncio.sleep(0)
        box.pipe.stop()
        client._send = lambda *_: None  # type: ignore[assignment]
        async with asyncio.timeout(30):
            assert await box.process.wait() == 0
        box.pipe.go_on()
        outcomes = await asyncio.gather(*floods, return_exceptions=True)
        assert all(isinstance(o, SandboxLostError) or o.timed_out for o in outcomes)  # type: ignore[union-attr]
        await client.close()


async def test_the_client_notices_a_runner_that_is_silent() -> None:
    async with sandbox(lease_s=0.8) as box:
        os.kill(box.pid, signal.SIGSTOP)
        with pytest.raises(SandboxLostError, match="does not answer"):
            await box.sh("echo hi", timeout_s=None)
        assert box.client.is_lost


async def test_shutdown_ends_it_at_once_and_close_lets_it_live() -> None:
    async with sandbox() as box:
        await box.sh("sleep 600 &")
        await box.client.close(shutdown=True)
        await box.client.close()
        assert await box.process.wait() == 0
        with pytest.raises(ClosedError):
            await box.sh("echo hi")
    async with sandbox("--socket", "/tmp/socket") as box:
        key, epoch = box.client._key, box.client._epoch
        await box.client.close()
        assert box.process.returncode is None
        someone = Peer(await box.connect(), key=key, epoch=epoch)
        await someone.hello()


async def test_a_lease_that_is_none_is_refused_at_the_start() -> None:
    for bad in ("0", "x", "1x", ""):
        async with started("--lease-ms", bad) as box:
            assert await box.process.wait() == 2


async def test_words_that_are_none_say_how_it_is_used() -> None:
    for args in (
        ["--lease"],
        ["--socket"],
        ["--rlimit", "nproc"],
        ["--rlimit", "nproc=x"],
        ["--rlimit", "what=1"],
        ["x", "y"],
    ):
        async with started(*args) as box:
            assert await box.process.wait() == 2


async def test_rlimits_hold_for_commands_and_not_for_the_runner() -> None:
    async with sandbox("--rlimit", "nofile=64", "--rlimit", "fsize=1048576", "--rlimit", "core=0") as box:
        assert (await box.sh("ulimit -n; ulimit -f; ulimit -c; export A=1")).output == "64\n1024\n0\n"
        assert (await box.sh("echo $A; head -c 2000000 /dev/zero > /tmp/big; echo $?")).output.splitlines()[0] == "1"
        assert (box.folder / "big").stat().st_size == 1 << 20
        await box.client.write_file("/tmp/mine", b"x" * (2 << 20))
        assert (box.folder / "mine").stat().st_size == 2 << 20


def test_a_port_that_nobody_is_at_costs_no_cpu() -> None:
    """It reads as hung up for as long as that lasts, which must not be waited for by asking without a pause."""
    ours, theirs = os.openpty()
    process = subprocess.Popen([runner_path(), "serve", "--lease-ms", "2000"], stdin=theirs, stdout=theirs)
    os.close(theirs)
    os.close(ours)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_utime + used.ru_stime < 0.5
