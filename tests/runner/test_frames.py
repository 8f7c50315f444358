"""Whoever sends what is not a frame, or not theirs to send, is told so; the runner goes on."""

from __future__ import annotations

import secrets
import struct

import pytest
from runner.live import peer

from rayroll.runner.protocol import (
    MAX_PAYLOAD_BYTES,
    VERSION,
    Flag,
    FrameType,
    Tag,
    decode_fields,
    encode_fields,
    encode_frame,
    number,
    numbers,
)

pytestmark = pytest.mark.usefixtures("namespaces")

NOT_FIELDS = {
    "cut short": b"\x20",
    "longer than the frame": struct.pack("<BI", Tag.SCRIPT, 100) + b"x",
    "a huge length": struct.pack("<BI", Tag.SCRIPT, 2**32 - 1),
    "a tag twice": encode_fields({Tag.SCRIPT: b"true"}) * 2,
    "a number of four bytes": struct.pack("<BI", Tag.TIMEOUT_MS, 4) + b"\1\0\0\0",
    "a number of no bytes": struct.pack("<BI", Tag.HEAD_BYTES, 0),
    "a script with a NUL": encode_fields({Tag.SCRIPT: b"echo \0hi"}),
    "a user with a NUL": encode_fields({Tag.SCRIPT: b"true", Tag.USER: b"nobody\0"}),
    "a directory with a NUL": encode_fields({Tag.SCRIPT: b"true", Tag.CWD: b"/\0tmp"}),
    "ids of three bytes": encode_fields({Tag.IDS: b"abc"}),
}


async def alive(host) -> None:  # type: ignore[no-untyped-def]
    """It still runs what it is asked to."""
    token = secrets.token_hex(4).encode()
    host.send(FrameType.EXEC, 4000, {Tag.SCRIPT: b"echo " + token})
    while (output := await host.frame(FrameType.OUTPUT)).request_id != 4000:
        pass
    assert output.payload == token + b"\n"
    assert number(await host.fields(FrameType.RESULT), Tag.EXIT_CODE) == 0
    host.send(FrameType.ACK, 4000)


@pytest.mark.parametrize("payload", NOT_FIELDS)
async def test_a_payload_that_is_no_list_of_fields_is_refused(payload: str) -> None:
    async with peer() as host:
        await host.hello()
        for kind in (FrameType.EXEC, FrameType.PUT, FrameType.CREDIT, FrameType.LEASE):
            host.send(kind, 7, NOT_FIELDS[payload])
            frame = await host.frame(FrameType.REFUSED)
            assert (decode_fields(frame.payload)[Tag.CODE], frame.request_id) == (b"malformed", 7)
        await alive(host)


@pytest.mark.parametrize("type", [0, 16, 63, 64, FrameType.RESULT, 255])
async def test_an_unknown_type_is_refused(type: int) -> None:
    async with peer() as host:
        await host.hello()
        host.send(type, 9)
        assert (await host.fields(FrameType.REFUSED))[Tag.CODE] == b"malformed"
        await alive(host)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (struct.pack("<IBBHI", MAX_PAYLOAD_BYTES + 1, 3, 0, 1, 1), b"too_large"),
        (struct.pack("<IBBHI", 2**32 - 1, 3, 0, 1, 1), b"too_large"),
        (struct.pack("<IBBHI", 0, 3, 1, 1, 1), b"malformed"),
        (struct.pack("<IBBHI", 1000, 3, 0, 2, 1), b"malformed"),  # of another epoch, and its payload is not there
    ],
)
async def test_after_a_header_that_is_none_only_a_hello_is_heard(header: bytes, code: bytes) -> None:
    async with peer() as host:
        await host.hello()
        host.pipe.write(header)
        refusal = await host.frame(FrameType.REFUSED)
        assert (decode_fields(refusal.payload)[Tag.CODE], refusal.epoch) == (code, host.epoch)
        host.send(FrameType.LEASE, 1)
        host.pipe.write(secrets.token_bytes(5000))
        await host.hello()
        assert not [f for f in host.frames if f.type == FrameType.LEASE_OK]
        await alive(host)


async def test_requests_that_cannot_work_are_errors_of_their_own() -> None:
    async with peer() as host:
        await host.hello()
        cases: list[tuple[int, dict[int, int | bytes], bytes]] = [
            (FrameType.EXEC, {}, b"arguments"),
            (FrameType.EXEC, {Tag.ARGV: b""}, b"arguments"),
            (FrameType.EXEC, {Tag.SCRIPT: b"true", Tag.ARGV: b"true\0"}, b"arguments"),
            (FrameType.EXEC, {Tag.SCRIPT: b"true", Tag.ENV: b"A=" + b"x" * 140_000}, b"arguments"),
            (FrameType.EXEC, {Tag.SCRIPT: b"true", Tag.USER: b"x" * 1000}, b"user"),
            (FrameType.EXEC, {Tag.SCRIPT: b"true", Tag.USER: b""}, b"user"),
            (FrameType.EXEC, {Tag.SCRIPT: b"true", Tag.CWD: b""}, b"file"),
            (FrameType.GET, {}, b"file"),
            (FrameType.GET, {Tag.PATH: b""}, b"file"),
            (FrameType.DIGEST, {Tag.PATH: b"/no/such"}, b"file"),
            (FrameType.GET, {Tag.PATH: b"/etc/passwd", Tag.USER: b"nobody-rr"}, b"user"),
        ]
        for i, (kind, fields, code) in enumerate(cases):
            host.send(kind, i, fields)
            frame = await host.frame(FrameType.ERROR)
            answer = decode_fields(frame.payload)
            assert (fields, frame.request_id, answer[Tag.CODE]) == (fields, i, code)
            assert answer[Tag.REASON]
            host.send(FrameType.ACK, i)
        await alive(host)


async def test_numbers_as_large_as_they_come_are_limits_and_not_overflows() -> None:
    most = 2**64 - 1
    limits = (Tag.TIMEOUT_MS, Tag.IDLE_MS, Tag.GRACE_MS, Tag.HEAD_BYTES, Tag.TAIL_BYTES, Tag.FLAGS)
    fields: dict[int, int | bytes] = dict.fromkeys(limits, most)
    async with peer() as host:
        await host.hello(lease_ms=most)
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"echo hi; exit 3", **fields})
        result = await host.fields(FrameType.RESULT)
        assert (number(result, Tag.EXIT_CODE), number(result, Tag.LIMIT)) == (3, 0)
        host.send(FrameType.CREDIT, 0, {Tag.BYTES: most})
        host.send(FrameType.GET, 2, {Tag.PATH: b"/etc/passwd", Tag.MAX_BYTES: most, Tag.FLAGS: 0})
        assert (await host.frame(FrameType.OUTPUT)).payload
        host.send(FrameType.LEASE, 3, {Tag.LEASE_MS: 0})
        await host.frame(FrameType.LEASE_OK)
        await alive(host)


async def test_frames_for_requests_that_are_not_there_do_nothing() -> None:
    async with peer() as host:
        await host.hello()
        for kind in (FrameType.CANCEL, FrameType.ACK, FrameType.DATA, FrameType.END, FrameType.CREDIT):
            host.send(kind, 77)
        await alive(host)


async def test_a_flood_of_requests_is_refused_and_bounded() -> None:
    """More than are kept: the rest is told to wait, nothing of it is run later."""
    async with peer() as host:
        await host.hello()
        for i in range(700):
            host.send(FrameType.EXEC, i, {Tag.SCRIPT: b"sleep 60"})
        busy = [await host.frame(FrameType.ERROR) for _ in range(700 - 512)]
        assert {decode_fields(f.payload)[Tag.CODE] for f in busy} == {b"busy"}
        assert sorted(f.request_id for f in busy) == list(range(512, 700))
        host.send(FrameType.KILL_ALL, 9000)
        while True:
            frame = await host.frame(FrameType.RESULT, FrameType.ERROR)
            host.send(FrameType.ACK, frame.request_id)
            if frame.request_id == 9000:
                break
        assert number(decode_fields(frame.payload), Tag.COUNT) == 64
        while host.frames:
            host.send(FrameType.ACK, host.frames.popleft().request_id)
        await alive(host)


async def test_a_flood_of_payloads_is_refused_and_bounded() -> None:
    async with peer() as host:
        await host.hello()
        large = b"sleep 60 #" + b"x" * (8 << 20)
        for i in range(12):
            host.send(FrameType.EXEC, i, {Tag.SCRIPT: large})
        refused = await host.fields(FrameType.ERROR)
        assert refused[Tag.CODE] == b"busy"
        assert host.box.resident_kib() < 200 << 10


async def test_a_version_that_is_not_spoken_is_refused_both_ways() -> None:
    async with peer() as host:
        for low, high in ((VERSION + 1, VERSION + 5), (0, VERSION - 1)):
            host.say_hello(version_min=low, version_max=high)
            refusal = await host.fields(FrameType.REFUSED)
            assert refusal[Tag.CODE] == b"version"
            assert (number(refusal, Tag.VERSION_MIN), number(refusal, Tag.VERSION_MAX)) == (VERSION, VERSION)
        assert number(await host.hello(version_min=0, version_max=99), Tag.VERSION_MAX) == VERSION


async def test_nobody_is_heard_before_hello() -> None:
    async with peer() as host:
        host.pipe.write(host.key)
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"touch /tmp/ran"}, epoch=0)
        await host.hello()
        await alive(host)
        assert not (host.box.folder / "ran").exists()


async def test_a_hello_without_a_nonce_is_refused() -> None:
    async with peer() as host:
        host.pipe.write(host.key + encode_frame(FrameType.HELLO, 1, 0, encode_fields({Tag.NONCE: b"short"})))
        await host.hello(epoch=2)
        await alive(host)


async def test_an_older_epoch_is_refused_and_so_is_a_hello_of_one() -> None:
    async with peer() as host:
        await host.hello(epoch=5)
        host.send(FrameType.EXEC, 1, {Tag.SCRIPT: b"touch /tmp/ran"}, epoch=4)
        assert (await host.fields(FrameType.REFUSED))[Tag.CODE] == b"epoch"
        host.say_hello(epoch=5)
        refusal = await host.fields(FrameType.REFUSED)
        assert (refusal[Tag.CODE], number(refusal, Tag.EPOCH)) == (b"epoch", 5)
        await host.hello(epoch=6)
        await alive(host)
        assert not (host.box.folder / "ran").exists()


async def test_hello_in_the_middle_of_a_frame_is_heard() -> None:
    """A host that joins an attach stream does not know where the one before it stopped."""
    async with peer() as host:
        await host.hello()
        for cut in (1, 5, 11, 12, 13, 40):
            whole = encode_frame(
                FrameType.EXEC, host.epoch, 1, encode_fields({Tag.SCRIPT: b"touch /tmp/ran #" + b"x" * 100})
            )
            host.pipe.write(whole[:cut])
            await host.hello()
            await alive(host)
        assert not (host.box.folder / "ran").exists()


async def test_a_key_that_arrives_byte_by_byte_is_heard() -> None:
    async with peer() as host:
        await host.hello()
        host.pipe.write(encode_frame(FrameType.EXEC, 1, 1, b"x" * 50)[:30])
        host.epoch += 1
        host._nonce, host._parser = secrets.token_bytes(16), None
        fields = encode_fields({Tag.NONCE: host._nonce, Tag.VERSION_MIN: 1, Tag.VERSION_MAX: 1, Tag.IDS: b""})
        for byte in host.key + encode_frame(FrameType.HELLO, host.epoch, 0, fields):
            host.pipe.write(bytes([byte]))
        await host.frame(FrameType.HELLO_OK)
        await alive(host)


async def test_what_a_frame_holds_is_never_taken_for_the_key_by_chance() -> None:
    """Parts of the key, and all of it but one bit, in what is uploaded and printed: no loss of sync."""
    async with peer() as host:
        await host.hello()
        near = bytes([*host.key[:-1], host.key[-1] ^ 1])
        # Between the parts, or one would complete the other's key when its first byte is the changed last one.
        stranger = bytes([next(byte for byte in range(17) if byte not in host.key)])
        data = stranger.join((host.key[:15], near, host.key[1:], b"")) * 500
        entry = struct.pack("<BBHIIIQQQHHI", ord("f"), 0, 0, 0o644, 2**32 - 1, 2**32 - 1, 0, len(data), 0, 0, 0, 0)
        host.send(FrameType.PUT, 1, {Tag.PATH: b"/tmp/near"})
        host.send(FrameType.DATA, 1, entry + data)
        host.send(FrameType.END, 1)
        await host.frame(FrameType.RESULT)
        assert (host.box.folder / "near").read_bytes() == data
        await alive(host)


async def test_the_answer_to_hello_names_what_it_knows() -> None:
    async with peer() as host:
        first = await host.hello()
        assert numbers(first[Tag.IDS]) == []
        host.send(FrameType.EXEC, 5, {Tag.SCRIPT: b"sleep 60", Tag.FLAGS: Flag.CARRY})
        host.send(FrameType.LEASE)
        await host.frame(FrameType.LEASE_OK)
        again = await host.hello(ids=(3, 5, 7))
        assert numbers(again[Tag.IDS]) == [5]
        assert again[Tag.INSTANCE] == first[Tag.INSTANCE] and len(first[Tag.INSTANCE]) == 16
        for tag in (Tag.BUILD, Tag.SHELL, Tag.MACHINE, Tag.KERNEL, Tag.CWD):
            assert first[tag]
        assert (number(first, Tag.PID), number(first, Tag.IS_INIT)) == (1, 1)
