"""The blocking door: sessions for programs without an event loop, on one loop in a daemon thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from rayroll.errors import ClosedError
from rayroll.session import Client, Session, SessionConfig
from rayroll.types import ExecResult, Grade, Task

__all__ = ["SyncClient", "SyncSession", "portal"]

T = TypeVar("T")


class Portal:
    """An event loop in a thread of its own, and the way to run things on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # One thread for as long as the process lives: bubblewrap ends its sandbox with the thread that started it.
        self._thread = threading.Thread(target=self.loop.run_forever, name="rayroll", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. An interrupt of the caller (Ctrl-C) cancels it and waits for its cleaning up."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                with contextlib.suppress(CancelledError, TimeoutError):
                    future.result(timeout=10.0)
            raise


_portal: Portal | None = None
_portal_lock = threading.Lock()


def portal() -> Portal:
    """This process's portal, started when first asked for."""
    global _portal
    with _portal_lock:
        if _portal is None:
            _portal = Portal()
        return _portal


class SyncClient:
    """``rayroll.Client`` for blocking programs.

    >>> with SyncClient("local") as client, client.open(task) as session:
    ...     print(session.exec("ls").output)
    """

    def __init__(
        self,
        substrate: str,
        *,
        substrate_config: Mapping[str, Any] | None = None,
        config: SessionConfig | None = None,
    ) -> None:
        self._client = Client(substrate, substrate_config=substrate_config, config=config)
        self._is_open = False

    def __enter__(self) -> SyncClient:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Open the substrate. Idempotent."""
        if not self._is_open:
            portal().run(self._client.__aenter__())
            self._is_open = True

    def open(self, task: Task, *, seed: int | None = None, deadline_s: float = 3600.0) -> SyncSession:
        """See ``Client.open``."""
        if not self._is_open:
            raise ClosedError("the client is not open; use `with SyncClient(...) as client`")
        return SyncSession(self._client.open(task, seed=seed, deadline_s=deadline_s))

    def close(self) -> None:
        """Close every session and the substrate. Idempotent."""
        if self._is_open:
            self._is_open = False
            portal().run(self._client.close())


class SyncSession:
    """``rayroll.Session`` for blocking programs; the same words, the same errors."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> SyncSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def boot(self) -> None:
        """Start the sandbox and wait until it answers."""
        portal().run(_void(self.session.booted()))

    def exec(self, command: str, *, timeout_s: float | None = None) -> ExecResult:
        """See ``Session.exec``."""
        return portal().run(self.session.exec(command, timeout_s=timeout_s))

    def write(self, path: str | bytes, data: bytes, *, mode: int | None = None) -> None:
        """See ``Session.write``."""
        portal().run(self.session.write(path, data, mode=mode))

    def read(self, path: str | bytes, *, max_bytes: int = 64 << 20) -> bytes:
        """See ``Session.read``."""
        return portal().run(self.session.read(path, max_bytes=max_bytes))

    def grade(self) -> Grade:
        """See ``Session.grade``."""
        return portal().run(self.session.grade())

    def close(self) -> None:
        """See ``Session.close``."""
        portal().run(self.session.close())


async def _void(work: Coroutine[Any, Any, object]) -> None:
    await work
