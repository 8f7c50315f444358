"""What a driver asks of a host, and what it hears back: plain values, many to a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rayroll.errors import RayrollError
from rayroll.types import Rung

__all__ = ["Close", "Completion", "Exec", "HostInfo", "HostSetup", "HostStats", "Judge", "Message", "Open", "Opened"]


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


@dataclass(frozen=True, slots=True)
class HostStats:
    """How a host is doing."""

    sessions: int
    rss_bytes: int
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    """How late the host's event loop wakes up, over the last minute."""


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


class Exec(NamedTuple):
    """Run one command. Answered with an ``ExecResult``."""

    session: str
    command: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Judge:
    """Grade. Answered with a ``Grade``; its details hold ``work`` where ``fingerprint`` asks for it."""

    session: str
    fingerprint: bool


@dataclass(frozen=True, slots=True)
class Close:
    """Destroy the sandbox. Answered with None; of a session that is unknown as well."""

    session: str


Message = Open | Exec | Judge | Close


@dataclass(frozen=True, slots=True)
class Opened:
    """How a session started."""

    rung: Rung
    system: str
    cold_start_s: float
    first_action_s: float | None


class Completion(NamedTuple):
    """The answer to one message, with what the host measured about it. A tuple, as ``Exec``: many a millisecond."""

    request_id: int
    value: Any
    error: RayrollError | None
    arrived_ns: int
    """When the message reached the host, by the host's monotonic clock."""
    residence_ns: int
    """From there to this answer's departure."""
    spans: Sequence[tuple[str, int, int]]
    """What went on in the session meanwhile, by the same clock: phase, start and end in nanoseconds."""
