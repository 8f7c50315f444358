"""A sandbox as a virtual machine on this node: a kernel of its own, the runner behind a virtio-serial port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rayroll.errors import ClosedError, ConfigError, StartTimeoutError, SubstrateError
from rayroll.runner.build import runner_path, source_digest
from rayroll.substrates import (
    Channel,
    Lease,
    Probe,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Substrate,
    SubstrateConfig,
)
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates import _qemu_disk as disks
from rayroll.substrates._boxes import Boxes
from rayroll.substrates._cache import Store, user_cache
from rayroll.substrates._cgroup import Cgroups
from rayroll.substrates._ground import Ground, Site
from rayroll.substrates._leftovers import Remains
from rayroll.substrates._qemu_disk import GuestSystem, digest_of
from rayroll.substrates._qemu_machine import SCRATCH, Accelerator, Hardware, Machine, Orders, Saved
from rayroll.substrates._reaping import Watches
from rayroll.substrates._rootfs import Exporter
from rayroll.substrates._shield import finish

__all__ = ["QemuConfig", "QemuSubstrate"]

logger = logging.getLogger(__name__)

THREADS = 8
CAUSES_KEPT = 1000
DEATH_NOTICE_S = 1.0
KVM_TRIAL_S = 20.0
"""A guest on a KVM that works is ready within two seconds; on one that does not, its kernel never comes up."""
PROBE_MEMORY_MIB = 128
INSTALL = "apt-get install -y --no-install-recommends qemu-system-x86 e2fsprogs"


class QemuConfig(SubstrateConfig):
    """How virtual machines are made."""

    create_timeout_s: float = 120.0
    """Longest wait from ``create`` to a started runner, pull, build and saving a state apart."""
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """``kvm``: the node's CPU; ``tcg``: an emulated one, some ten times slower. ``auto``: KVM where a guest really
    booted on it once, which is tried at the first need and remembered, else emulation."""
    snapshot: bool = True
    """Boot once for each image and size, save that machine, and start every later one from there."""
    plain_image: str = "debian:bookworm-slim"
    """For specs with neither image nor Dockerfile."""
    kernel: Path | None = None
    """A folder that Debian's package ``linux-image-*-cloud-amd64`` was unpacked to; None: RAYROLL_GUEST_KERNEL, else
    what ``rayroll vm build`` fetched, else the one that is installed here."""
    program: str = "qemu-system-x86_64"
    """QEMU, by name or path."""
    sandbox_uid: int = 60777
    """The node's user that QEMU runs as where the caller is root; other callers run it as themselves."""
    folder: Path | None = None
    """Where machines' disks and sockets live; None: ``rayroll-<uid>-vm`` in the temporary folder."""
    cache_budget_mib: int = Field(default=20480, ge=0)
    """Most disk for exported images, disks and saved states, together with ``local``'s; what was used longest ago goes
    first."""
    engine: str | None = None
    """The Docker engine that images come from; None is DOCKER_HOST or the usual."""
    mirror: str | None = None
    """Registry that Docker Hub's images are pulled from."""


class QemuSubstrate(Substrate):
    """Sandboxes as virtual machines."""

    kind: ClassVar[str] = "qemu"
    config_type: ClassVar[type[SubstrateConfig]] = QemuConfig

    def __init__(self, config: QemuConfig) -> None:
        super().__init__(config)
        self.config: QemuConfig = config
        self._uid = config.sandbox_uid if os.geteuid() == 0 else os.geteuid()
        self._starting = asyncio.Semaphore(config.max_starting)
        self._preparing = asyncio.Lock()
        self._saving = asyncio.Semaphore(2)
        """Fewer than THREADS: a thread waits for each."""
        self._watches = Watches()
        self._node: _Node | None = None
        self._base_of: _Base | None = None

    # life of the substrate

    async def open(self) -> None:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rayroll-qemu")
        try:
            self._node = await asyncio.get_running_loop().run_in_executor(threads, self._look_around, threads)
        except BaseException:
            threads.shutdown(wait=False)
            raise

    def _look_around(self, threads: ThreadPoolExecutor) -> _Node:
        base = self.config.folder or leftovers.base_dir().with_name(f"{leftovers.base_dir().name}-vm")
        leftovers.make_base(base)
        store = Store(user_cache(self._uid) / "local", self.config.cache_budget_mib << 20, self._uid)
        exporter = Exporter(store.folder, self.config.engine, self.config.mirror)
        cgroups = Cgroups.detect() if os.geteuid() == 0 else None

        def make(remains: Remains, site: Site) -> Machine:
            return Machine(remains, site, threads, self._uid, cgroups)

        return _Node(
            machines=Boxes(self.kind, base, self._watches, make),
            notes=user_cache(self._uid) / "qemu",
            threads=threads,
            ground=Ground("image", store, exporter, threads, self._uid),
        )

    def _opened(self) -> _Node:
        if self._node is None:
            raise ClosedError("the qemu substrate is not open")
        return self._node

    async def close(self) -> None:
        if self._node is None:
            return
        node, self._node = self._node, None
        await node.machines.close()
        await node.ground.close()
        await asyncio.to_thread(node.threads.shutdown)

    async def probe(self) -> Probe:
        return await asyncio.to_thread(self._probe)

    def _probe(self) -> Probe:
        if platform.machine() != "x86_64":
            return Probe(False, "virtual machines are started on x86_64 only", facts={"machine": platform.machine()})
        version = _version(self.config.program)
        missing = [name for name in ("mke2fs", "unshare") if shutil.which(name) is None]
        if version is None or missing:
            return Probe(False, f"missing: {', '.join(missing or [self.config.program])}", INSTALL)
        if find_spec("qemu") is None or find_spec("qemu.qmp") is None:
            return Probe(False, "the package qemu.qmp is missing", "pip install 'rayroll[qemu]'")
        kernel = disks.find_kernel(self.config.kernel)
        if kernel is None:
            return Probe(False, "there is no kernel for guests", "rayroll vm build")
        facts = {
            "qemu": version,
            "guest_kernel": kernel.version,
            "kvm": "device" if _may_use_kvm(self._uid) else "none",
        }
        return Probe(True, facts=facts)

    # life of a sandbox

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        if spec.network:
            raise ConfigError("the qemu substrate has no network for its sandboxes", network=True)
        node = self._opened()
        machine = node.machines.new(lease)
        try:
            await self._watches.cover_folder(node.machines.base, lease)
            plan = await self._plan(spec, machine.site, lease)
            async with self._starting, asyncio.timeout(self.config.create_timeout_s):
                start_s = time.monotonic()
                await machine.power_on(plan.hardware, plan.scratch, saved=plan.saved)
                created_s = time.monotonic()
                channel = await machine.begin(plan.orders(spec, lease, machine.remains.id), is_fresh=plan.saved is None)
        except BaseException as error:
            await finish(machine.clean("never started"))
            if isinstance(error, TimeoutError):
                raise StartTimeoutError(
                    "the virtual machine was not started in time", create_timeout_s=self.config.create_timeout_s
                ) from error
            if isinstance(error, OSError):
                raise SubstrateError("the virtual machine could not be made", reason=str(error)) from error
            raise
        site = machine.site
        site.phases_s |= {"create": created_s - start_s, "boot": time.monotonic() - created_s}
        return Sandbox(
            SandboxRef(self.kind, machine.remains.id, lease.run_id, lease.owner, lease_s=lease.duration_s),
            channel,
            "cold" if site.was_absent else "snapshot" if plan.saved else "cached",
            site.phases_s,
            facts={**plan.facts, "pid": str(machine.remains.pid)},
            labels={"accelerator": plan.facts["accelerator"]},
        )

    async def build(self, spec: SandboxSpec, lease: Lease) -> Mapping[str, str]:
        """Make everything that ``create`` of this spec would have to make first; returns what it will run on.

        Raises:
            SubstrateError, TaskError: As ``create``.
        """
        site = Site(lease, functools.partial(self._watches.cover_engine, lease=lease))
        try:
            plan = await self._plan(spec, site, lease)
            return {**plan.facts, **{f"{name}_s": f"{value:.2f}" for name, value in site.phases_s.items()}}
        finally:
            await site.release()

    async def _plan(self, spec: SandboxSpec, site: Site, lease: Lease) -> _Plan:
        """What a machine of this spec is started from, made where it is not there yet, and held by ``site``."""
        node = self._opened()
        if spec.image is None and not spec.environment:
            spec = replace(spec, image=self.config.plain_image)
        base = await self._base(site, lease)
        rootfs, tree = await node.ground.tree(spec, site)
        start_s = time.monotonic()
        disk = await node.ground.hold(
            site, rootfs.entry.replace("rootfs-", "disk-"), lambda folder: disks.make_disk(rootfs, tree, folder)
        )
        scratch = await node.ground.hold(
            site, f"scratch-{spec.disk_mib}", lambda folder: disks.make_scratch(folder / SCRATCH, spec.disk_mib)
        )
        hardware = replace(
            base.hardware, disk=disk / disks.DISK, memory_mib=spec.memory_mib, cpus=max(1, math.ceil(spec.cpus))
        )
        plan = _Plan(hardware, scratch / SCRATCH, await asyncio.to_thread(GuestSystem.read, disk), None, base.facts)
        if self.config.snapshot:
            argv = hardware.argv(Path("machine"), memory="memory", door_fd=0, qmp_fd=0)
            name = "vm-" + digest_of(base.digest, rootfs.entry, argv, spec.disk_mib)
            async with self._saving:
                saved = await node.ground.hold(site, name, self._saver(plan, lease))
            plan = replace(plan, saved=Saved(saved), facts={**plan.facts, "start": "snapshot"})
        site.phases_s["build"] = site.phases_s.get("build", 0.0) + time.monotonic() - start_s
        return plan

    def _saver(self, plan: _Plan, lease: Lease) -> functools.partial[None]:
        async def save(folder: Path) -> None:
            machine = self._opened().machines.new(lease)
            try:
                await machine.save(plan.hardware, plan.scratch, folder, self.config.create_timeout_s)
            except TimeoutError as error:
                raise StartTimeoutError("the virtual machine that is to be saved did not start in time") from error
            finally:
                await finish(machine.clean("saved"))

        # The store builds in a thread; machines live on the loop.
        loop = asyncio.get_running_loop()
        return functools.partial(_wait_in_thread, loop, save)

    async def _base(self, site: Site, lease: Lease) -> _Base:
        """Kernel, first file system and accelerator of this node."""
        node = self._opened()
        async with self._preparing:
            if self._base_of is None:
                self._base_of = await self._find_base(site, lease)
        # Held by every machine: QEMU has read them when it runs, but a saved state is tied to them.
        name, build = self._base_of.name, self._base_of.build
        await node.ground.hold(site, name, build)
        return self._base_of

    async def _find_base(self, site: Site, lease: Lease) -> _Base:
        node = self._opened()
        found = await asyncio.to_thread(self._probe)
        if not found.ok:
            raise SubstrateError(found.reason, fix=found.fix)
        kernel = await asyncio.to_thread(disks.find_kernel, self.config.kernel)
        assert kernel is not None
        sources = await asyncio.to_thread(lambda: source_digest())
        name = "boot-" + await asyncio.to_thread(digest_of, kernel.image, sources, disks.MODULES)

        def build(folder: Path) -> None:
            shutil.copyfile(kernel.image, folder / "kernel")
            disks.make_initramfs(kernel, runner_path("x86_64"), folder / "initramfs")

        folder = await node.ground.hold(site, name, build)
        program = await asyncio.to_thread(lambda: shutil.which(self.config.program))
        hardware = Hardware(
            program or self.config.program,
            "tcg", folder / "kernel", folder / "initramfs", None, PROBE_MEMORY_MIB, 1,
        )  # fmt: skip
        accelerator = await self._accelerator(hardware, found.facts["qemu"], lease)
        facts = {
            "accelerator": accelerator,
            "qemu": found.facts["qemu"],
            "guest_kernel": kernel.version,
            "start": "boot",
        }
        digest = digest_of(name, accelerator, found.facts["qemu"], await asyncio.to_thread(_cpu_model))
        return _Base(name, build, replace(hardware, accelerator=accelerator), digest, facts)

    async def _accelerator(self, hardware: Hardware, version: str, lease: Lease) -> Accelerator:
        """The configured one, or KVM where a guest really booted on it once: that its device is there says little."""
        if self.config.accelerator != "auto":
            return self.config.accelerator
        if not await asyncio.to_thread(_may_use_kvm, self._uid):
            return "tcg"
        cpu = await asyncio.to_thread(_cpu_model)
        name = "kvm-" + digest_of(platform.node(), platform.release(), version, hardware.kernel.parent.name, cpu)
        note = self._opened().notes / name
        with contextlib.suppress(OSError):
            return "kvm" if await asyncio.to_thread(note.read_text) == "boots\n" else "tcg"
        boots = await self._boots(replace(hardware, accelerator="kvm"), lease)
        logger.info("a guest %s on this node's KVM", "booted" if boots else "did not boot")
        await asyncio.to_thread(_remember, note, "boots\n" if boots else "does not boot\n")
        return "kvm" if boots else "tcg"

    async def _boots(self, hardware: Hardware, lease: Lease) -> bool:
        machine = self._opened().machines.new(lease)
        try:
            async with asyncio.timeout(KVM_TRIAL_S):
                await machine.power_on(hardware, None)
                await machine.is_ready()
        except (TimeoutError, SubstrateError):
            return False
        finally:
            await finish(machine.clean("a trial"))
        return True

    async def reopen(self, ref: SandboxRef) -> Channel:
        return await self._opened().machines.get(ref).reopen()

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        return await self._opened().machines.adopt(ref, lease)

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        return await asyncio.to_thread(self._opened().machines.listed, labels)

    async def destroy(self, ref: SandboxRef) -> None:
        await self._opened().machines.destroy(ref)

    async def cause_of_death(self, ref: SandboxRef) -> str:
        return await self._opened().machines.cause_of_death(ref)


@dataclass(frozen=True, slots=True)
class _Node:
    """What was found on this node when the substrate was opened."""

    machines: Boxes[Machine]
    notes: Path
    """Folder of what was found out about this node."""
    threads: ThreadPoolExecutor
    ground: Ground


@dataclass(frozen=True, slots=True)
class _Base:
    """What every machine of this node has in common."""

    name: str
    """Its entry in the cache: kernel and first file system."""
    build: Callable[[Path], None]
    hardware: Hardware
    digest: str
    """Of all that a saved state depends on, but for the image and the size."""
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one sandbox's machine is started from."""

    hardware: Hardware
    scratch: Path
    system: GuestSystem
    saved: Saved | None
    facts: Mapping[str, str]

    def orders(self, spec: SandboxSpec, lease: Lease, name: str) -> Orders:
        """What its machine shall be."""
        return Orders(
            name=name,
            uid=self.system.uid,
            gid=self.system.gid,
            workdir=self.system.workdir if spec.workdir == "/" else spec.workdir,
            env={**self.system.env, **spec.env},
            serve=("serve", "--lease-ms", str(round(lease.duration_s * 1000)), "--rlimit", "core=0"),
            memory_mib=spec.memory_mib,
            pids=spec.pids,
            cpus=spec.cpus,
        )


def _wait_in_thread(
    loop: asyncio.AbstractEventLoop, work: Callable[[Path], Coroutine[Any, Any, None]], folder: Path
) -> None:
    asyncio.run_coroutine_threadsafe(work(folder), loop).result()


def _version(program: str) -> str | None:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"version (\S+)", done.stdout)
    return found[1] if found else None


def _may_use_kvm(uid: int) -> bool:
    if uid != os.geteuid():  # QEMU is given the device's group
        return Path("/dev/kvm").exists()
    return os.access("/dev/kvm", os.R_OK | os.W_OK)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return ""


def _remember(note: Path, text: str) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    half = note.with_suffix(f".{os.getpid()}")
    half.write_text(text)
    half.replace(note)
