"""Little tasks and what is left of them: for tests of sessions, envs and the executor in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from requirements import use_testbed

from rayroll.substrates import _leftovers as leftovers
from rayroll.types import FileTree, Task

IMAGE = "debian:bookworm-slim"
GRADER = """
if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""
SUBSTRATE_CONFIG: Mapping[str, Mapping[str, Any]] = {"local": {"rootfs": "host"}, "docker": {}}
"""A little task stands on the node's own system in ``local`` and on a plain Debian elsewhere."""


def task(name: str = "write", grader: str = GRADER, *, files: Mapping[str, str] | None = None, **changes: Any) -> Task:
    """Write 42 into answer.txt; ``changes`` are fields of ``Task``, ``files`` further ones of its tests."""
    fields: dict[str, Any] = {
        "id": f"little/{name}",
        "instruction": "Write 42 into answer.txt.",
        "environment": FileTree.from_files({}),
        "tests": FileTree.from_files({"test.sh": grader, **(files or {})}),
        "solution": FileTree.from_files({"solve.sh": "echo 42 > answer.txt\n"}),
        "image": IMAGE,
        "workdir": "/app",
        "host_packages": (),
        "memory_mib": 256,
        "grade_timeout_s": 30.0,
    }
    return Task(**(fields | changes))


async def until(claim: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Wait for something that no event tells."""
    end_s = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < end_s, "it did not come true in time"
        await asyncio.sleep(0.01)


async def until_true(claim: Callable[[], Awaitable[bool]], *, within_s: float = 60.0) -> None:
    """The same of a claim that takes a while to check."""
    end_s = time.monotonic() + within_s
    while not await claim():
        assert time.monotonic() < end_s, "it did not come true in time"
        await asyncio.sleep(0.05)


async def until_gone(pid: int) -> None:
    """Wait for the end of a process."""
    await until_true(lambda: asyncio.to_thread(lambda: not Path(f"/proc/{pid}").exists()))


async def pause(seconds: float) -> None:
    """Between two looks at something that no event tells."""
    await asyncio.sleep(seconds)


def left_on_this_node(run_id: str) -> list[str]:
    """What can still be seen of a run's local sandboxes: folders, processes, cgroups, mounts."""
    return [f"{r.id} {r.state}" for r in leftovers.find(leftovers.base_dir(), {"run": run_id})]


def left_of_this_process() -> list[str]:
    """The same, of every run whose host this process is."""
    found = leftovers.find(leftovers.base_dir(), {})
    return [f"{r.id} {r.state} run={r.run_id}" for r in found if r.host_pid == os.getpid()]


def traces_in_the_system(names: set[str]) -> list[str]:
    """Processes, mounts, cgroups and folders of this machine that carry one of these sandbox names (or any ids)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [f"process {path.parent.name}: {line[:120]}" for name in names if name in line]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        found += [f"mount {line}" for name in names if name in line]
    for root in (Path("/sys/fs/cgroup"), leftovers.base_dir()):
        for folder, inner, _ in os.walk(root):
            found += [f"folder {folder}/{sub}" for sub in inner if any(name in sub for name in names)]
    return found


use_testbed()
