"""The attach stream: cut anywhere, refused, ended; and streams of JSON objects."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayroll.substrates._attach import EngineAnswer, attach, json_lines
from rayroll.substrates._endpoint import Endpoint

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nUpgrade: tcp\r\n\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Collected:
    """A receiver that keeps everything."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


@asynccontextmanager
async def served(folder: Path, handler: Handler) -> AsyncIterator[Endpoint]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
            await writer.drain()
        finally:
            writer.close()

    path = folder / f"{secrets.token_hex(4)}.sock"
    server = await asyncio.start_unix_server(handle, path)
    try:
        yield Endpoint(f"unix://{path}")
    finally:
        server.close()


def block(stream: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(data)) + data


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), cuts=st.lists(st.integers(1, 60)))
def test_bytes_arrive_in_order_however_the_stream_is_cut(tmp_path: Path, parts: list[bytes], cuts: list[int]) -> None:
    stream = UPGRADED + b"".join(block(1, part) for part in parts) + block(2, b"runner: oops")

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = 0
        for cut in [*cuts, len(stream)]:
            writer.write(stream[at : at + cut])
            await writer.drain()
            at += cut

    async def scenario() -> None:
        async with served(tmp_path, send) as endpoint:
            channel = await attach(endpoint, "c")
            received = Collected()
            channel.start(received)
            await received.ended.wait()
            assert received.data == b"".join(parts)
            assert channel.stderr == b"runner: oops"

    asyncio.run(scenario())


async def test_what_is_written_goes_out_raw_and_closing_ends_the_stream(tmp_path: Path) -> None:
    got = asyncio.get_running_loop().create_future()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(UPGRADED)
        got.set_result(await reader.read())

    async with served(tmp_path, echo) as endpoint:
        channel = await attach(endpoint, "c")
        channel.write(b"frame one")
        channel.write(b"frame two")
        channel.close()
        channel.write(b"too late")
        assert await got == b"frame oneframe two"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_refusal_has_the_engines_own_words(tmp_path: Path, chunked: bool) -> None:
    body = b'{"message":"No such container: c"}\n'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        writer.write(b"HTTP/1.1 404 Not Found\r\n" + kind + b"\r\n\r\n")
        await writer.drain()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        await writer.drain()
        await reader.read()

    async with served(tmp_path, refuse) as endpoint:
        with pytest.raises(EngineAnswer, match="No such container" if not chunked else ".*") as caught:
            await attach(endpoint, "c")
        assert caught.value.status == 404


async def test_an_engine_that_hangs_up_is_an_answer_too(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        return None

    async with served(tmp_path, hang_up) as endpoint:
        with pytest.raises(EngineAnswer, match="closed the connection"):
            await attach(endpoint, "c")


async def test_objects_are_read_across_chunks_and_errors_are_raised(tmp_path: Path) -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"a":1}\r\n{"b"', b":2}\r\n", b'{"c":3}'):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")

    async with served(tmp_path, stream) as endpoint, json_lines(endpoint, "GET", "/x") as objects:
        assert [found async for found in objects] == [{"a": 1}, {"b": 2}, {"c": 3}]

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 500 X\r\nContent-Length: 17\r\n\r\n{"message":"bad"}')

    async with served(tmp_path, refuse) as endpoint:
        with pytest.raises(EngineAnswer, match="bad"):
            async with json_lines(endpoint, "GET", "/x"):
                pass
