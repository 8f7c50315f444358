"""A host's process is its own: the scheduler and the garbage collector are told what it does for a living."""

from __future__ import annotations

import gc
import os
from pathlib import Path

__all__ = ["settle"]


def settle() -> dict[str, str]:
    """Arrange this process for answering many sandboxes at once. Returns what is worth recording about it."""
    _calm_the_collector()
    return {"niceness": str(_leave_the_back_seat())}


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
