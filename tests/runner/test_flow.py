"""Output: capped, counted, and never more under way than the host has room for."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os

import pytest
from runner.live import peer, sandbox

from rayroll.runner.protocol import WINDOW_BYTES, FrameType, Tag, decode_fields, encode_fields, number

pytestmark = pytest.mark.usefixtures("namespaces")


async def test_endless_output_is_counted_and_capped(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        before_kib = box.resident_kib()
        r = await box.sh("yes", timeout_s=0.5, output_cap_bytes=100_000)
        assert r.timed_out and r.truncated
        assert r.output_bytes > 1 << 20 and len(r.raw) == 100_000
        assert box.resident_kib() - before_kib < 2048
        assert (await box.sh("echo next")).output == "next\n"


@pytest.mark.parametrize(
    ("cap", "kept"), [(0, b""), (1, b"a"), (2, b"ak"), (3, b"abk"), (10, b"abcdeghijk"), (11, b"abcdefghijk")]
)
async def test_caps_of_any_size_keep_head_and_tail(cap: int, kept: bytes) -> None:
    async with sandbox() as box:
        r = await box.sh("printf abcdefghijk; exit 4", output_cap_bytes=cap)
        assert (r.raw, r.truncated, r.output_bytes, r.exit_code) == (kept, cap < 11, 11, 4)


async def test_fifty_megabytes_are_read_to_the_end_and_the_code_arrives() -> None:
    async with sandbox() as box:
        r = await box.sh(
            "echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo last; exit 3", output_cap_bytes=1000
        )
        assert (r.exit_code, r.output_bytes) == (3, 50_000_000 + len("first\nlast\n"))
        assert r.output.startswith("first\n") and r.output.endswith("last\n") and "left out" in r.output


async def test_output_below_the_cap_arrives_unchanged() -> None:
    data = os.urandom(8 << 20)
    async with sandbox() as box:
        await box.client.write_file("/tmp/data", data)
        r = await box.sh("cat /tmp/data; cat /tmp/data >&2", output_cap_bytes=16 << 20)
        assert hashlib.sha256(r.raw).digest() == hashlib.sha256(data * 2).digest()
        assert not r.truncated


async def test_the_quickest_output_is_never_lost() -> None:
    async with sandbox() as box:
        assert [(await box.sh("echo hi", carry=bool(i % 2))).output for i in range(300)] == ["hi\n"] * 300


async def test_a_host_without_credit_left_gets_no_more_than_a_window() -> None:
    async with peer() as host:
        await host.hello()
        large = {Tag.SCRIPT: b"head -c 1000000 /dev/zero", Tag.HEAD_BYTES: 1_000_000, Tag.TAIL_BYTES: 0}
        host.send(FrameType.EXEC, 1, large)
        got = 0
        while got + (64 << 10) <= WINDOW_BYTES:
            got += len((await host.frame(FrameType.OUTPUT)).payload)
        for i in range(20):  # it answers meanwhile, and sends nothing more of the output
            host.send(FrameType.LEASE, i)
            assert (await host.frame()).type == FrameType.LEASE_OK
        assert got <= WINDOW_BYTES
        while got < 1_000_000:
            host.send(FrameType.CREDIT, 0, {Tag.BYTES: 64 << 10})
            got += len((await host.frame(FrameType.OUTPUT)).payload)
        result = await host.fields(FrameType.RESULT)
        assert (got, number(result, Tag.HEAD_KEPT)) == (1_000_000, 1_000_000)


async def test_credit_for_what_was_never_sent_buys_nothing() -> None:
    async with peer() as host:
        await host.hello()
        host.send(FrameType.CREDIT, 0, {Tag.BYTES: 2**64 - 1})
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"head -c 1000000 /dev/zero", Tag.HEAD_BYTES: 1_000_000})
        got = 0
        while got + (64 << 10) <= WINDOW_BYTES:
            got += len((await host.frame(FrameType.OUTPUT)).payload)
        host.send(FrameType.LEASE)
        assert (await host.frame()).type == FrameType.LEASE_OK


async def test_results_that_nobody_acknowledges_lose_their_text_and_keep_their_facts() -> None:
    """Forty results of two megabytes: memory is bounded, every code arrives, the oldest say that text is missing."""
    async with peer() as host:
        await host.hello()
        script = b"head -c 2000000 /dev/zero; exit 7"
        for i in range(40):
            host.send(FrameType.EXEC, i, {Tag.SCRIPT: script, Tag.HEAD_BYTES: 2_000_000, Tag.TAIL_BYTES: 0})
        texts, results = dict.fromkeys(range(40), 0), {}
        while len(results) < 40:
            frame = await host.frame(FrameType.OUTPUT, FrameType.RESULT)
            if frame.type == FrameType.OUTPUT:
                texts[frame.request_id] += len(frame.payload)
                host.send(FrameType.CREDIT, 0, {Tag.BYTES: len(frame.payload)})
            else:
                results[frame.request_id] = decode_fields(frame.payload)
        assert {number(r, Tag.EXIT_CODE) for r in results.values()} == {7}
        assert {number(r, Tag.OUTPUT_BYTES) for r in results.values()} == {2_000_000}
        assert all(number(results[i], Tag.HEAD_KEPT) <= texts[i] for i in range(40))
        assert host.box.resident_kib() < 64 << 10
        await host.hello(ids=range(40))
        again = {f.request_id: f for f in [await host.frame(FrameType.RESULT, FrameType.OUTPUT) for _ in range(3)]}
        assert again


async def test_a_host_that_takes_nothing_is_left_by_its_lease() -> None:
    """Its stream is stuck with output under way: the runner does not block, and ends one lease later."""
    async with peer() as host:
        await host.hello(lease_ms=600)
        for i in range(8):
            host.send(FrameType.EXEC, i, {Tag.SCRIPT: b"yes | head -c 8000000; sleep 60", Tag.TIMEOUT_MS: 200})
        host.pipe.stop()
        async with asyncio.timeout(20):
            assert await host.box.process.wait() == 0


async def test_large_results_do_not_starve_small_ones() -> None:
    """Results that wait for credit do not keep a short one, which came later, from being sent at all."""
    async with sandbox() as box:
        flood = [asyncio.create_task(box.sh("head -c 3000000 /dev/zero", output_cap_bytes=4 << 20)) for _ in range(4)]
        short = [await box.sh(f"echo {i}", carry=False) for i in range(20)]
        assert [r.output for r in short] == [f"{i}\n" for i in range(20)]
        assert {len((await f).raw) for f in flood} == {3_000_000}


async def test_a_neighbour_that_floods_does_not_mix_in() -> None:
    async with sandbox() as box:
        flood = asyncio.create_task(box.sh("yes flood", timeout_s=30))
        for i in range(20):
            r = await box.sh(f"echo {i}; exit {i}", carry=False)
            assert (r.output, r.exit_code) == (f"{i}\n", i)
        flood.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flood


async def test_twenty_commands_at_once_keep_their_own() -> None:
    async with sandbox() as box:
        script = "for k in 1 2 3; do echo job-{0}; sleep 0.02; done; exit {0}"
        results = await asyncio.gather(*(box.sh(script.format(i)) for i in range(20)))
        assert [(r.output, r.exit_code) for r in results] == [(f"job-{i}\n" * 3, i) for i in range(20)]


def test_an_encoded_credit_is_small() -> None:
    assert len(encode_fields({Tag.BYTES: 2**64 - 1})) == 13
