"""One line per rollout in ``rollouts.jsonl``: resuming and reports read it, so a run stops when it cannot be kept."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import time
from pathlib import Path
from typing import ClassVar

from rayroll.errors import ClosedError, ConfigError, DiskFullError
from rayroll.record import finished_ids, from_line, read_rollouts, to_line
from rayroll.sinks import Sink
from rayroll.types import Rollout

__all__ = ["JsonlSink", "finished_ids", "from_line", "read_rollouts", "to_line"]

logger = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT}


class JsonlSink(Sink):
    """Appends to a file that another run, or an earlier part of this one, may have begun.

    Each line reaches the kernel before ``add`` returns, so a killed process loses nothing that was added; the disk
    itself is told at most ``fsync_s`` later, so a power cut loses that much. A last line torn by a crash is cut off
    before the first append. Two runs never write one file: the second is refused.
    """

    kind: ClassVar[str] = "jsonl"
    essential: ClassVar[bool] = True

    def __init__(self, path: Path | str, *, fsync_s: float = 1.0, reserve_bytes: int = 64 * 2**20) -> None:
        """Opens nothing yet.

        Args:
            path: The file; its folder is made.
            fsync_s: Longest time between a line and its fsync; 0 syncs every line.
            reserve_bytes: Free space below which the run is told to stop, while there is still room for the rollouts
                under way. 0 stops at the first line that does not fit.
        """
        self.path = Path(path)
        self.fsync_s = fsync_s
        self.reserve_bytes = reserve_bytes
        self._fd: int | None = None
        self._end = 0
        self._synced_s = 0.0
        self._closed = False

    def open(self) -> None:
        """Make the folder, lock the file and mend its end. Raises ConfigError when another run is writing it."""
        self._open()

    def add(self, rollout: Rollout) -> None:
        """Append one line.

        Raises:
            DiskFullError: It did not fit; the file ends with the line before it.
        """
        if self._closed:
            raise ClosedError("rollout handed to a closed file", path=str(self.path))
        fd = self._open()
        line = to_line(rollout)
        try:
            _write_all(fd, line)
        except OSError as error:
            os.ftruncate(fd, self._end)  # giving space back works on a full disk too
            if error.errno in _FULL:
                raise self._full("no space left for finished rollouts") from error
            raise
        self._end += len(line)
        now_s = time.monotonic()
        if now_s - self._synced_s >= self.fsync_s:
            os.fsync(fd)
            self._synced_s = now_s

    def check(self) -> None:
        """Raises DiskFullError when less than ``reserve_bytes`` are free."""
        if self.reserve_bytes and shutil.disk_usage(self.path.parent).free < self.reserve_bytes:
            raise self._full("space for finished rollouts is running out; all so far are kept")

    def close(self, exit_code: int = 0) -> None:
        """Sync and close. Idempotent."""
        self._closed = True
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _open(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._lock(fd)
                self._end = self._mend(fd)
            except BaseException:
                os.close(fd)
                raise
            self._fd, self._synced_s = fd, time.monotonic()
        return self._fd

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "another run is writing this file; choose another results folder or stop that run",
                path=str(self.path),
            ) from None

    def _mend(self, fd: int) -> int:
        """Make the file end with a whole line; returns its length in bytes."""
        size = os.fstat(fd).st_size
        tail, start = b"", size
        while start > 0 and b"\n" not in tail:
            block = min(65_536, start)
            start -= block
            tail = os.pread(fd, block, start) + tail
        whole, newline, torn = tail.rpartition(b"\n")
        if not torn:
            return size
        try:
            from_line(torn)
        except ValueError:
            end = start + len(whole) + len(newline)
            os.ftruncate(fd, end)
            logger.warning("cut a torn last line: %s, %d bytes from byte %d", self.path, len(torn), end)
            return end
        _write_all(fd, b"\n")  # whole but for its end
        return size + 1

    def _full(self, message: str) -> DiskFullError:
        free_bytes = shutil.disk_usage(self.path.parent).free
        return DiskFullError(
            f"{message}: free space there, then resume the run", path=str(self.path), free_bytes=free_bytes
        )


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
