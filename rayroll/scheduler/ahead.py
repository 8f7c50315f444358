"""What is brought to hosts before a rollout needs it: images, and sandboxes that are warm when their turn comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rayroll.scheduler.events import Command, Cool, Cooled, Fetch, Fetched, Needs, Warm, Warmed
from rayroll.scheduler.hosts import Host, Hosts
from rayroll.scheduler.warming import Demand, WarmConfig

__all__ = ["Ahead"]

PUT_OFF_S = 5.0
"""How long a host is asked for no more images after it had no room for one ahead of need."""


class Ahead:
    """Looks at who is next, and has their images and sandboxes got ready."""

    def __init__(self, hosts: Hosts, config: WarmConfig, demand: Demand, emit: Callable[[Command], None]) -> None:
        self._hosts, self._config, self._demand, self._emit = hosts, config, demand, emit
        self._not_ahead: set[str] = set()
        """Images that could not be brought: that is left to the rollouts that need them, which can say why."""

    @property
    def has_idle(self) -> bool:
        """Sandboxes are kept that may have to be taken down."""
        return self._config.most_per_host > 0 and any(host.idle for host in self._hosts)

    def horizon(self, now_s: float, *, least: int) -> int:
        """How many of those who wait to think of: as many as there are to be warm sandboxes."""
        most = self._config.most_per_host * len(self._hosts)
        return max(least, min(most, self._demand.ahead(now_s, len(self._hosts)))) if most else least

    def look(self, upcoming: Sequence[Needs], now_s: float) -> None:
        """Those who are next, in their order."""
        self._fetch(upcoming, now_s)
        if self._config.most_per_host:
            self._warm(upcoming, now_s)

    def _fetch(self, upcoming: Sequence[Needs], now_s: float) -> None:
        for image, needs in {needs.image: needs for needs in reversed(upcoming)}.items():
            if image is None or image in self._not_ahead or self._hosts.has_somewhere(image):
                continue
            host = self._hosts.choose_for_fetch(needs, now_s)
            if host is not None:
                host.fetching[image] = None
                self._emit(Fetch(host.name, image))

    def fetched(self, event: Fetched, now_s: float) -> None:
        """An image is there, or could not be brought."""
        if not event.is_there and not event.is_put_off:
            self._not_ahead.add(event.image)
        host = self._hosts.get(event.host)
        if host is None:
            return
        if event.is_put_off:
            host.fetches_ahead_from_s = now_s + PUT_OFF_S
        if host.fetching.get(event.image, host) is None:
            del host.fetching[event.image]
        if event.is_there:
            self._not_ahead.discard(event.image)
            host.images.add(event.image)

    def _warm(self, upcoming: Sequence[Needs], now_s: float) -> None:
        wanted = Counter(needs.shape for needs in upcoming[: self._demand.ahead(now_s, len(self._hosts))])
        needs_of = {needs.shape: needs for needs in reversed(upcoming)}
        for host in self._hosts:
            for shape, warm in list(host.warm.items()):
                if shape not in needs_of:
                    for _ in list(warm):
                        self._cool(host, shape)
            for idle in (host.warm, host.warming):
                wanted.subtract({shape: len(same) for shape, same in idle.items()})
        for shape, count in wanted.items():
            for _ in range(count):
                host_for = self._hosts.choose_for_warm(needs_of[shape], now_s, most=self._config.most_per_host)
                if host_for is None:
                    break
                host_for.warm_up(needs_of[shape])
                self._emit(Warm(host_for.name, shape))

    def warmed(self, event: Warmed, now_s: float) -> bool:
        """A warm sandbox is up, or failed. False: it had been lost in between, and says nothing."""
        host = self._hosts.get(event.host)
        if host is None or event.shape not in host.warming:
            return False
        host.warmed(event.shape, has_succeeded=event.took_s is not None)
        if event.took_s is not None:
            host.starts.started(event.took_s, host.starting)
        elif not event.is_full:
            host.starts.failed(now_s, event.retry_after_s, host.starting)
        self._hosts.look_at(host, now_s)
        return event.took_s is not None

    def cooled(self, event: Cooled, now_s: float) -> None:
        """A warm sandbox is no more."""
        host = self._hosts.get(event.host)
        if host is not None and event.shape in host.warm:
            host.cool(event.shape)
            self._hosts.look_at(host, now_s)

    def _cool(self, host: Host, shape: str) -> None:
        host.cool(shape)
        self._emit(Cool(host.name, shape))
