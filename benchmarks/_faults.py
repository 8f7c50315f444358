"""What is done to a run from outside while it is under way, and what is still there of it afterwards.

Only to what belongs to the run: hosts by the pids they told, local sandboxes by the folder that is this run's alone,
containers by its label. Nothing is left to signal a stranger: a process is held by its handle, then compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayroll import Executor
from rayroll.substrates import _leftovers as leftovers
from rayroll.testing.tap import Tap

__all__ = ["FAULTS", "MARK", "DockerGround", "Fault", "Ground", "LocalGround", "Scene", "traces"]

MARK = "RAYROLL_SOAK"
"""Variable by which every process of a run's agents can be told from others'."""
HOGS = {
    "memory-filled": "dd if=/dev/zero of=/dev/null bs=400M count=1",
    "pids-filled": "i=0; while [ $i -lt 600 ]; do sleep 60 & i=$((i+1)); done",
    "disk-filled": "dd if=/dev/zero of=/tmp/big bs=1M count=200",
}
"""What an agent may do to its own sandbox, which has 128 MiB of memory, 512 processes and files of 64 MiB."""


class Ground:
    """Where the sandboxes of one run are, seen from the node and not through rayroll."""

    substrate_config: Mapping[str, Any]

    def running(self) -> list[tuple[str, int]]:
        """Names and first processes of sandboxes that are up. Blocks."""
        raise NotImplementedError

    def kill(self, name: str, pid: int) -> None:
        """End one. Blocks."""
        raise NotImplementedError

    def left(self) -> Iterator[str]:
        """What there still is. Blocks."""
        raise NotImplementedError


class LocalGround(Ground):
    """A folder of this run's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.substrate_config = {"rootfs": "host", "folder": str(folder)}
        folder.chmod(0o711)  # sandboxes run as another user
        self.names: set[str] = set()
        """Of all sandboxes that were ever seen."""

    def running(self) -> list[tuple[str, int]]:
        found = list(leftovers.find(self.folder, {}))
        self.names |= {remains.id for remains in found}
        return [(remains.id, remains.pid) for remains in found if remains.state == "running"]

    def kill(self, name: str, pid: int) -> None:
        send(pid, signal.SIGKILL, mark="serve")

    def left(self) -> Iterator[str]:
        # Names with a dot are no sandboxes: a copy of the runner that its user may read is kept for the next run.
        yield from (f"folder {path}" for path in self.folder.iterdir() if not path.name.startswith("."))
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        yield from (f"mount {line}" for line in mounts if str(self.folder) in line)
        yield from (f"process {pid}" for pid in processes(lambda p: str(self.folder).encode() in read(p / "cmdline")))
        for pattern in ("rayroll/*", "*/rayroll/*"):  # version 2 and 1
            found = Path("/sys/fs/cgroup").glob(pattern)
            yield from (f"cgroup {folder}" for folder in found if folder.name in self.names)


class DockerGround(Ground):
    """A label on an engine, which the run reaches through a tap."""

    def __init__(self, api: Any, run_id: str, tap: Tap) -> None:
        self._api, self.tap = api, tap
        self._labels = {"label": [f"rayroll.run={run_id}"]}
        self.substrate_config = {"host": tap.url}

    def running(self) -> list[tuple[str, int]]:
        found = []
        for container in self._api.containers(filters={**self._labels, "status": ["running"]}):
            with contextlib.suppress(Exception):  # it has ended meanwhile
                found.append((container["Id"], self._api.inspect_container(container["Id"])["State"]["Pid"]))
        return found

    def kill(self, name: str, pid: int) -> None:
        with contextlib.suppress(Exception):  # it has ended meanwhile
            self._api.kill(name)

    def left(self) -> Iterator[str]:
        yield from (
            f"container {c['Id'][:12]} {c['State']}" for c in self._api.containers(all=True, filters=self._labels)
        )
        yield from (f"network {n['Id']}" for n in self._api.networks(filters=self._labels))
        yield from (f"volume {v['Name']}" for v in self._api.volumes(filters=self._labels)["Volumes"] or ())


@dataclass
class Scene:
    """A run that is to be disturbed."""

    executor: Executor
    ground: Ground
    lease_s: float
    random: random.Random
    hogs: deque[str] = field(default_factory=deque)
    """Commands that fill something, for the next rollouts that begin."""

    async def any_running(self) -> tuple[str, int] | None:
        """A sandbox that is up; None where none comes up."""
        for _ in range(200):
            if found := await asyncio.to_thread(self.ground.running):
                return self.random.choice(sorted(found))
            await asyncio.sleep(0.05)
        return None


Fault = Callable[[Scene], Awaitable[str]]
"""Does it, and says what it did in some words more."""


async def host_killed(scene: Scene) -> str:
    (host,) = scene.executor.hosts or [None]
    if host is None:
        return "there was none"
    await asyncio.to_thread(scene.ground.running)  # whose names are to be looked for at the end
    send(host.pid, signal.SIGKILL, mark="ray::")
    return f"pid {host.pid}"


async def host_stopped(scene: Scene) -> str:
    (host,) = scene.executor.hosts or [None]
    if host is None:
        return "there was none"
    seconds = scene.random.uniform(0.3, 1.6 * scene.lease_s)
    send(host.pid, signal.SIGSTOP, mark="ray::")
    try:
        await asyncio.sleep(seconds)
    finally:
        send(host.pid, signal.SIGCONT, mark="ray::")
    return f"pid {host.pid} for {seconds:.1f} s, where a lease is {scene.lease_s:g}"


async def sandbox_killed(scene: Scene) -> str:
    found = await scene.any_running()
    if found is None:
        return "there was none"
    await asyncio.to_thread(scene.ground.kill, *found)
    return found[0][:12]


async def runner_stopped(scene: Scene) -> str:
    found = await scene.any_running()
    if found is None:
        return "there was none"
    send(found[1], signal.SIGSTOP, mark="serve")
    return f"{found[0][:12]}, for good"


async def engine_cut(scene: Scene) -> str:
    assert isinstance(scene.ground, DockerGround)
    seconds = scene.random.uniform(0.1, 0.6 * scene.lease_s)
    await scene.ground.tap.cut()
    try:
        await asyncio.sleep(seconds)
    finally:
        await scene.ground.tap.mend()
    return f"for {seconds:.1f} s"


def hog(name: str) -> Fault:
    async def fault(scene: Scene) -> str:
        scene.hogs.append(HOGS[name])
        return "by the next rollout, in its own sandbox"

    return fault


FAULTS: dict[str, Fault] = {
    "host-killed": host_killed,
    "host-stopped": host_stopped,
    "sandbox-killed": sandbox_killed,
    "runner-stopped": runner_stopped,
    **{name: hog(name) for name in HOGS},
    "engine-cut": engine_cut,
}
"""The last one only where there is an engine."""


def send(pid: int, signum: signal.Signals, *, mark: str) -> None:
    """Signal a process in whose command line something stands; nothing when it is gone, or another by now."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if mark.encode() in read(Path(f"/proc/{pid}/cmdline")):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signum)
    finally:
        os.close(handle)


def traces(ground: Ground, token: str, host_pids: set[int]) -> list[str]:
    """All that is left of a run on this node: sandboxes, agents' processes, and reapers of its hosts. Blocks."""
    marked = f"{MARK}={token}\0".encode()
    reapers = {f"\0{pid}\0".encode() for pid in host_pids}

    def is_ours(process: Path) -> bool:
        if read(process / "comm") == b"rayroll-reaper\n":
            return any(pid in read(process / "cmdline") for pid in reapers)
        return marked in read(process / "environ")

    return [*ground.left(), *(f"process {pid}" for pid in processes(is_ours))]


def processes(is_ours: Callable[[Path], bool]) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) != os.getpid() and is_ours(process):
            yield f"{process.name} {read(process / 'cmdline')[:120].decode(errors='replace')!r}"


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
