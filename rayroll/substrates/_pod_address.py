"""A stream to a runner at its pod's own address: TCP, where only who knows the runner's key is heard.

A runner takes its key from the stream that it was started with and from no other. So whoever comes first introduces
its key there, by an attach stream that is open for that long, and only then speaks at the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

from rayroll.errors import RayrollError
from rayroll.runner.protocol import KEY_BYTES, FrameType, encode_frame
from rayroll.substrates._stream import StreamChannel

__all__ = ["AddressChannel", "connect"]

CONNECT_TIMEOUT_S = 5.0
CONNECT_PAUSE_S = 0.05
INTRODUCTION_TIMEOUT_S = 10.0

Introduce = Callable[[], Awaitable[StreamChannel]]


class AddressChannel(StreamChannel):
    """One connection.

    Args:
        introduce: Opens the stream on which the key is introduced; None: the runner has one already.
    """

    def __init__(self, introduce: Introduce | None) -> None:
        super().__init__()
        self._introduce = introduce
        self._held: list[bytes] = []
        self._introducing: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        if self._introduce is None:
            super().write(data)
            return
        self._held.append(data)
        if self._introducing is None:
            # The first bytes of a host are its key; see docs/runner-protocol.md.
            self._introducing = asyncio.create_task(self._introduce_key(data[:KEY_BYTES]), name="rayroll key")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._introducing is not None:
            self._introducing.cancel()
        super().connection_lost(exc)

    async def _introduce_key(self, key: bytes) -> None:
        assert self._introduce is not None
        try:
            async with asyncio.timeout(INTRODUCTION_TIMEOUT_S):
                stream = await self._introduce()
                try:
                    heard = _Heard()
                    stream.start(heard)
                    # Not a hello, so it is refused: then the key is known.
                    stream.write(key + encode_frame(FrameType.LEASE, 0, 0, b""))
                    await heard.anything
                finally:
                    stream.close()
        except (RayrollError, OSError, TimeoutError):
            self.abort()
            return
        held, self._held, self._introduce = self._held, [], None
        for data in held:
            super().write(data)


class _Heard:
    """Waits for the first byte."""

    def __init__(self) -> None:
        self.anything: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.anything.done():
            self.anything.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.anything.done():
            self.anything.set_exception(error or ConnectionError("the stream ended before the runner had its key"))


async def connect(address: str, port: int, introduce: Introduce | None) -> AddressChannel | None:
    """A connection to a runner; None: it cannot be reached there."""
    factory = functools.partial(AddressChannel, introduce)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while True:
                with contextlib.suppress(OSError):  # a runner that has just been started may not listen yet
                    return (await asyncio.get_running_loop().create_connection(factory, address, port))[1]
                await asyncio.sleep(CONNECT_PAUSE_S)
    return None
