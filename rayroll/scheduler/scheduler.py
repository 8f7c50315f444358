"""Decides which rollout starts where and when, and what becomes of it when something fails or takes too long.

``handle(event, now_s=...)`` answers every event with the commands that follow from it. There is no clock in here, no
Ray and no await, so every decision can be replayed: the executor drives it with the events of real hosts, tests and
benchmarks with a virtual clock. ``docs/scheduler.md`` says every state and event in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Any

from pydantic import Field

from rayroll.config import Config
from rayroll.scheduler.deadlines import Deadlines
from rayroll.scheduler.events import (
    Asked,
    AttemptId,
    Cancelled,
    Command,
    Cool,
    Cooled,
    Ended,
    Event,
    Expire,
    Fetch,
    Fetched,
    HostDown,
    HostReport,
    HostUp,
    Needs,
    Paused,
    Reached,
    Resumed,
    RunClosed,
    RunOpened,
    Settle,
    Spares,
    Stage,
    Start,
    Started,
    Stop,
    StopReason,
    Taken,
    Tick,
    Warm,
    Warmed,
)
from rayroll.scheduler.hosts import Host, HostConfig, Hosts
from rayroll.scheduler.spares import Group, SpareConfig, Typical
from rayroll.scheduler.starts import StartConfig
from rayroll.scheduler.waiting import Waiting
from rayroll.scheduler.warming import Demand, WarmConfig

__all__ = ["Scheduler", "SchedulerConfig", "Snapshot"]

LOOK_S = 0.1
"""How often it looks for what is late, and for what to start ahead: none of that is a matter of milliseconds."""
MOST_LINES = 32
"""Lines whose first cannot be placed, after which a round ends: with hundreds of images, most wait for the same slots."""
MOST_AHEAD = 64
"""Waiting rollouts whose images and sandboxes are thought of in advance."""


class SchedulerConfig(Config):
    """How rollouts are scheduled."""

    starts: StartConfig = Field(default_factory=StartConfig)
    """How many sandboxes a host may be starting."""
    hosts: HostConfig = Field(default_factory=HostConfig)
    """When a host takes another rollout."""
    warm: WarmConfig = Field(default_factory=WarmConfig)
    """Sandboxes started ahead of need."""
    spares: SpareConfig = Field(default_factory=SpareConfig)
    """When a rollout is late enough for a second attempt."""
    patience_s: float = Field(default=120.0, gt=0.0)
    """A rollout that no host could ever take is given up after so long without one."""
    grace_s: float = Field(default=60.0, gt=0.0)
    """What has expired is stopped after so long, and given up after so long again."""


@dataclass(slots=True, eq=False)
class _Run:
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
        return self.in_flight < self.max_in_flight and self.unread <= self.max_in_flight


@dataclass(slots=True, eq=False)
class _Rollout:
    id: str
    run: _Run
    needs: Needs
    group: str | None
    place: int
    """In the line; kept when it is tried again."""
    attempts: dict[AttemptId, _Attempt] = field(default_factory=dict)
    """Those under way."""
    made: int = 0
    spoilt: int = 0
    failed_on: set[str] = field(default_factory=set)
    began_s: float | None = None
    is_unwanted: bool = False
    is_settled: bool = False


@dataclass(slots=True, eq=False)
class _Attempt:
    id: AttemptId
    rollout: _Rollout
    host: Host
    asked_s: float
    stage: Stage = "start"
    has_permit: bool = False
    """It counts as a start of its host."""
    fetches: str | None = None
    """The image that it brings to its host."""
    rollout_due_s: float = math.inf
    has_expired: bool = False
    """It was told that what it waits for is late."""
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand, for people."""

    waiting: int
    stages: dict[Stage, int]
    """Attempts by what they wait for."""
    hosts: dict[str, dict[str, float]]
    """By host: running, starting, start_limit, warm, rests_s."""
    warm_hits: int
    warm_misses: int
    """Rollouts that got a warm sandbox, and those that did not although some are kept."""
    retries: int
    spares: int


class Scheduler:
    """The state of all rollouts and hosts, and the rules by which it changes."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._hosts = Hosts(self.config.hosts, self.config.starts)
        self._runs: dict[str, _Run] = {}
        self._rollouts: dict[str, _Rollout] = {}
        self._attempts: dict[AttemptId, _Attempt] = {}
        self._starting: dict[AttemptId, _Attempt] = {}
        """In the order in which they began."""
        self._groups: dict[tuple[str, str], Group] = {}
        self._deadlines: Deadlines[AttemptId] = Deadlines()
        self._typical = Typical()
        self._demand = Demand()
        self._homeless_since_s: dict[tuple[str, Needs], float] = {}
        self._needs_of: dict[str, Needs] = {}
        self._asked = 0
        self._now_s = 0.0
        self._looked_s = -math.inf
        self._may_place = False
        """Something has happened that may have made room."""
        self._out: list[Command] = []
        self._hits = self._misses = self._retries = self._spares = 0
        self._on: dict[type, Callable[[Any], None]] = {
            HostUp: self._on_host_up,
            HostReport: self._on_host_report,
            HostDown: self._on_host_down,
            RunOpened: self._on_run_opened,
            RunClosed: self._on_run_closed,
            Asked: self._on_asked,
            Started: self._on_started,
            Reached: self._on_reached,
            Ended: self._on_ended,
            Warmed: self._on_warmed,
            Cooled: self._on_cooled,
            Fetched: self._on_fetched,
            Taken: self._on_taken,
            Paused: self._on_paused,
            Resumed: self._on_resumed,
            Cancelled: self._on_cancelled,
            Tick: lambda _: None,
        }

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Take an event in, and say what is to be done, in this order.

        Args:
            event: What has happened. One about an attempt, host or run that is over is ignored: messages cross.
            now_s: Seconds by any clock that does not go back.
        """
        self._now_s = now_s
        self._on[type(event)](event)
        if self._deadlines.next_s <= now_s:
            for attempt in self._deadlines.pop_due(now_s):
                self._expire(self._attempts[attempt])
        if type(event) is not Reached:
            self._may_place = True
        if self._may_place:
            self._may_place = False
            self._place()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look_around()
        out, self._out = self._out, []
        return out

    @property
    def next_wake_s(self) -> float:
        """When it wants a ``Tick`` if nothing happens until then; infinity: never."""
        due_s = self._deadlines.next_s
        if self._starting or any(len(run.waiting) for run in self._runs.values()):
            due_s = min(due_s, self._looked_s + LOOK_S)
        return due_s

    def snapshot(self) -> Snapshot:
        """How things stand."""
        return Snapshot(
            waiting=sum(len(run.waiting) for run in self._runs.values()),
            stages=dict(Counter(attempt.stage for attempt in self._attempts.values())),
            hosts={
                host.name: {
                    "running": host.running,
                    "starting": host.starting,
                    "start_limit": int(host.starts.limit),
                    "warm": host.warm.total(),
                    "rests_s": max(0.0, host.starts.rests_until_s - self._now_s),
                    "is_up": host.is_up,
                }
                for host in self._hosts
            },
            warm_hits=self._hits,
            warm_misses=self._misses,
            retries=self._retries,
            spares=self._spares,
        )

    # --- hosts ---

    def _on_host_up(self, event: HostUp) -> None:
        self._hosts.up(event)

    def _on_host_report(self, event: HostReport) -> None:
        if event.host in self._hosts:
            host = self._hosts[event.host]
            host.heed(event)
            self._hosts.look_at(host)

    def _on_host_down(self, event: HostDown) -> None:
        if event.host in self._hosts:
            host = self._hosts[event.host]
            for shape in (host.warm + host.warming).elements():
                host.reserve(self._needs_of[shape], -1)
            host.lose()
            self._hosts.look_at(host)

    # --- runs ---

    def _on_run_opened(self, event: RunOpened) -> None:
        assert event.run not in self._runs, f"run {event.run} was opened before"
        self._runs[event.run] = _Run(*event)

    def _on_run_closed(self, event: RunClosed) -> None:
        run = self._runs.get(event.run)
        if run is None:
            return
        run.is_closed = True
        for _, rollouts in run.waiting.lines():
            for id in rollouts:
                self._forget(self._rollouts[id])
        run.waiting = Waiting()
        for attempt in [attempt for attempt in self._attempts.values() if attempt.rollout.run is run]:
            attempt.rollout.is_unwanted = True
            self._stop(attempt, "cancelled")
        self._end_run(run)

    def _on_paused(self, event: Paused) -> None:
        if event.run in self._runs:
            self._runs[event.run].is_paused = True

    def _on_resumed(self, event: Resumed) -> None:
        if event.run in self._runs:
            self._runs[event.run].is_paused = False

    def _on_taken(self, event: Taken) -> None:
        if event.run in self._runs:
            self._runs[event.run].unread -= 1

    def _end_run(self, run: _Run) -> None:
        if run.is_closed and not run.in_flight:
            self._runs.pop(run.name, None)

    # --- rollouts ---

    def _on_asked(self, event: Asked) -> None:
        run = self._runs[event.run]
        rollout = _Rollout(event.rollout, run, event.needs, event.group, place=self._asked)
        self._asked += 1
        assert rollout.id not in self._rollouts, f"rollout {rollout.id} was asked for before"
        self._rollouts[rollout.id] = rollout
        self._needs_of[event.needs.shape] = event.needs
        run.waiting.add(rollout.place, rollout.id, rollout.needs)
        if run.spares == "group" and event.group is not None:
            self._groups.setdefault((run.name, event.group), Group()).open.add(rollout.id)

    def _on_cancelled(self, event: Cancelled) -> None:
        for id in event.rollouts:
            rollout = self._rollouts.get(id)
            if rollout is None:
                continue
            rollout.is_unwanted = True
            for attempt in rollout.attempts.values():
                self._stop(attempt, "cancelled")
            if not rollout.attempts:
                self._drop(rollout, "cancelled")

    def _drop(self, rollout: _Rollout, reason: str) -> None:
        """A waiting rollout will not be played."""
        rollout.run.waiting.drop(rollout.id)
        rollout.run.again -= rollout.began_s is not None
        self._settle(rollout, None, reason)

    def _settle(self, rollout: _Rollout, counts: AttemptId | None, reason: str = "") -> None:
        rollout.is_settled = True
        run = rollout.run
        run.unread += 1
        for other in rollout.attempts.values():
            self._stop(other, "overtaken")
        self._out.append(Settle(rollout.id, counts, reason))
        self._forget(rollout)
        self._end_run(run)

    def _forget(self, rollout: _Rollout) -> None:
        del self._rollouts[rollout.id]
        if rollout.began_s is not None:
            rollout.run.in_flight -= 1
        if rollout.group is not None:
            key = (rollout.run.name, rollout.group)
            group = self._groups.get(key)
            if group is not None:
                group.settled(rollout.id, None if rollout.began_s is None else self._now_s - rollout.began_s)
                if not group.open:
                    del self._groups[key]

    # --- attempts ---

    def _on_started(self, event: Started) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None or event.attempt not in self._starting:
            return
        self._leave_start(attempt)
        if event.was_warm:
            self._hits += 1
        else:
            self._misses += self.config.warm.most_per_host > 0
            attempt.host.starts.started(event.took_s)
            self._typical.add(event.took_s)
            self._demand.started(event.took_s)
        for other in attempt.rollout.attempts.values():
            if other.id in self._starting:
                self._stop(other, "overtaken")

    def _on_reached(self, event: Reached) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None or attempt.is_stopping:
            return
        attempt.stage, attempt.has_expired = event.stage, False
        if event.rollout_within_s is not None:
            attempt.rollout_due_s = self._now_s + event.rollout_within_s
        due_s = math.inf if event.within_s is None else self._now_s + event.within_s
        # A command is cut to what the rollout has left where it runs; only the policy has to be told.
        self._deadlines.set(attempt.id, min(due_s, attempt.rollout_due_s) if event.stage == "policy" else due_s)

    def _expire(self, attempt: _Attempt) -> None:
        """First it is told, then stopped, then given up: whoever does not answer holds nobody for ever."""
        self._deadlines.set(attempt.id, self._now_s + self.config.grace_s)
        if attempt.is_stopping:
            self._end(attempt)
            self._spoil(attempt)
        elif attempt.has_expired:
            self._stop(attempt, "stuck")
        else:
            attempt.has_expired = True
            is_over = attempt.stage == "policy" and attempt.rollout_due_s <= self._now_s
            self._out.append(Expire(attempt.id, "rollout" if is_over else attempt.stage))

    def _stop(self, attempt: _Attempt, reason: StopReason) -> None:
        if not attempt.is_stopping:
            attempt.is_stopping = True
            self._out.append(Stop(attempt.id, reason))
            self._deadlines.set(attempt.id, self._now_s + self.config.grace_s)

    def _on_ended(self, event: Ended) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None:
            return
        if event.end == "spoilt" and attempt.id in self._starting:
            attempt.host.starts.failed(self._now_s, event.retry_after_s)
        self._end(attempt)
        rollout = attempt.rollout
        if event.end == "spoilt":
            self._spoil(attempt)
        elif not rollout.is_settled and (event.end == "done" or not rollout.attempts):
            self._settle(rollout, attempt.id)

    def _end(self, attempt: _Attempt) -> None:
        """It holds nothing any more."""
        host = attempt.host
        if attempt.id in self._starting:
            self._leave_start(attempt, succeeded=False)
        host.running -= 1
        host.reserve(attempt.rollout.needs, -1)
        self._hosts.look_at(host)
        self._deadlines.clear(attempt.id)
        del self._attempts[attempt.id], attempt.rollout.attempts[attempt.id]
        self._demand.ended(self._now_s)

    def _spoil(self, attempt: _Attempt) -> None:
        """The machine failed: again, elsewhere if there is an elsewhere, as often as the run allows."""
        rollout = attempt.rollout
        if rollout.is_settled:
            return
        rollout.spoilt += 1
        rollout.failed_on.add(attempt.host.name)
        if rollout.attempts:
            return  # a spare goes on
        if rollout.is_unwanted or rollout.spoilt > rollout.run.max_infra_retries:
            self._settle(rollout, attempt.id)
            return
        self._retries += 1
        rollout.run.again += 1
        rollout.run.waiting.add(rollout.place, rollout.id, rollout.needs)

    def _leave_start(self, attempt: _Attempt, *, succeeded: bool = True) -> None:
        host = attempt.host
        del self._starting[attempt.id]
        host.starting -= attempt.has_permit
        if attempt.fetches is not None:
            host.fetching.discard(attempt.fetches)
            if succeeded:
                host.images.add(attempt.fetches)
        self._hosts.look_at(host)

    # --- placing ---

    def _place(self) -> None:
        for run in self._runs.values():
            if not self._hosts.have_slots:
                return
            if len(run.waiting) and not run.is_paused and (run.again or run.may_begin()):
                self._place_some(run)

    def _place_some(self, run: _Run) -> None:
        patience = MOST_LINES
        for id, needs in run.waiting.heads():
            rollout = self._rollouts[id]
            host = self._host_for(rollout) if rollout.began_s is not None or run.may_begin() else None
            if host is not None:
                run.waiting.take(needs)
                run.again -= rollout.began_s is not None
                self._start(rollout, host)
            else:
                patience -= 1
            if not patience or not self._hosts.have_slots:
                return

    def _host_for(self, rollout: _Rollout) -> Host | None:
        """Not where it runs already, nor where it failed, as long as another host could take it some time."""
        but = rollout.failed_on | {attempt.host.name for attempt in rollout.attempts.values()}
        host = self._hosts.choose(rollout.needs, self._now_s, but=but)
        if host is None and but and not self._hosts.could_ever(rollout.needs, but=but):
            host = self._hosts.choose(rollout.needs, self._now_s)
        return host

    def _start(self, rollout: _Rollout, host: Host) -> None:
        rollout.made += 1
        attempt = _Attempt(AttemptId(rollout.id, rollout.made), rollout, host, self._now_s)
        is_warm = host.take_warm(rollout.needs)
        if not is_warm:
            host.reserve(rollout.needs)
            if host.has_image(rollout.needs):
                attempt.has_permit = True
                host.starting += 1
            else:
                attempt.fetches = rollout.needs.image
                host.fetching.add(attempt.fetches or "")
        host.running += 1
        self._hosts.look_at(host)
        self._attempts[attempt.id] = self._starting[attempt.id] = rollout.attempts[attempt.id] = attempt
        if rollout.began_s is None:
            rollout.began_s = self._now_s
            rollout.run.in_flight += 1
        self._out.append(Start(attempt.id, host.name, is_warm))

    # --- ahead and behind ---

    def _look_around(self) -> None:
        self._spare_late_starts()
        self._spare_late_members()
        self._give_up_homeless()
        upcoming = list(self._upcoming())
        self._fetch_ahead(upcoming)
        self._warm_ahead(upcoming)

    def _upcoming(self) -> Iterator[Needs]:
        lines = (run.waiting.upcoming() for run in self._runs.values() if not run.is_paused)
        return (needs for _, _, needs in islice(merge(*lines, key=lambda item: item[0]), MOST_AHEAD))

    def _spare_late_starts(self) -> None:
        p90_s = self._typical.p90_s()
        if p90_s is None:
            return
        config = self.config.spares
        late_s = max(config.start_factor * p90_s, config.least_start_s)
        for attempt in list(self._starting.values()):
            if self._now_s - attempt.asked_s < late_s:
                return
            # Bringing an image takes as long as it takes.
            if attempt.rollout.run.spares != "never" and attempt.fetches is None:
                self._spare(attempt.rollout)

    def _spare_late_members(self) -> None:
        for group in self._groups.values():
            late_s = group.late_after_s(self.config.spares)
            if late_s is None:
                continue
            for id in group.open:
                rollout = self._rollouts[id]
                if rollout.began_s is not None and self._now_s - rollout.began_s >= late_s:
                    self._spare(rollout)

    def _spare(self, rollout: _Rollout) -> None:
        if len(rollout.attempts) != 1 or rollout.is_unwanted or rollout.run.is_paused:
            return
        host = self._host_for(rollout)
        if host is not None:
            self._spares += 1
            self._start(rollout, host)

    def _give_up_homeless(self) -> None:
        for run in list(self._runs.values()):
            for needs, rollouts in run.waiting.lines():
                key = (run.name, needs)
                if not rollouts or self._hosts.could_ever(needs):
                    self._homeless_since_s.pop(key, None)
                    continue
                if self._now_s - self._homeless_since_s.setdefault(key, self._now_s) < self.config.patience_s:
                    continue
                del self._homeless_since_s[key]
                for id in rollouts:
                    self._drop(self._rollouts[id], self._hosts.why_not(needs))

    def _fetch_ahead(self, upcoming: list[Needs]) -> None:
        for needs in upcoming:
            if needs.image is None or self._hosts.has_somewhere(needs.image):
                continue
            host = self._hosts.choose_for_fetch(needs)
            if host is not None:
                host.fetching.add(needs.image)
                self._out.append(Fetch(host.name, needs.image))

    def _on_fetched(self, event: Fetched) -> None:
        if event.host not in self._hosts:
            return
        host = self._hosts[event.host]
        host.fetching.discard(event.image)
        if event.is_there:
            host.images.add(event.image)

    def _warm_ahead(self, upcoming: list[Needs]) -> None:
        if not self.config.warm.most_per_host:
            return
        ahead = self._demand.ahead(self._now_s)
        wanted = Counter(needs.shape for needs in upcoming[:ahead])
        for host in self._hosts:
            wanted.subtract(host.warm)
            wanted.subtract(host.warming)
        soon = {needs.shape for needs in upcoming}
        for host in self._hosts:
            for shape in [shape for shape, count in host.warm.items() if count and shape not in soon]:
                self._drop_warm(host, shape)
                self._out.append(Cool(host.name, shape))
        for shape, count in wanted.items():
            for _ in range(count):
                self._warm(shape)

    def _warm(self, shape: str) -> None:
        needs = self._needs_of[shape]
        host = self._hosts.choose_for_warm(needs, self._now_s, most=self.config.warm.most_per_host)
        if host is not None:
            host.starting += 1
            host.warming[shape] += 1
            host.reserve(needs)
            self._out.append(Warm(host.name, shape))

    def _on_warmed(self, event: Warmed) -> None:
        host = self._hosts[event.host] if event.host in self._hosts else None
        if host is None or not host.warming[event.shape]:
            return  # it was lost in between
        host.starting -= 1
        host.warming[event.shape] -= 1
        if event.took_s is None:
            host.reserve(self._needs_of[event.shape], -1)
            host.starts.failed(self._now_s, event.retry_after_s)
            return
        host.warm[event.shape] += 1
        host.starts.started(event.took_s)
        self._typical.add(event.took_s)
        self._demand.started(event.took_s)

    def _on_cooled(self, event: Cooled) -> None:
        if event.host in self._hosts and self._hosts[event.host].warm[event.shape]:
            self._drop_warm(self._hosts[event.host], event.shape)

    def _drop_warm(self, host: Host, shape: str) -> None:
        host.warm[shape] -= 1
        host.reserve(self._needs_of[shape], -1)
