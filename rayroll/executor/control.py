"""Feeds the scheduler with what happens, and does what it answers: the one place where decisions become deeds."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rayroll.scheduler import (
    Asked,
    AttemptId,
    Command,
    Cool,
    Event,
    Expire,
    Fetch,
    RunClosed,
    RunOpened,
    Scheduler,
    Settle,
    Snapshot,
    Stage,
    Start,
    Stop,
    StopReason,
    Tick,
    Warm,
)

__all__ = ["Control", "Keeper", "Player"]


class Player(Protocol):
    """Who plays the rollouts of one run."""

    def begin(self, attempt: AttemptId, host: str, *, is_warm: bool) -> None:
        """Play an attempt on a host, where an idle sandbox of its shape should be.

        Posts ``Started``, ``Reached`` and, whatever happens, one ``Ended``.
        """

    def expire(self, attempt: AttemptId, stage: Stage | str) -> None:
        """What an attempt waits for has taken too long."""

    def stop(self, attempt: AttemptId, reason: StopReason) -> None:
        """End an attempt."""

    def settle(self, rollout: str, attempt: AttemptId | None, reason: str) -> None:
        """A rollout is over, and this attempt counts."""


class Keeper(Protocol):
    """Who has things got ready ahead of need."""

    def warm(self, host: str, shape: str) -> None:
        """Start one ahead of need. Posts one ``Warmed``."""

    def cool(self, host: str, shape: str) -> None:
        """Take one down."""

    def fetch(self, host: str, image: str) -> None:
        """Bring an image. Posts one ``Fetched``."""


class Control:
    """The scheduler of one executor, its clock and its hands."""

    def __init__(self, scheduler: Scheduler, keeper: Keeper) -> None:
        self._scheduler, self._keeper = scheduler, keeper
        self._players: dict[str, Player] = {}
        self._player_of: dict[str, Player] = {}
        self._inbox: deque[Event] = deque()
        self._is_handling = False
        self._alarm: asyncio.TimerHandle | None = None

    def post(self, event: Event) -> None:
        """Something has happened. What follows from it has begun when this returns, except where that is part of it."""
        self._inbox.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._inbox:
                for command in self._scheduler.handle(self._inbox.popleft(), now_s=asyncio.get_running_loop().time()):
                    self._do(command)
        finally:
            self._is_handling = False
        self._set_alarm()

    def open_run(self, opened: RunOpened, player: Player) -> None:
        """A run begins."""
        self._players[opened.run] = player
        self.post(opened)

    def ask(self, rollouts: Sequence[Asked]) -> None:
        """A run wants these, in this order."""
        for asked in rollouts:
            self._player_of[asked.rollout] = self._players[asked.run]
            self.post(asked)

    def close_run(self, run: str) -> None:
        """A run is over; what it still has is stopped, and nobody hears of it any more. Idempotent."""
        player = self._players.pop(run, None)
        if player is not None:
            self.post(RunClosed(run))
            self._player_of = {rollout: other for rollout, other in self._player_of.items() if other is not player}

    def snapshot(self) -> Snapshot:
        """How things stand."""
        return self._scheduler.snapshot()

    def close(self) -> None:
        """No more alarms."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _do(self, command: Command) -> None:
        match command:
            case Start(attempt, host, is_warm):
                self._player_of[attempt.rollout].begin(attempt, host, is_warm=is_warm)
            case Expire(attempt, stage):
                self._player_of[attempt.rollout].expire(attempt, stage)
            case Stop(attempt, reason):
                self._player_of[attempt.rollout].stop(attempt, reason)
            case Settle(rollout, counts, reason):
                # Losers of a race are stopped right before this, and need nobody after it.
                player = self._player_of.pop(rollout, None)
                if player is not None:
                    player.settle(rollout, counts, reason)
            case Warm(host, shape):
                self._keeper.warm(host, shape)
            case Cool(host, shape):
                self._keeper.cool(host, shape)
            case Fetch(host, image):
                self._keeper.fetch(host, image)

    def _set_alarm(self) -> None:
        due_s = self._scheduler.next_wake_s
        if self._alarm is not None and not self._alarm.cancelled():
            if self._alarm.when() <= due_s:
                return
            self._alarm.cancel()
        self._alarm = None
        if due_s < math.inf:
            self._alarm = asyncio.get_running_loop().call_at(due_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.post(Tick())
