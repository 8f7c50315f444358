"""The streams of a process in an OpenSandbox: execd's sessions, in pipe mode, over a WebSocket.

A session's process lives on when its WebSocket breaks, and another one finds it: what an attach is to a container.
The protocol is upstream's (``components/execd/PTY.md``): binary messages begin with the stream's number, text is JSON.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates._websocket import WebSocketChannel, dial

__all__ = ["Session", "SessionChannel", "open_session"]

STDIN, STDOUT, STDERR = 0, 1, 2
PAST_ALL = 1 << 62
"""``since``: nothing of what was printed before is wanted again; the runner repeats what matters."""
STDERR_KEPT_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class Session:
    """Where a session is, and what must be said to get there."""

    url: str
    """``ws://host:port/.../pty/ID/ws``"""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class SessionChannel(WebSocketChannel):
    """One WebSocket to a session."""

    def __init__(self, session: Session, on_end: Callable[[SessionChannel], None]) -> None:
        super().__init__(f"{session.url}?pty=0&takeover=1&since={PAST_ALL}", session.headers)
        self._on_end = on_end
        self.has_exited = False
        """The process at the other end has ended, and with it the sandbox."""
        self.stderr = b""
        """The last of what the runner itself printed there."""

    def write(self, data: bytes) -> None:
        self.send(bytes((STDIN,)) + data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(self)
        super().connection_lost(exc)

    def opened(self) -> None:
        """The session has not said yet whether it has a process: ``word`` hears of it."""

    def refusal(self, status: int, body: str) -> Exception:
        if status == 404:
            return SandboxLostError("the runner's session is gone", said=body)
        return SubstrateError("execd refused the stream", status=status, said=body)

    def message(self, data: bytes) -> None:
        if data[:1] == bytes((STDOUT,)):
            self.output(data[1:])
        elif data[:1] == bytes((STDERR,)):
            self.stderr = (self.stderr + data[1:])[-STDERR_KEPT_BYTES:]

    def word(self, text: bytes) -> None:
        word = json.loads(text)
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
    secure = await asyncio.to_thread(ssl.create_default_context) if session.url.startswith("wss:") else None
    return await dial(SessionChannel(session, on_end), session.url, secure)
