"""A unix socket in front of another, such as a Docker engine's, that can be cut, held and opened again.

It stands for what an engine does to its clients when it restarts or stands still, for one client alone: everybody
else's connections to the same engine are left in peace.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType

__all__ = ["Tap"]

CHUNK_BYTES = 1 << 16


class Tap:
    """An async context manager; ``url`` is what a client is given."""

    def __init__(self, path: str | Path, target: str | Path) -> None:
        """Nothing listens yet.

        Args:
            path: Of the socket that clients are given; paths of sockets end at 108 bytes.
            target: Of the socket behind it.
        """
        self.url = f"unix://{path}"
        self._path, self._target = str(path), str(target)
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Tap:
        await self.mend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.cut()

    async def cut(self) -> None:
        """Every connection ends in the middle, and nobody listens."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def hold(self) -> None:
        """Connections are accepted and stay, and no byte passes."""
        self._flows.clear()

    async def mend(self) -> None:
        """The end of ``cut`` and ``hold``."""
        self._flows.set()
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        ends = [writer]
        try:
            behind, to_it = await asyncio.open_unix_connection(self._target)
            ends.append(to_it)
            await asyncio.gather(self._pass_on(reader, to_it), self._pass_on(behind, writer))
        except (OSError, asyncio.CancelledError):
            pass  # one of the ends is gone, or was cut
        finally:
            for end in ends:
                end.transport.abort()
            self._serving.discard(task)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK_BYTES):
            await self._flows.wait()
            sink.write(data)
            await sink.drain()
        await self._flows.wait()
        with contextlib.suppress(OSError):
            sink.write_eof()  # the other direction may still have something to say
