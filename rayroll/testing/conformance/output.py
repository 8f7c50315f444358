"""Output: any bytes, in pieces, without an end, on two streams, and how much memory it costs the host."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import check, expect, same
from rayroll.testing.conformance._streams import Slicing

T = TypeVar("T")

MOST_GROWTH_BYTES = 64 << 20
CAP_BYTES = 100_000


async def growth_of(work: Awaitable[T]) -> tuple[T, int]:
    """The result of some work, and by how many bytes this process's resident memory grew at most meanwhile."""
    task = asyncio.ensure_future(work)
    before = most = _resident_bytes()
    while not task.done():
        await asyncio.wait({task}, timeout=0.02)
        most = max(most, _resident_bytes())
    return task.result(), most - before


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@check(source="B04")
async def endless_output_costs_the_host_no_memory(lab: Lab) -> None:
    """``yes`` until its timeout: bounded text, the true byte count, and less than 64 MiB more memory here."""
    r, grown = await growth_of(lab.box.sh("yes", timeout_s=1, output_cap_bytes=CAP_BYTES))
    expect(r.timed_out and r.limit == "total", "it is ended by its timeout", result_limit=r.limit)
    expect(r.truncated and r.output_bytes > 1 << 20, "all that it printed is counted", output_bytes=r.output_bytes)
    expect(len(r.raw) <= CAP_BYTES, "no more than the cap is kept", kept=len(r.raw))
    expect(grown < MOST_GROWTH_BYTES, "the host's memory stays", grown_mib=grown >> 20)
    same((await lab.box.sh("echo next")).output, "next\n", "what the next command prints")


@check(source="B04")
async def output_above_the_cap_keeps_head_tail_code_and_count(lab: Lab) -> None:
    """50 MB with a cap of 100 kB: the command runs to its end, its code 3 arrives, the middle is what is missing."""
    script = "echo first; head -c 50000000 /dev/zero | tr '\\0' x; echo; echo last; exit 3"
    r, grown = await growth_of(lab.box.sh(script, output_cap_bytes=CAP_BYTES, timeout_s=60))
    same((r.exit_code, r.timed_out, r.truncated), (3, False, True), "code, timed out, truncated")
    same(r.output_bytes, 50_000_000 + len("first\n\nlast\n"), "the true number of bytes")
    expect(r.output.startswith("first\n") and r.output.endswith("last\n"), "head and tail are there")
    expect(len(r.raw) <= CAP_BYTES, "no more than the cap is kept", kept=len(r.raw))
    expect(len(r.output) <= CAP_BYTES + 200, "the text is the cap and a mark", characters=len(r.output))
    expect("left out" in r.output, "the text says that something is missing")
    expect(grown < MOST_GROWTH_BYTES, "the host's memory stays", grown_mib=grown >> 20)


@check(source="B04")
async def a_command_is_not_killed_at_the_cap(lab: Lab) -> None:
    """What it does after the cap still happens: a file written last is there."""
    r = await lab.box.sh(
        "head -c 1000000 /dev/zero; echo kept > after; exit 5", output_cap_bytes=1000, cwd=lab.box.folder
    )
    same((r.exit_code, r.truncated), (5, True), "code and truncated")
    same(await lab.box.client.read_file(lab.box.path("after")), b"kept\n", "the file written after the cap")


@check(source="B04")
async def caps_of_any_size_hold(lab: Lab) -> None:
    """A cap of 0, 1 and 2 bytes, one just reached and one just missed: exact counts, truncated only where it is so."""
    for cap, kept, truncated in ((0, b"", True), (1, b"a", True), (2, b"aj", True), (10, b"abcdefghij", False)):
        r = await lab.box.sh("printf abcdefghij", output_cap_bytes=cap)
        same((r.raw, r.truncated, r.output_bytes), (kept, truncated, 10), f"what a cap of {cap} leaves of 10 bytes")
    r = await lab.box.sh("printf abcdefghijk", output_cap_bytes=10)
    same((r.raw, r.truncated, r.output_bytes), (b"abcdeghijk", True, 11), "what a cap of 10 leaves of 11 bytes")


@check(source="B04")
async def eight_mebibytes_of_output_arrive_unchanged(lab: Lab) -> None:
    """Below its cap nothing is lost or reordered, however the stream cuts it."""
    r = await lab.box.sh("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done", output_cap_bytes=8 << 20)
    wanted = "".join(f"{i}\n" for i in range(20_000))
    same(hashlib.sha256(r.raw).hexdigest(), hashlib.sha256(wanted.encode()).hexdigest(), "the digest of 20,000 lines")
    data = os.urandom(8 << 20)
    await lab.box.client.write_file(lab.box.path("data"), data)
    r = await lab.box.sh("cat data", cwd=lab.box.folder, output_cap_bytes=8 << 20)
    same(hashlib.sha256(r.raw).hexdigest(), hashlib.sha256(data).hexdigest(), "the digest of 8 MiB")
    same((r.truncated, r.output_bytes), (False, 8 << 20), "truncated and the count")


@check(source="B05")
async def bytes_that_are_no_text_are_replaced_and_kept(lab: Lab) -> None:
    """Bad UTF-8 becomes U+FFFD in the text; the raw bytes are there as well."""
    r = await lab.box.sh("printf 'caf\\303\\251 \\377 end'")
    same(r.output, "café � end", "the text")
    same(r.raw, b"caf\xc3\xa9 \xff end", "the raw bytes")


@check(source="B05")
async def every_byte_value_can_be_printed(lab: Lab) -> None:
    """Also NUL, carriage returns, escapes and bytes that look like a frame of ours."""
    data = bytes(range(256)) + b"\r\n\r" + b"\0" * 100 + bytes(range(255, -1, -1))
    await lab.box.client.write_file(lab.box.path("bytes"), data)
    r = await lab.box.sh("cat bytes; cat bytes >&2", cwd=lab.box.folder)
    same(r.raw, data * 2, "the raw bytes of both streams")


@check(source="B05")
async def a_character_cut_by_a_write_stays_one(lab: Lab) -> None:
    """Its two bytes are written 50 ms apart; the text has no replacement mark."""
    r = await lab.box.sh("printf 'caf\\303'; sleep 0.05; printf '\\251'")
    same(r.output, "café", "the text")


@check(source="B05")
async def a_stream_that_arrives_byte_by_byte_changes_nothing(lab: Lab) -> None:
    """The same commands over a channel that delivers single bytes: text, code, files."""
    async with lab.fresh(wrap=Slicing) as live:
        r = await live.sh("printf 'caf\\303\\251 ü 🙂'; exit 9")
        same((r.output, r.exit_code), ("café ü 🙂", 9), "the result")
        data = os.urandom(20_000)
        await live.client.write_file(live.path("f"), data)
        same(await live.client.read_file(live.path("f")), data, "the file")


@check(source="B05")
async def the_quickest_command_is_never_empty(lab: Lab) -> None:
    """``echo hi``, 200 times in a row."""
    outputs = [(await lab.box.sh("echo hi", carry=False)).output for _ in range(200)]
    same(set(outputs), {"hi\n"}, "the different outputs")


@check(source="B05")
async def both_streams_are_in_the_order_written(lab: Lab) -> None:
    """o1 e1 o2 e2 o3 e3: standard output and standard error are one view."""
    r = await lab.box.sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    same(r.output.split(), ["o1", "e1", "o2", "e2", "o3", "e3"], "the lines")


@check()
async def output_arrives_while_another_command_floods(lab: Lab) -> None:
    """A neighbour that prints without end does not keep an ordinary command waiting or mix into it."""
    flood = asyncio.create_task(lab.box.sh("yes flood", timeout_s=30))
    try:
        for i in range(20):
            r = await lab.box.sh(f"echo {i}; exit {i}", carry=False)
            same((r.output, r.exit_code), (f"{i}\n", i), "the result beside a flood")
    finally:
        flood.cancel()
        with suppress(asyncio.CancelledError):
            await flood
