"""A channel over an asyncio transport: sockets, pipes, an upgraded HTTP connection."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from rayroll.substrates import Channel, Receiver

__all__ = ["StreamChannel", "channel_over"]


class StreamChannel(asyncio.Protocol, Channel):
    """Keeps what arrives before ``start``, then hands everything to the receiver."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._early: list[bytes] = []
        self._ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    # Channel

    def start(self, receiver: Receiver) -> None:
        assert self._receiver is None, "a channel has one receiver"
        self._receiver = receiver
        early, self._early = self._early, []
        for data in early:
            receiver.data_received(data)
        if self._ended.done():
            receiver.connection_lost(self._ended.result())

    def write(self, data: bytes) -> None:
        # A write after the end is dropped: the receiver has been told, and the runner may have been given up.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def wait_until_closed(self) -> None:
        """Returns when the last byte was written or dropped and the transport is gone."""
        await asyncio.shield(self._ended)

    def abort(self) -> None:
        """Close without waiting for unwritten bytes."""
        # Not after its end: a transport that was closed with bytes to flush has let go of its loop, and abort needs it.
        if self._transport is not None and not self._ended.done():
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(exc)
        # No cycle is left behind: a host seldom looks for any.
        receiver, self._receiver, self._transport = self._receiver, None, None
        if receiver is not None:
            receiver.connection_lost(exc)


async def channel_over(sock: socket.socket) -> StreamChannel:
    """A channel over a connected stream socket, which it closes at its end."""
    channel = StreamChannel()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, sock)
    return channel
