"""The socket by which a later host comes to a local sandbox: in its folder, outside the root that the sandbox sees."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ["connect", "listen"]


def listen(folder: Path) -> socket.socket:
    """Make it, for its runner to be given. Only this user may connect."""
    with contextlib.ExitStack() as failing:
        door = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        os.fchmod(door.fileno(), 0o600)
        with _path(folder) as path:
            door.bind(path)
        door.listen()
        failing.pop_all()
    return door


def connect(folder: Path) -> socket.socket:
    """Come to it. Raises OSError where nobody listens any more."""
    with contextlib.ExitStack() as failing:
        sock = failing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with _path(folder) as path:
            sock.connect(path)
        failing.pop_all()
    return sock


@contextlib.contextmanager
def _path(folder: Path) -> Iterator[str]:
    """One that fits: that of a socket ends at 108 bytes, and folders can be chosen."""
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder_fd}/door"
    finally:
        os.close(folder_fd)
