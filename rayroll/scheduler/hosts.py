"""What is known of each host, and which a rollout gets: one with a warm sandbox, else its image, else the emptiest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from pydantic import Field

from rayroll.config import Config
from rayroll.scheduler.events import HostReport, HostUp, Needs
from rayroll.scheduler.starts import StartConfig, StartLimit

__all__ = ["Host", "HostConfig", "Hosts"]


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


class Host:
    """One host: what it has, what it does, and what it may begin."""

    def __init__(self, up: HostUp, config: HostConfig, starts: StartConfig) -> None:
        self._config = config
        self.name = up.host
        self.starts = StartLimit(starts)
        self.is_up = False
        self.running = 0
        """Attempts that hold a slot, those that start included."""
        self.starting = 0
        """Sandboxes on their way up, warm ones included, but for those that wait for their image."""
        self.warming: Counter[str] = Counter()
        self.warm: Counter[str] = Counter()
        """Sandboxes up and idle, by shape."""
        self.fetching: set[str] = set()
        self.images: set[str] = set()
        self.declared_memory_mib = self.declared_disk_mib = 0
        self._report = HostReport(up.host)
        self.bring_up(up)

    def bring_up(self, up: HostUp) -> None:
        """It is there, for the first time or again."""
        self.is_up = True
        self.node, self.slots, self.labels = up.node, up.slots, frozenset(up.labels.items())
        self.memory_mib, self.disk_mib = up.memory_mib, up.disk_mib
        self.images |= up.images

    def heed(self, report: HostReport) -> None:
        """How it says it is doing."""
        self._report = report
        if report.images is not None:
            self.images = set(report.images)

    @property
    def idle(self) -> int:
        """Warm sandboxes, and those that will be."""
        return self.warm.total() + self.warming.total()

    @property
    def load(self) -> float:
        """Rollouts for each slot; without slots their number."""
        return self.running / self.slots if self.slots else float(self.running)

    def is_healthy(self) -> bool:
        """Up, with memory and disk to spare, as far as it said."""
        report, config = self._report, self._config
        return (
            self.is_up
            and (report.free_memory_mib is None or report.free_memory_mib >= config.least_free_memory_mib)
            and (report.free_disk_mib is None or report.free_disk_mib >= config.least_free_disk_mib)
            and (report.pressure is None or report.pressure <= config.most_pressure)
        )

    def has_slot(self) -> bool:
        """One more rollout fits."""
        return self.slots is None or self.running < self.slots

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

    def take_warm(self, needs: Needs) -> bool:
        """Hand out a warm sandbox, with what was reserved for it; False: there is none."""
        if not self.warm[needs.shape]:
            return False
        self.warm[needs.shape] -= 1
        return True

    def lose(self) -> None:
        """It is gone, with all that nobody holds; what it runs goes on or ends by itself."""
        self.is_up = False
        self.fetching.clear()
        self.starting -= self.warming.total()
        self.warm.clear()
        self.warming.clear()

    def reserve(self, needs: Needs, sign: int = 1) -> None:
        """Promise what a sandbox declares that it needs, or take it back with ``-1``."""
        self.declared_memory_mib += sign * needs.memory_mib
        self.declared_disk_mib += sign * needs.disk_mib


class Hosts:
    """All hosts."""

    def __init__(self, config: HostConfig, starts: StartConfig) -> None:
        self._config, self._starts = config, starts
        self._by_name: dict[str, Host] = {}
        self._free: dict[str, Host] = {}
        """Those with a slot: among thousands of full ones nobody is looked for."""

    def __getitem__(self, name: str) -> Host:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

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
            host.bring_up(event)
        self.look_at(host)
        return host

    def look_at(self, host: Host) -> None:
        """Something about a host has changed that may open or close it."""
        if host.is_healthy() and host.has_slot():
            self._free[host.name] = host
        else:
            self._free.pop(host.name, None)

    @property
    def have_slots(self) -> bool:
        """Some host may take a rollout."""
        return bool(self._free)

    def choose(self, needs: Needs, now_s: float, *, but: Collection[str] = ()) -> Host | None:
        """The best host that can take a rollout now; None: nobody can.

        Args:
            needs: What it wants.
            now_s: The scheduler's time.
            but: Hosts on which it failed, or runs already; taken only where nobody else could ever take it.
        """
        best, best_rank = None, (math.inf,)
        for host in self._free.values():
            if host.name in but or not host.suits(needs):
                continue
            rank = self._rank(host, needs, now_s)
            if rank is not None and rank < best_rank:
                best, best_rank = host, rank  # type: ignore[assignment]
        return best

    def could_ever(self, needs: Needs, *, but: Collection[str] = ()) -> bool:
        """Some host that is up could take it, if not now."""
        return any(host.is_up and host.suits(needs) and host.name not in but for host in self)

    def why_not(self, needs: Needs) -> str:
        """Why none could."""
        if not any(host.is_up for host in self):
            return "no host is up"
        labels = ", ".join(f"{name}={value}" for name, value in sorted(needs.labels))
        wants = [*([f"labels {labels}"] if labels else []), f"{needs.memory_mib} MiB memory, {needs.disk_mib} MiB disk"]
        return f"no host can take it: it needs {'; '.join(wants)}"

    def has_somewhere(self, image: str) -> bool:
        """A host that is up has the image, or is getting it."""
        return any(host.is_up and (image in host.images or image in host.fetching) for host in self)

    def choose_for_fetch(self, needs: Needs) -> Host | None:
        """The emptiest host that can bring an image now."""
        fit = (host for host in self if host.is_healthy() and host.suits(needs) and host.may_fetch(needs))
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

    @staticmethod
    def _rank(host: Host, needs: Needs, now_s: float) -> tuple[float, ...] | None:
        if host.warm[needs.shape]:
            return (0, host.load)
        if not host.may_start(now_s) or not host.has_room(needs):
            return None
        if host.has_image(needs):
            return (1, host.load)
        return (2, host.load) if host.may_fetch(needs) else None
