"""HTTP to a Docker engine where docker-py's own is in the way: streams that stay open, without a thread for each.

docker-py's ``attach_socket`` throws away what its HTTP reader had buffered: 2 of 8 attaches in mid-stream began inside
a frame. Here the bytes behind the response's head belong to the stream: 0 of 25.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar, cast

from rayroll.substrates._endpoint import Endpoint
from rayroll.substrates._stream import StreamChannel

__all__ = ["BLOCK_HEAD", "AttachChannel", "EngineAnswer", "attach", "hijack", "json_lines"]

HEAD_MOST_BYTES = 64 << 10
STDERR_KEPT_BYTES = 4 << 10
LINE_MOST_BYTES = 16 << 20
STDERR = 2
BLOCK_HEAD = struct.Struct(">BxxxI")
CLOSE_PATIENCE_S = 2.0


P = TypeVar("P", bound=asyncio.BaseProtocol)


class Connects(Protocol):
    """Where somebody listens, a Docker engine or another server of HTTP."""

    async def connect(self, factory: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """Open a stream. Raises OSError when nothing answers."""


class EngineAnswer(Exception):
    """The engine answered, but not with what was asked for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class AttachChannel(StreamChannel):
    """The streams of a container's first process: after the response's head, blocks of (stream, length, bytes)."""

    def __init__(self, request: bytes) -> None:
        super().__init__()
        self._request = request
        self._buffer = bytearray()
        self._upgraded = False
        self._is_closing = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stderr = b""
        """The last of what the runner itself printed there; commands' output comes in frames."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).write(self._request)

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            super().write(data)

    def close(self) -> None:
        """Send no more, and read on until the engine has passed on what it has; then it ends the stream by itself.

        What the engine has not passed on yet would be mixed into the bytes of the next attach, at any byte: it took 17
        hellos until a stream was clean again after a break with three uploads under way. 18 ms with 3 MB under way.
        """
        if self._transport is None or self._is_closing:
            return
        self._is_closing = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(CLOSE_PATIENCE_S, self.abort)
        else:  # TLS
            super().close()

    def data_received(self, data: bytes) -> None:
        if self._is_closing and self._upgraded:
            return
        self._buffer += data
        if self._upgraded or self._take_head():
            self._take_blocks()

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MOST_BYTES:
                self._refuse(EngineAnswer(0, "the answer's head has no end"))
            return False
        status = int(self._buffer.split(b" ", 2)[1])
        # 101 is the upgrade; 200 is how engines answered before they knew it, and the stream follows as well.
        if status not in (101, 200):
            body = bytes(self._buffer[end + 4 :])
            length = re.search(rb"(?i)content-length: *(\d+)", self._buffer[:end])
            if length and len(body) < int(length[1]):
                return False
            self._refuse(EngineAnswer(status, _message(body)))
            return False
        del self._buffer[: end + 4]
        self._upgraded = True
        if not self.ready.done():
            self.ready.set_result(None)
        return True

    def _refuse(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self.abort()

    def _take_blocks(self) -> None:
        at = 0
        while len(self._buffer) - at >= BLOCK_HEAD.size:
            stream, size = BLOCK_HEAD.unpack_from(self._buffer, at)
            if len(self._buffer) - at - BLOCK_HEAD.size < size:
                break
            at += BLOCK_HEAD.size
            block = bytes(self._buffer[at : at + size])
            at += size
            if stream == STDERR:
                self.stderr = (self.stderr + block)[-STDERR_KEPT_BYTES:]
            else:
                super().data_received(block)
        del self._buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or EngineAnswer(0, "the engine closed the connection"))
        super().connection_lost(exc)


async def attach(endpoint: Endpoint, container_id: str) -> AttachChannel:
    """Open the streams of a container, started or not.

    Raises:
        EngineAnswer: It refused: 404 when there is no such container, 409 when it is not running any more.
        OSError: Nothing listens there.
    """
    path = f"/containers/{container_id}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    request = _head("POST", path, {"Connection": "Upgrade", "Upgrade": "tcp", "Content-Length": "0"})
    _, channel = await endpoint.connect(lambda: AttachChannel(request))
    try:
        await channel.ready
    except BaseException:
        channel.abort()
        raise
    return channel


async def hijack(
    endpoint: Endpoint, path: str, body: Mapping[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose connection becomes a stream in both directions. The caller closes the writer.

    Raises:
        EngineAnswer: It refused.
        OSError: Nothing listens there, or it hung up.
    """
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await endpoint.connect(lambda: protocol)
    try:
        data = json.dumps(body).encode()
        headers = {"Connection": "Upgrade", "Upgrade": "tcp", "Content-Type": "application/json"}
        transport.write(_head("POST", path, {**headers, "Content-Length": str(len(data))}) + data)
        status, answer_headers = await _read_head(reader)
        if status not in (101, 200):
            raise EngineAnswer(status, _message(b"".join([chunk async for chunk in _chunks(reader, answer_headers)])))
    except BaseException:
        transport.abort()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())


@asynccontextmanager
async def json_lines(
    endpoint: Connects, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """A request whose answer is a stream of JSON objects: events, a pull, a build. Leaving closes the connection, on
    which the engine gives up a pull or a build.

    Raises:
        EngineAnswer: It refused.
        OSError: Nothing listens there.
    """
    reader = asyncio.StreamReader(limit=LINE_MOST_BYTES)
    transport, _ = await endpoint.connect(lambda: asyncio.StreamReaderProtocol(reader))
    try:
        transport.write(_head(method, path, {**(headers or {}), "Content-Length": str(len(body))}) + body)
        status, answer_headers = await _read_head(reader)
        chunks = _chunks(reader, answer_headers)
        if status >= 400:
            raise EngineAnswer(status, _message(b"".join([chunk async for chunk in chunks])))
        yield _objects(chunks)
    finally:
        transport.abort()


def _head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    said = {"Host": "docker", **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    return int(head[0].split(" ", 2)[1]), headers


async def _chunks(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline() or b"0", 16):
            yield (await reader.readexactly(size + 2))[:-2]
        return
    left = int(headers.get("content-length", "-1"))
    while left != 0 and (data := await reader.read(64 << 10 if left < 0 else min(left, 64 << 10))):
        left -= len(data) if left > 0 else 0
        yield data


async def _objects(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The objects in a stream, one a line (Docker ends lines with CR LF)."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
    if rest.strip():
        yield json.loads(rest)


def _message(body: bytes) -> str:
    """The engine's own words in an error's body, chunked or not."""
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        return str(json.loads(body[start : end + 1])["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no reason given"
