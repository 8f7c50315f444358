"""The shims between containerd and its containers: what is left of them when their daemons were killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bed.daemon import command_lines, stop_process
from bed.shell import succeeds


@dataclass(frozen=True, slots=True)
class Shims:
    """Those of one containerd, recognised by its socket in their command line."""

    socket: Path
    containerd_state: Path
    runc_state: Path

    def running(self) -> Iterator[tuple[int, str]]:
        """(pid, container id) of each."""
        for pid, argv in command_lines():
            if Path(argv[0]).name.startswith("containerd-shim") and str(self.socket) in argv:
                yield pid, argv[argv.index("-id") + 1]

    def is_orphan(self, container: str) -> bool:
        """Whether containerd has lost it: it finds its shims by these folders, which somebody may have deleted."""
        tasks = self.containerd_state / "io.containerd.runtime.v2.task"
        return not any(tasks.glob(f"*/{container}"))

    def end(self, which: Callable[[str], bool] = lambda container: True) -> list[str]:
        """End those shims with their containers, and return the containers' ids.

        Not by a signal to the shim alone: its container would live on with no one to stop it. Nor by runc alone: it
        knows nothing any more where its state was deleted.
        """
        ended = []
        for shim, container in list(self.running()):
            if not which(container):
                continue
            inits = _children(shim)
            groups = [group for init in inits for group in _control_groups(init, container)]
            for init in inits:  # takes its whole PID namespace with it
                with suppress(ProcessLookupError):
                    os.kill(init, signal.SIGKILL)
            succeeds(["runc", "--root", self.runc_state, "delete", "--force", container])
            stop_process(shim, grace_s=2.0)
            for group in groups:
                with suppress(OSError):
                    group.rmdir()
            ended.append(container)
        return ended


def _children(pid: int) -> list[int]:
    """A shim's children: its container's first process, and what was started in the container by `exec`."""
    try:
        lists = [path.read_text() for path in Path("/proc", str(pid), "task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for children in lists for child in children.split()]


def _control_groups(pid: int, container: str) -> list[Path]:
    """The folders of a container's control groups, of both versions; only those named after the container."""
    try:
        lines = Path("/proc", str(pid), "cgroup").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(":", 2)[2] for line in lines}
    roots = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
    candidates = [Path(f"{root}{path}") for root in roots for path in paths if container in path]
    return [candidate for candidate in candidates if candidate.is_dir()]
