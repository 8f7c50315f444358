"""What the scheduler is told and what it answers: plain values, named for what happened and for what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = [
    "Asked",
    "AttemptId",
    "Cancelled",
    "Command",
    "Cool",
    "Cooled",
    "End",
    "Ended",
    "Event",
    "Expire",
    "Fetch",
    "Fetched",
    "HostDown",
    "HostReport",
    "HostUp",
    "Needs",
    "Paused",
    "Reached",
    "Resumed",
    "RunClosed",
    "RunOpened",
    "Settle",
    "Spares",
    "Stage",
    "Start",
    "Started",
    "Stop",
    "StopReason",
    "Taken",
    "Tick",
    "Warm",
    "Warmed",
]

Stage = Literal["start", "policy", "exec", "grade", "close"]
"""What an attempt waits for: its sandbox, its policy's action, a command's result, its verdict, its sandbox's end."""

End = Literal["done", "spoilt", "stopped"]
"""How an attempt ended. ``done``: with a verdict, or with a fault that asking again would not mend. ``spoilt``: the
machine failed, so it may be tried again. ``stopped``: because a ``Stop`` asked for it."""

StopReason = Literal["cancelled", "overtaken", "stuck"]
"""``overtaken``: another attempt at the same rollout was faster. ``stuck``: it did not heed an ``Expire``."""

Spares = Literal["never", "start", "group"]
"""When a second attempt at the same rollout runs against the first. ``start``: where a start takes far longer than
starts do; the first sandbox that is up is played, so nothing depends on what the policy did. ``group``: also where the
others of a group have long finished; the first to finish counts, which prefers short rollouts to long ones."""


class AttemptId(NamedTuple):
    """One try at one rollout."""

    rollout: str
    number: int
    """From 1; a spare counts on."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rollout wants of the host that runs it. Rollouts with equal needs wait in one line."""

    shape: str = ""
    """Sandboxes of one shape can stand in for each other; a warm one serves any rollout of its shape."""
    image: str | None = None
    """What has to be on the host first; None: nothing."""
    memory_mib: int = 0
    disk_mib: int = 0
    labels: frozenset[tuple[str, str]] = frozenset()
    """Names and values that the host must have."""


# --- events ---


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host is ready for rollouts, for the first time or again."""

    host: str
    node: str = ""
    slots: int | None = None
    """Most rollouts at the same time; None: as many as the runs want."""
    labels: Mapping[str, str] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    memory_mib: int | None = None
    """For rollouts and warm sandboxes together, by what they declare; None: not counted."""
    disk_mib: int | None = None


@dataclass(frozen=True, slots=True)
class HostReport:
    """How a host is doing. What is None is not known."""

    host: str
    images: frozenset[str] | None = None
    free_memory_mib: int | None = None
    free_disk_mib: int | None = None
    pressure: float | None = None
    """Share of the last ten seconds in which some process of the node stalled for memory, 0 to 1."""


class HostDown(NamedTuple):
    """A host cannot be used until ``HostUp`` brings it back. What it ran ends by ``Ended``, or goes on re-attached."""

    host: str


class RunOpened(NamedTuple):
    """Rollouts of a new run will be asked for."""

    run: str
    max_in_flight: int
    max_infra_retries: int
    spares: Spares = "never"


class RunClosed(NamedTuple):
    """Nothing more of a run is wanted; what it still has is stopped, and none of it is settled."""

    run: str


class Asked(NamedTuple):
    """A rollout is to be played. Its id is asked for once."""

    rollout: str
    run: str
    needs: Needs = Needs()
    group: str | None = None
    """Of the samples of one task."""


class Started(NamedTuple):
    """An attempt has its sandbox."""

    attempt: AttemptId
    took_s: float
    """From the asking to the runner's hello, on the host; pull and build apart."""
    was_warm: bool = False


class Reached(NamedTuple):
    """An attempt begins to wait for something."""

    attempt: AttemptId
    stage: Stage
    within_s: float | None = None
    """Seconds it may take; None: as long as it likes."""
    rollout_within_s: float | None = None
    """Seconds until its last action, from now; None: unchanged."""


class Ended(NamedTuple):
    """An attempt is over and its sandbox is gone, left to its lease, or clean again."""

    attempt: AttemptId
    end: End
    retry_after_s: float | None = None
    """How long the host's provider asked to be left alone. A start that was only put off is no try."""
    is_warm: bool = False
    """Its sandbox was made clean and waits for another rollout of its shape."""


class Warmed(NamedTuple):
    """A sandbox was started ahead of need; or could not be."""

    host: str
    shape: str
    took_s: float | None
    """As in ``Started``; None: there is none."""
    retry_after_s: float | None = None
    is_full: bool = False
    """Nothing was started: the host keeps as many as it may."""


class Cooled(NamedTuple):
    """A warm sandbox is no more: taken down as asked, or found dead."""

    host: str
    shape: str


class Fetched(NamedTuple):
    """An image was brought to a host; or could not be."""

    host: str
    image: str
    is_there: bool
    is_put_off: bool = False
    """It was not tried: the host has no room for what nobody needs yet, or was lost. Another time it may."""


class Taken(NamedTuple):
    """The reader of a run took one settled rollout."""

    run: str


class Paused(NamedTuple):
    """A run begins no rollout until it is resumed."""

    run: str


class Resumed(NamedTuple):
    """A paused run goes on."""

    run: str


class Cancelled(NamedTuple):
    """Rollouts are no longer wanted."""

    rollouts: tuple[str, ...]


class Tick(NamedTuple):
    """Time has passed."""


Event = (
    HostUp
    | HostReport
    | HostDown
    | RunOpened
    | RunClosed
    | Asked
    | Started
    | Reached
    | Ended
    | Warmed
    | Cooled
    | Fetched
    | Taken
    | Paused
    | Resumed
    | Cancelled
    | Tick
)

# --- commands ---


class Start(NamedTuple):
    """Begin an attempt on a host."""

    attempt: AttemptId
    host: str
    is_warm: bool
    """A warm sandbox of its shape should be there."""


class Expire(NamedTuple):
    """What an attempt waits for took too long: it goes on without, or ends."""

    attempt: AttemptId
    stage: Stage | Literal["rollout"]


class Stop(NamedTuple):
    """End an attempt, without a verdict."""

    attempt: AttemptId
    reason: StopReason


class Settle(NamedTuple):
    """A rollout is over; nothing more happens to it."""

    rollout: str
    attempt: AttemptId | None
    """The one that counts: that was done, or failed last. None: none was begun."""
    reason: str = ""
    """Why it was given up while it waited: cancelled, or no host could take it."""


class Warm(NamedTuple):
    """Start a sandbox ahead of need."""

    host: str
    shape: str


class Cool(NamedTuple):
    """Take one warm sandbox down."""

    host: str
    shape: str


class Fetch(NamedTuple):
    """Bring an image to a host ahead of need."""

    host: str
    image: str


Command = Start | Expire | Stop | Settle | Warm | Cool | Fetch
