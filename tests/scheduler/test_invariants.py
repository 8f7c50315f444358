"""Whatever hosts, runs and readers do, in whatever order, what docs/scheduler.md promises holds.

The machine plays a hostile executor. It keeps books of its own, from commands and events alone, and compares every
answer with them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rayroll.scheduler import (
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
    Scheduler,
    SchedulerConfig,
    Settle,
    Start,
    Started,
    Stop,
    Taken,
    Tick,
    Warm,
    Warmed,
)

GPU = frozenset({("gpu", "yes")})
NEEDS = [
    Needs(),
    Needs(shape="big", memory_mib=600, disk_mib=10),
    Needs(shape="a", image="a", memory_mib=100),
    Needs(shape="b", image="b", memory_mib=200),
    Needs(shape="gpu", labels=GPU),
]
HOSTS = ["h1", "h2", "h3"]
GRACE_S = 7.0
PATIENCE_S = 20.0
MOST_WARM = 2


@dataclass
class Box:
    """A host, as far as the executor knows it."""

    up: HostUp
    is_up: bool = True
    images: set[str] = field(default_factory=set)
    report: HostReport = field(default_factory=lambda: HostReport(""))
    warm: Counter[str] = field(default_factory=Counter)
    warming: Counter[str] = field(default_factory=Counter)
    fetching: set[str] = field(default_factory=set)


@dataclass
class Try:
    """An attempt that the scheduler believes in."""

    id: AttemptId
    host: str
    needs: Needs
    takes_permit: bool
    fetches: bool
    stage: str = "start"
    is_starting: bool = True
    due_s: float = math.inf
    rollout_due_s: float = math.inf
    has_expired: bool = False
    is_stopping: bool = False


@dataclass
class Play:
    """A rollout that was asked for."""

    id: str
    run: str
    needs: Needs
    starts: int = 0
    refusals: int = 0
    """Starts that the provider put off."""
    settled: int = 0
    tries: dict[AttemptId, Try] = field(default_factory=dict)


class Executor(RuleBasedStateMachine):
    """Does what it is told, late, twice, wrongly or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(
            SchedulerConfig.parse(
                {
                    "warm": {"most_per_host": MOST_WARM},
                    "starts": {"first": 2, "most": 4, "strikes": 2},
                    "spares": {"least_start_s": 0.5},
                    "patience_s": PATIENCE_S,
                    "grace_s": GRACE_S,
                }
            )
        )
        self.now_s = 0.0
        self.boxes: dict[str, Box] = {}
        self.runs: dict[str, RunOpened] = {}
        self.paused: set[str] = set()
        self.closed: set[str] = set()
        self.plays: dict[str, Play] = {}
        self.tries: dict[AttemptId, Try] = {}
        self.over: list[AttemptId] = []

    # --- telling, and checking what is answered ---

    def tell(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(event, now_s=self.now_s)
        self.check_deadlines(commands)
        for command in commands:
            self.obey(command)
        self.check_limits(commands)
        return commands

    def check_deadlines(self, commands: list[Command]) -> None:
        """No deadline passes without Expire, then Stop, then giving up; and none of these comes without one."""
        due = [attempt for attempt in self.tries.values() if attempt.due_s <= self.now_s]
        for attempt in due:
            attempt.due_s = self.now_s + GRACE_S
            if attempt.is_stopping:
                self.end(attempt)
            elif attempt.has_expired:
                assert Stop(attempt.id, "stuck") in commands or any(
                    isinstance(command, Stop) and command.attempt == attempt.id for command in commands
                )
            else:
                attempt.has_expired = True
                is_rollout = attempt.stage == "policy" and attempt.rollout_due_s <= self.now_s
                expire = Expire(attempt.id, "rollout" if is_rollout else attempt.stage)  # type: ignore[arg-type]
                assert expire in commands
        expired = [command.attempt for command in commands if isinstance(command, Expire)]
        assert set(expired) <= {attempt.id for attempt in due} and len(set(expired)) == len(expired)

    def obey(self, command: Command) -> None:
        match command:
            case Start(id, host, is_warm):
                self.begin(id, host, is_warm)
            case Stop(id, _):
                assert not self.tries[id].is_stopping, "stopped twice"
                self.tries[id].is_stopping = True
                self.tries[id].due_s = self.now_s + GRACE_S
            case Settle(id, counts, reason):
                play = self.plays[id]
                play.settled += 1
                assert play.settled == 1, "settled twice"
                assert play.run not in self.closed, "settled after its run was closed"
                assert counts is None or (counts.rollout == id and 1 <= counts.number <= play.starts)
                assert counts is not None or reason
            case Warm(host, shape):
                box = self.boxes[host]
                box.warming[shape] += 1
                assert box.is_up and (box.warm + box.warming).total() <= MOST_WARM
            case Cool(host, shape):
                assert self.boxes[host].warm[shape]
                self.boxes[host].warm[shape] -= 1
            case Fetch(host, image):
                assert self.boxes[host].is_up and image not in self.boxes[host].fetching
                self.boxes[host].fetching.add(image)

    def begin(self, id: AttemptId, host: str, is_warm: bool) -> None:
        play, box = self.plays[id.rollout], self.boxes[host]
        run = self.runs[play.run]
        play.starts += 1
        assert id.number == play.starts, "an attempt has a number of its own, in order"
        assert not play.settled
        assert play.run not in self.paused | self.closed, "nothing begins while its run is paused or closed"
        assert box.is_up, "nothing starts on a host that is down"
        assert play.needs.labels <= set(box.up.labels.items()), "nor on one that does not suit"
        assert (box.report.pressure or 0.0) <= 0.4, "nor on one that is out of breath"
        assert play.starts <= (1 + run.max_infra_retries + play.refusals) * (1 if run.spares == "never" else 2)
        if is_warm:
            assert box.warm[play.needs.shape]
            box.warm[play.needs.shape] -= 1
        fetches = not is_warm and play.needs.image is not None and play.needs.image not in box.images
        if fetches:
            assert play.needs.image not in box.fetching, "an image is brought to a host once at a time"
            box.fetching.add(play.needs.image or "")
        attempt = Try(id, host, play.needs, takes_permit=not is_warm and not fetches, fetches=fetches)
        self.tries[id] = play.tries[id] = attempt

    def check_limits(self, commands: list[Command]) -> None:
        """Never more on a host than its slots, its start limit, its memory; nor more in flight than a run allows."""
        seen = self.scheduler.snapshot().hosts
        for host in {command.host for command in commands if isinstance(command, Start | Warm)}:
            box, here = self.boxes[host], [attempt for attempt in self.tries.values() if attempt.host == host]
            cold = [
                c
                for c in commands
                if (isinstance(c, Warm) or (isinstance(c, Start) and not c.is_warm)) and c.host == host
            ]
            starting = sum(attempt.is_starting and attempt.takes_permit for attempt in here) + box.warming.total()
            assert starting == seen[host]["starting"]
            assert not cold or starting <= seen[host]["start_limit"]
            assert not cold or not seen[host]["rests_s"], "a host that rests starts nothing"
            begun = [c for c in commands if isinstance(c, Start) and c.host == host]
            assert not begun or len(here) <= (box.up.slots or math.inf)
            idle = [needs for needs in NEEDS for _ in range((box.warm + box.warming)[needs.shape])]
            memory_mib = sum(attempt.needs.memory_mib for attempt in here) + sum(needs.memory_mib for needs in idle)
            assert not cold or memory_mib <= (box.up.memory_mib or math.inf)
        for host, box in self.boxes.items():
            if host in seen:
                assert seen[host]["running"] == sum(attempt.host == host for attempt in self.tries.values())
                assert seen[host]["warm"] == box.warm.total()
        for name, run in self.runs.items():
            in_flight = [play for play in self.plays.values() if play.run == name and play.starts and not play.settled]
            assert name in self.closed or len(in_flight) <= run.max_in_flight

    def end(self, attempt: Try) -> None:
        del self.tries[attempt.id]
        self.leave_start(attempt, has_succeeded=False)
        self.over.append(attempt.id)

    def leave_start(self, attempt: Try, *, has_succeeded: bool) -> None:
        if attempt.is_starting and attempt.fetches:
            box = self.boxes[attempt.host]
            box.fetching.discard(attempt.needs.image or "")
            if has_succeeded:
                box.images.add(attempt.needs.image or "")
        attempt.is_starting = False

    # --- what may happen ---

    @initialize(
        hosts=st.integers(1, 3),
        retries=st.integers(0, 2),
        spares=st.sampled_from(["never", "start", "group"]),
        needs=st.sampled_from(NEEDS),
    )
    def something_is_there_to_begin_with(self, hosts: int, retries: int, spares: Any, needs: Needs) -> None:
        for host in HOSTS[:hosts]:
            self.host_comes(host=host, slots=3, labels={"gpu": "yes"}, images=frozenset(), memory_mib=None)
        self.run_opens(max_in_flight=6, retries=retries, spares=spares)
        self.ask("run0", Needs(), 10, is_group=False)
        for _ in range(10):  # so that it is known what starts take, and some are late
            for id in list(self.tries):
                self.leave_start(self.tries[id], has_succeeded=True)
                self.tell(Started(id, 0.1))
                self.end(self.tries[id])
                self.tell(Ended(id, "done"))
                self.tell(Taken("run0"))
        self.ask("run0", needs, 8, is_group=True)

    @rule(
        host=st.sampled_from(HOSTS),
        slots=st.sampled_from([None, 1, 3]),
        labels=st.sampled_from([{}, {"gpu": "yes"}]),
        images=st.frozensets(st.sampled_from("ab")),
        memory_mib=st.sampled_from([None, 700]),
    )
    def host_comes(self, **up: Any) -> None:
        event = HostUp(**up)
        box = self.boxes.get(event.host)
        attempts = {
            attempt.needs.image
            for attempt in self.tries.values()
            if attempt.host == event.host and attempt.fetches and attempt.is_starting
        }
        self.boxes[event.host] = Box(
            event, images=set(event.images), fetching={image or "" for image in attempts} if box else set()
        )
        self.tell(event)

    @rule(host=st.sampled_from(HOSTS))
    def host_goes(self, host: str) -> None:
        if host in self.boxes:
            box = self.boxes[host]
            box.is_up, box.warm, box.warming = False, Counter(), Counter()
            box.fetching = {
                attempt.needs.image or ""
                for attempt in self.tries.values()
                if attempt.host == host and attempt.fetches and attempt.is_starting
            }
        self.tell(HostDown(host))

    @rule(host=st.sampled_from(HOSTS), pressure=st.sampled_from([None, 0.1, 0.9]))
    def host_reports(self, host: str, pressure: float | None) -> None:
        report = HostReport(host, pressure=pressure)
        if host in self.boxes and self.boxes[host].is_up:
            self.boxes[host].report = report
        self.tell(report)

    @precondition(lambda self: len(self.runs) < 3)
    @rule(
        max_in_flight=st.integers(1, 4),
        retries=st.integers(0, 2),
        spares=st.sampled_from(["never", "start", "group"]),
    )
    def run_opens(self, max_in_flight: int, retries: int, spares: Any) -> None:
        run = RunOpened(f"run{len(self.runs)}", max_in_flight, retries, spares)
        self.runs[run.run] = run
        self.tell(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), needs=st.sampled_from(NEEDS), count=st.integers(1, 5), is_group=st.booleans())
    def rollouts_are_asked_for(self, data: st.DataObject, needs: Needs, count: int, is_group: bool) -> None:
        self.ask(data.draw(st.sampled_from(sorted(self.runs))), needs, count, is_group=is_group)

    def ask(self, run: str, needs: Needs, count: int, *, is_group: bool) -> None:
        group = f"g{len(self.plays)}" if is_group else None
        for _ in range(count):
            play = Play(f"r{len(self.plays)}", run, needs)
            self.plays[play.id] = play
            self.tell(Asked(play.id, run, needs, group))

    def draw_attempt(self, data: st.DataObject) -> AttemptId:
        """One under way, mostly; or one that is over."""
        known = [*self.tries, *self.over[-3:]]
        return data.draw(st.sampled_from(known))

    has_attempts = precondition(lambda self: self.tries or self.over)

    @has_attempts
    @rule(data=st.data(), took_s=st.sampled_from([0.1, 0.2, 5.0]), was_warm=st.booleans())
    def attempt_starts(self, data: st.DataObject, took_s: float, was_warm: bool) -> None:
        id = self.draw_attempt(data)
        if id in self.tries:
            self.leave_start(self.tries[id], has_succeeded=True)
        self.tell(Started(id, took_s, was_warm))

    @has_attempts
    @rule(
        data=st.data(),
        stage=st.sampled_from(["start", "policy", "exec", "grade", "close"]),
        within_s=st.sampled_from([None, 0.5, 3.0, 30.0]),
        rollout_within_s=st.sampled_from([None, None, 10.0]),
    )
    def attempt_reaches(
        self, data: st.DataObject, stage: Any, within_s: float | None, rollout_within_s: float | None
    ) -> None:
        id = self.draw_attempt(data)
        attempt = self.tries.get(id)
        if attempt is not None and not attempt.is_stopping:
            attempt.stage, attempt.has_expired = stage, False
            if rollout_within_s is not None:
                attempt.rollout_due_s = self.now_s + rollout_within_s
            attempt.due_s = math.inf if within_s is None else self.now_s + within_s
            if stage == "policy":
                attempt.due_s = min(attempt.due_s, attempt.rollout_due_s)
        self.tell(Reached(id, stage, within_s, rollout_within_s))

    @has_attempts
    @rule(
        data=st.data(),
        end=st.sampled_from(["done", "spoilt", "spoilt", "stopped"]),
        retry_after_s=st.sampled_from([None, None, 4.0]),
        is_warm=st.booleans(),
    )
    def attempt_ends(self, data: st.DataObject, end: Any, retry_after_s: float | None, is_warm: bool) -> None:
        id = self.draw_attempt(data)
        if id in self.tries:
            self.plays[id.rollout].refusals += self.tries[id].is_starting and retry_after_s is not None
            box = self.boxes[self.tries[id].host]
            box.warm[self.tries[id].needs.shape] += is_warm and box.is_up
            self.end(self.tries[id])
        self.tell(Ended(id, end, retry_after_s, is_warm))

    @precondition(lambda self: self.boxes)
    @rule(data=st.data(), took_s=st.sampled_from([None, 0.3]))
    def sandbox_is_warm(self, data: st.DataObject, took_s: float | None) -> None:
        host = data.draw(st.sampled_from(sorted(self.boxes)))
        shape = data.draw(st.sampled_from([needs.shape for needs in NEEDS]))
        box = self.boxes[host]
        if box.warming[shape]:
            box.warming[shape] -= 1
            box.warm[shape] += took_s is not None
        self.tell(Warmed(host, shape, took_s))

    @precondition(lambda self: any(box.warm.total() for box in self.boxes.values()))
    @rule(data=st.data())
    def warm_sandbox_dies(self, data: st.DataObject) -> None:
        host, shape = data.draw(
            st.sampled_from([(h, s) for h, box in self.boxes.items() for s, n in box.warm.items() if n])
        )
        self.boxes[host].warm[shape] -= 1
        self.tell(Cooled(host, shape))

    @precondition(lambda self: self.boxes)
    @rule(data=st.data(), image=st.sampled_from("ab"), is_there=st.booleans(), is_put_off=st.booleans())
    def image_is_there(self, data: st.DataObject, image: str, is_there: bool, is_put_off: bool) -> None:
        host = data.draw(st.sampled_from(sorted(self.boxes)))
        box = self.boxes[host]
        brought = any(
            attempt.host == host and attempt.fetches and attempt.is_starting and attempt.needs.image == image
            for attempt in self.tries.values()
        )
        if not brought:
            box.fetching.discard(image)
        if is_there and host in self.scheduler.snapshot().hosts:
            box.images.add(image)
        self.tell(Fetched(host, image, is_there, not is_there and is_put_off))

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), happens=st.sampled_from([Taken, Taken, Paused, Resumed]))
    def run_is(self, data: st.DataObject, happens: Any) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        if happens is Paused and run not in self.closed:
            self.paused.add(run)
        if happens is Resumed:
            self.paused.discard(run)
        self.tell(happens(run))

    @precondition(lambda self: self.plays)
    @rule(data=st.data())
    def rollouts_are_cancelled(self, data: st.DataObject) -> None:
        self.tell(Cancelled(tuple(data.draw(st.lists(st.sampled_from(sorted(self.plays)), max_size=1)))))

    @precondition(lambda self: len(self.runs) > 1 and not self.closed)  # a machine without runs finds nothing
    @rule(data=st.data())
    def run_is_closed(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        self.closed.add(run)
        self.tell(RunClosed(run))

    @rule(jump_s=st.sampled_from([0.01, 0.1, 1.0, 8.0, 60.0]))
    def time_passes(self, jump_s: float) -> None:
        self.now_s += jump_s
        self.tell(Tick())

    @rule(share=st.floats(0.0, 0.99))
    def a_tick_before_its_time_changes_nothing(self, share: float) -> None:
        """In other words: it never does by itself what it did not want to be woken for."""
        wake_s = self.scheduler.next_wake_s
        earlier_s = self.now_s + share * (min(wake_s, self.now_s + 100.0) - self.now_s)
        if self.now_s <= earlier_s < wake_s:
            self.now_s = earlier_s
            before = self.scheduler.snapshot()
            assert self.tell(Tick()) == []
            assert plain(self.scheduler.snapshot()) == plain(before)
            assert self.scheduler.next_wake_s == wake_s

    @rule()
    def it_sleeps_until_it_wants_to_be_woken(self) -> None:
        wake_s = self.scheduler.next_wake_s
        if wake_s < math.inf:
            self.now_s = max(self.now_s, wake_s)
            self.tell(Tick())
            assert self.scheduler.next_wake_s > self.now_s, "woken in vain, for ever"

    # --- the end ---

    def teardown(self) -> None:
        """Played fairly from here, every rollout that was asked for is settled, and nothing is held any more."""
        for host in HOSTS:
            self.host_reports(host, None)
        self.boxes["all"] = Box(HostUp("all", labels={"gpu": "yes"}, images=frozenset("ab")), images={"a", "b"})
        self.tell(self.boxes["all"].up)
        for run in self.runs:
            self.paused.discard(run)
            self.tell(Resumed(run))
        for _ in range(2000):
            if not self.tries and not self.scheduler.snapshot().waiting:
                break
            for host, box in self.boxes.items():
                for shape in [*box.warming.elements()]:
                    box.warming[shape] -= 1
                    box.warm[shape] += 1
                    self.tell(Warmed(host, shape, 0.2))
            for id in list(self.tries):
                if id in self.tries:
                    self.end(self.tries[id])
                    self.tell(Ended(id, "done"))
            for run in self.runs:
                for _ in range(5):
                    self.tell(Taken(run))
            self.now_s = max(self.now_s, min(self.scheduler.next_wake_s, self.now_s + 400.0))
            self.tell(Tick())
        for play in self.plays.values():
            assert play.settled == 1 or play.run in self.closed, "every rollout is settled, once"
        for run in sorted(set(self.runs) - self.closed):
            self.closed.add(run)
            self.tell(RunClosed(run))
        for _ in range(5):  # warm sandboxes that nobody wants are taken down
            self.now_s += 1.0
            self.tell(Tick())
            for host, box in self.boxes.items():
                for shape in [*box.warming.elements()]:
                    box.warming[shape] -= 1
                    box.warm[shape] += 1
                    self.tell(Warmed(host, shape, 0.2))
                for image in [*box.fetching]:
                    box.fetching.discard(image)
                    self.tell(Fetched(host, image, True))
        assert held(self.scheduler) == {}
        assert self.scheduler.next_wake_s == math.inf or len(self.scheduler._deadlines) == 0


def plain(snapshot: Any) -> Any:
    """Without what only the clock changes."""
    hosts = {host: {k: v for k, v in facts.items() if k != "rests_s"} for host, facts in snapshot.hosts.items()}
    return (snapshot.waiting, snapshot.stages, hosts, snapshot.retries, snapshot.spares)


def held(scheduler: Scheduler) -> dict[str, Any]:
    """Everything that something that is over still holds."""
    books = {
        "rollouts": scheduler._rollouts,
        "attempts": scheduler._attempts,
        "starting": scheduler._starting,
        "groups": scheduler._groups,
        "finishing": scheduler._finishing,
        "homeless": scheduler._homeless_since_s,
        "runs": scheduler._runs,
        "deadlines": len(scheduler._deadlines),
    }
    for host in scheduler._hosts:
        for what in (
            "running",
            "starting",
            "idle",
            "declared_memory_mib",
            "declared_disk_mib",
            "warm",
            "warming",
            "fetching",
        ):
            books[f"{host.name} {what}"] = getattr(host, what)
    return {name: left for name, left in books.items() if left}


TestInvariants = Executor.TestCase
TestInvariants.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
