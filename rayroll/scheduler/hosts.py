"""What is known of each host, and which a rollout gets: one with a warm sandbox, else its image, else the emptiest."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pydantic import Field

from rayroll.config import Config
from rayroll.scheduler.events import HostReport, HostUp, Needs
from rayroll.scheduler.starts import StartConfig, StartLimit

__all__ = ["Hold", "Host", "HostConfig", "Hosts"]


class HostConfig(Config):
    """When a host takes another rollout."""

    least_free_memory_mib: int = Field(default=512, ge=0)
    """With less free memory a host starts nothing more."""
    least_free_disk_mib: int = Field(default=1024, ge=0)
    """The same for the disk that sandboxes live on."""
    most_pressure: float = Field(default=0.4, gt=0.0)
    """The same for the share of time in which its processes stall for memory."""
    most_fetching: int = Field(default=2, ge=1)
    """Images that are brought to one host at the same time."""


@dataclass(slots=True, eq=False)
class Hold:
    """What one attempt holds of its host."""

    host: Host
    reserved: Needs
    """Whose memory and disk are promised to it: of the warm sandbox, where it got one."""
    is_warm: bool = False
    has_permit: bool = False
    """It counts as a start."""
    fetches: str | None = None
    """The image that it brings."""
    is_starting: bool = True


class Host:
    """One host: what it has, what it does, and what it may begin."""

    def __init__(self, up: HostUp, config: HostConfig, starts: StartConfig) -> None:
        self._config = config
        self.name = up.host
        self.starts = StartLimit(starts)
        self.running = 0
        """Attempts that hold a slot, those that start included."""
        self.starting = 0
        """Sandboxes on their way up, warm ones included, but for those that wait for their image."""
        self.warming: dict[str, list[Needs]] = {}
        self.warm: dict[str, list[Needs]] = {}
        """Sandboxes up and idle: by shape, what is promised to each."""
        self.idle = 0
        """Both together."""
        self.fetching: dict[str, Hold | None] = {}
        """Images on their way, and the attempt that brings each; None: it is brought ahead of need."""
        self.fetches_ahead_from_s = -math.inf
        """Nothing is brought ahead of need before this, by the scheduler's time."""
        self.declared_memory_mib = self.declared_disk_mib = 0
        self.bring_up(up)

    def bring_up(self, up: HostUp) -> None:
        """It is there, for the first time or again."""
        self.is_up = True
        self.slots, self.labels = up.slots, frozenset(up.labels.items())
        self.memory_mib, self.disk_mib = up.memory_mib, up.disk_mib
        self.images = set(up.images)
        self.starts.forgive()
        self.heed(HostReport(up.host))

    def heed(self, report: HostReport) -> None:
        """How it says it is doing."""
        self._report = report
        if report.images is not None:
            self.images = set(report.images)

    def lose(self) -> None:
        """It is gone, with all that nobody holds; what it runs goes on or ends by itself."""
        self.is_up = False
        self.fetching = {image: hold for image, hold in self.fetching.items() if hold is not None}
        for idle in (self.warm, self.warming):
            for needs in (needs for same in idle.values() for needs in same):
                self._reserve(needs, -1)
        self.starting -= sum(map(len, self.warming.values()))
        self.warm, self.warming, self.idle = {}, {}, 0

    # --- what it can take ---

    @property
    def load(self) -> float:
        """Rollouts for each slot; without slots their number."""
        return self.running / self.slots if self.slots else float(self.running)

    def is_healthy(self) -> bool:
        """Up, with memory and disk to spare, as far as it said."""
        return self.is_up and not self.short_of()

    def short_of(self) -> str:
        """What it has too little of to start anything, by what it said last; empty: nothing."""
        report, config = self._report, self._config
        for what, free_mib, least_mib in (
            ("memory", report.free_memory_mib, config.least_free_memory_mib),
            ("disk", report.free_disk_mib, config.least_free_disk_mib),
        ):
            if free_mib is not None and free_mib < least_mib:
                return f"{what}: {free_mib} MiB are free, {least_mib} are to stay so"
        if report.pressure is not None and report.pressure > config.most_pressure:
            return f"memory: its processes stall for it {report.pressure:.0%} of the time"
        return ""

    def is_open(self, now_s: float) -> bool:
        """There are needs that it could meet now."""
        has_slot = self.slots is None or self.running < self.slots
        return has_slot and (self.may_start(now_s) or bool(self.warm)) and self.is_healthy()

    def may_start(self, now_s: float) -> bool:
        """One more sandbox may be on its way up."""
        return self.starts.allows(self.starting, now_s)

    def suits(self, needs: Needs) -> bool:
        """It has what never changes of what is needed."""
        return (
            needs.labels <= self.labels
            and (self.memory_mib is None or needs.memory_mib <= self.memory_mib)
            and (self.disk_mib is None or needs.disk_mib <= self.disk_mib)
        )

    def has_room(self, needs: Needs) -> bool:
        """Memory and disk that nobody else was promised."""
        return (self.memory_mib is None or self.declared_memory_mib + needs.memory_mib <= self.memory_mib) and (
            self.disk_mib is None or self.declared_disk_mib + needs.disk_mib <= self.disk_mib
        )

    def has_image(self, needs: Needs) -> bool:
        """Nothing has to be brought first."""
        return needs.image is None or needs.image in self.images

    def may_fetch(self, needs: Needs) -> bool:
        """Its image may be brought now: one at a time however many want it, and few at the same time."""
        return needs.image not in self.fetching and len(self.fetching) < self._config.most_fetching

    # --- attempts ---

    def take(self, needs: Needs) -> Hold:
        """A slot, and with it a warm sandbox, or a permit to start one, or the leave to bring its image first."""
        self.running += 1
        if needs.shape in self.warm:
            return Hold(self, self._pop_idle(self.warm, needs.shape), is_warm=True)
        hold = Hold(self, needs)
        self._reserve(needs)
        if needs.image is None or needs.image in self.images:
            hold.has_permit = True
            self._begin_start()
        else:
            hold.fetches = needs.image
            self.fetching[needs.image] = hold
        return hold

    def end_start(self, hold: Hold, *, has_succeeded: bool) -> None:
        """A start is over, one way or the other."""
        hold.is_starting = False
        self.starting -= hold.has_permit
        image = hold.fetches
        if image is not None and self.fetching.get(image) is hold:
            del self.fetching[image]
        if image is not None and has_succeeded:
            self.images.add(image)

    def release(self, hold: Hold, *, is_warm: bool = False) -> None:
        """An attempt is over; its sandbox may have been made clean for another."""
        if hold.is_starting:
            self.end_start(hold, has_succeeded=False)
        self.running -= 1
        if is_warm and self.is_up:
            self.warm.setdefault(hold.reserved.shape, []).append(hold.reserved)
            self.idle += 1
        else:
            self._reserve(hold.reserved, -1)

    # --- ahead of need ---

    def warm_up(self, needs: Needs) -> None:
        """A sandbox is being started that nobody has asked for yet."""
        self._reserve(needs)
        self.warming.setdefault(needs.shape, []).append(needs)
        self.idle += 1
        self._begin_start()

    def warmed(self, shape: str, *, has_succeeded: bool) -> None:
        """One of ``warming`` is up, or is not to be."""
        self.starting -= 1
        needs = self._pop_idle(self.warming, shape)
        if has_succeeded:
            self.warm.setdefault(shape, []).append(needs)
            self.idle += 1
        else:
            self._reserve(needs, -1)

    def cool(self, shape: str) -> None:
        """One of ``warm`` is no more."""
        self._reserve(self._pop_idle(self.warm, shape), -1)

    def _pop_idle(self, idle: dict[str, list[Needs]], shape: str) -> Needs:
        needs = idle[shape].pop()
        if not idle[shape]:
            del idle[shape]
        self.idle -= 1
        return needs

    def _begin_start(self) -> None:
        self.starting += 1
        self.starts.began(self.starting)

    def _reserve(self, needs: Needs, sign: int = 1) -> None:
        self.declared_memory_mib += sign * needs.memory_mib
        self.declared_disk_mib += sign * needs.disk_mib


class Hosts:
    """All hosts."""

    def __init__(self, config: HostConfig, starts: StartConfig) -> None:
        self._config, self._starts = config, starts
        self._by_name: dict[str, Host] = {}
        self._open: dict[str, Host] = {}
        """Those that could take something: among hundreds of full ones nobody is looked for."""

    def get(self, name: str) -> Host | None:
        """A host that was up once."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Host]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def up(self, event: HostUp) -> Host:
        """A host is there."""
        host = self._by_name.get(event.host)
        if host is None:
            host = self._by_name[event.host] = Host(event, self._config, self._starts)
        else:
            host.lose()
            host.bring_up(event)
        return host

    def look_at(self, host: Host, now_s: float) -> None:
        """Something about a host has changed that may open or close it; one that is gone for good is forgotten."""
        if host.is_open(now_s):
            self._open[host.name] = host
            return
        self._open.pop(host.name, None)
        if not host.is_up and not host.running:
            self._by_name.pop(host.name, None)

    def look_at_all(self, now_s: float) -> None:
        """Time has passed: some that rested may go on."""
        for host in list(self):
            self.look_at(host, now_s)

    @property
    def are_open(self) -> bool:
        """Some host could take something."""
        return bool(self._open)

    @property
    def have_warm(self) -> bool:
        """Some host that could take something has a warm sandbox."""
        return any(host.warm for host in self._open.values())

    def choose(self, needs: Needs, now_s: float, *, but: Collection[str] = ()) -> Host | None:
        """The best host that can take a rollout now; None: nobody can.

        Args:
            needs: What it wants.
            now_s: The scheduler's time.
            but: Hosts that do not come into question.
        """
        best, best_rank = None, (math.inf, math.inf)
        for host in self._open.values():
            if host.name not in but and host.suits(needs):
                rank = self._rank(host, needs, now_s)
                if rank < best_rank:
                    best, best_rank = host, rank
        return best

    def choose_warm(self, needs: Needs, *, but: Collection[str] = ()) -> Host | None:
        """The emptiest host that has a warm sandbox for it, and a slot."""
        fit = (host for host in self._open.values() if needs.shape in host.warm and host.suits(needs))
        return min((host for host in fit if host.name not in but), key=lambda host: host.load, default=None)

    @staticmethod
    def _rank(host: Host, needs: Needs, now_s: float) -> tuple[float, float]:
        """Lowest is best; infinity: it cannot, now."""
        if needs.shape in host.warm:
            return 0, host.load
        if not host.may_start(now_s) or not host.has_room(needs):
            return math.inf, math.inf
        if host.has_image(needs):
            return 1, host.load
        return (2, host.load) if host.may_fetch(needs) else (math.inf, math.inf)

    def could_ever(self, needs: Needs, *, but: Collection[str] = ()) -> bool:
        """Some host that is up could take it, if not now: one that is short as well, as long as it holds something."""
        return any(
            host.is_up
            and host.suits(needs)
            and host.name not in but
            and (host.running > 0 or host.idle > 0 or host.is_healthy())
            for host in self
        )

    def why_not(self, needs: Needs) -> str:
        """Why none could."""
        if not any(host.is_up for host in self):
            return "no host is up"
        short = [f"{host.name} is short of {host.short_of()}" for host in self if host.is_up and host.suits(needs)]
        if short:
            return f"no host can take it: {'; '.join(short[:3])}"
        labels = ", ".join(f"{name}={value}" for name, value in sorted(needs.labels))
        wants = [*([f"labels {labels}"] if labels else []), f"{needs.memory_mib} MiB memory, {needs.disk_mib} MiB disk"]
        return f"no host can take it: it needs {'; '.join(wants)}"

    def has_somewhere(self, image: str) -> bool:
        """A host that is up has the image, or is getting it."""
        return any(host.is_up and (image in host.images or image in host.fetching) for host in self)

    def choose_for_fetch(self, needs: Needs, now_s: float) -> Host | None:
        """The emptiest host that can bring an image now, before it is needed."""
        fit = (
            host
            for host in self
            if now_s >= host.fetches_ahead_from_s and host.is_healthy() and host.suits(needs) and host.may_fetch(needs)
        )
        return min(fit, key=lambda host: (len(host.fetching), host.load), default=None)

    def choose_for_warm(self, needs: Needs, now_s: float, *, most: int) -> Host | None:
        """The host with the fewest idle sandboxes that can start one more now."""
        fit = (
            host
            for host in self
            if host.idle < most
            and host.is_healthy()
            and host.suits(needs)
            and host.has_room(needs)
            and host.has_image(needs)
            and host.may_start(now_s)
        )
        return min(fit, key=lambda host: (host.idle, host.load), default=None)
