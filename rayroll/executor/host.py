"""The Ray actor that owns a node's sandboxes: batches of messages in, completions out, in the order they finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import ray.util

from rayroll._live import Ticket
from rayroll.errors import ClosedError, InfraFailure, RayrollError
from rayroll.executor._process import free_memory_mib, memory_pressure, settle
from rayroll.executor.line import Line, LineAddress, Listener
from rayroll.executor.messages import (
    Adopt,
    Bring,
    Close,
    Completion,
    CoolDown,
    Exec,
    HostInfo,
    HostSetup,
    HostStats,
    Judge,
    Message,
    Open,
    Opened,
    WarmUp,
)
from rayroll.session import Client, Session, SessionConfig, spec_of
from rayroll.timing import clock_id
from rayroll.types import Task

__all__ = ["NodeHost"]

logger = logging.getLogger(__name__)

_LAG_EVERY_S = 0.02
_LAG_KEPT = 3000  # one minute
_STOCK_S = 5.0
"""Longest wait for a substrate to say what it has."""


class NodeHost:
    """Owns many sessions on one substrate. One event loop; nothing in here blocks it."""

    def __init__(self, setup: HostSetup) -> None:
        self._setup = setup
        self._client = Client(
            setup.substrate,
            substrate_config=setup.substrate_config,
            config=SessionConfig.parse(setup.session_config, where="session"),
            run_id=setup.run_id,
            owner=setup.owner,
        )
        self._tasks: dict[str, Task] = {}
        self._named: dict[str, str] = {}
        """Tasks by the shape of their sandboxes."""
        self._sessions: dict[str, Session] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._done: deque[Completion] = deque()
        self._pollers: deque[asyncio.Future[None]] = deque()
        self._lags_s: deque[float] = deque(maxlen=_LAG_KEPT)
        self._lag_task: asyncio.Task[None] | None = None
        self._board: dict[str, Any] | None = None
        self._listener = Listener(self._accept)
        self._line: Line | None = None

    async def start(self) -> HostInfo:
        """Open the substrate. Raises SubstrateError where this node cannot run it, with what would fix it."""
        probe = await self._client.substrate.probe()
        if not probe.ok:
            raise InfraFailure(
                f"this node cannot run {self._setup.substrate!r}: {probe.reason}",
                **{**probe.facts, "fix": probe.fix, "node": socket.gethostname()},
            )
        process = settle()
        await self._client.__aenter__()
        self._client.pool.on_gone = self._on_gone
        self._lag_task = asyncio.get_running_loop().create_task(self._measure_lag())
        images, _ = await self._stock()
        return HostInfo(socket.gethostname(), os.getpid(), clock_id(), {**probe.facts, **process}, images)

    async def add_task(self, key: str, task: Task) -> None:
        """Make a task known under a name, before a message uses it."""
        self._tasks[key] = task
        for trusted in (False, True):
            self._named[self._client.shape(task, trusted=trusted)] = task.id

    async def listen(self) -> LineAddress:
        """Take one driver's direct line; then messages come and completions go by it, as long as it is up.

        Raises:
            OSError: This node cannot listen at its own address.
        """
        return await self._listener.open(ray.util.get_node_ip_address())

    def _accept(self, line: Line) -> None:
        self._line = line
        line.start(lambda numbered: self._begin(*numbered), lambda: None)

    async def submit(self, batch: Sequence[tuple[int, Message]]) -> None:
        """Begin the work of every message; answers come through ``completions``, or by the direct line."""
        for request_id, message in batch:
            self._begin(request_id, message)

    def _begin(self, request_id: int, message: Message) -> None:
        work = asyncio.get_running_loop().create_task(self._answer(request_id, message, time.monotonic_ns()))
        self._working.add(work)
        work.add_done_callback(self._working.discard)

    async def completions(self, max_wait_s: float) -> list[Completion]:
        """All that has finished and was not yet told, as soon as there is any; empty after ``max_wait_s``."""
        if not self._done:
            poller = asyncio.get_running_loop().create_future()
            self._pollers.append(poller)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max_wait_s):
                    await poller
            with contextlib.suppress(ValueError):
                self._pollers.remove(poller)
        now_ns = time.monotonic_ns()
        told = [_departing(completion, now_ns) for completion in self._done]
        self._done.clear()
        return told

    async def stats(self) -> HostStats:
        """How this host is doing."""
        lags = sorted(self._lags_s) or [0.0]
        images, free_disk_mib = await self._stock()
        return HostStats(
            sessions=len(self._sessions),
            rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            loop_lag_p50_ms=lags[len(lags) // 2] * 1e3,
            loop_lag_p99_ms=lags[min(len(lags) - 1, len(lags) * 99 // 100)] * 1e3,
            free_memory_mib=free_memory_mib(),
            pressure=memory_pressure(),
            free_disk_mib=free_disk_mib,
            images=images,
        )

    async def _stock(self) -> tuple[frozenset[str] | None, int | None]:
        """Images and free disk; unknown where the substrate cannot say it at once."""
        substrate = self._client.substrate
        try:
            async with asyncio.timeout(_STOCK_S):
                return await substrate.images(), await substrate.free_disk_mib()
        except (InfraFailure, TimeoutError) as error:
            logger.info("the substrate does not say what it has: %r", error)
            return None, None

    async def hang_up(self, board: dict[str, Any]) -> None:
        """Keep what the driver says of itself, for whoever asks."""
        self._board = board

    async def board(self) -> dict[str, Any] | None:
        """What the driver said last; None: nothing."""
        return self._board

    async def close(self) -> None:
        """End all work and free every sandbox. Idempotent."""
        for work in list(self._working):
            work.cancel()
        if self._working:
            await asyncio.wait(set(self._working))
        if self._lag_task is not None:
            self._lag_task.cancel()
        self._listener.close()
        if self._line is not None:
            self._line.close()
        await self._client.close()

    async def _answer(self, request_id: int, message: Message, arrived_ns: int) -> None:
        value, error = None, None
        session = self._session_of(message)
        try:
            value = await self._do(message)
        except RayrollError as caught:
            error = caught
        except Exception as caught:  # a bug of ours must end that rollout with its traceback, not hang it
            logger.exception("host: %s failed", type(message).__name__)
            error = InfraFailure("unexpected error in the host", error=repr(caught), message=type(message).__name__)
        session = session or self._session_of(message)
        # The driver keeps them: a session would gather half a million tuples an hour here.
        spans = session.recorder.take() if session is not None else ()
        self._tell(Completion(request_id, value, error, arrived_ns, 0, spans))

    def _session_of(self, message: Message) -> Session | None:
        if isinstance(message, WarmUp | CoolDown | Bring):
            return None
        return self._sessions.get(message.open.session if isinstance(message, Adopt) else message.session)

    def _tell(self, completion: Completion) -> None:
        if self._line is not None and self._line.is_up:
            self._line.send(_departing(completion, time.monotonic_ns()))
            return
        self._done.append(completion)
        while self._pollers:
            poller = self._pollers.popleft()
            if not poller.done():
                poller.set_result(None)
                break

    async def _do(self, message: Message) -> Any:
        if isinstance(message, Open):
            return await self._open(message)
        if isinstance(message, Adopt):
            return await self._adopt(message)
        if isinstance(message, WarmUp):
            return await self._warm_up(message)
        if isinstance(message, CoolDown):
            return await self._client.cool(self._tasks[message.task], trusted=message.trusted, most=1)
        if isinstance(message, Bring):
            return await self._client.substrate.fetch(spec_of(self._tasks[message.task], trusted=message.trusted))
        session = self._sessions.get(message.session)
        if isinstance(message, Close):
            if session is not None:
                try:
                    await (session.close() if message.keep_s is None else session.keep(message.keep_s))
                finally:
                    self._sessions.pop(message.session, None)
                return session.kept or session.is_recycled
            return False
        if session is None:
            raise ClosedError("no such session in this host", session=message.session)
        if isinstance(message, Exec):
            return await session.exec(message.command, timeout_s=message.timeout_s, number=message.number)
        assert isinstance(message, Judge)
        return await session.grade(fingerprint=message.fingerprint)

    async def _open(self, message: Open) -> Opened:
        session = self._client.open(
            self._tasks[message.task],
            group_id=message.group_id,
            sample_index=message.sample_index,
            seed=message.seed,
            deadline_s=message.deadline_s,
            trusted=message.trusted,
        )
        self._sessions[message.session] = session
        sandbox = await session.booted()
        assert session.cold_start_s is not None
        labels = {"system": sandbox.system, **sandbox.labels}
        return Opened(sandbox.rung, labels, session.cold_start_s, session.first_action_s, session.ticket())

    async def _adopt(self, message: Adopt) -> Ticket | None:
        opened = message.open
        assert opened.deadline_s is not None
        session = self._sessions[opened.session] = await self._client.take_over(
            self._tasks[opened.task],
            message.ticket,
            left_s=opened.deadline_s,
            under_way=message.under_way,
            group_id=opened.group_id,
            sample_index=opened.sample_index,
            seed=opened.seed,
            trusted=opened.trusted,
        )
        return session.ticket()

    async def _warm_up(self, message: WarmUp) -> float | None:
        task = self._tasks[message.task]
        begun_s = time.monotonic()
        is_kept = await self._client.warm(task, trusted=message.trusted)
        return time.monotonic() - begun_s if is_kept else None

    def _on_gone(self, shape: str) -> None:
        name = self._named.get(shape)
        if name is not None:
            now_ns = time.monotonic_ns()
            self._tell(Completion(0, name, None, now_ns, 0, ()))

    async def _measure_lag(self) -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(_LAG_EVERY_S)
            self._lags_s.append(time.monotonic() - before_s - _LAG_EVERY_S)


def _departing(done: Completion, now_ns: int) -> Completion:
    """With its residence, known only as it leaves; what its session did not do of that is the host's own time."""
    begun_ns = min((start_ns for _, start_ns, _ in done.spans), default=now_ns)
    ended_ns = max((end_ns for _, _, end_ns in done.spans), default=now_ns)
    own = (("host", done.arrived_ns, max(begun_ns, done.arrived_ns)), ("host", ended_ns, now_ns))
    return done._replace(residence_ns=now_ns - done.arrived_ns, spans=(*own, *done.spans))
