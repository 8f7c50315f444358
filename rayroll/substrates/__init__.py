"""Where sandboxes come from: what every substrate must do, and how one is found by its name.

One public file in this folder is one substrate; its name is its ``kind``. Another package adds one through the
entry-point group ``rayroll.substrates``. A substrate makes, lists and destroys sandboxes and opens the byte stream to
the runner inside; running commands, files, killing and timing are the runner's and are the same everywhere.
"""

from __future__ import annotations

import importlib
import pkgutil
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
    "Probe",
    "Receiver",
    "Sandbox",
    "SandboxRef",
    "SandboxSpec",
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
    """Silence after which the runner kills everything and the sandbox removes itself."""


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
    root: str = "/"
    """What the runner calls the sandbox's ``/``. Another folder only for a plain process without isolation: prefix
    every path of the task with it."""


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
            older_than_s: Also those still running, once they are that old. None: leftovers only, that is what does
                not run and is older than its lease.

        Raises:
            ExceptionGroup: Some could not be destroyed; the others were.
        """
        swept: list[SandboxRef] = []
        errors: list[Exception] = []
        for ref in await self.list(labels):
            idle = ref.state != "running" and ref.age_s > ref.lease_s
            if not (idle if older_than_s is None else ref.age_s >= older_than_s):
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

    async def set_network(self, ref: SandboxRef, enabled: bool) -> None:
        """Switch the network of a running sandbox, where a task's phases differ. Raises ConfigError if impossible."""
        raise ConfigError(f"substrate {self.kind!r} cannot switch the network of a running sandbox", enabled=enabled)


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
