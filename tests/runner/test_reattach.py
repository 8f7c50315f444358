"""A stream that breaks: the runner is found again, nothing runs twice, nothing is lost."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from runner.live import Box, Peer, Pipe, binary, started, until

from rayroll.errors import CallerError, ClosedError, SandboxLostError, StartTimeoutError
from rayroll.runner.client import NUMBERED_FROM, RunnerClient
from rayroll.runner.protocol import FrameType, Tag, decode_fields, encode_fields, number, numbers

pytestmark = pytest.mark.usefixtures("namespaces")

SOCKET = ("--socket", "/tmp/socket")


class Lines:
    """Every stream that a client opened through the socket."""

    def __init__(self, box: Box, opener: Callable[[], Awaitable[Pipe]] | None = None) -> None:
        self.box = box
        self.all: list[Pipe] = [box.pipe]
        self._opener = opener or box.connect

    async def open(self) -> Pipe:
        self.all.append(await self._opener())
        return self.all[-1]

    def cut(self) -> None:
        self.all[-1].cut()


async def greeted(box: Box, lines: Lines, *, lease_s: float = 30.0) -> None:
    box.client = await RunnerClient.connect(box.pipe, lease_s=lease_s, reopen=lines.open)


async def test_what_runs_while_the_stream_breaks_runs_once_and_is_answered() -> None:
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)
        call = asyncio.create_task(
            box.sh("echo ran >> /tmp/log; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo out; exit 4")
        )
        await until((box.folder / "log").exists)
        for _ in range(3):
            lines.cut()
            assert (await box.sh("echo between", carry=False)).output == "between\n"
        (box.folder / "go").touch()
        r = await call
        assert (r.output, r.exit_code) == ("out\n", 4)
        assert (box.folder / "log").read_text() == "ran\n"
        assert box.client.reattached == 3
        await box.client.close()


async def test_what_ended_while_nobody_was_there_is_delivered() -> None:
    async with started(*SOCKET) as box:
        back = asyncio.Event()

        async def late() -> Pipe:
            await back.wait()
            return await box.connect()

        lines = Lines(box, late)
        await greeted(box, lines)
        call = asyncio.create_task(box.sh("echo kept; touch /tmp/done; exit 6"))
        await asyncio.sleep(0)
        lines.cut()
        await until((box.folder / "done").exists)
        assert not call.done()
        back.set()
        r = await call
        assert (r.output, r.exit_code) == ("kept\n", 6)
        await box.client.close()


async def test_what_was_never_received_is_asked_again_and_runs_once() -> None:
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)
        for i in range(5):
            lines.cut()  # the request that follows is written to a stream that is gone
            assert (await box.sh(f"echo {i} >> /tmp/log; echo {i}")).output == f"{i}\n"
        assert (box.folder / "log").read_text() == "".join(f"{i}\n" for i in range(5))
        await box.client.close()


async def test_large_output_and_transfers_survive_a_break_anywhere() -> None:
    data = os.urandom(3 << 20)
    digest = hashlib.sha256(data).hexdigest()
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)

        upload = asyncio.create_task(box.client.write_file("/tmp/data", data))
        await asyncio.sleep(0)
        lines.cut()
        await upload
        assert hashlib.sha256((box.folder / "data").read_bytes()).hexdigest() == digest
        for n_bytes in (1, 11, 100_001, 1_500_000):
            lines.all[-1].cut_after(n_bytes)
            r = await box.sh("cat /tmp/data", output_cap_bytes=8 << 20)
            assert hashlib.sha256(r.raw).hexdigest() == digest
            lines.all[-1].cut_after(n_bytes)
            assert hashlib.sha256(await box.client.read_file("/tmp/data")).hexdigest() == digest
        assert box.client.reattached == 9
        await box.client.close()


async def test_many_requests_in_flight_survive_a_break() -> None:
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(box.sh(f"echo {i} >> /tmp/log; sleep 0.2; exit {i}", carry=False)) for i in range(12)
            ]
            uploads = [group.create_task(box.client.write_file(f"/tmp/u{i}", bytes([i]) * 700_000)) for i in range(4)]
            digest = group.create_task(box.client.digest("/usr/bin/env"))
            await asyncio.sleep(0.1)
            lines.cut()
        assert [c.result().exit_code for c in calls] == list(range(12))
        assert sorted(map(int, (box.folder / "log").read_text().split())) == list(range(12))
        assert [(box.folder / f"u{i}").read_bytes() == bytes([i]) * 700_000 for i in range(len(uploads))] == [True] * 4
        assert digest.result() == await box.client.digest("/usr/bin/env")
        await box.client.close()


async def test_state_and_jobs_are_there_after_a_break() -> None:
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)
        await box.sh("export K=v; cd /tmp; sleep 98765432 &")
        lines.cut()
        assert (await box.sh('echo "$K $(pwd)"')).output == "v /tmp\n"
        assert await box.running("sleep\x0098765432") == 1
        await box.client.close()


async def test_a_stream_that_ends_during_hello_is_not_the_end() -> None:
    async with started(*SOCKET) as box:
        broken = [True, True]

        async def opener() -> Pipe:
            pipe = await box.connect()
            if broken:
                broken.pop()
                pipe.cut()
            return pipe

        lines = Lines(box, opener)
        await greeted(box, lines)
        lines.cut()
        assert (await box.sh("echo found")).output == "found\n"
        assert not broken
        await box.client.close()


async def test_a_fault_of_whoever_opens_reaches_those_who_wait() -> None:
    async with started() as box:

        async def broken() -> Pipe:
            raise ZeroDivisionError("a bug")

        box.client = await RunnerClient.connect(box.pipe, reopen=broken)
        call = asyncio.create_task(box.sh("sleep 60"))
        await asyncio.sleep(0)
        box.pipe.cut()
        with pytest.raises(SandboxLostError, match="a bug") as caught:
            await call
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_results_are_kept_until_they_are_acknowledged_and_no_longer() -> None:
    async with started(*SOCKET) as box:
        host = Peer(box.pipe)
        await host.hello()
        for i in (1, 2, 3):
            host.send(FrameType.EXEC, i, {Tag.SCRIPT: b"echo x >> /tmp/log; exit %d" % i})
        for _ in range(3):
            await host.frame(FrameType.RESULT)
        host.send(FrameType.ACK, 2)
        again = Peer(await box.connect(), key=host.key, epoch=host.epoch)
        answer = await again.hello(ids=(1, 2, 3, 4))
        assert sorted(numbers(answer[Tag.IDS])) == [1, 3]
        codes = {(f := await again.frame(FrameType.RESULT)).request_id: number_of(f.payload) for _ in range(2)}
        assert codes == {1: 1, 3: 3}
        assert (box.folder / "log").read_text() == "x\n" * 3
        third = Peer(await box.connect(), key=host.key, epoch=again.epoch)
        assert numbers((await third.hello(ids=(3,)))[Tag.IDS]) == [3]
        fourth = Peer(await box.connect(), key=host.key, epoch=third.epoch)
        assert numbers((await fourth.hello(ids=(1, 3)))[Tag.IDS]) == [3]  # nobody awaited 1 any more


def number_of(payload: bytes) -> int:
    return number(decode_fields(payload), Tag.EXIT_CODE)


async def test_a_running_command_that_nobody_awaits_any_more_is_ended() -> None:
    async with started(*SOCKET) as box:
        host = Peer(box.pipe)
        await host.hello()
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"touch /tmp/runs; sleep 98765433"})
        await until((box.folder / "runs").exists)
        again = Peer(await box.connect(), key=host.key, epoch=host.epoch)
        await again.hello()
        while await box.running("sleep\x0098765433"):
            pass


async def test_the_same_request_sent_twice_runs_once() -> None:
    async with started() as box:
        host = Peer(box.pipe)
        await host.hello()
        for _ in range(3):
            host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"echo x >> /tmp/log"})
        await host.frame(FrameType.RESULT)
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"echo x >> /tmp/log"})
        host.send(FrameType.EXEC, 2, {Tag.SCRIPT: b"true"})
        assert (await host.frame(FrameType.RESULT)).request_id == 2
        assert (box.folder / "log").read_text() == "x\n"


async def test_an_old_host_is_refused_once_another_has_come() -> None:
    async with started(*SOCKET) as box:
        host = Peer(box.pipe)
        await host.hello()
        again = Peer(await box.connect(), key=host.key, epoch=host.epoch)
        await again.hello()
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"touch /tmp/ran"})
        await again.hello()
        again.send(FrameType.EXEC, 2, {Tag.SCRIPT: b"true"})
        await again.frame(FrameType.RESULT)
        assert not (box.folder / "ran").exists()


async def test_strangers_without_the_key_are_not_heard_and_lock_nobody_out() -> None:
    """As many as like may come by the socket and send what they like."""
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)
        strangers = [await box.connect() for _ in range(12)]
        for i, stranger in enumerate(strangers):
            stranger.write(secrets.token_bytes(100 * i))
            with pytest.raises((StartTimeoutError, SandboxLostError)):
                await RunnerClient.connect(stranger, hello_timeout_s=0.1)
        lines.cut()
        assert (await box.sh("echo mine")).output == "mine\n"
        assert box.resident_kib() < 8 << 10
        for stranger in strangers:
            stranger.cut()
        await box.client.close()


async def test_a_key_from_the_environment_is_the_key_and_is_gone_from_it() -> None:
    key = secrets.token_bytes(16)
    async with started(*SOCKET, env={"RAYROLL_KEY": key.hex()}) as box:
        client = await RunnerClient.connect(await box.connect(), key=key)
        assert "RAYROLL_KEY" not in client.greeting.env
        assert "RAYROLL_KEY" not in (await client.exec("env")).output
        with pytest.raises((StartTimeoutError, SandboxLostError)):
            await RunnerClient.connect(await box.connect(), hello_timeout_s=0.1)
        await client.close()
        with pytest.raises(CallerError, match="16 bytes"):
            await RunnerClient.connect(box.pipe, key=b"short")


async def test_a_key_that_is_none_is_refused_at_the_start() -> None:
    for bad in ("", "zz" * 16, "0" * 31):
        async with started(*SOCKET, env={"RAYROLL_KEY": bad}) as box:
            assert await box.process.wait() == 2


async def test_a_runner_that_was_started_anew_is_not_taken_for_the_one_before() -> None:
    """A container that restarts: what was under way is lost, and is not run again in the new one."""
    async with started() as first, started() as second:
        first.client = await RunnerClient.connect(first.pipe, reopen=lambda: asyncio.sleep(0, second.pipe))
        call = asyncio.create_task(first.sh("touch /tmp/ran; sleep 60"))
        await until((first.folder / "ran").exists)
        first.pipe.cut()
        with pytest.raises(SandboxLostError):
            await call
        assert not (second.folder / "ran").exists()
        await first.client.close()


async def test_connect_passes_everything_both_ways_at_once() -> None:
    data = os.urandom(4 << 20)
    async with started(*SOCKET) as box:
        pipe = box.pipe
        box.client = await RunnerClient.connect(pipe, reopen=box.connect)
        pipe.cut()
        await box.sh("true")
        async with asyncio.TaskGroup() as group:
            up = group.create_task(box.client.write_file("/tmp/up", data))
            (box.folder / "down").write_bytes(data)
            down = group.create_task(box.client.read_file("/tmp/down"))
        assert up.done() and down.result() == data == (box.folder / "up").read_bytes()
        await box.client.close()


async def test_connect_says_when_nobody_listens() -> None:
    process = await asyncio.create_subprocess_exec(
        str(binary()), "connect", "/no/such/socket", stdin=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 1
    process = await asyncio.create_subprocess_exec(
        str(binary()), "connect", "/" + "x" * 200, stdin=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 2


async def test_the_end_of_standard_input_is_not_the_end() -> None:
    async with started(*SOCKET) as box:
        lines = Lines(box)
        await greeted(box, lines)
        box.pipe.transport.write_eof()
        lines.cut()
        assert (await box.sh("echo still")).output == "still\n"
        await box.client.close()


async def test_the_socket_is_its_owners_and_goes_with_the_runner() -> None:
    async with started(*SOCKET) as box:
        await greeted(box, Lines(box))
        path = box.folder / "socket"
        assert path.stat().st_mode & 0o777 == 0o600
        await box.client.close(shutdown=True)
        assert await box.process.wait() == 0
        assert not path.exists()


async def test_a_refusal_is_found_behind_an_older_streams_bytes() -> None:
    """The nonce comes first, so that a host that joins in the middle of something hears that it is refused."""
    async with started() as box:
        host = Peer(box.pipe)
        await host.hello(epoch=9)
        host.pipe.write(encode_fields({Tag.NONCE: b"junk"})[:7])
        host.say_hello(epoch=3)
        assert (await host.fields(FrameType.REFUSED))[Tag.CODE] == b"epoch"


async def resumed(box: Box, dead: RunnerClient, *, under_way: int | None = None) -> RunnerClient:
    """The client after one that is gone; nobody has told the runner that it is."""
    return await RunnerClient.connect(await box.connect(), resume=replace(dead.resume(), under_way=under_way))


async def test_a_client_that_resumes_gets_what_was_under_way_and_it_runs_once() -> None:
    async with started(*SOCKET) as box:
        first = box.client = await RunnerClient.connect(box.pipe)
        lost = asyncio.create_task(
            first.exec(
                "echo ran >> /tmp/log; while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 4", number=NUMBERED_FROM
            )
        )
        await until((box.folder / "log").exists)
        second = await resumed(box, first, under_way=NUMBERED_FROM)
        (box.folder / "go").touch()
        r = await second.exec("this is not run", number=NUMBERED_FROM)
        assert (r.exit_code, (box.folder / "log").read_text()) == (4, "ran\n")
        assert (await second.exec("echo next", number=NUMBERED_FROM + 1)).output == "next\n"
        await second.close()
        await first.close()
        with pytest.raises((ClosedError, SandboxLostError)):
            await lost


async def test_a_result_is_kept_until_its_client_has_had_time_to_pass_it_on() -> None:
    async with started(*SOCKET) as box:
        first = box.client = await RunnerClient.connect(box.pipe)
        await first.exec("echo ran >> /tmp/log; exit 5", number=NUMBERED_FROM)
        first._send_renewal()  # in time for the lease, too early to say that the result has arrived
        second = await resumed(box, first, under_way=NUMBERED_FROM)
        r = await second.exec("this is not run", number=NUMBERED_FROM)
        assert (r.exit_code, (box.folder / "log").read_text()) == (5, "ran\n")
        await second.close()
        await first.close()


async def test_what_the_runner_never_got_is_run_for_the_client_that_resumes() -> None:
    async with started(*SOCKET) as box:
        first = box.client = await RunnerClient.connect(box.pipe)
        await box.sh("cd /tmp; export K=v")
        second = await resumed(box, first, under_way=NUMBERED_FROM)
        third = await resumed(box, second)  # and once more
        assert (await third.exec('echo "$K $(pwd)"', number=NUMBERED_FROM)).output == "v /tmp\n"
        for client in (third, second, first):
            await client.close()


async def test_what_nobody_asks_for_again_is_ended_for_the_client_that_resumes() -> None:
    async with started(*SOCKET) as box:
        first = box.client = await RunnerClient.connect(box.pipe)
        lost = asyncio.create_task(first.exec("sleep 98765433"))
        while not await box.running("sleep\x0098765433"):
            pass
        second = await resumed(box, first)
        assert (await second.exec("echo next")).output == "next\n"
        while await box.running("sleep\x0098765433"):
            pass
        await second.close()
        await first.close()
        with pytest.raises((ClosedError, SandboxLostError)):
            await lost


async def test_another_runner_is_not_taken_for_the_one_to_be_resumed() -> None:
    async with started(*SOCKET) as box, started(*SOCKET) as other:
        first = box.client = await RunnerClient.connect(box.pipe)
        other.client = await RunnerClient.connect(other.pipe)
        stolen = replace(other.client.resume(), instance=first.resume().instance)
        with pytest.raises(SandboxLostError, match="another runner"):
            await RunnerClient.connect(await other.connect(), resume=stolen)
        assert first.resume().key.hex() not in repr(first.resume())
        await other.client.close()
        await first.close()
