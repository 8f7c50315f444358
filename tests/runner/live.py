"""A real runner in namespaces of its own, with a client or with somebody who sends whatever bytes they like."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayroll.runner.build import runner_path
from rayroll.runner.client import RunnerClient
from rayroll.runner.protocol import (
    KEY_BYTES,
    VERSION,
    Frame,
    FrameType,
    Parser,
    Tag,
    decode_fields,
    encode_fields,
    encode_frame,
)
from rayroll.types import ExecResult

SHELLS = ("bash", "dash", "busybox")
RUNNER = "/.rayroll/runner"
LOGS = "/.rayroll/logs"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
GROUP = "root:x:0:\nagent:x:1000:\nextra:x:2000:agent\nnogroup:x:65534:\n"


def why_no_namespaces() -> str | None:
    """What is missing for sandboxes here; None: nothing."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; apt-get install bubblewrap"
    tried = subprocess.run([*namespaces(Path("/usr")), "/usr/bin/true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"bubblewrap cannot make namespaces: {tried.stderr.strip()}"


def namespaces(usr: Path) -> list[str]:
    """Bubblewrap, with the node's programs and nothing else of it."""
    argv = ["bwrap", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--as-pid-1", "--ro-bind", str(usr), "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            argv += ["--symlink", f"usr/{name}", f"/{name}"]
        elif Path("/", name).is_dir():
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*argv, "--proc", "/proc", "--dev", "/dev", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]


def only(shell: str) -> list[str]:
    """Arguments of bubblewrap that leave one shell to be found."""
    hidden = ["--ro-bind", "/dev/null", "/usr/bin/bash"]
    if shell == "bash":
        return []
    return hidden if shell == "dash" else [*hidden, "--ro-bind", str(shutil.which("busybox")), "/usr/bin/dash"]


async def until(claim: Callable[[], bool]) -> None:
    """Returns when it has become true; what it is about sends no event."""
    while not claim():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def children(pid: int) -> list[int]:
    """Its child processes."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Pipe(asyncio.Protocol):
    """One end of a socket as the client's stream; it can be cut, stopped and slowed down."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received_bytes = 0
        self._cut_at: int | None = None
        self._receiver: Any = None
        self._early: list[bytes] = []
        self._over: list[Exception | None] = []

    @classmethod
    async def over(cls, sock: socket.socket) -> Pipe:
        _, pipe = await asyncio.get_running_loop().create_connection(cls, sock=sock)
        return pipe

    # the client's side

    def start(self, receiver: Any) -> None:
        self._receiver = receiver
        for data in self._early:
            receiver.data_received(data)
        for error in self._over:
            receiver.connection_lost(error)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    # what goes wrong

    def cut(self) -> None:
        """Break it, without a word."""
        self.transport.abort()

    def cut_after(self, n_bytes: int) -> None:
        """Break it when so many more have come."""
        self._cut_at = self.received_bytes + n_bytes

    def stop(self) -> None:
        """Take nothing any more."""
        self.transport.pause_reading()

    def go_on(self) -> None:
        self.transport.resume_reading()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._cut_at is not None and self.received_bytes + len(data) >= self._cut_at:
            data = data[: self._cut_at - self.received_bytes]
            self.transport.abort()
        self.received_bytes += len(data)
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._receiver is None:
            self._over.append(error)
        else:
            self._receiver.connection_lost(error)


@dataclass
class Peer:
    """Somebody who speaks frames by hand."""

    pipe: Pipe
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    epoch: int = 0
    frames: deque[Frame] = field(default_factory=deque)
    ended: bool = False
    raw: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._parser: Parser | None = None
        self._nonce = b""
        self._changed = asyncio.Event()
        self.pipe.start(self)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.raw += data
            at = self.raw.find(self._nonce) if self._nonce else -1
            if at < 0:
                self._changed.set()
                return
            data = bytes(self.raw[at + KEY_BYTES :])
            self.raw.clear()
            self._parser = Parser()
        self.frames.extend(self._parser.feed(data))
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        self._changed.set()

    def send(
        self, type: int, id: int = 0, fields: Mapping[int, int | bytes] | bytes = b"", epoch: int | None = None
    ) -> None:
        payload = fields if isinstance(fields, bytes) else encode_fields(fields)
        self.pipe.write(encode_frame(type, self.epoch if epoch is None else epoch, id, payload))

    def say_hello(self, *, epoch: int | None = None, ids: Sequence[int] = (), **more: int) -> None:
        """Key and hello; the nonce in the answer is skipped to."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self._nonce = secrets.token_bytes(KEY_BYTES)
        self._parser = None
        self.raw.clear()
        fields: dict[int, int | bytes] = {
            Tag.NONCE: self._nonce,
            Tag.VERSION_MIN: more.get("version_min", VERSION),
            Tag.VERSION_MAX: more.get("version_max", VERSION),
            Tag.LEASE_MS: more.get("lease_ms", 30_000),
            Tag.IDS: b"".join(i.to_bytes(4, "little") for i in ids),
        }
        self.pipe.write(self.key)
        self.send(FrameType.HELLO, 0, fields)

    async def hello(self, **options: Any) -> dict[int, bytes]:
        """Say it and read the answer's fields."""
        self.say_hello(**options)
        return decode_fields((await self.frame(FrameType.HELLO_OK)).payload)

    async def frame(self, *types: int) -> Frame:
        """The next frame of these types (all: any), others dropped."""
        while True:
            while self.frames:
                frame = self.frames.popleft()
                if not types or frame.type in types:
                    return frame
            if self.ended:
                raise EOFError("the stream ended")
            self._changed.clear()
            await self._changed.wait()

    async def fields(self, *types: int) -> dict[int, bytes]:
        return decode_fields((await self.frame(*types)).payload)

    async def until_ended(self) -> None:
        while not self.ended:
            self._changed.clear()
            await self._changed.wait()


@dataclass
class Box:
    """A runner that was started, and what is its own."""

    process: asyncio.subprocess.Process
    pipe: Pipe
    folder: Path
    """The sandbox's /tmp, from outside."""
    etc: Path
    argv: list[str]
    client: RunnerClient = field(init=False)

    @property
    def pid(self) -> int:
        """The runner's process, as this side numbers it."""
        return (children(self.process.pid) or [self.process.pid])[0]

    async def sh(self, script: str | bytes, *, timeout_s: float | None = 20.0, **options: Any) -> ExecResult:
        return await self.client.exec(script, timeout_s=timeout_s, **options)

    async def running(self, mark: str) -> int:
        """Processes with that mark in their command line, as the node sees them: no program inside is asked."""
        await asyncio.sleep(0.01)  # whoever waits for it asks again and again
        return _with_mark(mark.encode())

    def descriptors(self) -> list[str]:
        """What the runner has open. It hides that from everybody but root."""
        links = []
        for each in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                links.append(str(each.readlink()))
        return sorted(links)

    def resident_kib(self) -> int:
        """Its memory; 0 under the sanitizers, whose shadow says nothing about the runner."""
        if "RAYROLL_SANITIZED_RUNNER" in os.environ:
            return 0
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

    async def connect(self) -> Pipe:
        """A new stream through `runner connect`, as a carrier that starts a process for each stream makes it."""
        ours, theirs = socket.socketpair()
        with theirs:
            relay = await asyncio.create_subprocess_exec(
                binary(), "connect", self.folder / "socket", stdin=theirs, stdout=theirs
            )
        self._relays.append(relay)
        return await Pipe.over(ours)

    def __post_init__(self) -> None:
        self._relays: list[asyncio.subprocess.Process] = []


@functools.cache
def binary() -> Path:
    """The runner under test: the sanitized one where ``RAYROLL_SANITIZED_RUNNER`` names it."""
    given = os.environ.get("RAYROLL_SANITIZED_RUNNER")
    return Path(given) if given else runner_path()


def _with_mark(mark: bytes) -> int:
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += mark in (process / "cmdline").read_bytes()
    return found


def _own_folders(parent: Path) -> tuple[Path, Path]:
    """Its /tmp and its /etc."""
    folder, etc = parent / "tmp", parent / "etc"
    folder.mkdir()
    folder.chmod(0o1777)
    etc.mkdir()
    parent.chmod(0o755)
    (etc / "passwd").write_text(PASSWD)
    (etc / "group").write_text(GROUP)
    return folder, etc


@contextlib.asynccontextmanager
async def started(
    *args: str,
    shell: str = "bash",
    word: str = "serve",
    env: Mapping[str, str] | None = None,
    bwrap: Sequence[str] = (),
    runner: Path | None = None,
) -> AsyncIterator[Box]:
    """A runner as PID 1 of a new sandbox; it is gone afterwards, whatever happened in between."""
    with tempfile.TemporaryDirectory(prefix="rr-") as temporary:
        folder, etc = _own_folders(Path(temporary))
        argv = [*namespaces(Path("/usr")), *only(shell), "--bind", str(folder), "/tmp", "--bind", str(etc), "/etc"]
        argv += ["--ro-bind", str(runner or binary()), RUNNER]
        for name, value in {**sanitizer_options(), **(env or {})}.items():
            argv += ["--setenv", name, value]
        if sanitizer_options():
            argv += ["--bind", os.environ["RAYROLL_SANITIZER_LOGS"], LOGS]
        argv += [*bwrap, "--", RUNNER, word, *args]
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(*argv, stdin=theirs, stdout=theirs)
        box = Box(process, await Pipe.over(ours), folder, etc, argv)
        try:
            if "--socket" in args:
                await until(lambda: (folder / "socket").exists() or process.returncode is not None)
            yield box
        finally:
            box.pipe.cut()
            for each in (process, *box._relays):
                with contextlib.suppress(ProcessLookupError):
                    each.send_signal(signal.SIGKILL)
                await each.wait()


@contextlib.asynccontextmanager
async def sandbox(
    *args: str, lease_s: float = 30.0, reopen: Callable[[], Awaitable[Any]] | None = None, **options: Any
) -> AsyncIterator[Box]:
    """The same with a client that has been greeted."""
    async with started(*args, **options) as box:
        box.client = await RunnerClient.connect(box.pipe, lease_s=lease_s, reopen=reopen)
        try:
            yield box
        finally:
            await box.client.close()


@contextlib.asynccontextmanager
async def peer(*args: str, **options: Any) -> AsyncIterator[Peer]:
    """The same with somebody who speaks by hand, and has not said hello."""
    async with started(*args, **options) as box:
        someone = Peer(box.pipe)
        someone.box = box  # type: ignore[attr-defined]
        yield someone


def sanitizer_options() -> dict[str, str]:
    """What a sanitized runner needs in its environment."""
    if "RAYROLL_SANITIZER_LOGS" not in os.environ:
        return {}
    common = f"log_path={LOGS}/report:exitcode=99"
    return {"ASAN_OPTIONS": f"{common}:detect_leaks=0", "UBSAN_OPTIONS": f"{common}:print_stacktrace=1"}


def facts(line: bytes) -> Any:
    """One line of JSON."""
    return json.loads(line)
