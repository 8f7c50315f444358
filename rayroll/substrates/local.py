"""A sandbox as a process on this node, in namespaces made by bubblewrap: the floor for all other substrates."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from io import FileIO, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, TypeVar

from rayroll.errors import ClosedError, ConfigError, DiskFullError, SandboxLostError, StartTimeoutError, SubstrateError
from rayroll.runner.build import runner_path
from rayroll.substrates import Channel, Lease, Probe, Sandbox, SandboxRef, SandboxSpec, Substrate, SubstrateConfig
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates import _pytools as pytools
from rayroll.substrates._bwrap import Bubblewrap, find
from rayroll.substrates._cache import Held, Store, can_reach, user_cache
from rayroll.substrates._cgroup import Cgroups, Limits
from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._leftovers import Remains
from rayroll.substrates._reaping import Watches
from rayroll.substrates._shield import finish
from rayroll.substrates._spawn import spawn
from rayroll.substrates._stream import StreamChannel, channel_over
from rayroll.substrates._system import System, host_system, with_python

__all__ = ["LocalConfig", "LocalSubstrate"]

T = TypeVar("T")

RUNNER = "/.rayroll/runner"
"""Where the runner is in a sandbox."""
THREADS = 8
CAUSES_KEPT = 1000


class LocalConfig(SubstrateConfig):
    """How sandboxes of this node's own kernel are made."""

    isolation: Literal["auto", "bubblewrap", "none"] = "auto"
    """``auto``: bubblewrap; where it does not work, a plain process, but only for rayroll's own scripted policies.
    ``none``: always a plain process without any protection of this node. Say so only for commands you trust."""
    rootfs: Literal["auto", "image", "host"] = "auto"
    """What sandboxes stand on. ``image``: the task's own root filesystem, exported once from a Docker engine.
    ``host``: this node's system, for tasks with ``host_packages``. ``auto``: the image where an engine answers."""
    sandbox_uid: int = 60777
    """The node's user that sandboxes of a root caller run as; other callers run them as themselves."""
    folder: Path | None = None
    """Where private roots live; None: ``rayroll-<uid>`` in the temporary folder."""
    cache_budget_mib: int = 20480
    """Most disk for exported root filesystems and packages; what was used longest ago goes first."""
    pass_env: tuple[str, ...] = ()
    """Names of variables that commands inherit from this process; everything else is cleared."""


@dataclass(slots=True)
class _Box:
    """One sandbox of this process, from its first half-made moment to its end."""

    remains: Remains
    held: list[Held] = field(default_factory=list)
    pending: list[asyncio.Future[Any]] = field(default_factory=list)
    """Work in threads, which goes on when its waiter is cancelled: cleaning up waits for it."""
    sock: socket.socket | None = None
    """Our end, kept for ``reopen``: a channel has a copy, so that closing it does not end the stream."""
    channel: StreamChannel | None = None
    process: subprocess.Popen[bytes] | None = None
    handle: int = -1
    """A pidfd that becomes readable when ``process`` ends."""
    cleaning: asyncio.Future[None] | None = None
    cause: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.remains.folder)


class LocalSubstrate(Substrate):
    """Sandboxes as processes of this node."""

    kind: ClassVar[str] = "local"
    config_type: ClassVar[type[SubstrateConfig]] = LocalConfig

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        self.config: LocalConfig = config
        self._base = config.folder or leftovers.base_dir()
        self._uid = config.sandbox_uid if os.geteuid() == 0 else os.geteuid()
        self._starting = asyncio.Semaphore(config.max_starting)
        self._building: SingleFlight[None] = SingleFlight()
        self._boxes: dict[str, _Box] = {}
        self._watches = Watches()
        self._causes: dict[str, str] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._bubblewrap: Bubblewrap | Probe = Probe(False, "not opened")
        self._cgroups: Cgroups | None = None
        self._runner = Path()
        self._store = Store(Path(), 0)

    # life of the substrate

    async def open(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rayroll-local")
        await self._in_thread(self._prepare)

    def _prepare(self) -> None:
        leftovers.make_base(self._base)
        cache = user_cache(self._uid)
        self._store = Store(cache / "local", self.config.cache_budget_mib << 20)
        self._runner = _reachable_runner(self._base)
        if self.config.isolation != "none":
            self._bubblewrap = find(self._uid)
        self._cgroups = Cgroups.detect() if os.geteuid() == 0 else None

    async def close(self) -> None:
        if self._threads is None:
            return
        for box in list(self._boxes.values()):
            if box.cleaning is not None:
                await asyncio.wait({box.cleaning})
        if not self._boxes:
            await self._watches.lift()
        for box in self._boxes.values():
            self._let_go(box)
        self._boxes.clear()
        threads, self._threads = self._threads, None
        await asyncio.to_thread(threads.shutdown)

    def _let_go(self, box: _Box) -> None:
        """Leave a living sandbox to its lease and to the end of this process."""
        self._stop_watching(box)
        if box.channel is not None:
            box.channel.abort()
        if box.sock is not None:
            box.sock.close()
        if box.process is not None:
            _abandoned.append(box.process)

    async def probe(self) -> Probe:
        if self.config.isolation == "none":
            return Probe(True, facts={"isolation": "none", "kernel": platform.release()})
        found = await asyncio.to_thread(find, self._uid)
        if isinstance(found, Probe):
            return found
        cgroups = await asyncio.to_thread(Cgroups.detect) if os.geteuid() == 0 else None
        return Probe(
            True,
            facts={
                "isolation": "bubblewrap",
                "bubblewrap": found.version,
                "kernel": platform.release(),
                "limits": f"cgroup v{cgroups.version}" if cgroups else "rlimits",
                "uid": str(self._uid),
            },
        )

    # life of a sandbox

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        if self._threads is None:
            raise ClosedError("the local substrate is not open")
        bubblewrap = self._isolation_for(spec)
        box = self._new_box(lease, isolated=bubblewrap is not None)
        phases_s: dict[str, float] = {}
        try:
            await self._watches.cover(
                f"local {self._base} {lease.run_id} {lease.owner}",
                {
                    "sweep": "local",
                    "base": str(self._base),
                    "run": lease.run_id,
                    "owner": lease.owner,
                    "lease_s": lease.duration_s,
                },
            )
            system = await self._stand_on(spec, box, phases_s)
            async with self._starting:
                async with asyncio.timeout(self.config.create_timeout_s):
                    await self._start(box, spec, lease, system, bubblewrap, phases_s)
        except BaseException as error:
            await finish(self._clean(box, "never started"))
            typed = _typed(error, self.config.create_timeout_s)
            if typed is error:
                raise
            raise typed from error
        assert box.channel is not None
        return Sandbox(
            SandboxRef(self.kind, box.remains.id, lease.run_id, lease.owner, lease_s=lease.duration_s),
            box.channel,
            "cached",
            phases_s,
            system.name,
            facts={"isolation": "bubblewrap" if bubblewrap else "none", "pid": str(box.remains.pid)},
            root="/" if bubblewrap else str(box.folder / "root"),
        )

    def _isolation_for(self, spec: SandboxSpec) -> Bubblewrap | None:
        """What holds a sandbox of this spec; None: a plain process, and that was allowed."""
        if isinstance(self._bubblewrap, Bubblewrap):
            return self._bubblewrap
        if self.config.isolation == "none" or (self.config.isolation == "auto" and spec.trusted):
            return None
        raise SubstrateError(
            f"{self._bubblewrap.reason}, and without it only rayroll's own scripted policies may run; to run other "
            "commands without protection of this node, set isolation='none'",
            fix=self._bubblewrap.fix,
        )

    def _new_box(self, lease: Lease, *, isolated: bool) -> _Box:
        name = secrets.token_hex(8)
        remains = Remains(
            id=name,
            run_id=lease.run_id,
            owner=lease.owner,
            lease_s=lease.duration_s,
            created_unix_s=time.time(),
            host_pid=os.getpid(),
            host_started_at=leftovers.started_at(os.getpid()) or 0,
            isolated=isolated,
            folder=str(self._base / name),
        )
        box = self._boxes[name] = _Box(remains)
        return box

    async def _stand_on(self, spec: SandboxSpec, box: _Box, phases_s: dict[str, float]) -> System:
        """The system for this spec, with what it needs from the cache made and held."""
        if spec.image is not None:
            raise ConfigError("local sandboxes cannot use an image yet", image=spec.image)
        system = await self._in_thread(host_system, spec, reader_uid=self._uid)
        if spec.host_packages is None:
            return system
        if not box.remains.isolated:
            return replace(system, env={**system.env, "PATH": f"{Path(sys.executable).parent}:{system.env['PATH']}"})
        start_s = time.monotonic()
        build = functools.partial(pytools.build, requirements=spec.host_packages)
        environment = await self._hold(box, pytools.name_of(spec.host_packages), build)
        prefix = pytools.PREFIX
        if not await self._in_thread(can_reach, prefix, self._uid):
            prefix = await self._hold(box, pytools.name_of(("prefix",)), pytools.copy_prefix)
        phases_s["build"] = time.monotonic() - start_s
        return with_python(system, environment, prefix)

    async def _hold(self, box: _Box, name: str, build: Callable[[Path], None]) -> Path:
        """An entry of the cache, kept from being evicted for as long as the sandbox lives."""

        async def make() -> None:
            (await self._in_thread(self._store.hold, name, build)).release()

        # One thread builds and the others wait here, or they would all sit in the file lock and nothing else could run.
        await self._building(name, make)
        taking = asyncio.ensure_future(self._in_thread(self._store.hold, name, build))
        box.pending.append(taking)
        held = await asyncio.shield(taking)
        return held.path

    async def _start(
        self,
        box: _Box,
        spec: SandboxSpec,
        lease: Lease,
        system: System,
        bubblewrap: Bubblewrap | None,
        phases_s: dict[str, float],
    ) -> None:
        start_s = time.monotonic()
        await self._tracked(box, self._in_thread(self._furnish, box, spec, system))
        created_s = time.monotonic()
        ours, theirs = socket.socketpair()
        box.sock = ours
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            log = stack.enter_context(contextlib.closing(await self._in_thread(_open_log, box.folder)))
            streams = {"stdin": theirs, "stdout": theirs, "stderr": log, "start_new_session": True, "umask": 0o022}
            if bubblewrap is None:
                await self._start_plain(box, spec, lease, system, streams)
            else:
                await self._start_isolated(box, spec, lease, system, bubblewrap, streams)
        box.channel = await channel_over(ours.dup())
        phases_s["create"] = created_s - start_s
        phases_s["boot"] = time.monotonic() - created_s

    def _furnish(self, box: _Box, spec: SandboxSpec, system: System) -> None:
        """Make the folder, the private root and the cgroups. Blocks."""
        box.folder.mkdir(mode=0o711)
        box.remains.write()
        root = box.folder / "root"
        root.mkdir()
        for folder in (system.home, "/tmp", "/var/tmp", *(f"/{name}" for name, _ in system.private)):
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for path, content in system.files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        if system.seed is not None:
            system.seed(root)
        if not any((system.workdir + "/").startswith(target + "/") for _, target in system.read_only):
            (root / system.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        if box.remains.isolated and os.geteuid() == 0:
            _give(root, self._uid)
        if box.remains.isolated and self._cgroups is not None:
            made = self._cgroups.create(box.remains.id, Limits(spec.memory_mib, spec.pids, spec.cpus))
            box.remains = replace(box.remains, cgroups=made)
            box.remains.write()

    async def _start_isolated(
        self,
        box: _Box,
        spec: SandboxSpec,
        lease: Lease,
        system: System,
        bubblewrap: Bubblewrap,
        streams: dict[str, Any],
    ) -> None:
        info_end, info_fd = os.pipe()
        block_fd, block_end = os.pipe()
        with contextlib.ExitStack() as stack:
            info = stack.enter_context(FileIO(info_end))
            gate = stack.enter_context(FileIO(block_end, "w"))
            inherited = stack.enter_context(contextlib.ExitStack())
            for fd in (info_fd, block_fd):
                inherited.callback(os.close, fd)
            argv = bubblewrap.argv(
                system,
                box.folder / "root",
                (self._runner, RUNNER),
                _serve(RUNNER, spec, lease, has_cgroup=bool(box.remains.cgroups)),
                self._env(spec, system),
                network=spec.network,
                info_fd=info_fd,
                block_fd=block_fd,
            )
            as_user = {"user": self._uid, "group": self._uid, "extra_groups": []} if os.geteuid() == 0 else {}
            await self._spawn(box, argv, pass_fds=(info_fd, block_fd), cwd="/", env={}, **streams, **as_user)
            inherited.close()
            pid = _child_pid(await _read_to_end(info))
            if pid is None:
                raise SubstrateError("bubblewrap did not start", reason=await self._in_thread(_last_words, box.folder))
            await self._in_thread(self._register, box, pid)
            gate.write(b"\n")

    def _register(self, box: _Box, pid: int) -> None:
        """Put the blocked PID 1 where its limits are, and on record, before it does anything. Blocks."""
        Cgroups.enter(box.remains.cgroups, pid)
        box.remains = box.remains.with_process(pid)
        box.remains.write()

    async def _start_plain(
        self, box: _Box, spec: SandboxSpec, lease: Lease, system: System, streams: dict[str, Any]
    ) -> None:
        root = box.folder / "root"
        env = {**self._env(spec, system), "HOME": str(root / system.home.lstrip("/")), "TMPDIR": str(root / "tmp")}
        argv = _serve(str(self._runner), spec, lease, has_cgroup=True)
        process = await self._spawn(box, argv, cwd=root / system.workdir.lstrip("/"), env=env, **streams)
        await self._in_thread(self._register, box, process.pid)

    async def _spawn(self, box: _Box, argv: list[str], **popen: Any) -> subprocess.Popen[bytes]:
        async def start() -> subprocess.Popen[bytes]:
            process = box.process = await spawn(argv, **popen)
            box.handle = os.pidfd_open(process.pid)
            asyncio.get_running_loop().add_reader(box.handle, self._on_exit, box)
            return process

        return await self._tracked(box, start())

    def _env(self, spec: SandboxSpec, system: System) -> dict[str, str]:
        passed = {name: os.environ[name] for name in self.config.pass_env if name in os.environ}
        return {**system.env, **passed, **spec.env}

    async def reopen(self, ref: SandboxRef) -> Channel:
        box = self._boxes.get(ref.id)
        if box is None or box.sock is None or box.cleaning is not None:
            raise SandboxLostError("the sandbox is gone", id=ref.id, cause=await self.cause_of_death(ref))
        if box.channel is not None:
            box.channel.abort()
            await box.channel.wait_until_closed()
        box.channel = await channel_over(box.sock.dup())
        return box.channel

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        return await self._in_thread(_refs, self._base, labels)

    async def destroy(self, ref: SandboxRef) -> None:
        box = self._boxes.get(ref.id)
        if box is not None:
            await finish(self._clean(box, "destroyed"))
            return
        for remains in await self._in_thread(lambda: list(leftovers.find(self._base, {}))):
            if remains.id == ref.id:
                await finish(self._remove(remains))

    async def cause_of_death(self, ref: SandboxRef) -> str:
        return self._causes.get(ref.id, "")

    # the end of a sandbox

    def _on_exit(self, box: _Box) -> None:
        """The process ended by itself: its lease lapsed, its memory ran out, or somebody killed it."""
        self._stop_watching(box)
        assert box.process is not None
        code = box.process.wait()
        if box.cleaning is None:
            box.cleaning = asyncio.ensure_future(self._clean_up(box, f"exit {code if code >= 0 else 128 - code}"))

    def _stop_watching(self, box: _Box) -> None:
        if box.handle >= 0:
            asyncio.get_running_loop().remove_reader(box.handle)
            os.close(box.handle)
            box.handle = -1

    async def _clean(self, box: _Box, cause: str) -> None:
        if box.cleaning is None:
            box.cleaning = asyncio.ensure_future(self._clean_up(box, cause))
        await asyncio.shield(box.cleaning)

    async def _clean_up(self, box: _Box, cause: str) -> None:
        if box.pending:
            await asyncio.wait(box.pending)
        for future in box.pending:
            if not future.cancelled() and future.exception() is None and isinstance(future.result(), Held):
                box.held.append(future.result())
        try:
            cause = await self._in_thread(self._post_mortem, box, cause)
            if box.process is not None and box.remains.isolated:
                box.process.kill()
            await self._remove(box.remains)
        finally:
            self._stop_watching(box)
            if box.process is not None:
                await self._in_thread(box.process.wait)
            if box.channel is not None:
                box.channel.abort()
            if box.sock is not None:
                box.sock.close()
            for held in box.held:
                held.release()
            self._boxes.pop(box.remains.id, None)
            self._causes[box.remains.id] = cause
            while len(self._causes) > CAUSES_KEPT:
                del self._causes[next(iter(self._causes))]

    @staticmethod
    def _post_mortem(box: _Box, cause: str) -> str:
        if Cgroups.killed_for_memory(box.remains.cgroups):
            return "oom"
        words = _last_words(box.folder)
        return f"{cause}: {words}" if words else cause

    async def _remove(self, remains: Remains) -> None:
        try:
            await self._in_thread(leftovers.remove, remains)
        except OSError as error:
            raise SubstrateError("a sandbox could not be removed", id=remains.id, reason=str(error)) from error

    # threads

    async def _in_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _tracked(self, box: _Box, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work which cleaning up must wait for, too, if this waiter is cancelled."""
        task = asyncio.ensure_future(work)
        box.pending.append(task)
        return await asyncio.shield(task)


_abandoned: list[subprocess.Popen[bytes]] = []
"""Processes of closed substrates: collected, they would warn that they still run."""


def _refs(base: Path, labels: Mapping[str, str]) -> list[SandboxRef]:
    now_unix_s = time.time()
    return [
        SandboxRef("local", r.id, r.run_id, r.owner, r.state, now_unix_s - r.created_unix_s, r.lease_s)
        for r in leftovers.find(base, labels)
    ]


def _serve(runner: str, spec: SandboxSpec, lease: Lease, *, has_cgroup: bool) -> list[str]:
    """The runner's command line."""
    limits = {"fsize": spec.disk_mib << 20, "core": 0}
    if not has_cgroup:
        limits["nproc"] = spec.pids
    argv = [runner, "serve", "--lease-ms", str(round(lease.duration_s * 1000))]
    for name, value in limits.items():
        argv += ["--rlimit", f"{name}={value}"]
    return argv


def _reachable_runner(base: Path) -> Path:
    """The runner where every user can execute it: root's cache is closed to others. Blocks."""
    built = runner_path()
    copy = base / ".bin" / built.name
    if not copy.exists():
        copy.parent.mkdir(mode=0o755, exist_ok=True)
        half = copy.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, half)
        half.chmod(0o755)
        half.replace(copy)
    return copy


def _give(root: Path, uid: int) -> None:
    """Make everything below ``root`` belong to the sandbox's user, links themselves instead of what they point to."""
    os.chown(root, uid, uid)
    for parent, folders, files in os.walk(root):
        for name in (*folders, *files):
            os.chown(os.path.join(parent, name), uid, uid, follow_symlinks=False)  # noqa: PTH118 - hot


def _open_log(folder: Path) -> BinaryIO:
    return (folder / "stderr").open("wb")


def _last_words(folder: Path) -> str:
    """What bubblewrap or the runner printed before it ended."""
    with contextlib.suppress(OSError):
        return (folder / "stderr").read_bytes()[-2000:].decode(errors="replace").strip()
    return ""


async def _read_to_end(pipe: RawIOBase) -> bytes:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _child_pid(info: bytes) -> int | None:
    try:
        return int(json.loads(info)["child-pid"])
    except (ValueError, KeyError):
        return None


def _typed(error: BaseException, create_timeout_s: float) -> BaseException:
    """What a failed create raises: rayroll's own errors and cancellations as they are."""
    if isinstance(error, TimeoutError):
        return StartTimeoutError("the sandbox was not started in time", create_timeout_s=create_timeout_s)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError("no space left for local sandboxes; free some, or set folder to another disk")
        return SubstrateError("the sandbox could not be made", reason=str(error))
    return error
