"""The values that cross processes: frozen, slotted, plain, and nothing but the standard library."""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

from rayroll.errors import Failure

__all__ = [
    "Act",
    "CommandTiming",
    "ExecResult",
    "FileTree",
    "Grade",
    "Rollout",
    "Rung",
    "Step",
    "Task",
    "Timing",
    "Turn",
]

Rung = Literal["cold", "cached", "snapshot", "warm", "recycled"]
"""How far down the start ladder a sandbox began (cold: its image was absent from this node)."""


_T = TypeVar("_T")


def _by_position(cls: type[_T]) -> type[_T]:
    """Pickle as the class and its values in order, 3 times faster than by looking up the fields' names each time."""
    values = attrgetter(*cls.__dataclass_fields__)  # type: ignore[attr-defined]

    def reduce(self: _T) -> tuple[type[_T], tuple[Any, ...]]:
        return cls, values(self)

    cls.__reduce__ = reduce  # type: ignore[assignment, method-assign]
    return cls


@dataclass(frozen=True, slots=True)
class FileTree:
    """A folder as one normalized tar, so that a task travels between nodes as a plain value."""

    tar: bytes
    digest: str
    """SHA-256 of ``tar``, in hex: names sorted, times and owners zeroed, so equal folders are equal."""

    @classmethod
    def from_dir(cls, root: Path) -> FileTree:
        """Pack every file, folder and symbolic link below ``root``; pipes, sockets and devices are left out."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(root.rglob("*")):
                if "__pycache__" in path.parts:
                    continue
                archive.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=_normalized)
                # Or the second name of one file would be a link, and equal folders would differ. Typeshed lacks it.
                archive.inodes.clear()  # type: ignore[attr-defined]
        return cls.from_tar(buffer.getvalue())

    @classmethod
    def from_tar(cls, tar: bytes) -> FileTree:
        """Wrap an archive as it is."""
        return cls(tar=tar, digest=hashlib.sha256(tar).hexdigest())

    @classmethod
    def from_files(cls, files: Mapping[str, bytes | str], executable: frozenset[str] = frozenset()) -> FileTree:
        """Pack in-memory files: name to contents (text is UTF-8); those in ``executable`` get mode 755."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(files):
                content = files[name]
                data = content.encode() if isinstance(content, str) else content
                member = tarfile.TarInfo(name)
                member.size = len(data)
                member.mode = 0o755 if name in executable else 0o644
                archive.addfile(member, io.BytesIO(data))
        return cls.from_tar(buffer.getvalue())

    def names(self) -> list[str]:
        """Member names in archive order."""
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as archive:
            return archive.getnames()

    def read(self, name: str) -> bytes:
        """Contents of one file; KeyError when there is none of that name."""
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as archive:
            file = archive.extractfile(name)
            if file is None:
                raise KeyError(name)
            return file.read()

    def extract(self, target: Path) -> None:
        """Write the tree below ``target``, refusing names that would leave it."""
        with tarfile.open(fileobj=io.BytesIO(self.tar)) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(target, filter="data")
                return
            # Python before 3.11.4 (Debian 12's is 3.11.2) has no filters.
            for member in archive:
                _refuse_unsafe(member)
                archive.extract(member, target)

    def __bool__(self) -> bool:
        return bool(self.names())


def _refuse_unsafe(member: tarfile.TarInfo) -> None:
    link = posixpath.join(posixpath.dirname(member.name) if member.issym() else "", member.linkname)
    for path in (member.name, link):
        if path.startswith("/") or posixpath.normpath(path).split("/")[0] == "..":
            raise tarfile.TarError(f"{member.name!r} would leave the folder it is extracted to")
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise tarfile.TarError(f"{member.name!r} is neither a file, a folder nor a link")


def _normalized(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym()):
        return None
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


@dataclass(frozen=True, slots=True)
class Task:
    """A problem: what to do, the system it is done in, and the tests that judge it."""

    id: str
    """``pack/name``, unique."""
    instruction: str
    environment: FileTree
    """The build context of the root filesystem; its ``Dockerfile`` says how (empty when ``image`` is given)."""
    tests: FileTree
    """Enters the sandbox at ``/tests`` only for grading; holds ``test.sh``."""
    solution: FileTree | None = None
    """A known fix; holds ``solve.sh``. Enters at ``/solution``."""
    image: str | None = None
    """A ready image instead of a Dockerfile."""
    workdir: str = "/"
    """Where commands start."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the agent's commands."""
    tests_env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the grader."""
    agent_user: str | None = None
    """User of the agent's commands; None: the image's own."""
    grade_user: str | None = None
    """User of the grader; None: the image's own."""
    solution_env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the known fix."""
    agent_timeout_s: float = 3600.0
    grade_timeout_s: float = 600.0
    build_timeout_s: float = 600.0
    cpus: float = 1.0
    memory_mib: int = 2048
    disk_mib: int = 10240
    agent_network: bool = False
    grade_network: bool = False
    host_packages: tuple[str, ...] | None = None
    """Python requirements with which the task also runs on the node's own system (``local`` without a root
    filesystem); None: it needs its root filesystem."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@_by_position
@dataclass(frozen=True, slots=True)
class CommandTiming:
    """Durations of one command in nanoseconds, taken by the runner's monotonic clock inside the sandbox."""

    queued_ns: int = 0
    """Request complete in the runner to the start of its fork."""
    spawn_ns: int = 0
    """Start of fork to the shell's exec."""
    run_ns: int = 0
    """Exec to the exit of the command's main process; kill grace is in ``drain_ns``."""
    drain_ns: int = 0
    """Exit (or the limit that ended it) to the reply: killing what is left and reading the last output."""
    user_ns: int = 0
    system_ns: int = 0
    throttled_ns: int = 0
    """Time the cgroup's CPU limit held processes back while the command ran; 0 where no cgroup is visible."""
    max_rss_bytes: int = 0
    memory_limit_hits: int = 0
    round_trip_ns: int = 0
    """Request handed to the channel to reply handled, by the host's clock."""

    @property
    def busy_ns(self) -> int:
        """The runner's share of the round trip; the rest is transport."""
        return self.queued_ns + self.spawn_ns + self.run_ns + self.drain_ns


@_by_position
@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command did."""

    output: str
    """Standard output and error in the order written, bad bytes as U+FFFD; head and tail where the cap cut it."""
    exit_code: int
    """0-255; 128+n for signal n, as shells say it. For a timed-out command, the code its killed shell left."""
    timed_out: bool = False
    limit: Literal["", "total", "idle"] = ""
    """Which limit ended it: ``total`` (timeout_s) or ``idle`` (no output for idle_timeout_s)."""
    truncated: bool = False
    output_bytes: int = 0
    """True number of bytes printed, also those that the cap dropped."""
    state_saved: bool = True
    """False when working directory and exported variables of this command were lost (exec, kill -9)."""
    notice: str = ""
    """Something the agent should know that no command printed (its directory is gone, its job was killed)."""
    raw: bytes = b""
    """The bytes behind ``output``."""
    timing: CommandTiming = CommandTiming()


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on a rollout."""

    reward: float | None
    """None when there is no verdict, and then ``failure`` says why. Never 0 for a machine's fault."""
    report: str = ""
    """What the tests printed, capped."""
    failure: Failure | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a policy sees: one observation of one rollout."""

    rollout_id: str
    task_id: str
    instruction: str
    index: int
    """0 for the first turn, whose observation is the task's instruction."""
    observation: str
    exit_code: int | None = None
    group_id: str | None = None
    sample_index: int = 0
    seed: int | None = None
    policy_version: int | None = None
    """What ``Run.resume`` said last."""
    attempt: int = 1
    """Which try at this rollout: it begins again where the machine failed, and a spare may run beside."""
    result: ExecResult | None = None
    """All about the last command; None at the first turn."""


@dataclass(frozen=True, slots=True)
class Act:
    """What a policy answers: a shell command, or the wish to submit."""

    command: str = ""
    submit: bool = False
    tokens: Any = None
    """Ids, logprobs, masks: carried to the rollout untouched."""
    policy_version: int | None = None
    timeout_s: float | None = None
    """Limit for this command; None: the rollout's default."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn as it happened."""

    act: Act
    exit_code: int
    timed_out: bool
    truncated: bool
    output_bytes: int
    output_digest: str
    """SHA-256 over exit code and raw output, in hex, to prove equal work."""
    timing: CommandTiming
    phases_s: Mapping[str, float]
    """This action's own seconds: dispatch, transport, spawn, run, drain, host, return, policy."""
    policy_version: int | None = None
    """Of the policy that chose it: as its act says, else as the run was told."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the wall time of one rollout went, in seconds; see docs/timing.md."""

    wall_s: float
    env_s: float
    infra_s: float
    policy_s: float
    hidden_s: float
    """Time of phases that overlapped a phase of higher priority: reported, not counted twice."""
    phases: Mapping[str, float]
    """Exclusive seconds per phase; they add up to ``wall_s`` with ``other``."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A sandbox that was not destroyed with its rollout, and how to get in: what ``rayroll shell`` needs to know.

    Nothing of its environment is in here: whoever gets in has it from the sandbox.
    """

    substrate: str
    sandbox: str
    """Its name there."""
    node: str
    until_unix_s: float
    """When it removes itself, by wall clock."""
    shell: str
    workdir: str
    user: str | None = None
    """Who the agent was; None: the sandbox's own user."""
    place: Mapping[str, str] = field(default_factory=dict)
    """Fields of the substrate's config with which it is found."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode and its record."""

    id: str
    """Hash of run, task and sample, so that a resumed run knows what is finished."""
    run_id: str
    task_id: str
    substrate: str
    reward: float | None
    valid: bool
    """False when the machine failed: mask it in training."""
    timing: Timing
    steps: tuple[Step, ...] = ()
    grade: Grade | None = None
    failure: Failure | None = None
    submitted: bool = False
    truncated: bool = False
    """Ended by a step or time limit rather than by the policy."""
    rung: Rung = "cached"
    attempts: int = 1
    infra_retry_s: float = 0.0
    """Wall seconds of earlier attempts that the machine spoilt; they count in the projection."""
    cold_start_s: float | None = None
    """``create`` called to hello accepted, on the host's clock; pull, build and admission apart."""
    first_action_s: float | None = None
    """``create`` asked to the result of a first no-op."""
    reset_s: float | None = None
    group_id: str | None = None
    sample_index: int = 0
    seed: int | None = None
    work_digest: str = ""
    """Digest over exit codes, final diff and test outcomes: equal on every substrate for equal work."""
    node: str = ""
    host: str = ""
    """Which of the executor's hosts had its sandbox."""
    moves: int = 0
    """How often that host died, and the one after it went on with the sandbox."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the run that made it wants to group by, such as the sweep cell."""
    kept: Kept | None = None
    """Its sandbox, where ``PlayConfig.keep`` asked for it."""

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)
