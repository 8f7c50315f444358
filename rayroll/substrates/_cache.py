"""Folders made once per node: root filesystems and tools, shared by every process, within a disk budget."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rayroll.errors import ConfigError
from rayroll.runner.build import cache_dir
from rayroll.substrates._leftovers import remove_tree

__all__ = ["Held", "Store", "can_reach", "locked", "user_cache"]

logger = logging.getLogger(__name__)

SYSTEM_CACHE = Path("/var/cache/rayroll")


def user_cache(reader_uid: int) -> Path:
    """The cache folder: ``RAYROLL_CACHE_DIR``, else ``~/.cache/rayroll``.

    Args:
        reader_uid: The user that must be able to read it. Root's home is closed to everybody else, so for sandboxes
            that run as another user root's cache is ``/var/cache/rayroll``.
    """
    folder = cache_dir()
    is_chosen = bool(os.environ.get("RAYROLL_CACHE_DIR"))
    return folder if is_chosen or can_reach(folder, reader_uid) else SYSTEM_CACHE


def can_reach(path: Path, uid: int) -> bool:
    """Whether a user without groups could pass through every folder down to ``path``, as far as it exists."""
    for folder in (path, *path.parents):
        try:
            found = folder.stat()
        except FileNotFoundError:
            continue
        except PermissionError:
            return False
        if not found.st_mode & (0o100 if found.st_uid == uid else 0o001):
            return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process on this node at a time. Blocks: call it in a thread."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Held:
    """An entry that is not removed while somebody holds it, also when its holder is killed: a shared file lock."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    def dup(self) -> int:
        """A descriptor for another process, which holds the entry as well for as long as it has that open."""
        return os.dup(self._lock_fd)

    def release(self) -> None:
        """Let it go. Idempotent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


class Store:
    """Entries of one sort. All calls block: use a thread."""

    def __init__(self, folder: Path, budget_bytes: int, reader_uid: int) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        self.reader_uid = reader_uid

    def hold(self, name: str, build: Callable[[Path], None]) -> Held:
        """The entry of that name, made by ``build(empty folder)`` if no process on this node has made it yet.

        Whatever ``build`` raises is passed on, and nothing half made stays.

        Raises:
            ConfigError: Sandboxes could not read what is in this folder.
        """
        assert re.fullmatch(r"[\w.-]+", name), name
        self.folder.mkdir(parents=True, exist_ok=True)
        if not can_reach(self.folder, self.reader_uid):
            raise ConfigError(
                "the cache cannot be reached by the user that sandboxes run as; set RAYROLL_CACHE_DIR elsewhere, "
                "or let others pass through (chmod o+x) the folders above it",
                folder=str(self.folder),
                uid=self.reader_uid,
            )
        target = self.folder / name
        lock_fd = os.open(self._lock_of(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_SH)
            while not target.exists():
                fcntl.flock(lock_fd, fcntl.LOCK_EX)
                if not target.exists():
                    self._make(target, build)
                # Giving up the exclusive lock for the shared one is not atomic: somebody may remove it in between.
                fcntl.flock(lock_fd, fcntl.LOCK_SH)
            os.utime(self._lock_of(name))
        except BaseException:
            os.close(lock_fd)
            raise
        self._make_room(keep=name)
        return Held(target, lock_fd)

    def _lock_of(self, name: str) -> Path:
        return self.folder / f".{name}.lock"

    def _make(self, target: Path, build: Callable[[Path], None]) -> None:
        half = self.folder / f".{target.name}.half"
        remove_tree(half)
        try:
            half.mkdir()
            build(half)
            (self.folder / f".{target.name}.size").write_text(str(_size_bytes(half)))
            half.rename(target)
        finally:
            remove_tree(half)

    def _make_room(self, keep: str) -> None:
        """Remove what was used longest ago until the rest fits; what is held stays."""
        used = {entry.name: self._used(entry.name) for entry in self.folder.iterdir() if entry.name[0] != "."}
        total_bytes = sum(size for _, size in used.values())
        for name in sorted(used, key=used.__getitem__):
            if total_bytes <= self.budget_bytes:
                return
            if name != keep and self._remove_if_free(name):
                total_bytes -= used[name][1]
                logger.info("removed from the cache: %s (%d MiB)", name, used[name][1] >> 20)

    def _used(self, name: str) -> tuple[float, int]:
        """Last use (Unix seconds) and size in bytes."""
        try:
            return self._lock_of(name).stat().st_mtime, int((self.folder / f".{name}.size").read_text())
        except (OSError, ValueError):
            return 0.0, 0

    def _remove_if_free(self, name: str) -> bool:
        with self._lock_of(name).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            remove_tree(self.folder / name)
        return True


def _size_bytes(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            total += Path(parent, file).lstat().st_blocks * 512
    return total
