"""Where rollouts go: what a sink must do, and the worker that feeds sinks outside the hot path.

One public file in this folder is one sink; its name is its ``kind``. Another package adds one through the entry-point
group ``rayroll.sinks``.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import pkgutil
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, ClassVar, Self

from rayroll.errors import ClosedError, RayrollError, unknown_name
from rayroll.types import Rollout

__all__ = ["Sink", "SinkWorker", "kinds", "load"]

logger = logging.getLogger(__name__)


class Sink(ABC):
    """A place for finished rollouts. Called by one thread, one call at a time; may block."""

    kind: ClassVar[str]
    essential: ClassVar[bool] = False
    """True: when it cannot keep a rollout the run must stop. False: its failure is logged, and the run goes on."""

    def open(self) -> None:  # noqa: B027 - optional
        """Get ready, in the caller's thread: raises what would keep the run from being recorded before it begins."""

    @abstractmethod
    def add(self, rollout: Rollout) -> None:
        """Keep one rollout, in completion order."""

    def check(self) -> None:  # noqa: B027 - optional
        """Raise when the run should stop although everything so far is kept (the disk is nearly full)."""

    def gauges(self, values: Mapping[str, float]) -> None:  # noqa: B027 - optional
        """Look at the scheduler's present numbers (``sched/in_flight``, ``sched/queue_depth``, ...)."""

    def close(self, exit_code: int = 0) -> None:  # noqa: B027 - optional
        """Write what is pending and let go. Idempotent. ``exit_code`` is 0 for a run that ended well."""


class SinkWorker:
    """Feeds sinks from a thread of its own, so that a slow disk or server never holds up a rollout.

    When sinks fall ``max_pending`` rollouts behind, ``put`` waits (the event loop does not), and with it the run. A
    sink that raises is logged at its first failure and keeps being tried; the others still get everything. The first
    failure of an *essential* sink is raised by the next ``put``, while the thread goes on: rollouts under way can
    still be handed over and are kept where possible.
    """

    def __init__(self, sinks: Sequence[Sink], *, max_pending: int = 1024) -> None:
        self.sinks = tuple(sinks)
        self.max_pending = max_pending
        self.failure: Exception | None = None
        """The first failure of an essential sink."""
        self.unsaved: list[Rollout] = []
        """Rollouts that an essential sink refused and has not taken since."""
        self._pending: queue.SimpleQueue[Rollout | dict[str, float] | None] = queue.SimpleQueue()
        self._has_room = threading.Event()
        self._failures: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Open the sinks and begin to feed. ``with`` does this. Raises what an essential sink raises on opening."""
        assert self._thread is None, "started twice"
        for sink in self.sinks:
            self._call(sink, sink.open)
        self._raise_failure()
        self._thread = threading.Thread(target=self._feed, name="rayroll-sinks", daemon=True)
        self._thread.start()

    async def put(self, rollout: Rollout) -> None:
        """Hand over a rollout; returns at once unless sinks are ``max_pending`` behind.

        Raises:
            Exception: What an essential sink raised, such as DiskFullError; this rollout was handed over all the same.
        """
        if not self._handed_over(rollout):
            await asyncio.to_thread(self._has_room.wait)
        self._raise_failure()

    def put_blocking(self, rollout: Rollout) -> None:
        """``put`` for callers without an event loop."""
        if not self._handed_over(rollout):
            self._has_room.wait()
        self._raise_failure()

    def gauges(self, values: Mapping[str, float]) -> None:
        """Hand over the scheduler's numbers; dropped when sinks are behind, for newer ones will come."""
        if self._pending.qsize() < self.max_pending:
            self._pending.put(dict(values))

    def close(self, exit_code: int = 0) -> None:
        """Feed what is pending, try refused rollouts once more, close every sink. Idempotent.

        Raises:
            Exception: What an essential sink raised first, if a rollout is still in ``unsaved``.
        """
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._pending.put(None)
            self._thread.join()
        refused, self.unsaved = self.unsaved, []
        for rollout in refused:
            for sink in self.sinks:
                if sink.essential:
                    self._add(sink, rollout)
        for sink in self.sinks:
            self._call(sink, sink.close, exit_code)
        for kind, count in self._failures.items():
            logger.warning("sink %s failed %d times; what it shows is incomplete", kind, count)
        if self.unsaved:
            self._raise_failure()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.close(0 if error is None else 1)
        except Exception:
            # The body's own exception says more, and the sink's is in the log.
            if error is None:
                raise

    def _handed_over(self, rollout: Rollout) -> bool:
        """Queue it, and tell whether the caller may go on. Queued first: a cancelled wait loses nothing."""
        if self._closed:
            raise ClosedError("rollout handed to closed sinks", rollout=rollout.id)
        assert self._thread is not None, "sinks not started"
        self._pending.put(rollout)
        if self._pending.qsize() < self.max_pending:
            return True
        self._has_room.clear()
        # Looked at again: the thread may have emptied the queue just before the flag was cleared.
        return self._pending.qsize() < self.max_pending

    def _feed(self) -> None:
        while (item := self._pending.get()) is not None:
            for sink in self.sinks:
                if isinstance(item, Rollout):
                    self._add(sink, item)
                else:
                    self._call(sink, sink.gauges, item)
            if self._pending.qsize() < self.max_pending:
                self._has_room.set()
        self._has_room.set()  # nobody may wait for a thread that is gone

    def _add(self, sink: Sink, rollout: Rollout) -> None:
        if not self._call(sink, sink.add, rollout):
            if sink.essential:
                self.unsaved.append(rollout)
        else:
            self._call(sink, sink.check)

    def _call(self, sink: Sink, method: Callable[..., None], *args: Any) -> bool:
        try:
            method(*args)
        except Exception as error:
            if sink.kind not in self._failures:
                # Our own errors explain themselves; any other is a bug whose place matters.
                logger.error("sink %s: %s", sink.kind, error, exc_info=not isinstance(error, RayrollError))
            self._failures[sink.kind] = self._failures.get(sink.kind, 0) + 1
            if sink.essential and self.failure is None:
                self.failure = error
            return False
        return True

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def kinds() -> list[str]:
    """Names of all sinks, built-in and installed, sorted."""
    return sorted({*_built_in(), *(e.name for e in entry_points(group="rayroll.sinks"))})


def load(kind: str) -> type[Sink]:
    """The sink class of that name. Raises ConfigError, with the nearest names, when there is none."""
    if kind in _built_in():
        module: Any = importlib.import_module(f"{__name__}.{kind}")
        found = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Sink)]
        return next(v for v in found if v.__module__ == module.__name__)
    for entry in entry_points(group="rayroll.sinks"):
        if entry.name == kind:
            sink: type[Sink] = entry.load()
            return sink
    raise unknown_name("sink", kind, kinds())


def _built_in() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
