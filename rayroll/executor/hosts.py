"""Hosts on nodes: one or a few on every node that can run the substrate, started again when they are lost.

Nodes may come and go. A node that cannot run the substrate is asked again from time to time; runs go on as long as any
can.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayroll.errors import ClosedError, HostLostError, InfraFailure, RayrollError
from rayroll.executor.link import HostLink
from rayroll.executor.messages import HostInfo, HostSetup, HostStats
from rayroll.scheduler import Cooled, Event, HostDown, HostReport, HostUp

__all__ = ["HostPlan", "Hosts", "Isolation", "Loan"]

logger = logging.getLogger(__name__)

Isolation = Literal["node", "actor"]

STARTS = 3
"""How often a host is started in a row before its node is left alone."""
PAUSE_S = 1.0
"""Before the second start; doubled before each further one."""
LOOK_S = 5.0
"""How often Ray is asked for nodes, and hosts how they are."""
LEFT_ALONE_S = 60.0
"""How long a node is left alone on which no host can be started."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """Which hosts an executor wants."""

    setup: HostSetup
    isolation: Isolation = "node"
    per_node: int = 1
    slots_per_node: int | None = None
    """Most rollouts of a node at the same time; None: as many as the runs want."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Names and values that a node must have."""
    actor_options: Mapping[str, Any] = field(default_factory=dict)
    """More of Ray's options for each host."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, as Ray tells it."""

    id: str
    name: str
    labels: Mapping[str, str]


@dataclass(slots=True, eq=False)
class Loan:
    """A link for one attempt."""

    link: HostLink
    _next: Callable[[HostLink], Awaitable[HostLink]]

    async def renew(self) -> HostLink:
        """The host is lost: a link to the one that comes after it in the same place.

        Raises:
            InfraFailure: None does.
        """
        self.link = await self._next(self.link)
        return self.link


class Hosts:
    """All hosts of one executor."""

    def __init__(self, plan: HostPlan, post: Callable[[Event], None], give_up: Callable[[Exception], None]) -> None:
        """Nothing is started yet.

        Args:
            plan: Which hosts.
            post: Told when a host is there, how it does, and when it is lost.
            give_up: Told why, when no host is left and none can be started.
        """
        self._plan, self._post, self._give_up = plan, post, give_up
        self._numbers = itertools.count()
        self._places: dict[str, _Place] = {}
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self.info: HostInfo
        """What the first host said about itself."""

    @property
    def error(self) -> RayrollError | None:
        """Why there is no host, and none can be started; None: there is one, or may be."""
        errors = [place.error for place in self._places.values()]
        # The one that was lost last says best what is wrong now.
        return errors[-1] if errors and all(error is not None for error in errors) else None

    async def open(self) -> None:
        """Start the hosts of all nodes that are there. Returns when the first is up.

        Raises:
            InfraFailure: None can be started, with what would fix it; or no node has the labels.
        """
        nodes = await self._nodes()
        if not nodes:
            raise InfraFailure("no node of the cluster has these labels", labels=dict(self._plan.labels))
        for node in nodes:
            self._settle_on(node)
        first = {asyncio.ensure_future(place.is_ready.wait()) for place in self._places.values()}
        try:
            while not (up := [place for place in self._places.values() if place.is_up]):
                failed = [place.error for place in self._places.values() if place.error is not None]
                if len(failed) == len(self._places):
                    raise failed[0]
                waiting = {task for task in first if not task.done()}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in first:
                task.cancel()
        self.info = up[0].info
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch nodes")

    @contextlib.asynccontextmanager
    async def lend(self, host: str) -> AsyncIterator[Loan]:
        """A link to a host, for one attempt. Raises InfraFailure where it is not there any more."""
        place = self._places.get(host)
        if place is None:
            raise HostLostError("the host is gone", host=host)
        async with place.lend() as loan:
            yield loan

    def up(self) -> list[HostInfo]:
        """What every host that is up says about itself."""
        return [link.info for place in self._places.values() for link in place.links if not link.is_lost]

    async def stats(self) -> HostStats:
        """How the hosts are doing: sums, and the worst lag."""
        links = [link for place in self._places.values() for link in place.links if not link.is_lost]
        found = await asyncio.gather(*(link.stats() for link in links))
        return HostStats(
            sessions=sum(stats.sessions for stats in found),
            rss_bytes=sum(stats.rss_bytes for stats in found),
            loop_lag_p50_ms=max((stats.loop_lag_p50_ms for stats in found), default=0.0),
            loop_lag_p99_ms=max((stats.loop_lag_p99_ms for stats in found), default=0.0),
        )

    async def hang_up(self, board: dict[str, Any]) -> None:
        """Hang this board at one host that is up."""
        for place in self._places.values():
            for link in place.links:
                if not link.is_lost:
                    with contextlib.suppress(HostLostError):
                        await link.hang_up(board)
                    return

    async def close(self, *, deadline_s: float) -> None:
        """Free everything that the hosts own, then end them. Idempotent."""
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        places, self._places = self._places, {}
        await asyncio.gather(*(place.close(deadline_s) for place in places.values()))

    def _settle_on(self, node: Node) -> None:
        for number in range(self._plan.per_node):
            name = f"{node.id[:8]}-{number}"
            if name not in self._places:
                kind = {"node": _SharedPlace, "actor": _ActorPlace}[self._plan.isolation]
                self._places[name] = kind(name, node, self._plan, self._numbers, self._post, self._on_hopeless)
                self._places[name].start()

    def _on_hopeless(self) -> None:
        if not self._is_closed and (error := self.error) is not None:
            self._give_up(error)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                nodes = {node.id: node for node in await self._nodes()}
            except Exception as error:  # the head may be restarting; hosts live on
                logger.warning("Ray does not say which nodes there are: %r", error)
                continue
            for name, place in list(self._places.items()):
                if place.node.id not in nodes:
                    logger.warning("node %s is gone", place.node.name)
                    del self._places[name]
                    await place.close(0.0)
            for node in nodes.values():
                self._settle_on(node)
            self._on_hopeless()
            await asyncio.gather(*(place.report() for place in self._places.values()))

    async def _nodes(self) -> list[Node]:
        alive = [node for node in await asyncio.to_thread(ray.nodes) if node["Alive"]]
        labels = self._plan.labels
        if labels:
            chosen = [node for node in alive if labels.items() <= dict(node.get("Labels") or {}).items()]
        else:
            # A head without CPUs is one that shall do no work, unless there is nobody else.
            chosen = [node for node in alive if node["Resources"].get("CPU")] or alive
        return [Node(node["NodeID"], node["NodeManagerHostname"], dict(node.get("Labels") or {})) for node in chosen]


class _Place(ABC):
    """Where a host is, was, or will be."""

    def __init__(
        self,
        name: str,
        node: Node,
        plan: HostPlan,
        numbers: itertools.count[int],
        post: Callable[[Event], None],
        on_hopeless: Callable[[], None],
    ) -> None:
        self.name, self.node = name, node
        self.links: set[HostLink] = set()
        self.is_up = False
        self.error: RayrollError | None = None
        """Why no host can be started here; None: one is up, or being started."""
        self.is_ready = asyncio.Event()
        """Something came of the first start, good or bad."""
        self.info: HostInfo
        self._plan, self._numbers, self._post, self._on_hopeless = plan, numbers, post, on_hopeless
        self._keeping: asyncio.Task[None] | None = None
        self._is_closed = False
        self._news = asyncio.Event()

    def start(self) -> None:
        """Begin to keep a host here."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name=f"keep host {self.name}")
        self._keeping.add_done_callback(self._on_end)

    def _on_end(self, keeping: asyncio.Task[None]) -> None:
        if not keeping.cancelled() and (error := keeping.exception()) is not None:
            logger.error("a bug: nobody keeps a host on node %s any more", self.node.name, exc_info=error)
            self._fail(InfraFailure("unexpected error while a host was kept", node=self.node.name, error=repr(error)))

    @abstractmethod
    async def _keep(self) -> None: ...

    @abstractmethod
    def _on_lost(self) -> None:
        """A host is gone. Called before whoever waits for its answers hears of it, lest they be sent there again."""

    @abstractmethod
    def lend(self) -> contextlib.AbstractAsyncContextManager[Loan]:
        """A link for one attempt. Raises InfraFailure."""

    async def report(self) -> None:
        """Ask how it is doing, and say so."""
        link = next((link for link in self.links if not link.is_lost), None)
        if link is None:
            return
        with contextlib.suppress(HostLostError):  # its poller hears of that as well
            stats = await link.stats()
            self._post(
                HostReport(self.name, stats.images, stats.free_memory_mib, stats.free_disk_mib, pressure=stats.pressure)
            )

    async def close(self, deadline_s: float) -> None:
        """Free everything that it owns, then end it."""
        self._is_closed = True
        self._news.set()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        self._down()
        links, self.links = self.links, set()
        try:
            await asyncio.gather(*(link.close(deadline_s=deadline_s) for link in links))
        finally:
            for link in links:
                link.abandon()

    async def _new_link(self) -> HostLink:
        # Each with a name of its own: the reaper of a dead host sweeps what carries the dead one's.
        setup = replace(self._plan.setup, owner=f"{self._plan.setup.owner}-{next(self._numbers)}")
        affinity = NodeAffinitySchedulingStrategy(self.node.id, soft=False)
        link = HostLink(
            setup, self._on_lost, self._on_gone, **{"scheduling_strategy": affinity, **self._plan.actor_options}
        )
        await link.start()
        if self._is_closed:
            link.abandon()
            raise ClosedError("the executor was closed")
        self.links.add(link)
        return link

    async def _new_link_patiently(self) -> HostLink:
        pause_s = PAUSE_S
        for start in range(1, STARTS + 1):
            try:
                return await self._new_link()
            except InfraFailure as error:
                if start == STARTS:
                    raise
                logger.warning("no host on node %s, try %d of %d: %s", self.node.name, start, STARTS, error)
                await asyncio.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("unreachable: the last try raises")

    def _up(self, info: HostInfo) -> None:
        self.info, self.error, self.is_up = info, None, True
        self.is_ready.set()
        self._news.set()
        slots = self._plan.slots_per_node
        share = None if slots is None else -(-slots // self._plan.per_node)
        images = info.images or frozenset()
        self._post(HostUp(self.name, node=self.node.name, slots=share, labels=self.node.labels, images=images))

    def _down(self) -> None:
        if self.is_up:
            self.is_up = False
            self._post(HostDown(self.name))

    def _fail(self, error: RayrollError) -> None:
        self.error = error
        self.is_ready.set()
        self._news.set()
        self._on_hopeless()

    def _on_gone(self, task: str) -> None:
        self._post(Cooled(self.name, task))

    def _drop(self, link: HostLink) -> None:
        logger.warning("a host was lost: node=%s pid=%d", link.info.node, link.info.pid)
        link.abandon()
        self.links.discard(link)


class _SharedPlace(_Place):
    """One host for all rollouts here."""

    async def _keep(self) -> None:
        is_first = True
        while True:
            try:
                # A node that cannot run the substrate at all says so at the first try.
                link = await (self._new_link() if is_first else self._new_link_patiently())
            except RayrollError as error:
                self._fail(error)
                await asyncio.sleep(LEFT_ALONE_S)
                continue
            is_first = False
            self._up(link.info)
            await link.wait_until_lost()
            self._drop(link)

    def _on_lost(self) -> None:
        self._down()

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[Loan]:
        link = next(iter(self.links), None)
        if link is None:
            raise HostLostError("the host is gone", host=self.name)
        yield Loan(link, self._next)

    async def _next(self, lost: HostLink) -> HostLink:
        while True:
            for link in self.links:
                if not link.is_lost:
                    return link
            if self._is_closed or self.error is not None:
                raise HostLostError("the host is gone, and no other comes in its place", host=self.name)
            self._news.clear()
            await self._news.wait()


class _ActorPlace(_Place):
    """A host for each rollout under way here, used again by the next; 0.6 s and 95 MB each, and they share nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._idle: list[HostLink] = []
        self._has_failed = asyncio.Event()

    async def _keep(self) -> None:
        while True:
            self._has_failed.clear()
            try:
                link = await self._new_link()
            except RayrollError as error:
                self._fail(error)
            else:
                self._idle.append(link)
                self._up(link.info)
                await self._has_failed.wait()
            await asyncio.sleep(LEFT_ALONE_S)

    def _on_lost(self) -> None:
        pass  # the others are untouched

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncIterator[Loan]:
        while self._idle and self._idle[-1].is_lost:
            self._drop(self._idle.pop())
        loan = Loan(self._idle.pop() if self._idle else await self._another(), self._next)
        try:
            yield loan
        finally:
            if loan.link.is_lost:
                self._drop(loan.link)
            else:
                self._idle.append(loan.link)

    async def _another(self) -> HostLink:
        try:
            return await self._new_link_patiently()
        except InfraFailure as error:
            self._down()
            self._fail(error)
            self._has_failed.set()
            raise

    async def _next(self, lost: HostLink) -> HostLink:
        if self._is_closed:
            raise HostLostError("the host is gone, and no other comes in its place", host=self.name)
        self._drop(lost)
        return await self._another()
