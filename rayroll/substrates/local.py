"""A sandbox as a process on this node, in namespaces made by bubblewrap: the floor for all other substrates."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import platform
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rayroll.errors import ClosedError, ConfigError, DiskFullError, SandboxLostError, StartTimeoutError, SubstrateError
from rayroll.runner.build import runner_path
from rayroll.substrates import (
    Channel,
    Lease,
    Login,
    Probe,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Shell,
    Substrate,
    SubstrateConfig,
)
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._box import Box
from rayroll.substrates._boxes import Boxes
from rayroll.substrates._bwrap import Bubblewrap, find
from rayroll.substrates._cache import Store, can_reach, user_cache
from rayroll.substrates._cgroup import Cgroups
from rayroll.substrates._ground import Ground, Site
from rayroll.substrates._leftovers import Remains
from rayroll.substrates._local_shell import way_in
from rayroll.substrates._process_shell import start_shell
from rayroll.substrates._reaping import Watches
from rayroll.substrates._rootfs import Exporter
from rayroll.substrates._shield import finish
from rayroll.substrates._system import System

__all__ = ["LocalConfig", "LocalSubstrate"]

THREADS = 8


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
    engine: str | None = None
    """The Docker engine that root filesystems come from; as ``host`` of docker: None is DOCKER_HOST or the usual."""
    mirror: str | None = None
    """Registry that Docker Hub's images are pulled from."""
    pass_env: tuple[str, ...] = ()
    """Names of variables that commands inherit from this process; everything else is cleared."""


class LocalSubstrate(Substrate):
    """Sandboxes as processes of this node."""

    kind: ClassVar[str] = "local"
    config_type: ClassVar[type[SubstrateConfig]] = LocalConfig

    def __init__(self, config: LocalConfig) -> None:
        super().__init__(config)
        self.config: LocalConfig = config
        self._uid = config.sandbox_uid if os.geteuid() == 0 else os.geteuid()
        self._starting = asyncio.Semaphore(config.max_starting)
        self._watches = Watches()
        self._node: _Node | None = None

    # life of the substrate

    async def open(self) -> None:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rayroll-local")
        try:
            self._node = await asyncio.get_running_loop().run_in_executor(threads, self._look_around, threads)
        except BaseException:
            threads.shutdown(wait=False)
            raise

    def _look_around(self, threads: ThreadPoolExecutor) -> _Node:
        base = self.config.folder or leftovers.base_dir()
        leftovers.make_base(base)
        if not can_reach(base, self._uid):
            raise ConfigError(
                "the folder of local sandboxes cannot be reached by the user they run as; choose another, or let "
                "others pass through (chmod o+x) those above it",
                folder=str(base),
                uid=self._uid,
            )
        store = Store(user_cache(self._uid) / "local", self.config.cache_budget_mib << 20, self._uid)
        exporter = Exporter(store.folder, self.config.engine, self.config.mirror)
        cgroups = Cgroups.detect() if os.geteuid() == 0 else None

        def make(remains: Remains, site: Site) -> Box:
            return Box(remains, site, threads, self._uid, cgroups if remains.isolated else None)

        return _Node(
            boxes=Boxes(self.kind, base, self._watches, make),
            threads=threads,
            bubblewrap=Probe(False, "isolation is off") if self.config.isolation == "none" else find(self._uid),
            cgroups=cgroups,
            ground=Ground(self.config.rootfs, store, exporter, threads, self._uid),
            runner=_reachable_runner(base),
        )

    def _opened(self) -> _Node:
        if self._node is None:
            raise ClosedError("the local substrate is not open")
        return self._node

    async def close(self) -> None:
        if self._node is None:
            return
        node, self._node = self._node, None
        await node.boxes.close()
        await node.ground.close()
        await asyncio.to_thread(node.threads.shutdown)

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
        node = self._opened()
        bubblewrap = self._isolation_for(spec, node)
        box = node.boxes.new(lease, isolated=bubblewrap is not None)
        try:
            await self._watches.cover_folder(node.boxes.base, lease)
            system = await node.ground.prepare(spec, box.site, isolated=bubblewrap is not None)
            async with self._starting:
                async with asyncio.timeout(self.config.create_timeout_s):
                    await self._start(box, spec, lease, system, bubblewrap, node.runner)
        except BaseException as error:
            await finish(box.clean("never started"))
            typed = _typed(error, self.config.create_timeout_s)
            if typed is error:
                raise
            raise typed from error
        assert box.channel is not None
        return Sandbox(
            SandboxRef(self.kind, box.remains.id, lease.run_id, lease.owner, lease_s=lease.duration_s),
            box.channel,
            "cold" if box.site.was_absent else "cached",
            box.site.phases_s,
            system.name,
            facts={"isolation": "bubblewrap" if bubblewrap else "none", "pid": str(box.remains.pid)},
            root="/" if bubblewrap else str(box.folder / "root"),
        )

    def _isolation_for(self, spec: SandboxSpec, node: _Node) -> Bubblewrap | None:
        """What holds a sandbox of this spec; None: a plain process, and that was allowed."""
        if isinstance(node.bubblewrap, Bubblewrap):
            return node.bubblewrap
        if self.config.isolation == "none" or (self.config.isolation == "auto" and spec.trusted):
            return None
        raise SubstrateError(
            f"{node.bubblewrap.reason}, and without it only rayroll's own scripted policies may run; to run other "
            "commands without any protection of this node, set isolation='none'",
            fix=node.bubblewrap.fix,
        )

    async def _start(
        self, box: Box, spec: SandboxSpec, lease: Lease, system: System, bubblewrap: Bubblewrap | None, runner: Path
    ) -> None:
        start_s = time.monotonic()
        await box.furnish(spec, system)
        created_s = time.monotonic()
        passed = {name: os.environ[name] for name in self.config.pass_env if name in os.environ}
        env = {**system.env, **passed, **spec.env}
        serve = _serve(spec, lease, has_cgroup=bool(box.remains.cgroups), isolated=bubblewrap is not None)
        if bubblewrap is None:
            await box.start_plain(system, runner, serve, env)
        else:
            await box.start(bubblewrap, system, runner, serve, env, spec.network)
        box.site.phases_s["create"] = created_s - start_s
        box.site.phases_s["boot"] = time.monotonic() - created_s

    async def reopen(self, ref: SandboxRef) -> Channel:
        return await self._opened().boxes.get(ref).reopen()

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        return await self._opened().boxes.adopt(ref, lease)

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        return await asyncio.to_thread(self._opened().boxes.listed, labels)

    async def destroy(self, ref: SandboxRef) -> None:
        await self._opened().boxes.destroy(ref)

    async def killed_for_memory(self, ref: SandboxRef) -> bool:
        node = self._opened()
        with contextlib.suppress(SandboxLostError):
            if node.cgroups is not None and node.boxes.get(ref).remains.cgroups:
                return await asyncio.to_thread(node.cgroups.killed_for_memory, ref.id)
        return False

    async def keep(self, ref: SandboxRef, until_unix_s: float) -> Mapping[str, str]:
        boxes = self._opened().boxes
        box = boxes.get(ref)
        if not box.remains.isolated:
            raise SubstrateError("a plain process cannot be kept: it ends with its host", id=ref.id)
        await finish(asyncio.to_thread(box.keep, until_unix_s))
        await self._watches.look(until_unix_s)
        return {"folder": str(boxes.base)}

    async def shell(self, ref: SandboxRef, login: Login) -> Shell:
        remains = await asyncio.to_thread(self._opened().boxes.recorded, ref)
        argv = await asyncio.to_thread(way_in, remains, login)
        return await start_shell(argv, login.terminal, lambda: remains.state == "running")

    async def cause_of_death(self, ref: SandboxRef) -> str:
        return await self._opened().boxes.cause_of_death(ref)


@dataclass(frozen=True, slots=True)
class _Node:
    """What was found on this node when the substrate was opened."""

    boxes: Boxes[Box]
    threads: ThreadPoolExecutor
    bubblewrap: Bubblewrap | Probe
    cgroups: Cgroups | None
    ground: Ground
    runner: Path


def _serve(spec: SandboxSpec, lease: Lease, *, has_cgroup: bool, isolated: bool) -> list[str]:
    """The runner's arguments. Limits are the commands', not its own."""
    limits = {"fsize": spec.disk_mib << 20, "core": 0}
    if isolated and not has_cgroup:
        # Processes: per user namespace since Linux 5.14, so one sandbox's; before, all of this user's count. Memory: of
        # each process, and what it may write to; limiting address space would end every JVM and Go program.
        limits |= {"nproc": spec.pids, "data": spec.memory_mib << 20}
    argv = ["serve", "--lease-ms", str(round(lease.duration_s * 1000))]
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


def _typed(error: BaseException, create_timeout_s: float) -> BaseException:
    """What a failed create raises: rayroll's own errors and cancellations as they are."""
    if isinstance(error, TimeoutError):
        return StartTimeoutError("the sandbox was not started in time", create_timeout_s=create_timeout_s)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFullError("no space left for local sandboxes; free some, or set folder to another disk")
        return SubstrateError("the sandbox could not be made", reason=str(error))
    return error
