"""Channels that misbehave on purpose, put between a client and a real substrate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rayroll.runner.protocol import HEADER, HEADER_BYTES
from rayroll.substrates import Channel, Receiver

__all__ = ["Breakable", "Rewriting", "Slicing"]


class _Around(Channel):
    """Passes everything on; subclasses disturb it. Also the receiver of the channel inside."""

    def __init__(self, inner: Channel) -> None:
        self._inner = inner
        self._receiver: Receiver | None = None
        self._ended = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._inner.start(self)

    def write(self, data: bytes) -> None:
        self._inner.write(data)

    def close(self) -> None:
        self._inner.close()

    def data_received(self, data: bytes) -> None:
        assert self._receiver is not None
        if not self._ended:
            self._receiver.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        assert self._receiver is not None
        if not self._ended:
            self._ended = True
            self._receiver.connection_lost(error)


class Slicing(_Around):
    """Hands over one byte at a time, as a slow network may."""

    def data_received(self, data: bytes) -> None:
        for i in range(len(data)):
            super().data_received(data[i : i + 1])


class Breakable(_Around):
    """Can be cut, or can fall silent without being cut."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self._left: int | None = None
        self._cut_at_end = False
        self.received_bytes = 0

    def cut(self) -> None:
        """The connection breaks now; what was under way is lost."""
        self._inner.close()
        asyncio.get_running_loop().call_soon(self.connection_lost, ConnectionResetError("cut by the test"))

    def cut_after(self, n_bytes: int) -> None:
        """Deliver so many more bytes, which may end inside a frame, and break."""
        self._left = n_bytes
        self._cut_at_end = True

    def mute(self) -> None:
        """Nothing arrives any more in either direction, and nobody is told."""
        self._left = 0

    def write(self, data: bytes) -> None:
        if self._left != 0:
            super().write(data)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._left is not None:
            data, self._left = data[: self._left], max(0, self._left - len(data))
        if data:
            super().data_received(data)
        if self._left == 0 and self._cut_at_end:
            self._cut_at_end = False
            self.cut()


class Rewriting(_Around):
    """Changes the payloads of frames from the runner, as a transport with a mind of its own would.

    Args:
        inner: The channel.
        rewrite: Gets a frame's type and payload, returns the payload.
    """

    def __init__(self, inner: Channel, rewrite: Callable[[int, bytes], bytes]) -> None:
        super().__init__(inner)
        self._rewrite = rewrite
        self._buffer = b""
        self._nonce: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._nonce is None:
            self._nonce = data[16 + HEADER_BYTES + 5 :][:16]  # key, header, then hello's first field
        super().write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._nonce:
            at = self._buffer.find(self._nonce)
            if at < 0:
                return
            head, self._buffer, self._nonce = self._buffer[: at + 16], self._buffer[at + 16 :], b""
            super().data_received(head)
        while len(self._buffer) >= HEADER_BYTES:
            size, type, zero, epoch, request_id = HEADER.unpack_from(self._buffer)
            end = HEADER_BYTES + size
            if len(self._buffer) < end:
                return
            payload, self._buffer = self._buffer[HEADER_BYTES:end], self._buffer[end:]
            payload = self._rewrite(type, payload)
            super().data_received(HEADER.pack(len(payload), type, zero, epoch, request_id) + payload)
