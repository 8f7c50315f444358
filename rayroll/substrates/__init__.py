"""Where sandboxes come from: what every substrate must do, and how one is found by its name.

One public file in this folder is one substrate; its name is its ``kind``. Another package adds one through the
entry-point group ``rayroll.substrates``. A substrate makes, lists and destroys sandboxes and opens the byte stream to
the runner inside; running commands, files, killing and timing are the runner's and are the same everywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, Protocol

from rayroll.config import Config
from rayroll.errors import ConfigError, InfraFailure, unknown_name
from rayroll.types import FileTree, Rung

__all__ = [
    "Channel",
    "Lease",
    "Login",
    "Probe",
    "Receiver",
    "Sandbox",
    "SandboxRef",
    "SandboxSpec",
    "Shell",
    "Substrate",
    "SubstrateConfig",
    "kinds",
    "load",
]


class Receiver(Protocol):
    """Who gets the bytes of a channel. Called on the event loop; must not block."""

    def data_received(self, data: bytes) -> None:
        """Some bytes from the runner, in order."""

    def connection_lost(self, error: Exception | None) -> None:
        """The stream ended; called once, after the last ``data_received``."""


class Channel(ABC):
    """An open byte stream to a runner."""

    @abstractmethod
    def start(self, receiver: Receiver) -> None:
        """Begin handing bytes to ``receiver``; bytes that came earlier are handed over first. Called once."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Queue bytes for the runner. Never blocks; the caller bounds what is outstanding (the runner's credit)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the stream. Idempotent; the sandbox stays until its lease ends or it is destroyed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who a sandbox belongs to, and how long it outlives its owner's last word."""

    run_id: str
    owner: str
    """Names the host that renews the lease."""
    duration_s: float = 30.0
    """Silence after which, at the earliest, the runner kills everything and the sandbox removes itself. Those of one
    host are spread over up to twice as long, lest they all end at once."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox must be like, in words that every substrate understands."""

    image: str | None = None
    """A ready image by name. None with an empty ``environment``: the substrate's plainest system."""
    environment: FileTree | None = None
    """A build context with a ``Dockerfile``, built once and kept by content."""
    workdir: str = "/"
    """Where commands start; ``/``: where the image says (its WORKDIR)."""
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: float = 1.0
    memory_mib: int = 2048
    disk_mib: int = 10240
    pids: int = 512
    network: bool = False
    build_timeout_s: float = 600.0
    host_packages: tuple[str, ...] | None = None
    """See ``Task.host_packages``."""
    labels: Mapping[str, str] = field(default_factory=dict)
    trusted: bool = False
    """Its commands come from rayroll's own scripted policies, not from a model. Only then may ``local`` fall back to a
    plain process where bubblewrap does not work."""


@dataclass(frozen=True, slots=True)
class SandboxRef:
    """Enough to find and destroy a sandbox from another process."""

    kind: str
    id: str
    run_id: str
    owner: str
    state: str = field(default="running", compare=False)
    """``running``; anything else is on its way up or a leftover (``created``, ``exited``, ``dead``)."""
    age_s: float = field(default=0.0, compare=False)
    """Since it was created, when it was listed; by wall clock."""
    lease_s: float = field(default=0.0, compare=False)
    """How long it may outlive its owner's last word; 0: unknown."""
    kept_until_unix_s: float = field(default=0.0, compare=False)
    """Until then it is meant to be there although its owner has ended; 0: it is not (see ``Substrate.keep``)."""

    @property
    def is_kept(self) -> bool:
        """It was kept, it lives, and its time is not over."""
        return self.state == "running" and time.time() < self.kept_until_unix_s


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether this node can run a substrate and, if not, why and what would fix it."""

    ok: bool
    reason: str = ""
    fix: str = ""
    """A command, where one helps."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Versions and capabilities worth recording."""


@dataclass(slots=True)
class Sandbox:
    """A sandbox as its substrate hands it over: started, its runner not yet spoken to."""

    ref: SandboxRef
    channel: Channel
    rung: Rung
    phases_s: dict[str, float]
    """Seconds of ``pull``, ``build``, ``create`` and ``boot``, on this process's monotonic clock."""
    system: Literal["image", "host"] = "image"
    """``host``: it stands on the node's own system, so its work is not comparable with an image's."""
    facts: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """What its times must not be read without, such as an accelerator: they are among the labels of its rollouts."""
    root: str = "/"
    """What the runner calls the sandbox's ``/``. Another folder only for a plain process without isolation: prefix
    every path of the task with it."""


@dataclass(frozen=True, slots=True)
class Login:
    """How somebody wants into a sandbox."""

    shell: str
    """The shell that the sandbox was born with."""
    argv: tuple[str, ...] = ()
    """Program and arguments; none: the shell itself."""
    workdir: str = "/"
    user: str | None = None
    """None: the sandbox's own."""
    env: Mapping[str, str] = field(default_factory=dict)
    """On top of what the sandbox was born with."""
    terminal: tuple[int, int] | None = None
    """Rows and columns; None: no terminal, and what goes to standard error is told apart."""

    @property
    def command(self) -> list[str]:
        """What to start: an agent may have removed the directory, which is no reason not to look."""
        enter = 'cd "$0" 2>/dev/null || echo "rayroll: $0 is gone" >&2; exec "$@"'
        return [self.shell, "-c", enter, self.workdir, *(self.argv or (self.shell,))]


class Shell(ABC):
    """A program in a sandbox that somebody sits in front of. Whoever got it closes it."""

    @abstractmethod
    async def read(self) -> tuple[int, bytes]:
        """What it printed next, and where: 1 standard output or terminal, 2 standard error. No bytes: that was all."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Type something; empty: the end of its input. Returns when it was taken; after its end it is dropped."""

    @abstractmethod
    async def resize(self, rows: int, columns: int) -> None:
        """The terminal has another size now."""

    @abstractmethod
    async def exit_code(self) -> int | None:
        """How it ended, after ``read`` gave no bytes; None: the sandbox ended with it."""

    @abstractmethod
    async def close(self) -> None:
        """Hang up. Idempotent."""


class SubstrateConfig(Config):
    """Fields that every substrate has."""

    max_starting: int = 8
    """Sandboxes of this host being created at the same time; the rest wait."""
    create_timeout_s: float = 60.0
    """Longest wait from ``create`` to a started runner, pull and build apart."""


class Substrate(ABC):
    """One way to make sandboxes on this node. Open it before use, close it after: ``async with``."""

    kind: ClassVar[str]
    config_type: ClassVar[type[SubstrateConfig]]
    reattach: ClassVar[bool] = True
    """Whether a broken stream to a living runner can be opened again (``reopen``)."""

    def __init__(self, config: SubstrateConfig) -> None:
        self.config = config

    async def __aenter__(self) -> Substrate:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> None:  # noqa: B027 - optional
        """Connect to what all sandboxes of this process share. Raises SubstrateError."""

    async def close(self) -> None:  # noqa: B027 - optional
        """Free what ``open`` made. Sandboxes still alive are left to ``destroy`` and to their leases. Idempotent."""

    @abstractmethod
    async def probe(self) -> Probe:
        """Can this node run it? Answers within 10 s; does not raise for a missing engine."""

    @abstractmethod
    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        """Make and start one sandbox, labelled with run, owner and lease from the moment it exists.

        Raises:
            SubstrateError: Typed and within ``create_timeout_s``; nothing half made is left, also when cancelled.
            TaskError: The spec's Dockerfile does not build.
        """

    @abstractmethod
    async def reopen(self, ref: SandboxRef) -> Channel:
        """A new stream to the same runner. Raises SandboxLostError when it is gone or ``reattach`` is False."""

    @abstractmethod
    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        """Sandboxes on this node, in any state, whose labels (``run``, ``owner``) equal all of ``labels``."""

    @abstractmethod
    async def destroy(self, ref: SandboxRef) -> None:
        """Remove a sandbox in whatever state. Removing what is gone is no error."""

    async def sweep(self, labels: Mapping[str, str], *, older_than_s: float | None = None) -> tuple[SandboxRef, ...]:
        """Destroy what was left behind, and return it.

        Args:
            labels: Which (``run``, ``owner``); empty: all of this user on this node.
            older_than_s: Also those still running, once they are that old, but for those that are kept. None: leftovers
                only, that is what does not run and is older than its lease.

        Raises:
            ExceptionGroup: Some could not be destroyed; the others were.
        """
        swept: list[SandboxRef] = []
        errors: list[Exception] = []
        for ref in await self.list(labels):
            idle = ref.state != "running" and ref.age_s > ref.lease_s
            if ref.is_kept or not (idle if older_than_s is None else ref.age_s >= older_than_s):
                continue
            try:
                await self.destroy(ref)
                swept.append(ref)
            except InfraFailure as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{len(errors)} sandboxes of substrate {self.kind!r} could not be removed", errors)
        return tuple(swept)

    async def cause_of_death(self, ref: SandboxRef) -> str:
        """Why a sandbox ended, as far as this substrate can tell (``oom``, ``exit 137``); "" when it cannot."""
        return ""

    async def killed_for_memory(self, ref: SandboxRef) -> bool:
        """Whether something in a sandbox that lives was killed for want of memory, as far as its runner cannot see that
        itself: a later ``cause_of_death`` would blame whoever is in it then."""
        return False

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        """Take over a sandbox of another process, which has died, before its lease has run out.

        For substrates whose sandboxes outlive the process that made them: they override this. From then on it belongs
        to ``lease.owner``, and whoever cleans up after its former owner leaves it alone.

        Returns:
            A new channel to its runner, which knows its key already.

        Raises:
            SandboxLostError: It is gone.
            SubstrateError: It cannot be reached.
        """
        raise ConfigError(f"substrate {self.kind!r} cannot take a sandbox over", id=ref.id, owner=lease.owner)

    @property
    def can_adopt(self) -> bool:
        """Whether this substrate has ``adopt``."""
        return type(self).adopt is not Substrate.adopt

    def image_of(self, spec: SandboxSpec) -> str | None:
        """What has to be on a node before this sandbox can be started there, as ``images`` calls it.

        None: nothing has to be brought. Asked where sandboxes are placed, of a substrate that was never opened.
        """
        return None

    async def images(self) -> frozenset[str] | None:
        """The images that are on this node; None: it does not say."""
        return None

    async def fetch(self, spec: SandboxSpec) -> bool:
        """Bring the image of this spec to this node, as ``create`` would, before anybody needs it.

        Returns:
            Whether it is there; False: there is no room now for what nobody needs yet.

        Raises:
            ImageError, TaskError: It cannot be pulled or built. ``create`` will say so again.
        """
        return True

    async def free_disk_mib(self) -> int | None:
        """Disk that is left where images and sandboxes are kept; None: it does not say."""
        return None

    async def restore(self, ref: SandboxRef) -> Channel:
        """Take a sandbox back to what it was when ``create`` returned: files, memory and processes.

        For substrates that can by themselves (a saved state of a VM, a checkpoint): they override this, and may then be
        asked for ``reset="restore"``.

        Returns:
            A new channel, its runner not yet spoken to.

        Raises:
            SubstrateError: It could not; the caller destroys the sandbox.
        """
        raise ConfigError(f"substrate {self.kind!r} cannot restore a sandbox", id=ref.id)

    async def pause(self, ref: SandboxRef) -> None:
        """Stop everything in a sandbox where it stands: it keeps its memory and takes no CPU until ``resume``.

        Its runner's lease goes on meanwhile and its stream may end: the caller lets go of the runner first, with a
        lease longer than the pause (``RunnerClient.leave``).

        Raises:
            SandboxLostError: It is gone.
            SubstrateError: It could not.
        """
        raise ConfigError(f"substrate {self.kind!r} cannot pause a sandbox", id=ref.id)

    async def resume(self, ref: SandboxRef) -> Channel:
        """Let a paused sandbox go on.

        Returns:
            A new channel to its runner, which knows its key already.

        Raises:
            SandboxLostError: It is gone.
            SubstrateError: It could not.
        """
        raise ConfigError(f"substrate {self.kind!r} cannot pause a sandbox", id=ref.id)

    async def snapshot(self, ref: SandboxRef) -> str:
        """Save the files of a running sandbox; its processes are not in it. It stays until ``forget``.

        Returns:
            A name for ``SandboxSpec.image`` on this substrate: sandboxes start from there.

        Raises:
            SandboxLostError: It is gone.
            SubstrateError: It could not.
        """
        raise ConfigError(f"substrate {self.kind!r} cannot save a sandbox", id=ref.id)

    async def forget(self, image: str) -> None:
        """Remove what ``snapshot`` saved. Removing what is gone is no error."""
        raise ConfigError(f"substrate {self.kind!r} cannot save a sandbox", image=image)

    async def set_network(self, ref: SandboxRef, enabled: bool) -> None:
        """Switch the network of a running sandbox, where a task's phases differ. Raises ConfigError if impossible."""
        raise ConfigError(f"substrate {self.kind!r} cannot switch the network of a running sandbox", enabled=enabled)

    async def keep(self, ref: SandboxRef, until_unix_s: float) -> Mapping[str, str]:
        """Write down with a sandbox that it shall outlive its host, so that no reaper and no ``gc`` takes it before.

        The caller then gives its runner a lease as long, and the sandbox removes itself at its end. For substrates
        whose sandboxes can be entered by another process: they override this and ``shell``.

        Returns:
            Fields of the config by which that process finds it, nothing secret.

        Raises:
            SubstrateError: It cannot be kept; the caller destroys it.
        """
        raise ConfigError(f"substrate {self.kind!r} cannot keep a sandbox", id=ref.id)

    @classmethod
    def can_keep(cls) -> bool:
        """Whether this kind has ``keep``."""
        return cls.keep is not Substrate.keep

    async def shell(self, ref: SandboxRef, login: Login) -> Shell:
        """Start a program in a sandbox that ``list`` found, beside its runner and whatever else runs there.

        Raises:
            SandboxLostError: It is gone.
            SubstrateError: The program cannot be started.
        """
        raise ConfigError(f"substrate {self.kind!r} has no way into a sandbox", id=ref.id)


def kinds() -> list[str]:
    """Names of all substrates, built-in and installed, sorted."""
    return sorted({*_built_in(), *(e.name for e in entry_points(group="rayroll.substrates"))})


def load(kind: str) -> type[Substrate]:
    """The substrate class of that name.

    Raises:
        ConfigError: No such kind (with the nearest names), or its SDK is missing (with the extra to install).
    """
    if kind in _built_in():
        return _only_substrate(importlib.import_module(f"{__name__}.{kind}"), kind)
    for entry in entry_points(group="rayroll.substrates"):
        if entry.name == kind:
            found: type[Substrate] = entry.load()
            return found
    raise unknown_name("substrate", kind, kinds())


def _built_in() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]


def _only_substrate(module: Any, kind: str) -> type[Substrate]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Substrate) and value.__module__ == module.__name__
    ]
    assert len(found) == 1 and found[0].kind == kind, f"{module.__name__} must define one substrate named {kind}"
    return found[0]
