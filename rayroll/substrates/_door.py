"""The sockets by which a later host comes to what a sandbox's folder on this node holds, outside what it sees."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DOOR", "connect", "listen"]

DOOR = "door"
"""The one to its runner."""


def listen(folder: Path, name: str = DOOR) -> socket.socket:
    """Make one, to be given to who serves there. Only this user may connect."""
    with contextlib.ExitStack() as failing:
        sock = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        os.fchmod(sock.fileno(), 0o600)
        with _path(folder, name) as path:
            sock.bind(path)
        sock.listen()
        failing.pop_all()
    return sock


def connect(folder: Path, name: str = DOOR) -> socket.socket:
    """Come to one. Raises OSError where nobody listens any more."""
    with contextlib.ExitStack() as failing:
        sock = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with _path(folder, name) as path:
            sock.connect(path)
        failing.pop_all()
    return sock


@contextlib.contextmanager
def _path(folder: Path, name: str) -> Iterator[str]:
    """One that fits: that of a socket ends at 108 bytes, and folders can be chosen."""
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder_fd}/{name}"
    finally:
        os.close(folder_fd)
