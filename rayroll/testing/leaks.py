"""What a test left behind: sandboxes of its run, child processes, threads, sockets.

``watch`` compares before and after, and gives what is on its way out a moment to go. It sees this process; what a
sandbox holds is its substrate's to list.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rayroll.substrates import SandboxRef, Substrate, SubstrateConfig

__all__ = ["LASTING_PROCESSES", "LASTING_THREADS", "Held", "held_now", "sandboxes_of", "watch"]

LASTING_THREADS = ("rayroll-spawn", "asyncio_", "ray_", "pytest_timeout", "pydevd", "wandb")
"""Beginnings of names of threads that are meant to last: rayroll's own starter of processes (a sandbox dies with the
thread that started it), and those of libraries."""
LASTING_PROCESSES = (
    "rayroll-reaper",
    "gcs_server",
    "raylet",
    "ray::",
    "python-ray",
    "multiprocessing.resource_tracker",
)
"""The same for child processes: the reaper outlives its host by design, a cluster belongs to the session of tests."""
PATIENCE_S = 3.0
"""How long a thread or child that is ending may take: joined by nobody, it is gone a moment later."""


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds, each by a name that two looks have in common."""

    children: frozenset[str]
    threads: frozenset[str]
    sockets: frozenset[str]

    def beyond(self, before: Held) -> dict[str, list[str]]:
        """What was not there before, by kind; empty when nothing is."""
        found = {
            "child processes": sorted(self.children - before.children),
            "threads": sorted(self.threads - before.threads),
            "sockets": sorted(self.sockets - before.sockets),
        }
        return {kind: names for kind, names in found.items() if names}


def held_now(*, threads: Collection[str] = LASTING_THREADS, processes: Collection[str] = LASTING_PROCESSES) -> Held:
    """What this process holds now, without what lasts by design. Linux; elsewhere only threads are seen.

    Args:
        threads: Beginnings of names not to count.
        processes: Parts of command lines or process names not to count.
    """
    return Held(
        frozenset(_children(processes)),
        frozenset(f"{t.name} ({t.ident})" for t in threading.enumerate() if not t.name.startswith(tuple(threads))),
        frozenset(_sockets()),
    )


@contextlib.contextmanager
def watch(
    *,
    threads: Collection[str] = LASTING_THREADS,
    processes: Collection[str] = LASTING_PROCESSES,
    sockets: bool = True,
) -> Iterator[None]:
    """Fails if its body leaves a child process, a thread or a socket behind.

    Args:
        threads: As for ``held_now``, like ``processes``.
        processes: Parts of command lines or process names not to count.
        sockets: Count sockets; not where a library opens and closes them as it likes, as Ray does.

    Raises:
        AssertionError: Names everything that is left. Not when the body itself raised: that is the news then.
    """
    before = held_now(threads=threads, processes=processes)
    yield
    deadline_s = time.monotonic() + PATIENCE_S
    while left := held_now(threads=threads, processes=processes).beyond(before):
        if not sockets and left.keys() == {"sockets"}:
            return
        if time.monotonic() > deadline_s:
            raise AssertionError("left behind: " + "; ".join(f"{kind} {names}" for kind, names in left.items()))
        time.sleep(0.02)


def sandboxes_of(run_id: str, config: SubstrateConfig | Substrate) -> list[SandboxRef]:
    """Every sandbox of a run on this node, in any state, asked of a substrate that nobody has used yet. Blocks."""
    from rayroll.testing.conformance._run import substrate_of

    async def ask() -> list[SandboxRef]:
        fresh = type(config)(config.config) if isinstance(config, Substrate) else substrate_of(config)
        async with fresh:
            return await fresh.list({"run": run_id})

    return asyncio.run(ask())


def _children(lasting: Collection[str]) -> Iterator[str]:
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in task.read_text().split():
                name = _name(pid)
                if name is not None and not any(part in name for part in lasting):
                    yield f"{pid}: {name}"


def _name(pid: str) -> str | None:
    """Its name and command line; None when it is gone, or dead and only to be collected by whoever started it."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    name, _, rest = status.partition("(")[2].rpartition(")")
    return f"{name}: {line[:200]}" if not rest.startswith(" Z") else f"{name} (dead, not collected)"


def _sockets() -> Iterator[str]:
    """Descriptors of this process that are sockets, told apart by their inodes."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return
    for entry in os.listdir(folder):  # noqa: PTH208 - of a folder that changes as it is listed
        with contextlib.suppress(OSError):
            target = os.readlink(folder / entry)  # noqa: PTH115
            if target.startswith("socket:"):
                yield f"{target} {_ends(int(entry))}"


def _ends(fd: int) -> str:
    """Both ends of a socket, for the message."""
    try:
        with socket.socket(fileno=os.dup(fd)) as copy:
            ends = [copy.getsockname() or "-"]
            with contextlib.suppress(OSError):
                ends.append(copy.getpeername() or "-")
            return f"{copy.family.name} {ends}"
    except OSError:
        return ""
