"""The one thread that starts processes: a sandbox dies with the thread that started it, so this one never ends.

``bwrap --die-with-parent`` is PR_SET_PDEATHSIG, and the kernel sends that signal when the starting *thread* ends. A
thread of a pool that shrinks, or an event loop run in a short-lived thread, would take its sandboxes with it.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["spawn"]


def spawn(argv: Sequence[str], **popen: Any) -> asyncio.Future[subprocess.Popen[bytes]]:
    """Start a process from the long-lived thread; keyword arguments are Popen's.

    The process may exist although its waiter was cancelled: keep the future and ask it, instead of awaiting it bare.
    """
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(_thread(), functools.partial(_start, list(argv), popen))


def _start(argv: list[str], popen: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, **popen)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="rayroll-spawn")
