"""One virtual machine of this process: its command line, its serial port, its monitor, from half-made to gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates._box import RUNNER, Box
from rayroll.substrates._cgroup import Limits
from rayroll.substrates._door import DOOR, connect, listen
from rayroll.substrates._qemu_disk import copy_sparse
from rayroll.substrates._spawn import as_user
from rayroll.substrates._stream import StreamChannel, channel_over

if TYPE_CHECKING:
    from qemu.qmp import QMPClient

__all__ = ["Accelerator", "Hardware", "Machine", "Orders", "Saved"]

Accelerator = Literal["kvm", "tcg"]

KERNEL_MIB = 128
"""More memory than was asked for: what the kernel takes before anything runs. The sandbox's limit is a cgroup's."""
QEMU_MIB = 512
"""More memory than the machine's own that its process may take: translated code, buffers."""
TRANSLATED_MIB = 256
"""Most translated code that is kept. QEMU's own limit is a GiB, and every program that starts adds some MiB."""
QEMU_THREADS = 256
READY = b"rayroll: ready\n"
GO = b"rayroll: go\n"
COMMAND_LINE = "console=ttyS0 quiet loglevel=2 panic=-1 rdinit=/runner"
"""Emulated CPUs do not speculate, and page tables that are changed at every system call halve their speed: there also
``mitigations=off``."""
QMP = "qmp"
SPARE = "spare"
"""The folder in a machine's that its process may write to."""
SCRATCH = "scratch.ext4"
MEMORY = "memory"
STATE = "state"
SEED_BYTES = 64
CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a machine consists of. Two that are equal can be started from the same saved state."""

    program: str
    accelerator: Accelerator
    kernel: Path
    initramfs: Path
    disk: Path | None
    """None: a machine that only shows that one can be started."""
    memory_mib: int
    """As asked for; see KERNEL_MIB."""
    cpus: int

    def argv(self, folder: Path, *, memory: str, door_fd: int, qmp_fd: int) -> list[str]:
        """The command line, but for how it begins.

        Args:
            folder: The machine's; ``_leftovers`` finds a half-started one by this.
            memory: The object that is its memory.
            door_fd: Listening socket of the serial port.
            qmp_fd: Listening socket of the monitor.
        """
        total_mib = self.memory_mib + KERNEL_MIB
        command_line = f"{COMMAND_LINE} mitigations=off" if self.accelerator == "tcg" else COMMAND_LINE
        argv = [
            *(self.program, "-name", f"{folder}/root", "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-nic", "none", "-machine", "q35,memory-backend=ram", "-cpu", "max"),
            *("-accel", "kvm" if self.accelerator == "kvm" else f"tcg,thread=multi,tb-size={TRANSLATED_MIB}"),
            *("-smp", str(self.cpus), "-m", f"{total_mib}M", "-object", f"{memory},id=ram,size={total_mib}M"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initramfs), "-append", f"{command_line} -- boot"),
            *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=port,fd={door_fd},server=on,wait=off"),
            *("-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=rayroll"),
            *("-chardev", f"socket,id=qmp,fd={qmp_fd},server=on,wait=off", "-mon", "chardev=qmp,mode=control"),
        ]
        if self.disk is not None:
            for name, file, options in (
                ("root", str(self.disk), ",readonly=on"),
                ("own", f"{SPARE}/{SCRATCH}", ",discard=unmap"),
            ):
                argv += ["-drive", f"if=none,id={name},format=raw,file={file}{options}"]
                argv += ["-device", f"virtio-blk-pci,drive={name}"]
        return argv


@dataclass(frozen=True, slots=True)
class Saved:
    """A machine that waits for its orders, on disk."""

    folder: Path


@dataclass(frozen=True, slots=True)
class Orders:
    """What a machine that waits shall be."""

    name: str
    uid: int
    gid: int
    workdir: str
    env: Mapping[str, str]
    serve: tuple[str, ...]
    memory_mib: int
    pids: int
    cpus: float

    def encoded(self) -> bytes:
        """As ``runner boot`` reads them, with random numbers and the time of this moment."""
        words = [
            f"seed={secrets.token_hex(SEED_BYTES)}",
            f"time={time.time_ns()}",
            f"host={self.name}",
            f"memory={self.memory_mib << 20}",
            f"pids={self.pids}",
            # A whole number is what the machine has.
            *([f"cpu={round(self.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}"] if self.cpus % 1 else []),
            f"uid={self.uid}",
            f"gid={self.gid}",
            f"cwd={self.workdir}",
            *(f"env={name}={value}" for name, value in self.env.items()),
            *(f"arg={word}" for word in (RUNNER, *self.serve)),
        ]
        body = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
        return len(body).to_bytes(4, "little") + body


class Machine(Box):
    """A virtual machine. Its folder, its process and its end are a local sandbox's."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: list[int] = []
        """For QEMU: serial port, monitor, saved state. Ours until it is started."""
        self._calls: list[socket.socket] = []
        """Connections that nobody has taken yet."""
        self._inside: socket.socket | None = None
        """One of them, to the runner: the next channel's."""

    async def power_on(self, hardware: Hardware, scratch: Path | None, *, saved: Saved | None = None) -> None:
        """Start it: at its beginning, or from where ``saved`` waits.

        Args:
            hardware: What it consists of.
            scratch: The disk that its own is a copy of; not with ``saved``.
            saved: A machine of the same hardware.

        Raises:
            SubstrateError: QEMU ended at once; says what it printed.
        """
        await self._tracked(self._in_thread(self._furnish_machine, hardware, scratch, saved))
        if saved is None:
            await self._power_on(hardware, "memory-backend-ram")
            return
        memory = f"memory-backend-file,mem-path={saved.folder / MEMORY},share=off"
        state_fd = self._ends[2]
        await self._power_on(hardware, memory, "-incoming", "defer")
        async with self._monitor() as qmp:
            await _ignore_shared(qmp)
            await qmp.execute("migrate-incoming", {"uri": f"fd:{state_fd}"})

    async def save(self, hardware: Hardware, scratch: Path, folder: Path, deadline_s: float) -> None:
        """Start it at its beginning, wait until it waits for its orders, and write it into an empty folder.

        Its memory is a file there from the start, which every machine started from it maps as its own and a node's
        memory holds once; so what is saved and loaded is only the devices' state.
        """
        await self._tracked(self._in_thread(self._furnish_machine, hardware, scratch, None))
        await self._in_thread(_give, folder, self._uid)
        memory = f"memory-backend-file,mem-path={folder / MEMORY},share=on"
        await self._power_on(hardware, memory, spawn="allow")
        async with asyncio.timeout(deadline_s):
            await self.is_ready()
            async with self._monitor() as qmp:
                await _ignore_shared(qmp)
                await qmp.execute("migrate", {"uri": f"exec:cat > {SPARE}/{STATE}"})
                await _migrated(qmp)
        await self._in_thread(self._collect, folder)

    def _collect(self, folder: Path) -> None:
        for name in (SCRATCH, STATE):
            copy_sparse(self.folder / SPARE / name, folder / name)
            (folder / name).chmod(0o444)

    async def begin(self, orders: Orders, *, is_fresh: bool) -> StreamChannel:
        """Tell it what it shall be. Returns the channel to its runner.

        Args:
            orders: What.
            is_fresh: It comes from its beginning and says when it is ready.

        Raises:
            SubstrateError: It ended before; says what was on its console.
        """
        sock = await self._call(DOOR)
        if is_fresh:
            await self._hear(sock, READY)
        try:
            await asyncio.get_running_loop().sock_sendall(sock, await self._in_thread(orders.encoded))
        except OSError as error:
            raise await self._ended_early() from error
        await self._hear(sock, GO)
        self._calls.remove(sock)
        self.channel = await channel_over(sock)
        return self.channel

    async def is_ready(self) -> None:
        """Returns when it waits for its orders. Raises SubstrateError when it ended before."""
        sock = await self._call(DOOR)
        await self._hear(sock, READY)
        self._calls.remove(sock)
        sock.close()

    async def take_over(self) -> StreamChannel:
        # Whoever made it may only be stopped and still hold its serial port, which has room for one.
        if await self._in_thread(lambda: self.remains.state) == "running":
            with contextlib.suppress(OSError):
                await self._move_door()
        return await super().take_over()

    async def _move_door(self) -> None:
        """A new one, through which we are before anybody else can find it."""
        name = f"{SPARE}/{secrets.token_hex(4)}"
        address = {"type": "unix", "data": {"path": name}}
        backend = {"type": "socket", "data": {"addr": address, "server": True, "wait": False}}
        async with self._monitor() as qmp:
            await qmp.execute("chardev-change", {"id": "port", "backend": backend})
        self._inside = await self._call(name)
        await self._in_thread(os.replace, self.folder / name, self.folder / DOOR)

    async def _connected(self) -> socket.socket:
        if self._inside is None:
            return await super()._connected()
        sock, self._inside = self._inside, None
        self._calls.remove(sock)
        return sock

    def _post_mortem(self, cause: str) -> str:
        # What the agent runs has its limit inside: this was QEMU's own memory, and that is none of its doing.
        cause = super()._post_mortem(cause)
        return "QEMU's memory ran out" if cause == "oom" else cause

    # its parts

    def _furnish_machine(self, hardware: Hardware, scratch: Path | None, saved: Saved | None) -> None:
        self.remains.make_folder()
        spare = self.folder / SPARE
        spare.mkdir(mode=0o700)
        source = saved.folder / SCRATCH if saved else scratch
        if source is not None:
            copy_sparse(source, spare / SCRATCH)
            (spare / SCRATCH).chmod(0o600)
        _give(spare, self._uid)
        for name in (DOOR, QMP):
            self._ends.append(listen(self.folder, name).detach())
        if saved is not None:
            self._ends.append(os.open(saved.folder / STATE, os.O_RDONLY))
        if self._cgroups is not None:
            memory_mib = hardware.memory_mib + KERNEL_MIB + QEMU_MIB
            self._cgroups.create(self.remains.id, Limits(memory_mib, QEMU_THREADS, hardware.cpus))

    async def _power_on(
        self,
        hardware: Hardware,
        memory: str,
        *more: str,
        spawn: Literal["allow", "deny"] = "deny",
    ) -> None:
        """Start QEMU, which gets ``_ends``. ``spawn``: whether it may start a process."""
        argv = [*hardware.argv(self.folder, memory=memory, door_fd=self._ends[0], qmp_fd=self._ends[1]), *more]
        argv += ["-sandbox", f"on,obsolete=deny,elevateprivileges=deny,resourcecontrol=deny,spawn={spawn}"]
        argv, identity = await self._in_thread(as_user, self._uid, argv)
        if hardware.accelerator == "kvm" and "--clear-groups" in argv:
            argv[argv.index("--clear-groups")] = await self._in_thread(_group_of_kvm)
        fds, self._ends = (*self._ends, *self.site.dup_locks()), []
        process = await self._launch(argv, fds, stdin=subprocess.DEVNULL, cwd=self.folder, env={}, **identity)
        try:
            await self._tracked(self._in_thread(self._register, process.pid))
        except ProcessLookupError as error:
            raise await self._ended_early() from error

    def _close_stream(self) -> None:
        super()._close_stream()
        while self._ends:
            os.close(self._ends.pop())
        while self._calls:
            self._calls.pop().close()

    async def _call(self, name: str) -> socket.socket:
        """A connection, closed at the end of the machine but for who takes it out of ``_calls``."""

        def call() -> socket.socket:
            sock = connect(self.folder, name)
            sock.setblocking(False)
            self._calls.append(sock)
            return sock

        try:
            return await self._tracked(self._in_thread(call))
        except OSError as error:
            raise await self._ended_early() from error

    async def _hear(self, sock: socket.socket, words: bytes) -> None:
        """Read exactly up to the end of ``words``."""
        heard = b""
        while not heard.endswith(words):
            try:
                data = await asyncio.get_running_loop().sock_recv(sock, 1)
            except OSError as error:
                raise await self._ended_early() from error
            if not data:
                raise await self._ended_early()
            heard += data

    async def _ended_early(self) -> SubstrateError:
        words = await self._in_thread(self._last_words)
        return SubstrateError("the virtual machine ended before its runner began", console=words)

    @contextlib.asynccontextmanager
    async def _monitor(self) -> AsyncIterator[QMPClient]:
        from qemu.qmp import QMPClient, QMPError

        library = logging.getLogger("qemu.qmp")
        if library.level == logging.NOTSET:
            library.setLevel(logging.CRITICAL)  # what it would log, it raises as well: and that is ours to tell
        client = QMPClient(self.remains.id)
        try:
            sock = await self._call(QMP)
            self._calls.remove(sock)
            await client.connect(sock)
            try:
                yield client
            finally:
                await client.disconnect()
        except QMPError as error:
            if self._process is not None and self.channel is None:
                raise await self._ended_early() from error
            if self.has_ended:
                raise SandboxLostError("the virtual machine is gone", id=self.remains.id) from error
            words = await self._in_thread(self._last_words)
            raise SubstrateError("the virtual machine's monitor failed", reason=str(error), console=words) from error


async def _ignore_shared(qmp: QMPClient) -> None:
    capability = {"capability": "x-ignore-shared", "state": True}
    await qmp.execute("migrate-set-capabilities", {"capabilities": [capability]})


async def _migrated(qmp: QMPClient) -> None:
    while True:
        answer = cast("dict[str, object]", await qmp.execute("query-migrate"))
        if answer.get("status") == "completed":
            return
        if answer.get("status") in ("failed", "cancelled"):
            raise SubstrateError("the virtual machine could not be saved", reason=str(answer))
        await asyncio.sleep(0.01)


def _group_of_kvm() -> str:
    return f"--groups={Path('/dev/kvm').stat().st_gid}"


def _give(folder: Path, uid: int) -> None:
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, uid, uid)
