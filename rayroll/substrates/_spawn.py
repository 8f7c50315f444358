"""The one thread that starts processes: a half-started sandbox dies with its thread, so this one never ends.

``bwrap --die-with-parent`` is PR_SET_PDEATHSIG, and the kernel sends that signal when the starting *thread* ends. A
thread of a pool that shrinks, or an event loop run in a short-lived thread, would take its sandboxes with it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["as_user", "spawn"]


def spawn(argv: Sequence[str], **popen: Any) -> asyncio.Future[subprocess.Popen[bytes]]:
    """Start a process from the long-lived thread; keyword arguments are Popen's.

    The process may exist although its waiter was cancelled: keep the future and ask it, instead of awaiting it bare.
    """
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(_thread(os.getpid()), functools.partial(_start, list(argv), popen))


def as_user(uid: int, argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The command line and Popen arguments that run ``argv`` as a user without groups.

    By setpriv where it is there: Popen's own ``user`` forks instead of vforking, which costs a host of 100 MB some
    14 ms a start instead of 2.
    """
    if uid == os.geteuid():
        return list(argv), {}
    setpriv = _setpriv()
    if setpriv is None:
        return list(argv), {"user": uid, "group": uid, "extra_groups": []}
    return [setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--", *argv], {}


@functools.cache
def _setpriv() -> str | None:
    return shutil.which("setpriv")


def _start(argv: list[str], popen: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, **popen)


@functools.cache
def _thread(pid: int) -> ThreadPoolExecutor:  # by process: a forked child has the object without its thread
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="rayroll-spawn")
