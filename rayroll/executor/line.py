"""The direct line between a driver and its host: a Ray call takes 1.3 ms there and back, this connection 0.1 ms.

Ray places the host, starts it, watches it and ends it; actions and their results need not go through it. What either
end says during one turn of its event loop leaves together. Who connects must know a secret that travelled through Ray,
so nobody without the cluster's credentials is listened to; the host takes one driver and then stops listening.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import pickle
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

__all__ = ["Line", "LineAddress", "Listener", "connect"]

SIZE = struct.Struct("<I")
PROOF_BYTES = 32
GREETING_S = 10.0
"""Longest wait for the other end to be reached and to prove itself."""


@dataclass(frozen=True, slots=True)
class LineAddress:
    """Where a host listens, and the secret that its driver and it share."""

    ip: str
    port: int
    secret: bytes = field(repr=False)


class Line(asyncio.Protocol):
    """One end. Values go out in batches, and come in one by one, in order."""

    def __init__(self, secret: bytes, own: bytes, theirs: bytes) -> None:
        self._greeting = _proof(secret, own)
        self._expected = _proof(secret, theirs)
        self._buffer = bytearray()
        self._outbox: list[Any] = []
        self._transport: asyncio.Transport | None = None
        self._on_value: Callable[[Any], None] | None = None
        self._on_lost: Callable[[], None] | None = None
        self.proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the other end has shown that it knows the secret; fails when it does not."""

    def start(self, on_value: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        """Hand every value to ``on_value``; call ``on_lost`` once, when the connection has ended by itself."""
        self._on_value, self._on_lost = on_value, on_lost
        if self._transport is None:
            on_lost()
        elif self._buffer:
            self._take()

    @property
    def is_up(self) -> bool:
        """Somebody proven is at the other end."""
        return self._transport is not None and self._on_value is not None

    def send(self, value: Any) -> None:
        """Queue a value; it leaves at the end of this turn of the event loop, with all others of the turn."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(value)

    def expect_life(self, within_s: float) -> None:
        """Have the connection end where the other machine is gone without a word, for so many seconds."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", within_s / 2),
            ("TCP_KEEPINTVL", within_s / 6),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", within_s * 1000),  # what was sent and is not acknowledged
        ):
            if hasattr(socket, name):  # not on every system
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), max(1, round(value)))

    def close(self) -> None:
        """Let go. ``on_lost`` is not called. Idempotent."""
        self._on_lost = None
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        values, self._outbox = self._outbox, []
        if self._transport is None:
            return
        try:
            data = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
        except Exception:
            # A bug of ours. The other end must not wait for ever for what cannot be sent.
            self._transport.abort()
            raise
        self._transport.writelines((SIZE.pack(len(data)), data))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses
        self._transport.write(self._greeting)
        asyncio.get_running_loop().call_later(GREETING_S, self._give_up)

    def _give_up(self) -> None:
        if not self.proven.done():
            self.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self.proven.done() or self._is_proven():
            self._take()

    def _is_proven(self) -> bool:
        if len(self._buffer) < PROOF_BYTES:
            return False
        proof = bytes(self._buffer[:PROOF_BYTES])
        del self._buffer[:PROOF_BYTES]
        if not hmac.compare_digest(proof, self._expected):
            self.proven.set_exception(ConnectionError("the other end does not know the secret"))
            self.proven.exception()
            self._buffer.clear()
            self.close()
            return False
        self.proven.set_result(None)
        return True

    def _take(self) -> None:
        if self._on_value is None or self._transport is None:
            return
        at = 0
        while len(self._buffer) - at >= SIZE.size:
            (size,) = SIZE.unpack_from(self._buffer, at)
            if len(self._buffer) - at - SIZE.size < size:
                break
            at += SIZE.size
            with memoryview(self._buffer)[at : at + size] as batch:
                values = pickle.loads(batch)
            at += size
            for value in values:
                self._on_value(value)
        del self._buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.proven.done():
            self.proven.set_exception(exc or ConnectionError("the other end closed the connection"))
            self.proven.exception()
        if self._on_lost is not None:
            self._on_lost()


def _proof(secret: bytes, who: bytes) -> bytes:
    return hmac.digest(secret, who, hashlib.sha256)


class Listener:
    """Waits for a driver that knows the secret, and hands its line over."""

    def __init__(
        self, accept: Callable[[Line], None], *, secret: bytes | None = None, takes_many: bool = False
    ) -> None:
        """It does not listen yet.

        Args:
            accept: Gets the line of whoever has proven itself.
            secret: None: a new one.
            takes_many: Go on listening after the first.
        """
        self._accept, self._takes_many = accept, takes_many
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._server: asyncio.Server | None = None

    async def open(self, ip: str, port: int = 0) -> LineAddress:
        """Begin to listen at an address of this machine. Raises OSError where that is not possible."""
        self._server = await asyncio.get_running_loop().create_server(self._stranger, ip, port)
        return LineAddress(ip, self._server.sockets[0].getsockname()[1], self._secret)

    def close(self) -> None:
        """Stop listening; a line that was handed over stays. Idempotent."""
        if self._server is not None:
            self._server.close()

    def _stranger(self) -> Line:
        line = Line(self._secret, b"host", b"driver")
        line.proven.add_done_callback(lambda proven: self._judge(line, proven))
        return line

    def _judge(self, line: Line, proven: asyncio.Future[None]) -> None:
        if not proven.cancelled() and proven.exception() is None:
            if not self._takes_many:
                self.close()
            self._accept(line)


async def connect(address: LineAddress) -> Line:
    """The driver's end of a host's line.

    Raises:
        OSError: Nobody can be reached there, or not the host.
        TimeoutError: Nothing answers.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(GREETING_S):
        _, line = await loop.create_connection(
            lambda: Line(address.secret, b"driver", b"host"), address.ip, address.port
        )
        try:
            await line.proven
        except BaseException:
            line.close()
            raise
    return line
