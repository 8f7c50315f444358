"""What a driver asks of a host, and what it hears back: plain values, many to a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rayroll._live import Ticket
from rayroll.errors import RayrollError
from rayroll.types import Rung

__all__ = [
    "Adopt",
    "Bring",
    "Close",
    "Completion",
    "CoolDown",
    "Exec",
    "HostInfo",
    "HostSetup",
    "HostStats",
    "Judge",
    "Message",
    "Open",
    "Opened",
    "WarmUp",
]


@dataclass(frozen=True, slots=True)
class HostSetup:
    """Everything a host needs to know before its first session."""

    substrate: str
    run_id: str
    owner: str
    substrate_config: Mapping[str, Any] = field(default_factory=dict)
    session_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What a started host says about itself."""

    node: str
    pid: int
    clock_id: str
    """Hosts and drivers with equal, non-empty ids may subtract each other's clock readings."""
    facts: Mapping[str, str]
    """The substrate's versions and capabilities."""
    images: frozenset[str] | None = None
    """On its node, as the substrate's ``image_of`` calls them; None: it does not say."""


@dataclass(frozen=True, slots=True)
class HostStats:
    """How a host is doing."""

    sessions: int
    rss_bytes: int
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    """How late the host's event loop wakes up, over the last minute."""
    free_memory_mib: int | None = None
    """Of the node."""
    pressure: float | None = None
    """Share of the last ten seconds in which some process stalled for memory; None: the kernel does not say."""
    free_disk_mib: int | None = None
    """Where images and sandboxes are kept; None: the substrate does not say."""
    images: frozenset[str] | None = None
    """As in ``HostInfo``."""


@dataclass(frozen=True, slots=True)
class Open:
    """Start a session for a task the host knows. Answered with ``Opened`` when its sandbox is up."""

    session: str
    task: str
    """What the host calls it, as ``HostLink.teach`` said."""
    seed: int | None
    group_id: str | None
    sample_index: int
    deadline_s: float | None
    """None: the task's own."""
    trusted: bool
    """Its commands come from rayroll's own scripted policies."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Go on with a session whose host has died. Answered with the ``Ticket`` for whoever comes next."""

    open: Open
    """As it was opened there, but for ``deadline_s``: what is left of it."""
    ticket: Ticket
    under_way: int | None
    """Number of the command that was asked for and not answered."""


class Exec(NamedTuple):
    """Run one command. Answered with an ``ExecResult``."""

    session: str
    command: str
    timeout_s: float | None
    number: int | None = None
    """Its own in the life of its sandbox: asked again with it, it is not run again. None: nobody will ask again."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Grade. Answered with a ``Grade``; its details hold ``work`` where ``fingerprint`` asks for it."""

    session: str
    fingerprint: bool


@dataclass(frozen=True, slots=True)
class Close:
    """End a session. Answered with whether its sandbox was made clean and waits; False for one that is unknown."""

    session: str
    keep_s: float | None = None
    """Do not destroy the sandbox but leave it to itself for so long, and answer with a ``Kept`` where that was done."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Start a sandbox ahead of need. Answered with the seconds it took; None: the host keeps as many as it may."""

    task: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class CoolDown:
    """Take one idle sandbox of this task down, if there is one. Answered with None."""

    task: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class Bring:
    """Bring the image of a task's sandboxes to the node, ahead of need. Answered with whether it is there; False: there
    is no room now for what nobody needs yet."""

    task: str
    trusted: bool


Message = Open | Adopt | Exec | Judge | Close | WarmUp | CoolDown | Bring


@dataclass(frozen=True, slots=True)
class Opened:
    """How a session started."""

    rung: Rung
    labels: Mapping[str, str]
    """What the record of the rollout must say about its sandbox."""
    cold_start_s: float
    first_action_s: float | None
    ticket: Ticket | None
    """With which another host can go on where this one dies; None: none can."""


class Completion(NamedTuple):
    """The answer to one message, with what the host measured about it. A tuple, as ``Exec``: many a millisecond."""

    request_id: int
    """0: nobody asked; ``value`` is the name of a task of which an idle sandbox is no more."""
    value: Any
    error: RayrollError | None
    arrived_ns: int
    """When the message reached the host, by the host's monotonic clock."""
    residence_ns: int
    """From there to this answer's departure."""
    spans: Sequence[tuple[str, int, int]]
    """What went on in the session meanwhile, by the same clock: phase, start and end in nanoseconds."""
