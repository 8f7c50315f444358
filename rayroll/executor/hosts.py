"""Which host a rollout gets: one that all share, or one of its own; a host that was lost is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from rayroll.errors import ClosedError, InfraFailure
from rayroll.executor.link import HostLink
from rayroll.executor.messages import HostInfo, HostSetup, HostStats

__all__ = ["Hosts", "Isolation", "make_hosts"]

logger = logging.getLogger(__name__)

Isolation = Literal["node", "actor"]

STARTS = 3
"""How often a host is started in a row before the run is given up."""
PAUSE_S = 1.0
"""Before the second start; doubled before each further one."""


class Hosts(ABC):
    """The hosts of one executor."""

    def __init__(self, setup: HostSetup, options: Mapping[str, Any]) -> None:
        """Nothing is started yet. ``options`` are Ray's for each host's actor."""
        self._setup = setup
        self._options = dict(options)
        self._numbers = itertools.count()
        self._links: set[HostLink] = set()
        self._is_closed = False
        self.info: HostInfo
        """What the first host said about itself."""

    async def open(self) -> None:
        """Start the first host. Raises InfraFailure where that is not possible, with what would fix it."""
        first = await self._start()
        self.info = first.info
        self._give_back(first)

    @abstractmethod
    def lend(self) -> contextlib.AbstractAsyncContextManager[HostLink]:
        """A live host for one attempt at a rollout.

        Raises:
            InfraFailure: None can be started any more; the run cannot go on.
        """

    @abstractmethod
    def _give_back(self, link: HostLink) -> None: ...

    async def stats(self) -> HostStats:
        """How the hosts are doing: sums, and the worst lag."""
        found = await asyncio.gather(*(link.stats() for link in self._links if not link.is_lost))
        return HostStats(
            sessions=sum(stats.sessions for stats in found),
            rss_bytes=sum(stats.rss_bytes for stats in found),
            loop_lag_p50_ms=max((stats.loop_lag_p50_ms for stats in found), default=0.0),
            loop_lag_p99_ms=max((stats.loop_lag_p99_ms for stats in found), default=0.0),
        )

    async def close(self, *, deadline_s: float) -> None:
        """Free everything that the hosts own, then end them. Idempotent."""
        self._is_closed = True
        links, self._links = self._links, set()
        try:
            await asyncio.gather(*(link.close(deadline_s=deadline_s) for link in links))
        finally:
            for link in links:
                link.abandon()

    async def _start(self) -> HostLink:
        # Each with a name of its own: the reaper of a dead host sweeps what carries the dead one's.
        setup = replace(self._setup, owner=f"{self._setup.owner}-{next(self._numbers)}")
        link = HostLink(setup, **self._options)
        await link.start()
        if self._is_closed:
            link.abandon()
            raise ClosedError("the executor was closed")
        self._links.add(link)
        return link

    async def _start_again(self) -> HostLink:
        pause_s = PAUSE_S
        for start in range(1, STARTS + 1):
            try:
                return await self._start()
            except InfraFailure as error:
                if start == STARTS:
                    raise
                logger.warning("a host did not start, try %d of %d: %s", start, STARTS, error)
                await asyncio.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("unreachable: the last try raises")

    def _drop(self, link: HostLink) -> None:
        logger.warning("a host was lost and is replaced: node=%s pid=%d", link.info.node, link.info.pid)
        link.abandon()
        self._links.discard(link)


class _SharedHost(Hosts):
    """One host for all rollouts."""

    def __init__(self, setup: HostSetup, options: Mapping[str, Any]) -> None:
        super().__init__(setup, options)
        self._replacing = asyncio.Lock()
        self._shared: HostLink

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[HostLink]:
        if self._shared.is_lost:
            async with self._replacing:
                if self._shared.is_lost:
                    self._drop(self._shared)
                    self._shared = await self._start_again()
        yield self._shared

    def _give_back(self, link: HostLink) -> None:
        self._shared = link


class _HostEach(Hosts):
    """One host for each rollout under way, used again by the next."""

    def __init__(self, setup: HostSetup, options: Mapping[str, Any]) -> None:
        super().__init__(setup, options)
        self._idle: list[HostLink] = []

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[HostLink]:
        while self._idle and self._idle[-1].is_lost:
            self._drop(self._idle.pop())
        link = self._idle.pop() if self._idle else await self._start_again()
        try:
            yield link
        finally:
            self._give_back(link)

    def _give_back(self, link: HostLink) -> None:
        if link.is_lost:
            self._drop(link)
        else:
            self._idle.append(link)


def make_hosts(isolation: Isolation, setup: HostSetup, options: Mapping[str, Any]) -> Hosts:
    """Hosts for an executor; ``actor`` costs 0.6 s and 95 MB for each rollout under way, and shares nothing."""
    return {"node": _SharedHost, "actor": _HostEach}[isolation](setup, options)
