"""Decides which rollout starts where and when, and what becomes of it when something fails or takes too long.

``handle(event, now_s=...)`` answers every event with the commands that follow from it. There is no clock in here, no
Ray and no await, so every decision can be replayed: the executor drives it with the events of real hosts, tests and
benchmarks with a virtual clock. ``docs/scheduler.md`` says every state and event in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

from pydantic import Field

from rayroll.config import Config
from rayroll.scheduler.ahead import Ahead
from rayroll.scheduler.deadlines import Deadlines
from rayroll.scheduler.events import (
    Asked,
    AttemptId,
    Cancelled,
    Command,
    Cooled,
    End,
    Ended,
    Event,
    Expire,
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
    Stage,
    Start,
    Started,
    Stop,
    StopReason,
    Taken,
    Tick,
    Warmed,
)
from rayroll.scheduler.hosts import Host, HostConfig, Hosts
from rayroll.scheduler.rollouts import Attempt, Rollout, Run
from rayroll.scheduler.spares import Group, SpareConfig, Typical
from rayroll.scheduler.starts import StartConfig
from rayroll.scheduler.waiting import Waiting
from rayroll.scheduler.warming import Demand, WarmConfig

__all__ = ["Scheduler", "SchedulerConfig", "Snapshot"]

LOOK_S = 0.1
"""How often it looks for what is late, what has rested enough, and what to start ahead: no matter of milliseconds."""
MOST_LINES = 32
"""Lines whose first cannot be placed, after which an event's round ends; only a look, ten a second, goes through all.
With an image for each task there are hundreds, and most wait for the same slots."""
MOST_REFUSALS = 20
"""Starts of a rollout that its provider put off, and that do not count as tries: nothing has failed, and hosts rest."""
LEAST_AHEAD = 64
"""Waiting rollouts whose images and sandboxes are thought of in advance; more where more sandboxes are kept warm."""


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
    """A rollout that no host can take is given up after so long: none has its labels, or all that have are short of
    memory or disk although they run nothing."""
    grace_s: float = Field(default=60.0, gt=0.0)
    """What has expired is stopped after so long, and given up after so long again."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand, for people."""

    waiting: int
    stages: dict[Stage, int]
    """Attempts by what they wait for."""
    hosts: dict[str, dict[str, Any]]
    """By host: running, starting, start_limit, warm, rests_s, is_up, short_of (empty: of nothing)."""
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
        self._runs: dict[str, Run] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._attempts: dict[AttemptId, Attempt] = {}
        self._starting: dict[AttemptId, Attempt] = {}
        """In the order in which they began."""
        self._groups: dict[tuple[str, str], Group] = {}
        """Where spares are for groups: those with somebody who is not settled."""
        self._finishing: dict[tuple[str, str], Group] = {}
        """Those of them in which somebody may be late."""
        self._deadlines: Deadlines[AttemptId] = Deadlines()
        self._typical = Typical()
        self._demand = Demand()
        self._homeless_since_s: dict[tuple[str, Needs], float] = {}
        self._asked = 0
        self._uses_images = False
        self._now_s = 0.0
        self._look_due_s = -math.inf
        self._out: list[Command] = []
        self._ahead = Ahead(self._hosts, self.config.warm, self._demand, self._emit)
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
            Cooled: lambda event: self._ahead.cooled(event, self._now_s),
            Fetched: lambda event: self._ahead.fetched(event, self._now_s),
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
        # What was reached moves a deadline and frees nothing: most events, and the cheapest.
        may_place = type(event) is not Reached and type(event) is not Tick
        if self._deadlines.next_s <= now_s:
            may_place = True
            for attempt in self._deadlines.pop_due(now_s):
                self._expire(self._attempts[attempt])
        is_look = now_s >= self._look_due_s
        if is_look:
            self._hosts.look_at_all(now_s)
        if is_look or may_place:
            self._place(most_lines=None if is_look else MOST_LINES)
        if is_look:
            self._look_due_s = now_s + LOOK_S
            self._look_around()
        out, self._out = self._out, []
        return out

    @property
    def next_wake_s(self) -> float:
        """When it wants a ``Tick`` if nothing happens until then; infinity: never. An earlier one changes nothing."""
        may_be_late = self._starting or self._finishing
        if may_be_late or any(len(run.waiting) for run in self._runs.values()) or self._ahead.has_idle:
            return min(self._deadlines.next_s, self._look_due_s)
        return self._deadlines.next_s

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
                    "warm": sum(map(len, host.warm.values())),
                    "rests_s": max(0.0, host.starts.rests_until_s - self._now_s),
                    "is_up": host.is_up,
                    "short_of": host.short_of(),
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
        host = self._hosts.up(event)
        self._hosts.look_at(host, self._now_s)
        homeless = self._homeless_since_s.items()
        self._homeless_since_s = {key: since_s for key, since_s in homeless if not host.suits(key[1])}

    def _on_host_report(self, event: HostReport) -> None:
        host = self._hosts.get(event.host)
        if host is not None:
            host.heed(event)
            self._hosts.look_at(host, self._now_s)

    def _on_host_down(self, event: HostDown) -> None:
        host = self._hosts.get(event.host)
        if host is not None:
            host.lose()
            self._hosts.look_at(host, self._now_s)

    def _on_warmed(self, event: Warmed) -> None:
        if self._ahead.warmed(event, self._now_s):
            assert event.took_s is not None
            self._learn(event.took_s)

    def _learn(self, took_s: float) -> None:
        self._typical.add(took_s)
        self._demand.started(took_s)

    # --- runs ---

    def _on_run_opened(self, event: RunOpened) -> None:
        assert event.run not in self._runs, f"run {event.run} was opened before"
        self._runs[event.run] = Run(*event)

    def _on_run_closed(self, event: RunClosed) -> None:
        run = self._runs.get(event.run)
        if run is None or run.is_closed:
            return
        run.is_closed = True
        for needs in run.waiting.kinds():
            self._homeless_since_s.pop((run.name, needs), None)
            for id in run.waiting.line(needs):
                self._forget(self._rollouts[id])
        run.waiting, run.again = Waiting(), 0
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
        run = self._runs.get(event.run)
        if run is not None:
            run.unread = max(0, run.unread - 1)

    def _end_run(self, run: Run) -> None:
        if run.is_closed and not run.in_flight:
            self._runs.pop(run.name, None)

    # --- rollouts ---

    def _on_asked(self, event: Asked) -> None:
        run = self._runs.get(event.run)
        if run is None or run.is_closed:
            return
        assert event.rollout not in self._rollouts, f"rollout {event.rollout} was asked for before"
        rollout = Rollout(event.rollout, run, event.needs, event.group, place=self._asked)
        self._asked += 1
        self._uses_images = self._uses_images or event.needs.image is not None
        self._rollouts[rollout.id] = rollout
        run.waiting.add(rollout.place, rollout.id, rollout.needs)
        if run.spares == "group" and event.group is not None:
            self._groups.setdefault((run.name, event.group), Group()).open[rollout.id] = None

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

    def _drop(self, rollout: Rollout, reason: str) -> None:
        """A waiting rollout will not be played."""
        rollout.run.waiting.drop(rollout.id, rollout.needs)
        rollout.run.again -= rollout.began_s is not None
        self._settle(rollout, rollout.last_spoilt, reason)

    def _settle(self, rollout: Rollout, counts: AttemptId | None, reason: str = "") -> None:
        rollout.is_settled = True
        run = rollout.run
        for other in rollout.attempts.values():
            self._stop(other, "overtaken")
        if not run.is_closed:
            run.unread += 1
            self._emit(Settle(rollout.id, counts, reason))
        self._forget(rollout)
        self._end_run(run)

    def _forget(self, rollout: Rollout) -> None:
        del self._rollouts[rollout.id]
        if rollout.began_s is not None:
            rollout.run.in_flight -= 1
        key = (rollout.run.name, rollout.group or "")
        group = self._groups.get(key)
        if group is None:
            return
        is_typical = rollout.began_s is not None and not rollout.is_unwanted
        group.settled(rollout.id, self._now_s - rollout.began_s if is_typical and rollout.began_s is not None else None)
        if not group.open:
            del self._groups[key]
            self._finishing.pop(key, None)
        elif group.late_after_s(self.config.spares) is not None:
            self._finishing[key] = group

    # --- attempts ---

    def _on_started(self, event: Started) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None or not attempt.hold.is_starting:
            return
        self._end_start(attempt, has_succeeded=True)
        if event.was_warm:
            self._hits += 1
        else:
            self._misses += self.config.warm.most_per_host > 0
            host = attempt.hold.host
            host.starts.started(event.took_s, host.starting)
            self._learn(event.took_s)
        self._hosts.look_at(attempt.hold.host, self._now_s)
        if attempt.stopped is None:  # else it will not be played, and another one may have to be
            for other in attempt.rollout.attempts.values():
                if other.hold.is_starting:
                    self._stop(other, "overtaken")

    def _on_reached(self, event: Reached) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None or attempt.stopped is not None:
            return
        attempt.stage, attempt.has_expired = event.stage, False
        if event.rollout_within_s is not None:
            attempt.rollout_due_s = self._now_s + event.rollout_within_s
        due_s = math.inf if event.within_s is None else self._now_s + event.within_s
        # A command is cut to what the rollout has left where it runs; only the policy has to be told.
        self._deadlines.set(attempt.id, min(due_s, attempt.rollout_due_s) if event.stage == "policy" else due_s)

    def _expire(self, attempt: Attempt) -> None:
        """First it is told, then stopped, then given up: whoever does not answer holds nobody for ever."""
        if attempt.stopped is not None:
            self._end(attempt, "spoilt")
        elif attempt.has_expired:
            self._stop(attempt, "stuck")
        else:
            attempt.has_expired = True
            self._deadlines.set(attempt.id, self._now_s + self.config.grace_s)
            is_over = attempt.stage == "policy" and attempt.rollout_due_s <= self._now_s
            self._emit(Expire(attempt.id, "rollout" if is_over else attempt.stage))

    def _stop(self, attempt: Attempt, reason: StopReason) -> None:
        if attempt.stopped is None:
            attempt.stopped = reason
            self._deadlines.set(attempt.id, self._now_s + self.config.grace_s)
            self._emit(Stop(attempt.id, reason))

    def _on_ended(self, event: Ended) -> None:
        attempt = self._attempts.get(event.attempt)
        if attempt is None:
            return
        host = attempt.hold.host
        failed_to_start = attempt.hold.is_starting and event.end == "spoilt" and attempt.stopped is None
        is_refused = failed_to_start and event.retry_after_s is not None
        self._end(attempt, event.end, is_refused=is_refused, is_warm=event.is_warm)
        if failed_to_start or event.retry_after_s is not None:
            host.starts.failed(self._now_s, event.retry_after_s, host.starting)
            self._hosts.look_at(host, self._now_s)

    def _end_start(self, attempt: Attempt, *, has_succeeded: bool) -> None:
        del self._starting[attempt.id]
        attempt.hold.host.end_start(attempt.hold, has_succeeded=has_succeeded)

    def _end(self, attempt: Attempt, end: End, *, is_refused: bool = False, is_warm: bool = False) -> None:
        """It holds nothing any more; what becomes of its rollout?"""
        host, rollout = attempt.hold.host, attempt.rollout
        if attempt.hold.is_starting:
            self._end_start(attempt, has_succeeded=False)
        host.release(attempt.hold, is_warm=is_warm)
        self._hosts.look_at(host, self._now_s)
        self._deadlines.clear(attempt.id)
        del self._attempts[attempt.id], rollout.attempts[attempt.id]
        self._demand.ended(self._now_s)
        if rollout.is_settled:
            return
        if end == "done" and attempt.stopped != "overtaken":
            self._settle(rollout, attempt.id)
            return
        # One that had to be stopped because it answered nobody has failed as well, however it says it ended.
        if attempt.stopped == "stuck" or (attempt.stopped is None and end == "spoilt"):
            rollout.last_spoilt = attempt.id
            if is_refused:
                rollout.refusals += 1
            else:
                rollout.failed_on.add(host.name)
        if not rollout.attempts:
            is_free = is_refused and rollout.refusals <= MOST_REFUSALS
            self._again(rollout, attempt, end, is_free=is_free)

    def _again(self, rollout: Rollout, last: Attempt, end: End, *, is_free: bool) -> None:
        """No attempt is left, and none was done: once more, if the run allows it."""
        gave_up = rollout.is_unwanted or (last.stopped is None and end == "stopped")
        if gave_up or (rollout.retries >= rollout.run.max_infra_retries and not is_free):
            self._settle(rollout, last.id if gave_up else rollout.last_spoilt or last.id)
            return
        if not is_free:
            self._retries += 1
            rollout.retries += 1
        rollout.has_spare = False
        rollout.run.again += 1
        rollout.run.waiting.add(rollout.place, rollout.id, rollout.needs)

    # --- placing ---

    def _place(self, *, most_lines: int | None) -> None:
        wanting = [run for run in self._runs.values() if run.wants_place()] if self._hosts.are_open else []
        # Whoever has the smallest part of what it may have goes first: a later run need not wait for an earlier.
        for run in sorted(wanting, key=lambda run: run.in_flight / run.max_in_flight) if len(wanting) > 1 else wanting:
            if self._hosts.have_warm:
                self._place_warm(run)
            self._place_some(run, most_lines)

    def _place_warm(self, run: Run) -> None:
        """A warm sandbox goes to any of the next few, and nobody is overtaken by more than those.

        It serves its own host alone, where a slot is seldom free just when its rollout is first: handed out strictly in
        order, of 40 shapes on 4 hosts 49 % were used at best, against 69 % of 75 % that can be.
        """
        last, horizon = math.inf, self._ahead.horizon(self._now_s, least=LEAST_AHEAD)
        for id, needs in run.waiting.heads():
            rollout = self._rollouts[id]
            last = min(last, rollout.place + horizon)
            if rollout.place > last or not self._hosts.are_open or not run.wants_place():
                return
            if rollout.began_s is not None or run.may_begin():
                host = self._hosts.choose_warm(needs, but=rollout.failed_on)
                if host is not None:
                    self._leave_line(rollout, host)

    def _place_some(self, run: Run, most_lines: int | None) -> None:
        passed = 0
        for id, _ in run.waiting.heads():
            if passed == most_lines or not self._hosts.are_open or not run.wants_place():
                return
            rollout = self._rollouts[id]
            host = self._host_for(rollout) if rollout.began_s is not None or run.may_begin() else None
            if host is None:
                passed += 1
                continue
            self._leave_line(rollout, host)

    def _leave_line(self, rollout: Rollout, host: Host) -> None:
        rollout.run.waiting.take(rollout.needs)
        rollout.run.again -= rollout.began_s is not None
        self._start(rollout, host)

    def _host_for(self, rollout: Rollout) -> Host | None:
        """Not where it runs already, nor where it failed, as long as another host could take it some time."""
        but = rollout.failed_on | {attempt.hold.host.name for attempt in rollout.attempts.values()}
        if but and not self._hosts.could_ever(rollout.needs, but=but):
            but = set()
        return self._hosts.choose(rollout.needs, self._now_s, but=but)

    def _start(self, rollout: Rollout, host: Host) -> None:
        rollout.made += 1
        attempt = Attempt(AttemptId(rollout.id, rollout.made), rollout, host.take(rollout.needs), self._now_s)
        self._hosts.look_at(host, self._now_s)
        self._attempts[attempt.id] = self._starting[attempt.id] = rollout.attempts[attempt.id] = attempt
        if rollout.began_s is None:
            rollout.began_s = self._now_s
            rollout.run.in_flight += 1
        self._emit(Start(attempt.id, host.name, attempt.hold.is_warm))

    # --- ahead and behind ---

    def _look_around(self) -> None:
        self._spare_late_starts()
        self._spare_late_members()
        self._give_up_homeless()
        if self._uses_images or self.config.warm.most_per_host:
            self._ahead.look(self._upcoming(), self._now_s)

    def _upcoming(self) -> list[Needs]:
        """Who is next, of the runs that could go on if there were room."""
        runs = (run for run in self._runs.values() if not run.is_paused and run.unread <= run.max_in_flight)
        most = self._ahead.horizon(self._now_s, least=LEAST_AHEAD)
        places = (place for run in runs for place in run.waiting.upcoming(most))
        return [needs for _, needs in nsmallest(most, places, key=lambda place: place[0])]

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
            if attempt.rollout.run.spares != "never" and attempt.hold.fetches is None:
                self._spare(attempt.rollout)

    def _spare_late_members(self) -> None:
        for group in self._finishing.values():
            late_s = group.late_after_s(self.config.spares)
            if late_s is None:
                continue
            for id in group.open:
                rollout = self._rollouts[id]
                if rollout.began_s is not None and self._now_s - rollout.began_s >= late_s:
                    self._spare(rollout)

    def _spare(self, rollout: Rollout) -> None:
        """A second attempt against the first: one for each time that the rollout leaves its line."""
        if rollout.has_spare or len(rollout.attempts) != 1 or rollout.is_unwanted or rollout.run.is_paused:
            return
        if any(attempt.stopped is not None for attempt in rollout.attempts.values()):
            return
        host = self._host_for(rollout)
        if host is not None:
            self._spares += 1
            rollout.has_spare = True
            self._start(rollout, host)

    def _give_up_homeless(self) -> None:
        """A host may be on its way; but nobody waits for ever for one that could take what it asks for."""
        since_s, self._homeless_since_s = self._homeless_since_s, {}
        for run in list(self._runs.values()):
            for needs in run.waiting.kinds() if not run.is_paused else ():
                if self._hosts.could_ever(needs):
                    continue
                key = (run.name, needs)
                self._homeless_since_s[key] = since_s.get(key, self._now_s)
                if self._now_s - self._homeless_since_s[key] >= self.config.patience_s:
                    for id in run.waiting.line(needs):
                        self._drop(self._rollouts[id], self._hosts.why_not(needs))

    def _emit(self, command: Command) -> None:
        self._out.append(command)
