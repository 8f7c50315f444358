"""One local sandbox of this process: its folder, its process and our end of its stream, from half-made to gone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import select
import socket
import subprocess
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates import SandboxSpec
from rayroll.substrates import _door as door
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._bwrap import Bubblewrap
from rayroll.substrates._cgroup import Cgroups, Limits
from rayroll.substrates._ground import Site
from rayroll.substrates._leftovers import Remains
from rayroll.substrates._spawn import as_user, spawn
from rayroll.substrates._stream import StreamChannel, channel_over
from rayroll.substrates._system import System

__all__ = ["RUNNER", "Box"]

T = TypeVar("T")

RUNNER = "/.rayroll/runner"
"""Where the runner is in a sandbox."""
RUNNER_LOG = "stderr"


class Box:
    """A sandbox and everything that must be freed with it.

    Threads go on when the coroutine that waits for them is cancelled, so whatever makes something is remembered
    (``_pending``), and cleaning up waits for it first.
    """

    def __init__(self, remains: Remains, site: Site, threads: Executor, uid: int, cgroups: Cgroups | None) -> None:
        if cgroups is not None:
            remains = replace(remains, cgroups=cgroups.paths(remains.id))
        self.remains = remains
        self.site = site
        self.channel: StreamChannel | None = None
        self.on_end: Callable[[str], None] = lambda cause: None
        """Called once with the cause of death, after everything is freed."""
        self.ended = asyncio.Event()
        """Set right after that."""
        self._threads = threads
        self._uid = uid
        self._cgroups = cgroups
        self._pending: list[asyncio.Future[Any]] = []
        self._sock: socket.socket | None = None
        self._door: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._gate: FileIO | None = None
        self._handle = -1
        self._cleaning: asyncio.Future[None] | None = None
        self._reopening = asyncio.Lock()

    @property
    def folder(self) -> Path:
        """Its place on the node: ``root`` and ``private/*`` for the sandbox, ``state.json`` for whoever cleans up."""
        return Path(self.remains.folder)

    @property
    def has_ended(self) -> bool:
        """Its process is gone, or it is being cleaned up."""
        return self._cleaning is not None or (self._process is not None and self._process.poll() is not None)

    # making it

    async def furnish(self, spec: SandboxSpec, system: System) -> None:
        """Make the folder, what is private in it, and the cgroups."""
        await self._tracked(self._in_thread(self._furnish, spec, system))

    def _furnish(self, spec: SandboxSpec, system: System) -> None:
        self.remains.make_folder()
        if self.remains.isolated:
            self._door = door.listen(self.folder)
        root = self.folder / "root"
        private = [root, *(self.folder / name for name, _ in system.private)]
        for folder in private:
            folder.mkdir(parents=True)
        covered = [target for _, target in system.read_only]
        for path in ("/tmp", "/var/tmp", system.home, system.workdir):
            if not any((path + "/").startswith(target + "/") for target in covered):
                inside = root / path.lstrip("/")
                inside.mkdir(parents=True, exist_ok=True)
                inside.chmod(0o1777 if path.endswith("/tmp") else 0o755)
        for path, content in system.files.items():
            inside = root / path.lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.write_bytes(content)
        is_given = self.remains.isolated and os.geteuid() == 0
        if is_given:
            _give(private, self._uid)
        if system.seed is not None:
            system.seed(self.folder)
            if is_given and system.name == "host":  # what an image has belongs to the sandbox's user in the cache
                _give(private, self._uid)
        if self._cgroups is not None:
            self._cgroups.create(self.remains.id, Limits(spec.memory_mib, spec.pids, spec.cpus))

    async def start(
        self,
        bubblewrap: Bubblewrap,
        system: System,
        runner: Path,
        serve: list[str],
        env: Mapping[str, str],
        network: bool,
    ) -> None:
        """Start the runner as PID 1 of its own namespaces, inside its limits before it does anything.

        It dies with this process until it has begun to serve, and outlives it by its lease from there on.

        Args:
            bubblewrap: The one to use.
            system: What ``furnish`` was given.
            runner: The program on the node.
            serve: Its arguments.
            env: Its whole environment.
            network: Share the node's network.

        Raises:
            SubstrateError: bubblewrap ended before it started anything; says what it printed.
        """
        assert self._door is not None
        info_end, info_fd = os.pipe()
        block_fd, block_end = os.pipe()
        door_fd = self._door.detach()
        # Kept for cleaning up after a failure: closing it would let a half-started one go on and become the runner.
        self._gate = FileIO(block_end, "w")
        argv = bubblewrap.argv(
            system,
            self.folder,
            (runner, RUNNER),
            [RUNNER, *serve, "--socket-fd", str(door_fd)],
            env,
            network=network,
            info_fd=info_fd,
            block_fd=block_fd,
        )
        argv, identity = as_user(self._uid, argv)
        with FileIO(info_end) as info:
            fds = (info_fd, block_fd, door_fd, *self.site.dup_locks())
            await self._spawn(argv, fds, cwd="/", env={}, **identity)
            pid = _child_pid(await _read_to_end(info))
        if pid is None:
            raise SubstrateError("bubblewrap did not start", reason=await self._in_thread(self._last_words))
        await self._tracked(self._in_thread(self._register, pid))
        self._gate.write(b"\n")
        self._gate.close()

    async def start_plain(self, system: System, runner: Path, serve: list[str], env: Mapping[str, str]) -> None:
        """Start the runner as a plain process of this node."""
        root = self.folder / "root"
        own = {"HOME": str(root / system.home.lstrip("/")), "TMPDIR": str(root / "tmp")}
        workdir = root / system.workdir.lstrip("/")
        process = await self._spawn([str(runner), *serve], (), cwd=workdir, env={**env, **own})
        await self._in_thread(self._register, process.pid)

    def _register(self, pid: int) -> None:
        if self._cgroups is not None:
            self._cgroups.enter(self.remains.id, pid)
        self.remains = self.remains.with_process(pid)
        self.remains.write()

    async def _spawn(self, argv: list[str], fds: tuple[int, ...], **popen: Any) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair()
        self._sock = ours
        process = await self._launch(argv, fds, theirs, stdin=theirs, stdout=theirs, **popen)
        self.channel = await channel_over(ours.dup())
        return process

    async def _launch(
        self, argv: list[str], fds: tuple[int, ...], *theirs: socket.socket, **popen: Any
    ) -> subprocess.Popen[bytes]:
        """Start its process, which gets ``fds`` and, as Popen's arguments say, ``theirs``: both are closed here."""

        async def start() -> subprocess.Popen[bytes]:
            try:
                with contextlib.ExitStack() as stack:
                    for end in theirs:
                        stack.enter_context(end)
                    log = stack.enter_context(await self._in_thread(self._open_log))
                    self._process = await spawn(
                        argv,
                        pass_fds=fds,
                        start_new_session=True,
                        umask=0o022,
                        **{"stdout": log, "stderr": log, **popen},
                    )
            finally:
                for fd in fds:  # ours, and only now: the thread may start the process after its waiter was cancelled
                    os.close(fd)
            self._handle = os.pidfd_open(self._process.pid)
            asyncio.get_running_loop().add_reader(self._handle, self._on_exit)
            return self._process

        return await self._tracked(start())

    async def take_over(self) -> StreamChannel:
        """Look after what another process has started, which has died. What it held for it, its runner holds.

        Raises:
            SandboxLostError: It has ended.
        """
        try:
            self._handle = os.pidfd_open(self.remains.pid)
        except OSError:
            raise SandboxLostError("the sandbox is gone", id=self.remains.id) from None
        asyncio.get_running_loop().add_reader(self._handle, self._on_exit)
        # Looked at after the handle was opened: its number is not another's by now.
        if await self._in_thread(lambda: self.remains.state) != "running":
            raise SandboxLostError("the sandbox is gone", id=self.remains.id)
        try:
            await self._tracked(self._in_thread(self.remains.write))
        except FileNotFoundError:
            raise SandboxLostError("the sandbox is gone", id=self.remains.id) from None
        return await self.reopen()

    async def reopen(self) -> StreamChannel:
        """Another channel: over the same stream, which is a socket pair whose ends outlive their channels, or where
        that went with a former host, through the door.

        Raises:
            SandboxLostError: It has ended.
        """
        async with self._reopening:  # two readers of one socket would take each other's bytes
            if self.has_ended:
                raise SandboxLostError("the sandbox is gone", id=self.remains.id)
            if self.channel is not None:
                self.channel.abort()
                await self.channel.wait_until_closed()
            try:
                sock = await self._connected()
            except OSError as error:
                raise SandboxLostError("the sandbox is gone", id=self.remains.id) from error
            self.channel = await channel_over(sock)
            return self.channel

    async def _connected(self) -> socket.socket:
        return self._sock.dup() if self._sock is not None else await self._in_thread(door.connect, self.folder)

    def keep(self, until_unix_s: float) -> None:
        """Say to whoever cleans up that it is to be left alone until then. Blocks."""
        self.remains = replace(self.remains, kept_until_unix_s=until_unix_s)
        self.remains.write()

    # ending it

    async def clean(self, cause: str) -> None:
        """End it and free everything, once; later calls wait for the first.

        Raises:
            SubstrateError: Something could not be removed.
        """
        if self._cleaning is None:
            self._cleaning = asyncio.ensure_future(self._clean(cause))
        await asyncio.shield(self._cleaning)

    def abandon(self) -> subprocess.Popen[bytes] | None:
        """Leave it to its lease and to the end of this process; returns what must not be collected before."""
        self._stop_watching()
        self._close_stream()
        return self._process

    def _on_exit(self) -> None:
        """The process ended by itself: its lease lapsed, its memory ran out, or somebody killed it."""
        self._stop_watching()
        cause = "its runner ended"  # with what code, only who started it hears
        if self._process is not None:
            code = self._process.wait()
            cause = f"exit {code if code >= 0 else 128 - code}"
        if self._cleaning is None:
            self._cleaning = asyncio.ensure_future(self._clean(cause))

    async def _clean(self, cause: str) -> None:
        while waiting := [task for task in self._pending if not task.done()]:
            await asyncio.wait(waiting)  # whoever still makes it may begin something more
        for done in self._pending:
            done.cancelled() or done.exception()  # mark as seen
        try:
            cause = await self._in_thread(self._post_mortem, cause)
            if self._process is not None and self.remains.isolated:
                self._process.kill()
                # Gone before anybody looks for what it started, which has no command line while it is being executed.
                await self._in_thread(self._process.wait)
            await self._in_thread(leftovers.remove, self.remains)
        except OSError as error:
            raise SubstrateError("a sandbox could not be removed", id=self.remains.id, reason=str(error)) from error
        finally:
            self._stop_watching()
            if self._process is not None:
                await self._in_thread(self._process.wait)
            self._close_stream()
            await self.site.release()
            self.on_end(cause)
            self.ended.set()

    def _post_mortem(self, cause: str) -> str:
        if self._cgroups is not None and self._cgroups.killed_for_memory(self.remains.id):
            return "oom"
        words = self._last_words()
        return f"{cause}: {words}" if words else cause

    def _stop_watching(self) -> None:
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    def _close_stream(self) -> None:
        if self.channel is not None:
            self.channel.abort()
        if self._sock is not None:
            self._sock.close()
        for end in (self._gate, self._door):
            if end is not None:
                end.close()

    def _open_log(self) -> BinaryIO:
        return (self.folder / RUNNER_LOG).open("wb")

    def _last_words(self) -> str:
        """What bubblewrap or the runner printed before it ended."""
        with contextlib.suppress(OSError):
            return (self.folder / RUNNER_LOG).read_bytes()[-2000:].decode(errors="replace").strip()
        return ""

    # threads

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(function, *args))

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._pending.append(task)
        return await asyncio.shield(task)


def _give(folders: Iterable[Path], uid: int) -> None:
    """Make everything in there belong to the sandbox's user, links themselves instead of what they point to."""
    for folder in folders:
        os.chown(folder, uid, uid)
        for parent, inner, files in os.walk(folder):
            for name in (*inner, *files):
                os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)  # noqa: PTH118 - hot


async def _read_to_end(pipe: FileIO) -> bytes:
    """All that comes. Not by a transport, which closes the pipe: uvloop's by number, which may be another's by then."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    parts: list[bytes] = []

    def take() -> None:
        data = pipe.read(select.PIPE_BUF)
        if data:
            parts.append(data)
        elif data is not None and not ended.done():
            ended.set_result(None)

    os.set_blocking(pipe.fileno(), False)
    loop.add_reader(pipe.fileno(), take)
    try:
        await ended
    finally:
        loop.remove_reader(pipe.fileno())
    return b"".join(parts)


def _child_pid(info: bytes) -> int | None:
    try:
        return int(json.loads(info)["child-pid"])
    except (ValueError, KeyError):
        return None
