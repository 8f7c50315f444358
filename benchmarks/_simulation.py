"""Hosts that are not there, on a clock that jumps: what the real scheduler does with 200,000 rollouts in a minute.

The scheduler under test is the product's own. What stands in is everything it commands: latencies are drawn from the
profiles of the ``simulated`` substrate, and starts on one node share its processors, which no profile knows.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayroll.scheduler import (
    Asked,
    AttemptId,
    Command,
    Cool,
    Ended,
    Event,
    Expire,
    Fetch,
    Fetched,
    HostDown,
    HostUp,
    Needs,
    Reached,
    RunOpened,
    Scheduler,
    SchedulerConfig,
    Settle,
    Spares,
    Start,
    Started,
    Stop,
    Taken,
    Tick,
    Warm,
    Warmed,
)
from rayroll.substrates.simulated import Draw, Profile

__all__ = ["CONTAINERS", "CROWDED", "Cluster", "Curve", "Outcome", "Provider", "Trouble", "Work"]


@dataclass(frozen=True)
class Curve:
    """How many starts' worth of work a node does at once, by how many are under way; one start alone is 1."""

    at: tuple[tuple[int, float], ...]
    """Measured points; lines between them, and as the last one beyond."""
    scale: float = 1.0
    """Processors, as a multiple of those measured."""

    def speed(self, starting: int) -> float:
        """Work done per second, in starts that run alone."""
        n = starting / self.scale
        if n <= 1.0:
            return float(starting)
        for (n0, s0), (n1, s1) in zip(self.at, self.at[1:], strict=False):
            if n <= n1:
                return self.scale * (s0 + (s1 - s0) * (n - n0) / (n1 - n0))
        return self.scale * self.at[-1][1]


# Containers of busybox started through the docker substrate on the two cores of benchmarks/LOG.md, asked to hello: 32
# at each number under way, three rounds in turns; medians of 3.57 5.85 6.78 8.04 7.31 6.04 7.31 6.85 starts/s.
CONTAINERS = Curve(((1, 1.0), (2, 1.64), (3, 1.90), (4, 2.25), (6, 2.05), (8, 1.69), (16, 2.05), (32, 1.92)))

# The first of the three rounds, in which the machine was quiet and the knee is sharp: 5.38 8.44 9.20 8.04 6.57 5.22
# 6.89 5.27 starts/s.
CROWDED = Curve(((1, 1.0), (2, 1.57), (3, 1.71), (4, 1.49), (6, 1.22), (8, 0.97), (16, 1.28), (32, 0.98)))


@dataclass(frozen=True)
class Provider:
    """Who sells sandboxes, and refuses those who ask too often."""

    per_s: float
    burst: int
    retry_after_s: float


@dataclass(frozen=True)
class Trouble:
    """Something happens to one node, for a while."""

    node: int
    begins_s: float
    lasts_s: float
    slowdown: float = 1.0
    """Starts and commands take so many times as long."""
    fails: bool = False
    """Each start fails, at once."""
    is_down: bool = False
    """The host is lost, with all it runs."""


@dataclass(frozen=True)
class Work:
    """What is to be played."""

    rollouts: int
    turns: int
    policy: Draw
    """The wait for an action."""
    group_size: int = 8
    ahead: int | None = 16
    """Rollouts asked for beyond those in flight, so that what they wait is the scheduler's doing; None: all at once."""
    max_infra_retries: int = 2
    spares: Spares = "never"


@dataclass
class Outcome:
    """What came of it."""

    makespan_s: float = 0.0
    settled_s: list[float] = field(default_factory=list)
    """When each rollout was settled."""
    waits_s: list[float] = field(default_factory=list)
    """From asked to the sandbox it was played in."""
    start_s: list[float] = field(default_factory=list)
    command_s: list[float] = field(default_factory=list)
    """Of the first thousand commands."""
    groups_s: list[float] = field(default_factory=list)
    """From a group's first start to its last verdict."""
    attempts: int = 0
    done: int = 0
    lost: int = 0
    """Settled without a verdict."""
    events: dict[str, int] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    spares: int = 0
    retries: int = 0
    limits: list[int] = field(default_factory=list)
    """Start limits at the end."""


class _Node:
    """Shares its processors among the starts under way, as a processor does: each gets as much as any other."""

    def __init__(self, name: str, slots: int) -> None:
        self.name, self.slots = name, slots
        self.jobs: list[tuple[float, int, Callable[[], None]]] = []
        self.work_done = 0.0
        """Of each job since the beginning, in seconds of a start alone."""
        self.since_s = 0.0
        self.slowdown = 1.0
        self.fails = False
        self.version = 0
        self.images: set[str] = set()
        self.warm: dict[str, int] = {}

    def speed(self, curve: Curve | None) -> float:
        """Work done per second for each of the jobs."""
        if not self.jobs:
            return 1.0
        return (1.0 if curve is None else curve.speed(len(self.jobs)) / len(self.jobs)) / self.slowdown


class Cluster:
    """Nodes, a clock, and a scheduler that is told what happens on them."""

    def __init__(
        self,
        *,
        nodes: int,
        slots: int,
        profile: Profile,
        work: Work,
        config: SchedulerConfig | None = None,
        curve: Curve | None = CONTAINERS,
        provider: Provider | None = None,
        troubles: Sequence[Trouble] = (),
        seed: int = 0,
        needs: Callable[[int], Needs] = lambda group: Needs(),
    ) -> None:
        self.scheduler = Scheduler(config)
        self.outcome = Outcome()
        self._random, self._seed = random.Random(seed), seed
        self._luck: dict[AttemptId, random.Random] = {}
        """What each attempt draws once it is up: the same, whatever the policy did to others."""
        self._profile, self._work, self._curve, self._provider = profile, work, curve, provider
        self._needs = needs
        self._nodes = {f"n{i}": _Node(f"n{i}", slots) for i in range(nodes)}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._now_s = 0.0
        self._live: dict[AttemptId, _Node] = {}
        self._asked_s: dict[str, float] = {}
        self._begun_s: dict[str, float] = {}
        self._next = 0
        self._unsettled = 0
        self._tokens, self._tokens_s = float(provider.burst if provider else 0), 0.0
        self._groups: dict[int, list[float]] = {}
        self._done: set[AttemptId] = set()
        """Attempts that have a verdict."""
        self._inbox: deque[Event] = deque()
        self._is_handling = False
        for trouble in troubles:
            self._at(trouble.begins_s, self._trouble_begins, trouble)

    def run(self) -> Outcome:
        """Play everything."""
        work = self._work
        for node in self._nodes.values():
            self._tell(HostUp(node.name, slots=node.slots))
        self._tell(
            RunOpened("run", sum(node.slots for node in self._nodes.values()), work.max_infra_retries, work.spares)
        )
        self._ask()
        while self._unsettled:
            wake_s = self.scheduler.next_wake_s
            if self._heap and self._heap[0][0] <= wake_s:
                self._now_s, _, call, args = heapq.heappop(self._heap)
                call(*args)
            else:
                assert wake_s < math.inf, "nothing will ever happen again"
                self._now_s = max(self._now_s, wake_s)
                self._tell(Tick())
        out, snapshot = self.outcome, self.scheduler.snapshot()
        out.makespan_s = self._now_s
        out.hits, out.misses = snapshot.warm_hits, snapshot.warm_misses
        out.spares, out.retries = snapshot.spares, snapshot.retries
        out.limits = [int(host["start_limit"]) for host in snapshot.hosts.values()]
        return out

    def _ask(self) -> None:
        work = self._work
        most = math.inf if work.ahead is None else sum(n.slots for n in self._nodes.values()) + work.ahead
        while self._next < work.rollouts and self._unsettled < most:
            id, group = f"r{self._next}", self._next // work.group_size
            self._next += 1
            self._unsettled += 1
            self._asked_s[id] = self._now_s
            self._tell(Asked(id, "run", self._needs(group), f"g{group}"))

    def _tell(self, event: Event) -> None:
        self._inbox.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        counts = self.outcome.events
        while self._inbox:
            event = self._inbox.popleft()
            name = type(event).__name__
            counts[name] = counts.get(name, 0) + 1
            for command in self.scheduler.handle(event, now_s=self._now_s):
                self._do(command)
        self._is_handling = False

    def _at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time_s, self._number, call, args))

    def _after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self._at(self._now_s + delay_s, call, *args)

    # --- commands ---

    def _do(self, command: Command) -> None:
        match command:
            case Start(id, host, is_warm):
                self._begin(id, self._nodes[host], is_warm)
            case Stop(id, _):
                self._after(self._profile.destroy.sample_s(self._random), self._stopped, id)
            case Expire(id, stage):
                if stage == "start":
                    self._end(id, "spoilt")
            case Settle(id, counts, _):
                self._settled(id, counts)
            case Warm(host, shape):
                node, began_s = self._nodes[host], self._now_s
                self._create(
                    node, lambda: self._warmed(node, shape, began_s), lambda _: self._tell(Warmed(host, shape, None))
                )
            case Cool(host, shape):
                self._nodes[host].warm[shape] -= 1
            case Fetch(host, image):
                self._after(self._profile.pull.sample_s(self._random), self._fetched, self._nodes[host], image)

    def _fetched(self, node: _Node, image: str) -> None:
        node.images.add(image)
        self._tell(Fetched(node.name, image, True))

    def _warmed(self, node: _Node, shape: str, began_s: float) -> None:
        node.warm[shape] = node.warm.get(shape, 0) + 1
        self._tell(Warmed(node.name, shape, self._now_s - began_s))

    def _settled(self, id: str, counts: AttemptId | None) -> None:
        out = self.outcome
        self._unsettled -= 1
        out.settled_s.append(self._now_s)
        if counts is not None and counts in self._done:
            out.done += 1
            self._done.discard(counts)
        else:
            out.lost += 1
        group = int(id[1:]) // self._work.group_size
        ends = self._groups.setdefault(group, [])
        ends.append(self._now_s)
        first_s = self._begun_s.get(f"g{group}")
        if len(ends) == self._work.group_size and first_s is not None:
            out.groups_s.append(self._now_s - first_s)
            del self._groups[group]
        self._tell(Taken("run"))
        self._ask()

    # --- attempts ---

    def _begin(self, id: AttemptId, node: _Node, is_warm: bool) -> None:
        self.outcome.attempts += 1
        self._live[id] = node
        self._begun_s.setdefault(f"g{int(id.rollout[1:]) // self._work.group_size}", self._now_s)
        self._tell(Reached(id, "start", 600.0))
        if is_warm and node.warm.get(shape := self._needs(int(id.rollout[1:]) // self._work.group_size).shape, 0):
            node.warm[shape] -= 1
            self._after(0.0, self._up, id, self._now_s, True)
            return
        began_s = self._now_s
        image = self._needs(int(id.rollout[1:]) // self._work.group_size).image
        pull_s = 0.0
        if image is not None and image not in node.images:
            node.images.add(image)
            pull_s = self._profile.pull.sample_s(self._random)
        create = (node, lambda: self._up(id, began_s + pull_s, False), lambda told_s: self._end(id, "spoilt", told_s))
        if pull_s:
            self._after(pull_s, self._create, *create)
        else:
            self._create(*create)

    def _create(self, node: _Node, up: Callable[[], None], fail: Callable[[float | None], None]) -> None:
        """Stragglers wait for something; the rest of a start needs the processors."""
        if self._refuses():
            assert self._provider is not None
            self._after(0.05, fail, self._provider.retry_after_s)
            return
        profile, draw = self._profile, self._random
        if node.fails or draw.random() < 1 - (1 - profile.create_failure) * (1 - profile.hello_failure):
            self._after(profile.create.sample_s(draw), fail, None)
            return
        needed_s = waited_s = 0.0
        for part in (profile.create, profile.boot, profile.hello):
            took_s = part.sample_s(draw)
            usual_s = part.median_s * math.exp(4 * part.sigma) if part.straggler_share else math.inf
            kept_s = min(took_s, usual_s, part.median_s) if took_s > usual_s else took_s
            needed_s, waited_s = needed_s + kept_s, waited_s + took_s - kept_s
        if waited_s:
            self._after(waited_s, self._share, node, needed_s, up)
        else:
            self._share(node, needed_s, up)

    def _share(self, node: _Node, needed_s: float, up: Callable[[], None]) -> None:
        self._advance(node)
        self._number += 1
        heapq.heappush(node.jobs, (node.work_done + needed_s, self._number, up))
        self._plan(node)

    def _advance(self, node: _Node) -> None:
        node.work_done += (self._now_s - node.since_s) * node.speed(self._curve)
        node.since_s = self._now_s

    def _plan(self, node: _Node) -> None:
        node.version += 1
        if node.jobs:
            left_s = max(0.0, node.jobs[0][0] - node.work_done) / node.speed(self._curve)
            self._after(left_s, self._first_is_up, node, node.version)

    def _first_is_up(self, node: _Node, version: int) -> None:
        if version != node.version:
            return
        self._advance(node)
        _, _, up = heapq.heappop(node.jobs)
        self._plan(node)
        up()

    def _up(self, id: AttemptId, began_s: float, was_warm: bool) -> None:
        if id not in self._live:
            return
        self.outcome.start_s.append(self._now_s - began_s)
        if id.rollout in self._asked_s:
            self.outcome.waits_s.append(self._now_s - self._asked_s.pop(id.rollout))
        self._luck[id] = random.Random((self._seed << 40) + (int(id.rollout[1:]) << 8) + id.number)
        self._tell(Started(id, self._now_s - began_s, was_warm))
        self._turn(id, 0)

    def _turn(self, id: AttemptId, turn: int) -> None:
        if id not in self._live:
            return
        if turn == self._work.turns:
            self._tell(Reached(id, "grade", 600.0))
            self._after(self._command_s(id), self._grade_is_over, id)
            return
        self._tell(Reached(id, "policy", 600.0))
        self._after(self._work.policy.sample_s(self._luck[id]), self._act, id, turn)

    def _act(self, id: AttemptId, turn: int) -> None:
        if id in self._live:
            self._tell(Reached(id, "exec", 3600.0))
            self._after(self._command_s(id), self._turn, id, turn + 1)

    def _command_s(self, id: AttemptId) -> float:
        profile, draw = self._profile, self._luck[id]
        parts = (profile.transport, profile.spawn, profile.run, profile.drain)
        took_s = sum(part.sample_s(draw) for part in parts) * self._live[id].slowdown
        if len(self.outcome.command_s) < 1000:
            self.outcome.command_s.append(took_s)
        return took_s

    def _grade_is_over(self, id: AttemptId) -> None:
        if id in self._live:
            self._done.add(id)
            self._tell(Reached(id, "close", 60.0))
            self._after(self._profile.destroy.sample_s(self._random), self._end, id, "done")

    def _stopped(self, id: AttemptId) -> None:
        self._end(id, "stopped")

    def _end(self, id: AttemptId, end: Any, retry_after_s: float | None = None) -> None:
        if self._live.pop(id, None) is not None:
            self._luck.pop(id, None)
            self._tell(Ended(id, end, retry_after_s))
            self._done.discard(id)

    # --- troubles ---

    def _refuses(self) -> bool:
        provider = self._provider
        if provider is None:
            return False
        self._tokens = min(provider.burst, self._tokens + (self._now_s - self._tokens_s) * provider.per_s)
        self._tokens_s = self._now_s
        if self._tokens < 1.0:
            return True
        self._tokens -= 1.0
        return False

    def _trouble_begins(self, trouble: Trouble) -> None:
        node = self._nodes[f"n{trouble.node}"]
        self._advance(node)
        node.slowdown, node.fails = trouble.slowdown, trouble.fails
        self._plan(node)
        if trouble.is_down:
            self._tell(HostDown(node.name))
            node.warm.clear()
            for id in [id for id, its_node in self._live.items() if its_node is node]:
                self._end(id, "spoilt")
        self._after(trouble.lasts_s, self._trouble_ends, trouble)

    def _trouble_ends(self, trouble: Trouble) -> None:
        node = self._nodes[f"n{trouble.node}"]
        self._advance(node)
        node.slowdown, node.fails = 1.0, False
        self._plan(node)
        if trouble.is_down:
            self._tell(HostUp(node.name, slots=node.slots, images=frozenset(node.images)))
