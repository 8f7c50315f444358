"""A host's process and its node: what the kernel and the collector are told, and what the kernel tells."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

__all__ = ["free_memory_mib", "memory_pressure", "settle"]

MOST_OPEN_FILES = 65_536


def settle() -> dict[str, str]:
    """Arrange this process for answering many sandboxes at once. Returns what is worth recording about it."""
    _calm_the_collector()
    return {"niceness": str(_leave_the_back_seat()), "open_files": str(_open_more_files())}


def _open_more_files() -> int:
    """Every sandbox holds one open, its stream, and most systems let a process open 1,024 unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


def _leave_the_back_seat() -> int:
    """Ray starts workers with niceness 15, a 28th of the weight of the sandboxes that a host has to answer: on a busy
    node they starve it. As ordinary as they are is enough, where this user may say so (root, CAP_SYS_NICE, or a
    RLIMIT_NICE of 20); otherwise start the node with RAY_worker_niceness=0."""
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        try:
            # Linux counts by thread; those that come later are as their maker is.
            for thread in Path("/proc/self/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
        except OSError:
            pass
    return os.getpriority(os.PRIO_PROCESS, 0)


def _calm_the_collector() -> None:
    """A full collection walks all that Ray and others have loaded, which is no garbage: 75,000 objects, 40 ms in which
    no sandbox is answered, and it comes every few seconds under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def free_memory_mib() -> int | None:
    """Memory that this node could still give without swapping; None where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None


def memory_pressure() -> float | None:
    """Share of the last ten seconds in which some process of this node stalled for memory; None: it does not say."""
    try:
        first = Path("/proc/pressure/memory").read_text().splitlines()[0]  # some avg10=0.00 avg60=0.00 ...
        return float(first.split()[1].partition("=")[2]) / 100
    except (OSError, IndexError, ValueError):  # kernels without PSI
        return None
