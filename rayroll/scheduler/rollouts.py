"""What is known of each run, rollout and attempt: records, changed by the scheduler alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rayroll.scheduler.events import AttemptId, Needs, Spares, Stage, StopReason
from rayroll.scheduler.hosts import Hold
from rayroll.scheduler.waiting import Waiting

__all__ = ["Attempt", "Rollout", "Run"]


@dataclass(slots=True, eq=False)
class Run:
    """Rollouts that were asked for together, and how they may be played."""

    name: str
    max_in_flight: int
    max_infra_retries: int
    spares: Spares
    waiting: Waiting = field(default_factory=Waiting)
    in_flight: int = 0
    """Rollouts that have begun and are not settled."""
    unread: int = 0
    """Settled rollouts that the reader has not taken: one that is slow holds the run back, and memory stays bounded."""
    again: int = 0
    """Waiting rollouts that have begun before, which need no further leave."""
    is_paused: bool = False
    is_closed: bool = False

    def may_begin(self) -> bool:
        """One more of its rollouts may leave the line for the first time."""
        return self.in_flight < self.max_in_flight and self.unread <= self.max_in_flight

    def wants_place(self) -> bool:
        """Somebody in its line could be placed."""
        return len(self.waiting) > 0 and not self.is_paused and (self.again > 0 or self.may_begin())


@dataclass(slots=True, eq=False)
class Rollout:
    """One that is waiting or played; a settled one is forgotten as soon as its attempts are over."""

    id: str
    run: Run
    needs: Needs
    group: str | None
    place: int
    """In the line; kept when it is tried again."""
    attempts: dict[AttemptId, Attempt] = field(default_factory=dict)
    """Those under way."""
    made: int = 0
    """Attempts so far."""
    retries: int = 0
    """Times it was put back into the line because a machine failed."""
    refusals: int = 0
    """Starts that a provider put off."""
    has_spare: bool = False
    """Since it last left the line: one that fails is not replaced by another and another."""
    failed_on: set[str] = field(default_factory=set)
    last_spoilt: AttemptId | None = None
    began_s: float | None = None
    is_unwanted: bool = False
    is_settled: bool = False


@dataclass(slots=True, eq=False)
class Attempt:
    """One try, which holds a slot of a host."""

    id: AttemptId
    rollout: Rollout
    hold: Hold
    asked_s: float
    stage: Stage = "start"
    rollout_due_s: float = math.inf
    has_expired: bool = False
    """It was told that what it waits for is late."""
    stopped: StopReason | None = None
    """Why it was told to stop."""
