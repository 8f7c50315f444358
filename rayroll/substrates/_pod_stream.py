"""Streams to a pod's container: attach and exec over a WebSocket, as ``kubectl`` has them, without a thread for each.

Binary messages of the protocol ``v4.channel.k8s.io`` begin with the number of a stream; 3 is how it ended, in JSON. In
``v5``, which servers have since 1.30, a stream can also be closed.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates import Login, Shell
from rayroll.substrates._kube import Cluster, refusal, translated
from rayroll.substrates._pod import CONTAINER
from rayroll.substrates._websocket import WebSocketChannel, dial

__all__ = ["PodChannel", "PodShell", "attach", "exit_code_of", "log_in"]

STDIN, STDOUT, STDERR, STATUS, RESIZE = 0, 1, 2, 3, 4
CLOSE = 255
PROTOCOLS = (V5, V4) = ("v5.channel.k8s.io", "v4.channel.k8s.io")
END_KEY = b"\x04"
STDERR_KEPT_BYTES = 4 << 10
CLOSE_PATIENCE_S = 0.5
RESIZE_AGAIN_S = (0.1, 0.3, 1.0)
"""A size that comes before there is a terminal is forgotten."""
# An exec can ask for neither variables nor a user.
SET_VARIABLES = 'while [ "$1" != -- ]; do export "$1"; shift; done; shift; exec "$@"'
BECOME = """
u=$1
if setpriv --version >/dev/null 2>&1; then  # su would take the terminal's job control away, but busybox's does not
    g=$(id -g "$u") && export HOME="$(eval echo "~$u")" USER="$u" LOGNAME="$u" || exit 126
    exec setpriv --reuid="$u" --regid="$g" --init-groups "$0" -c "$2"
fi
exec su -s "$0" "$u" -c "$2"
"""


class PodChannel(WebSocketChannel):
    """A stream to a container's first process, or to one that was started beside it."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(url, headers, PROTOCOLS)
        self.stderr = b""
        """The last of what came there."""
        self.status = b""
        """How the other end says that it ended; empty: it has not said."""
        self.on_stderr: Callable[[bytes], None] = self._keep

    def write(self, data: bytes) -> None:
        self.send(bytes((STDIN,)) + data)

    def end_input(self) -> bool:
        """Send the end of the file; False: this server has no word for it."""
        if self._protocol.subprotocol == V5:
            self.send(bytes((CLOSE, STDIN)))
            return True
        return False

    def resize(self, rows: int, columns: int) -> None:
        """Of its terminal."""
        self.send(bytes((RESIZE,)) + json.dumps({"Width": columns, "Height": rows}).encode())

    def close(self) -> None:
        """Say so and wait for the answer: what was written before has then been passed on."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.is_open:
            self._protocol.send_close(1000)
            self._flush()
            asyncio.get_running_loop().call_later(CLOSE_PATIENCE_S, self.abort)
        else:
            self.abort()

    def refusal(self, status: int, body: str) -> Exception:
        return refusal(status, body)

    def message(self, data: bytes) -> None:
        number, rest = data[0] if data else STDOUT, data[1:]
        if not rest:  # every stream is opened with an empty message
            return
        if number == STDOUT:
            self.output(rest)
        elif number == STDERR:
            self.on_stderr(rest)
        elif number == STATUS:
            self.status += rest

    def _keep(self, data: bytes) -> None:
        self.stderr = (self.stderr + data)[-STDERR_KEPT_BYTES:]


async def attach(cluster: Cluster, pod: str) -> PodChannel:
    """Open the streams of a pod's container.

    Raises:
        EngineDownError: The API does not answer.
        SubstrateError: It refused; 404: there is no such pod.
    """
    return await _open(cluster, pod, "attach", {"stdin": True, "stdout": True, "stderr": True}, ())


async def _open(cluster: Cluster, pod: str, what: str, streams: dict[str, bool], command: Sequence[str]) -> PodChannel:
    query = {"container": CONTAINER, **{name: str(wanted).lower() for name, wanted in streams.items()}}
    path = cluster.path(f"pods/{pod}/{what}", query, repeated=tuple(("command", word) for word in command))
    endpoint = cluster.endpoint
    scheme = "wss" if endpoint.context else "ws"
    url = f"{scheme}://{endpoint.host}{path}"
    with translated(endpoint.url):
        channel = PodChannel(url, await cluster.headers())
        return await dial(channel, url, endpoint.context, endpoint.server_name)


class PodShell(Shell):
    """See ``Shell``."""

    def __init__(self, channel: PodChannel, *, has_terminal: bool) -> None:
        self._channel = channel
        self._has_terminal = has_terminal
        self._outputs: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._size: tuple[int, int] | None = None
        if has_terminal:
            for after_s in RESIZE_AGAIN_S:
                asyncio.get_running_loop().call_later(after_s, self._resize_again)
        channel.on_stderr = lambda data: self._outputs.put_nowait((2, data))
        channel.start(self)

    def data_received(self, data: bytes) -> None:
        """Of the channel."""
        self._outputs.put_nowait((1, data))

    def connection_lost(self, error: Exception | None) -> None:
        """Of the channel."""
        self._outputs.put_nowait((1, b""))

    async def read(self) -> tuple[int, bytes]:
        return await self._outputs.get()

    async def write(self, data: bytes) -> None:
        if data:
            self._channel.write(data)
        elif not self._channel.end_input() and self._has_terminal:
            self._channel.write(END_KEY)

    async def resize(self, rows: int, columns: int) -> None:
        self._size = (rows, columns)
        self._channel.resize(rows, columns)

    def _resize_again(self) -> None:
        if self._size is not None:
            self._channel.resize(*self._size)

    async def exit_code(self) -> int | None:
        return exit_code_of(self._channel.status)

    async def close(self) -> None:
        self._channel.abort()


def exit_code_of(status: bytes) -> int | None:
    """The code in how an exec says that it ended; None: it did not say, which is never success."""
    try:
        said: Any = json.loads(status)
        if said["status"] == "Success":
            return 0
        causes = (said.get("details") or {}).get("causes") or ()
        return next(int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode")
    except (ValueError, KeyError, TypeError, StopIteration):
        return None


async def log_in(cluster: Cluster, pod: str, login: Login) -> PodShell:
    """Start a program beside the runner. Raises SandboxLostError, SubstrateError."""
    has_terminal = login.terminal is not None
    command = login.command
    if login.user is not None:
        command = [login.shell, "-c", BECOME, login.shell, login.user, f"exec {shlex.join(command)}"]
    if login.env:
        assignments = [f"{name}={value}" for name, value in login.env.items()]
        command = [login.shell, "-c", SET_VARIABLES, "sh", *assignments, "--", *command]
    streams = {"stdin": True, "stdout": True, "stderr": not has_terminal, "tty": has_terminal}
    try:
        channel = await _open(cluster, pod, "exec", streams, command)
    except SubstrateError as error:
        if error.facts.get("status") == 404:
            raise SandboxLostError("the pod is gone", id=pod) from error
        raise
    shell = PodShell(channel, has_terminal=has_terminal)
    if login.terminal is not None:
        await shell.resize(*login.terminal)
    return shell
