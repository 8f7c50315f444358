"""The blocking door: sessions for programs without an event loop, on one loop in a daemon thread of this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from rayroll._live import Ticket
from rayroll.errors import CallerError, ClosedError
from rayroll.pool import PoolStats
from rayroll.session import Client, Session, SessionConfig
from rayroll.substrates import Substrate
from rayroll.types import ExecResult, Grade, Kept, Rung, Task

__all__ = ["SyncClient", "SyncSession", "portal"]

CLEAN_UP_S = 10.0
"""Longest wait, after an interrupt, for what was interrupted to free what it holds; then leases do it."""

T = TypeVar("T")


class Portal:
    """An event loop in a thread of its own, and the way to run things on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        # One thread for as long as the process lives: bubblewrap ends its sandbox with the thread that started it.
        self._thread = threading.Thread(target=self.loop.run_forever, name="rayroll", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. An interrupt of the caller (Ctrl-C) cancels it and waits for its cleaning up."""
        if threading.current_thread() is self._thread:
            work.close()
            raise CallerError("a blocking call would stop rayroll's own event loop; use rayroll.Client here")
        started: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def start() -> None:
            started.append(self.loop.create_task(work))
            started[0].add_done_callback(lambda _: ended.set())

        # Not run_coroutine_threadsafe: a future of that kind is cancelled at once, its task still cleans up.
        self.loop.call_soon_threadsafe(start)
        try:
            ended.wait()
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: started[0].cancel())
            if ended.wait(CLEAN_UP_S) and not started[0].cancelled():
                started[0].exception()  # seen: the interrupt is what the caller hears
            raise
        return started[0].result()


_portal: Portal | None = None
_portal_lock = threading.Lock()


def portal() -> Portal:
    """This process's portal, started when first asked for."""
    global _portal
    with _portal_lock:
        if _portal is None or _portal.pid != os.getpid():  # a forked child has the object without its thread
            _portal = Portal()
        return _portal


class SyncClient:
    """``rayroll.Client`` for blocking programs.

    >>> with SyncClient("local") as client, client.open(task) as session:
    ...     print(session.exec("ls").output)
    """

    def __init__(
        self,
        substrate: str | Substrate,
        *,
        substrate_config: Mapping[str, Any] | None = None,
        config: SessionConfig | None = None,
        run_id: str | None = None,
        owner: str | None = None,
    ) -> None:
        """See ``Client``."""
        self._client = Client(substrate, substrate_config=substrate_config, config=config, run_id=run_id, owner=owner)
        self._is_open = False

    def __enter__(self) -> SyncClient:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def run_id(self) -> str:
        """Label of every sandbox, by which ``rayroll gc`` finds them."""
        return self._client.run_id

    def start(self) -> None:
        """Open the substrate. Idempotent."""
        if not self._is_open:
            portal().run(self._client.__aenter__())
            self._is_open = True

    def open(
        self,
        task: Task,
        *,
        group_id: str | None = None,
        sample_index: int = 0,
        seed: int | None = None,
        deadline_s: float | None = None,
        trusted: bool = False,
    ) -> SyncSession:
        """See ``Client.open``."""
        if not self._is_open:
            raise ClosedError("the client is not open; use `with SyncClient(...) as client`")
        return SyncSession(
            self._client.open(
                task,
                group_id=group_id,
                sample_index=sample_index,
                seed=seed,
                deadline_s=deadline_s,
                trusted=trusted,
            )
        )

    def take_over(
        self,
        task: Task,
        ticket: Ticket,
        *,
        left_s: float,
        under_way: int | None = None,
        group_id: str | None = None,
        sample_index: int = 0,
        seed: int | None = None,
        trusted: bool = False,
    ) -> SyncSession:
        """See ``Client.take_over``."""
        taking_over = self._client.take_over(
            task,
            ticket,
            left_s=left_s,
            under_way=under_way,
            group_id=group_id,
            sample_index=sample_index,
            seed=seed,
            trusted=trusted,
        )
        return SyncSession(portal().run(taking_over))

    def warm(self, task: Task, *, trusted: bool = False) -> bool:
        """See ``Client.warm``."""
        return portal().run(self._client.warm(task, trusted=trusted))

    def cool(self, task: Task | None = None, *, trusted: bool = False, most: int | None = None) -> int:
        """See ``Client.cool``."""
        return portal().run(self._client.cool(task, trusted=trusted, most=most))

    def shape(self, task: Task, *, trusted: bool = False) -> str:
        """See ``Client.shape``."""
        return self._client.shape(task, trusted=trusted)

    @property
    def pool(self) -> PoolStats:
        """What the pool of idle sandboxes holds and has done."""
        return self._client.pool.stats

    def close(self) -> None:
        """Close every session and the substrate. Idempotent."""
        if self._is_open:
            self._is_open = False
            portal().run(self._client.close())


class SyncSession:
    """``rayroll.Session`` for blocking programs; the same words, the same errors."""

    def __init__(self, session: Session) -> None:
        """For ``SyncClient.open``."""
        self.session = session

    def __enter__(self) -> SyncSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        portal().run(self.session.__aexit__(kind, error, trace))

    @property
    def task(self) -> Task:
        """The problem."""
        return self.session.task

    @property
    def rung(self) -> Rung | None:
        """See ``Session.rung``."""
        return self.session.rung

    @property
    def remaining_s(self) -> float:
        """See ``Session.remaining_s``."""
        return self.session.remaining_s

    def boot(self) -> None:
        """Start the sandbox and wait until it answers."""
        portal().run(_void(self.session.booted()))

    def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
        number: int | None = None,
    ) -> ExecResult:
        """See ``Session.exec``."""
        running = self.session.exec(
            command,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            env=env,
            cwd=cwd,
            stdin=stdin,
            number=number,
        )
        return portal().run(running)

    def ticket(self) -> Ticket | None:
        """See ``Session.ticket``."""
        return self.session.ticket()

    def write(self, path: str | bytes, data: bytes, *, mode: int | None = None) -> None:
        """See ``Session.write``."""
        portal().run(self.session.write(path, data, mode=mode))

    def read(self, path: str | bytes, *, max_bytes: int = 64 << 20) -> bytes:
        """See ``Session.read``."""
        return portal().run(self.session.read(path, max_bytes=max_bytes))

    def upload(self, path: str | bytes, tar: bytes) -> None:
        """See ``Session.upload``."""
        portal().run(self.session.upload(path, tar))

    def download(self, path: str | bytes, *, exclude: Iterable[bytes] = ()) -> bytes:
        """See ``Session.download``."""
        return portal().run(self.session.download(path, exclude=exclude))

    def solve(self) -> ExecResult:
        """See ``Session.solve``."""
        return portal().run(self.session.solve())

    def grade(self, *, fingerprint: bool = False) -> Grade:
        """See ``Session.grade``."""
        return portal().run(self.session.grade(fingerprint=fingerprint))

    def keep(self, for_s: float) -> Kept | None:
        """See ``Session.keep``."""
        return portal().run(self.session.keep(for_s))

    def close(self) -> None:
        """See ``Session.close``."""
        portal().run(self.session.close())


async def _void(work: Coroutine[Any, Any, object]) -> None:
    await work
