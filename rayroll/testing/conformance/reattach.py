"""A stream that breaks: the runner is found again, nothing runs twice, nothing is lost."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import replace

from rayroll.errors import InfraFailure, RayrollError, SandboxLostError, StartTimeoutError
from rayroll.runner.client import NUMBERED_FROM, RunnerClient
from rayroll.substrates import Channel, Lease
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Capability, check, expect, same
from rayroll.testing.conformance._streams import Breakable

NEEDS = (Capability.REATTACH,)


class Wires:
    """Every channel that was opened to one runner, each breakable."""

    def __init__(self) -> None:
        self.all: list[Breakable] = []

    def __call__(self, channel: Channel) -> Breakable:
        self.all.append(Breakable(channel))
        return self.all[-1]

    @property
    def last(self) -> Breakable:
        """The one in use."""
        return self.all[-1]


@check(needs=NEEDS)
async def a_command_survives_a_broken_stream_and_runs_once(lab: Lab) -> None:
    """The stream breaks while a command appends to a file: its whole result arrives, the file has one line."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        log = live.path("log")
        call = asyncio.create_task(live.sh(f"echo ran >> {log}; sleep 0.5; echo done; exit 4"))
        await _until_there(live.client, log)
        wires.last.cut()
        r = await call
        same((r.output, r.exit_code), ("done\n", 4), "the result")
        same(await live.client.read_file(log), b"ran\n", "the file")
        same(live.client.reattached, 1, "how often the stream was opened again")


async def _until_there(client: RunnerClient, path: str) -> None:
    while True:
        try:
            await client.stat(path)
        except RayrollError:
            continue
        return


@check(needs=NEEDS)
async def a_stream_may_break_again_and_again(lab: Lab) -> None:
    """Five times during one command, and a command after each: every result is right, every command ran once."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        log = live.path("log")
        call = asyncio.create_task(live.sh(f"echo long >> {log}; sleep 1.5; echo end"))
        for i in range(5):
            wires.last.cut()
            r = await live.sh(f"echo {i} >> {log}; echo {i}", carry=False)
            same(r.output, f"{i}\n", "the result after a break")
        same((await call).output, "end\n", "the result of the long command")
        lines = sorted((await live.client.read_file(log)).split())
        same(lines, [b"0", b"1", b"2", b"3", b"4", b"long"], "the lines that ran")


@check(needs=NEEDS)
async def large_output_survives_a_break_inside_a_frame(lab: Lab) -> None:
    """The stream breaks in the middle of 4 MiB of output, after an odd number of bytes; all of it arrives, once."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        data = os.urandom(4 << 20)
        await live.client.write_file(live.path("data"), data)
        for n in (1_000_001, 13, 2_097_152):
            call = asyncio.create_task(live.sh("cat data", cwd=live.folder, output_cap_bytes=8 << 20))
            wires.last.cut_after(n)
            r = await call
            same(
                hashlib.sha256(r.raw).hexdigest(),
                hashlib.sha256(data).hexdigest(),
                f"the output when cut after {n} bytes",
            )
            same((r.truncated, r.exit_code), (False, 0), "truncated and code")


@check(needs=NEEDS)
async def transfers_survive_a_break(lab: Lab) -> None:
    """An upload and a download of 8 MiB are begun again by themselves; the file is whole."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        data = os.urandom(8 << 20)
        upload = asyncio.create_task(live.client.write_file(live.path("f"), data))
        await asyncio.sleep(0)
        wires.last.cut()
        await upload
        wires.last.cut_after(1 << 20)
        back = await live.client.read_file(live.path("f"))
        same(hashlib.sha256(back).hexdigest(), hashlib.sha256(data).hexdigest(), "the digest")
        expect(live.client.reattached >= 2, "the stream was opened again", times=live.client.reattached)


@check(needs=NEEDS)
async def many_requests_in_flight_survive_a_break(lab: Lab) -> None:
    """Ten commands, three uploads, a download and a digest: each answered once, each with its own answer."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        log = live.path("log")
        await live.client.write_file(live.path("d"), b"d" * 3_000_000)
        async with asyncio.TaskGroup() as group:
            commands = [
                group.create_task(live.sh(f"echo {i} >> {log}; sleep 0.3; echo out {i}; exit {i}", carry=False))
                for i in range(10)
            ]
            for i in range(3):
                group.create_task(live.client.write_file(live.path(f"u{i}"), bytes([i]) * 1_000_000))
            download = group.create_task(live.client.read_file(live.path("d")))
            digest = group.create_task(live.client.digest("/etc"))
            await asyncio.sleep(0.1)
            wires.last.cut()
        same(
            [(c.result().output, c.result().exit_code) for c in commands],
            [(f"out {i}\n", i) for i in range(10)],
            "the results",
        )
        same(sorted((await live.client.read_file(log)).split()), sorted(str(i).encode() for i in range(10)), "what ran")
        same(download.result(), b"d" * 3_000_000, "the download")
        same(await live.client.digest("/etc"), digest.result(), "the digest")
        for i in range(3):
            same(await live.client.read_file(live.path(f"u{i}")), bytes([i]) * 1_000_000, "an upload")


@check(needs=NEEDS)
async def a_result_is_kept_for_a_host_that_comes_back_late(lab: Lab) -> None:
    """The command ends while nobody is there; its result is delivered when the stream is opened again."""
    wires, back = Wires(), asyncio.Event()

    async def late() -> Channel:
        await back.wait()
        return await lab.substrate.reopen(live.ref)

    async with lab.fresh(wrap=wires, reopen=late) as live:
        script = "sleep 0.2; echo kept; exit 6"
        alone_s = (await live.sh(script)).timing.run_ns / 1e9
        call = asyncio.create_task(live.sh(script))
        await live.sh("true", carry=False)
        wires.last.cut()
        await asyncio.sleep(away_s := 0.5 + 3 * alone_s)
        expect(not call.done(), "nobody has the result yet")
        back.set()
        r = await call
        same((r.output, r.exit_code), ("kept\n", 6), "the result")
        expect(r.timing.run_ns / 1e9 < away_s - 0.1, "the time nobody was there is not the command's", timing=r.timing)


@check(needs=NEEDS, begins_early=True)
async def a_stream_that_falls_silent_is_found_again(lab: Lab) -> None:
    """Open, but dead, as after a lost route: it is given up within the lease, and the runner is found again."""
    wires = Wires()
    async with lab.fresh(wrap=wires, lease_s=12) as live:
        call = asyncio.create_task(live.sh("sleep 0.1; echo heard", timeout_s=None))
        wires.last.mute()
        try:
            same((await call).output, "heard\n", "the result")
        except SandboxLostError as error:
            expect(False, "the runner is found again within the lease", error=error)


@check(needs=NEEDS)
async def a_stranger_without_the_key_is_not_heard(lab: Lab) -> None:
    """Another client on a new stream to the same runner gets no answer, and the first one goes on."""
    async with lab.fresh() as live:
        try:
            stranger = await RunnerClient.connect(await lab.substrate.reopen(live.ref), hello_timeout_s=0.5)
        except (StartTimeoutError, InfraFailure):
            pass
        else:
            await stranger.close()
            expect(False, "a client without the key is not answered")
        same((await live.sh("echo mine")).output, "mine\n", "what the first client's next command prints")


@check(needs=NEEDS)
async def state_and_background_jobs_survive_a_break(lab: Lab) -> None:
    """What was carried and what was left running is there after the stream was opened again."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        await live.sh(f"cd {live.folder}; export K=v; sleep 987654 >/dev/null 2>&1 &")
        wires.last.cut()
        same((await live.sh('echo "$K $(pwd)"')).output, f"v {live.folder}\n", "what the next command prints")
        same(await live.running("987654"), 1, "the number of background jobs")


@check(needs=(Capability.ADOPT,))
async def another_process_takes_a_sandbox_over_with_what_runs_in_it(lab: Lab) -> None:
    """A second substrate object adopts it, as a host does whose predecessor died: what was under way runs once, and its
    result is there for whoever asks for it by its number."""
    async with lab.fresh() as live:
        log = live.path("log")
        script = f"echo ran >> {log}; sleep 1; echo done; exit 4"
        lost = asyncio.create_task(live.sh(script, number=NUMBERED_FROM))
        await _until_there(live.client, log)
        async with type(lab.substrate)(lab.substrate.config) as other:
            channel = await other.adopt(live.ref, Lease(live.ref.run_id, "heir", 30.0))
            resume = replace(live.client.resume(), under_way=NUMBERED_FROM)
            heir = await RunnerClient.connect(channel, resume=resume, reopen=lambda: other.reopen(live.ref))
            r = await heir.exec(script, number=NUMBERED_FROM)
            same((r.output, r.exit_code), ("done\n", 4), "the result")
            same(await heir.read_file(log), b"ran\n", "the file")
            await heir.close()
            await other.destroy(live.ref)
        try:
            await lost
        except SandboxLostError:
            return
    expect(False, "the first process hears that its sandbox is gone")


@check()
async def opening_a_destroyed_sandbox_again_raises(lab: Lab) -> None:
    """``reopen`` of what is gone is SandboxLostError, whether or not the substrate can re-attach."""
    async with lab.fresh() as live:
        await lab.substrate.destroy(live.ref)
        try:
            channel = await lab.substrate.reopen(live.ref)
        except SandboxLostError:
            return
        channel.close()
    expect(False, "reopen raises SandboxLostError")


@check(without=NEEDS)
async def without_reattachment_a_broken_stream_is_the_end(lab: Lab) -> None:
    """The call under way and every later one raise SandboxLostError; nothing is made up."""
    wires = Wires()
    async with lab.fresh(wrap=wires) as live:
        call = asyncio.create_task(live.sh("sleep 1; echo no"))
        await live.sh("true", carry=False)
        wires.last.cut()
        for work in (call, live.sh("echo no")):
            try:
                r = await work
            except SandboxLostError:
                continue
            expect(False, "it raises SandboxLostError", result=r)
