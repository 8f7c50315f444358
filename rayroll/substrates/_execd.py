"""The streams of a process in an OpenSandbox: execd's sessions, in pipe mode, over a WebSocket.

A session's process lives on when its WebSocket breaks, and another one finds it: what an attach is to a container.
The protocol is upstream's (``components/execd/PTY.md``): binary messages begin with the stream's number, text is JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates._stream import StreamChannel

__all__ = ["Session", "SessionChannel", "open_session"]

STDIN, STDOUT, STDERR = 0, 1, 2
PAST_ALL = 1 << 62
"""``since``: nothing of what was printed before is wanted again; the runner repeats what matters."""
STDERR_KEPT_BYTES = 4 << 10
MOST_MESSAGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Session:
    """Where a session is, and what must be said to get there."""

    url: str
    """``ws://host:port/.../pty/ID/ws``"""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class SessionChannel(StreamChannel):
    """One WebSocket to a session."""

    def __init__(self, session: Session, on_end: Callable[[SessionChannel], None]) -> None:
        super().__init__()
        self._on_end = on_end
        self._protocol = ClientProtocol(
            parse_uri(f"{session.url}?pty=0&takeover=1&since={PAST_ALL}"),
            max_size=MOST_MESSAGE_BYTES,
            logger=logging.getLogger(f"{__name__}.websocket"),
        )
        self._headers = session.headers
        self._buffer = bytearray()
        """Of a message that comes in pieces."""
        self._is_text = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_exited = False
        """The process at the other end has ended, and with it the sandbox."""
        self.stderr = b""
        """The last of what the runner itself printed there."""

    # Channel

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._protocol.send_binary(bytes((STDIN,)) + data)
            self._flush()

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self.ready.done() and self._protocol.state.name == "OPEN":
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
            self.ready.set_exception(exc or ConnectionError("execd closed the connection"))
            self.ready.exception()  # whoever waits is told; nobody else need be
        self._on_end(self)
        super().connection_lost(exc)

    def _flush(self) -> None:
        assert self._transport is not None
        for chunk in self._protocol.data_to_send():
            if chunk:
                self._transport.write(chunk)

    def _on_response(self, response: Response) -> None:
        if response.status_code != 101 and not self.ready.done():
            body = bytes(response.body or b"").decode(errors="replace").strip()
            error: Exception = SubstrateError("execd refused the stream", status=response.status_code, said=body)
            if response.status_code == 404:
                error = SandboxLostError("the runner's session is gone", said=body)
            self.ready.set_exception(error)

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._buffer += frame.data
        if not frame.fin:
            return
        message, self._buffer = bytes(self._buffer), bytearray()
        if self._is_text:
            self._on_word(json.loads(message))
        elif message[:1] == bytes((STDOUT,)):
            super().data_received(message[1:])
        elif message[:1] == bytes((STDERR,)):
            self.stderr = (self.stderr + message[1:])[-STDERR_KEPT_BYTES:]

    def _on_word(self, word: Mapping[str, object]) -> None:
        match word.get("type"):
            case "connected" if not self.ready.done():
                self.ready.set_result(None)
            case "exit":
                self.has_exited = True
            case "error" if not self.ready.done():
                self.ready.set_exception(SubstrateError("execd cannot start the runner", said=word.get("error")))


async def open_session(session: Session, on_end: Callable[[SessionChannel], None]) -> SessionChannel:
    """A new stream to a session; an older one ends. ``on_end`` hears of its end before its receiver does.

    Raises:
        OSError: Nothing listens there, or it hung up.
        SandboxLostError: There is no such session.
        SubstrateError: It was refused.
    """
    parts = urlsplit(session.url)
    assert parts.hostname is not None
    secure = await asyncio.to_thread(ssl.create_default_context) if parts.scheme == "wss" else None
    port = parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(lambda: SessionChannel(session, on_end), parts.hostname, port, ssl=secure)
    try:
        await channel.ready
    except BaseException:
        channel.abort()
        raise
    return channel
