"""What a local sandbox leaves on a node's disk, and how any process finds and removes it.

Standard library only and no imports from this package: the reaper runs this file without the rest (see _reaper.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

__all__ = [
    "Remains",
    "base_dir",
    "end_process",
    "find",
    "is_alive",
    "make_base",
    "remove",
    "remove_tree",
    "started_at",
]

STATE = "state.json"
NAMELESS_S = 60.0
FOLDER_NAME = re.compile(r"(\.[0-9a-f]{16}-)?(?P<id>[^.].*)")
"""With whose it is in front while it has no record. Other hidden folders are caches."""


@dataclass(frozen=True)
class Remains:
    """One sandbox's folder and what belongs to it, as its ``state.json`` says."""

    id: str
    run_id: str
    owner: str
    lease_s: float
    created_unix_s: float
    host_pid: int
    host_started_at: int
    pid: int = 0
    """The runner's process on the node; 0 until it is known."""
    pid_started_at: int = 0
    isolated: bool = True
    """False: no pid namespace ends with the runner, so it is asked first to kill what it started."""
    cgroups: tuple[str, ...] = ()
    kept_until_unix_s: float = 0.0
    """Until then it is left alone although its host has ended."""
    folder: str = ""
    """Where it was found; not written to the file."""

    def make_folder(self) -> None:
        """Make the folder with the record in it. Whoever is killed in between leaves one that its name gives away."""
        half_made = Path(self.folder).with_name(_name_without_record(self))
        half_made.mkdir(mode=0o711)
        self._write(half_made)
        half_made.rename(self.folder)

    def write(self) -> None:
        """Put it on disk, whole or not at all."""
        self._write(Path(self.folder))

    def _write(self, folder: Path) -> None:
        record = asdict(self)
        del record["folder"]
        half = folder / "state.half"
        half.write_text(json.dumps(record))
        half.replace(folder / STATE)

    def with_process(self, pid: int) -> Remains:
        """The same with the runner's process in it."""
        return replace(self, pid=pid, pid_started_at=started_at(pid) or 0)

    @property
    def state(self) -> str:
        """``running``, ``starting`` (its host lives) or ``dead``."""
        if self.pid and is_alive(self.pid, self.pid_started_at):
            return "running"
        return "starting" if not self.pid and is_alive(self.host_pid, self.host_started_at) else "dead"

    @property
    def is_kept(self) -> bool:
        """It was kept, it lives, and its time is not over."""
        return time.time() < self.kept_until_unix_s and self.state == "running"


def base_dir() -> Path:
    """Folder of all local sandboxes of this user on this node. Short, because socket paths end at 108 bytes."""
    return Path(tempfile.gettempdir()) / f"rayroll-{os.geteuid()}"


def make_base(base: Path) -> None:
    """Create the folder, or refuse one that somebody else could have put there.

    Raises:
        PermissionError: It exists and is not ours, or is a link.
    """
    base.mkdir(mode=0o711, parents=True, exist_ok=True)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{base} exists, but is not a folder that only this user can write to")


def find(base: Path, labels: Mapping[str, str]) -> Iterator[Remains]:
    """Every sandbox below ``base`` whose ``run`` and ``owner`` equal those in ``labels``.

    With both labels also what is left by somebody killed while they made or removed a folder. Without labels also
    folders that say nothing about themselves any more, once they are too old to be just beginning.
    """
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(base.iterdir()):
            remains = _read(folder) or _without_record(folder, labels) or _nameless(folder)
            if remains is not None and all(_label(remains, name) == value for name, value in labels.items()):
                yield remains


def _label(remains: Remains, name: str) -> str | None:
    return {"run": remains.run_id, "owner": remains.owner}.get(name)


def _read(folder: Path) -> Remains | None:
    try:
        record = json.loads((folder / STATE).read_bytes())
        record["cgroups"] = tuple(record.get("cgroups", ()))
        return Remains(**record, folder=str(folder))
    except (OSError, ValueError, TypeError):
        return None


def _name_without_record(remains: Remains) -> str:
    """Of a folder as long as it has no record yet, or none any more."""
    whose = hashlib.sha256(f"{remains.run_id}\0{remains.owner}".encode()).hexdigest()[:16]
    return f".{whose}-{remains.id}"


def _without_record(folder: Path, labels: Mapping[str, str]) -> Remains | None:
    """What its name says, to those who know whose it would be."""
    remains = _remains_of(folder, labels.get("run", ""), labels.get("owner", ""))
    return remains if remains is not None and folder.name == _name_without_record(remains) else None


def _nameless(folder: Path) -> Remains | None:
    """What says nothing to anybody and is too old to be just beginning."""
    remains = _remains_of(folder, "", "")
    return remains if remains is not None and time.time() - remains.created_unix_s >= NAMELESS_S else None


def _remains_of(folder: Path, run_id: str, owner: str) -> Remains | None:
    name = FOLDER_NAME.fullmatch(folder.name)
    try:
        if name is None or not folder.is_dir():
            return None
        return Remains(name["id"], run_id, owner, 0.0, folder.stat().st_mtime, 0, 0, folder=str(folder))
    except OSError:
        return None


def started_at(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which with the pid names it for good; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, start: int) -> bool:
    """Whether exactly this process still runs."""
    return started_at(pid) == start


def remove(remains: Remains, *, patience_s: float = 10.0) -> None:
    """Kill what runs, then remove the folder and the cgroups. What is gone already is no error.

    Raises:
        OSError: Something could not be removed; it can still be found.
    """
    deadline = time.monotonic() + patience_s
    if remains.pid:
        if not remains.isolated:
            end_process(remains.pid, remains.pid_started_at, signal.SIGTERM, min(deadline, time.monotonic() + 2.0))
        end_process(remains.pid, remains.pid_started_at, signal.SIGKILL, deadline)
    elif remains.isolated:
        _end_starters(remains.folder, deadline)
    for cgroup in remains.cgroups:
        _remove_cgroup(Path(cgroup), deadline)
    # What says whose it is goes last, and then the name says it: what somebody leaves who is killed is found again.
    folder = Path(remains.folder)
    for inner in _contents(folder):
        remove_tree(inner)
    emptied = folder.with_name(_name_without_record(remains))
    with contextlib.suppress(FileNotFoundError):
        folder.rename(emptied)
    remove_tree(emptied)


def _contents(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name != STATE]
    except FileNotFoundError:
        return []


def _end_starters(folder: str, deadline: float) -> None:
    """Kill every bubblewrap that was started for a folder and has not become the runner yet.

    One that loses its other half while it starts waits for it for ever: it has no lease yet and is nobody's child. Its
    command line says whose it is. Looked for again until there is none, because one may have started another.
    """
    mark = f"\0{folder}/root\0".encode()
    while time.monotonic() < deadline:
        found = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and mark in _command_line(p)]
        if not found:
            return
        for pid in found:
            start = started_at(pid)
            if start is not None:
                end_process(pid, start, signal.SIGKILL, deadline)


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def end_process(pid: int, start: int, how: signal.Signals, deadline: float) -> None:
    """Send a signal to exactly this process and wait until it is gone, or the deadline (monotonic) has passed."""
    try:
        handle = os.pidfd_open(pid)  # then compare: the number cannot be reused for another process any more
    except OSError:
        return
    try:
        if is_alive(pid, start):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, how)
            waiting = select.poll()  # not select(): a host has more than 1024 descriptors
            waiting.register(handle, select.POLLIN)
            waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(handle)


def _remove_cgroup(cgroup: Path, deadline: float) -> None:
    while cgroup.exists():
        try:
            cgroup.rmdir()
        except OSError:  # still has processes
            if time.monotonic() > deadline:
                raise
            with contextlib.suppress(OSError):
                for pid in (cgroup / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.002)


def remove_tree(folder: Path) -> None:
    """Remove a folder whose contents a hostile program arranged.

    By ``rm``: shutil.rmtree recurses, and a thousand nested folders end it with RecursionError.

    Raises:
        OSError: Something is still there.
    """
    if _rm(folder) and os.geteuid() != 0:
        # Folders without permissions: their owner may give them back.
        subprocess.run(["chmod", "-R", "u+rwX", "--", folder], stderr=subprocess.DEVNULL, check=False)
        _rm(folder)
    if os.path.lexists(folder):
        raise OSError(f"{folder} could not be removed")


def _rm(folder: Path) -> int:
    done = subprocess.run(["rm", "-rf", "--", folder], stderr=subprocess.DEVNULL, check=False)
    return done.returncode
