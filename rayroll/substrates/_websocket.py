"""A channel over a WebSocket: the protocol is ``websockets``' own, without its thread or its task per connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from rayroll.errors import SubstrateError
from rayroll.substrates._stream import StreamChannel

__all__ = ["WebSocketChannel", "dial"]

MOST_MESSAGE_BYTES = 2 << 20

_quiet = logging.getLogger(f"{__name__}.websocket")
_quiet.setLevel(logging.INFO)  # below that it writes down every header, and with them what lets us in


class WebSocketChannel(StreamChannel):
    """One WebSocket; what its messages mean is its subclass's.

    Args:
        url: ``ws://host:port/path?query`` or ``wss://``.
        headers: Of the request, on top of the protocol's own.
        subprotocols: One of which the server must choose; empty: none.
    """

    def __init__(self, url: str, headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> None:
        super().__init__()
        self._protocol = ClientProtocol(
            parse_uri(url),
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            max_size=MOST_MESSAGE_BYTES,
            logger=_quiet,
        )
        self._headers = headers
        self._buffer = bytearray()
        """Of a message that comes in pieces."""
        self._is_text = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # for subclasses

    def opened(self) -> None:
        """The server has agreed. By default that is all that ``ready`` waits for."""
        self.ready.set_result(None)

    def refusal(self, status: int, body: str) -> Exception:
        """What ``ready`` raises when it has not."""
        return SubstrateError("the stream was refused", status=status, said=body)

    def message(self, data: bytes) -> None:
        """A binary message."""

    def word(self, text: bytes) -> None:
        """A text message."""

    def output(self, data: bytes) -> None:
        """Hand bytes to the receiver."""
        super().data_received(data)

    def send(self, data: bytes) -> None:
        """A binary message; dropped after the end."""
        if self._transport is not None and not self._transport.is_closing() and self.is_open:
            self._protocol.send_binary(data)
            self._flush()

    @property
    def is_open(self) -> bool:
        """Both sides have agreed, and neither has said that it ends."""
        return self._protocol.state is State.OPEN

    # Channel

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self.is_open:
                self._protocol.send_close(1000)
                self._flush()
            super().close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        request = self._protocol.connect()
        request.headers.update(Headers(dict(self._headers)))
        self._protocol.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._on_response(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._flush()
        if self._protocol.close_expected() and self._transport is not None:
            self._transport.close()

    def eof_received(self) -> None:
        self._protocol.receive_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            reason = exc or self._protocol.handshake_exc or ConnectionError("the server closed the connection")
            self.ready.set_exception(reason)
            self.ready.exception()  # whoever waits is told; nobody else need be
        super().connection_lost(exc)

    def _flush(self) -> None:
        if self._transport is None:
            return
        for chunk in self._protocol.data_to_send():
            if chunk:
                self._transport.write(chunk)

    def _on_response(self, response: Response) -> None:
        if self.ready.done():
            return
        if response.status_code == 101 and self._protocol.handshake_exc is None:
            self.opened()
        elif response.status_code != 101:
            body = bytes(response.body or b"").decode(errors="replace").strip()
            self.ready.set_exception(self.refusal(response.status_code, body))

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._buffer += frame.data
        if not frame.fin:
            return
        message, self._buffer = bytes(self._buffer), bytearray()
        (self.word if self._is_text else self.message)(message)


C = TypeVar("C", bound=WebSocketChannel)


async def dial(channel: C, url: str, context: ssl.SSLContext | None, server_name: str | None = None) -> C:
    """Connect a channel and wait until the server has agreed.

    Raises:
        OSError: Nothing listens there, or it hung up.
        Exception: What ``refusal`` returned.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    port = parts.port or (443 if context else 80)
    loop = asyncio.get_running_loop()
    name = server_name if context else None
    await loop.create_connection(lambda: channel, parts.hostname, port, ssl=context, server_hostname=name)
    try:
        await channel.ready
    except BaseException:
        channel.abort()
        raise
    return channel
