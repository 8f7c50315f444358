"""Memory, process and CPU limits by cgroup, where this process may make cgroups; version 1 and 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cgroups", "Limits"]

PARENT = "rayroll"
CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    memory_mib: int
    pids: int
    cpus: float


class Cgroups:
    """Where this process may put sandboxes into cgroups. Calls block for microseconds: kernel files, no disk."""

    def __init__(self, mounts: Mapping[str, Path], version: int) -> None:
        self._mounts = mounts
        """Version 1: one folder per controller. Version 2: one folder under the name ``""``."""
        self.version = version

    @classmethod
    def detect(cls, root: Path = Path("/sys/fs/cgroup")) -> Cgroups | None:
        """The cgroups this process may use for memory and pids limits, or None."""
        if (root / "cgroup.controllers").exists():
            return cls._detect_v2(root)
        mounts = {name: root / name for name in ("memory", "pids", "cpu") if _can_make(root / name)}
        return cls(mounts, 1) if {"memory", "pids"} <= mounts.keys() else None

    @classmethod
    def _detect_v2(cls, root: Path) -> Cgroups | None:
        # Only the top of the tree is tried: elsewhere a cgroup with processes in it may not have controllers for
        # its children, and this process is in its own.
        parent = root / PARENT
        try:
            (root / "cgroup.subtree_control").write_text("+memory +pids +cpu")
            parent.mkdir(exist_ok=True)
            (parent / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        except OSError:
            return None
        return cls({"": parent}, 2)

    def paths(self, name: str) -> tuple[str, ...]:
        """The folders that ``create`` makes, so that they can be on record before they exist."""
        return tuple(str(folder) for _, folder in self._folders(name))

    def _folders(self, name: str) -> list[tuple[str, Path]]:
        middle = "" if self.version == 2 else PARENT
        return [(controller, mount / middle / name) for controller, mount in self._mounts.items()]

    def create(self, name: str, limits: Limits) -> None:
        """Make the cgroups of one sandbox.

        Raises:
            OSError: The kernel refused; nothing is left.
        """
        made: list[Path] = []
        try:
            for controller, folder in self._folders(name):
                folder.mkdir(parents=True)
                made.append(folder)
                for file, value in self._settings(controller, limits):
                    (folder / file).write_text(value)
                self._limit_swap(folder, limits)
        except OSError:
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise

    def _settings(self, controller: str, limits: Limits) -> list[tuple[str, str]]:
        memory, quota_us = str(limits.memory_mib << 20), round(limits.cpus * CPU_PERIOD_US)
        if self.version == 2:
            return [
                ("memory.max", memory),
                ("pids.max", str(limits.pids)),
                ("cpu.max", f"{quota_us} {CPU_PERIOD_US}"),
            ]
        return {
            "memory": [("memory.limit_in_bytes", memory)],
            "pids": [("pids.max", str(limits.pids))],
            "cpu": [("cpu.cfs_period_us", str(CPU_PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us))],
        }[controller]

    @staticmethod
    def _limit_swap(folder: Path, limits: Limits) -> None:
        # These files are missing where the kernel does not account swap.
        for file, value in (("memory.memsw.limit_in_bytes", limits.memory_mib << 20), ("memory.swap.max", 0)):
            if (folder / file).exists():
                (folder / file).write_text(str(value))

    def enter(self, name: str, pid: int) -> None:
        """Move a process that has no children yet. Raises OSError when it is gone."""
        for _, folder in self._folders(name):
            (folder / "cgroup.procs").write_text(str(pid))

    def killed_for_memory(self, name: str) -> bool:
        """Whether the kernel killed something in there for want of memory."""
        for _, folder in self._folders(name):
            for file in ("memory.oom_control", "memory.events"):
                with contextlib.suppress(OSError):
                    for line in (folder / file).read_text().splitlines():
                        word, _, count = line.partition(" ")
                        if word == "oom_kill" and int(count) > 0:
                            return True
        return False


def _can_make(mount: Path) -> bool:
    parent = mount / PARENT
    try:
        parent.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(parent, os.W_OK)
