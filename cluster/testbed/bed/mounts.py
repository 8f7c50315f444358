"""Mounts that a killed daemon left behind; what somebody else mounted there, a disk or a cache, is not among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bed.shell import run


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: `root` of the file system `device` is seen at `point`."""

    device: str
    root: Path
    point: Path


def unmount_leftovers(folder: Path) -> None:
    """Unmount a daemon's leftovers at and below its own folder.

    Lazily: the processes that used them are gone, and one busy mount must not stop a recovery.
    """
    for point in leftovers(parse(Path("/proc/self/mountinfo").read_text()), folder):
        run(["umount", "--lazy", point])


def parse(mountinfo: str) -> list[Mount]:
    """In the order in which they were mounted."""
    lines = [line.split() for line in mountinfo.splitlines()]
    return [Mount(fields[2], _unescaped(fields[3]), _unescaped(fields[4])) for fields in lines]


def leftovers(mounts: list[Mount], folder: Path) -> list[Path]:
    """Mount points to unmount, in an order in which that can be done.

    All that is mounted below the folder, and at the folder itself only what dockerd does there: it mounts its folder
    onto itself. Anything else at the folder is a disk that somebody gave us.
    """
    return [
        mount.point
        for mount in reversed(mounts)
        if folder in mount.point.parents or (mount.point == folder and _is_onto_itself(mount, mounts))
    ]


def _is_onto_itself(mount: Mount, mounts: list[Mount]) -> bool:
    around = [other for other in mounts if other.point in mount.point.parents and other.device == mount.device]
    return any(other.root / mount.point.relative_to(other.point) == mount.root for other in around)


def _unescaped(field: str) -> Path:
    # Spaces and the like are written as octal escapes.
    return Path(field.encode().decode("unicode_escape").encode("latin-1").decode())
