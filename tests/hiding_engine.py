"""A Docker engine as somebody else might see it: the real one, which does not list some of what it has."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any


@asynccontextmanager
async def hiding_engine(
    real: Path, folder: Path, what: str, is_hidden: Callable[[dict[str, Any]], bool]
) -> AsyncIterator[str]:
    """Where it listens: ``unix://...``.

    Args:
        real: The real engine's socket.
        folder: For its own.
        what: ``images`` or ``containers``.
        is_hidden: Which of the engine's answers it does not list.
    """

    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(ConnectionError, asyncio.IncompleteReadError))
            stack.callback(writer.close)
            head = await reader.readuntil(b"\r\n\r\n")
            upstream, to_engine = await asyncio.open_unix_connection(real)
            stack.callback(to_engine.close)
            is_list = re.match(rb"GET (/v[\d.]+)?/%s/json[? ]" % what.encode(), head)
            if b"upgrade" not in head.lower():  # one request a connection
                head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", head)[:-2] + b"Connection: close\r\n\r\n"
            to_engine.write(head)
            sending = asyncio.ensure_future(_copy(reader, to_engine))
            stack.callback(sending.cancel)
            if is_list:
                body = _without(is_hidden, await upstream.read())
                writer.write(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
            else:
                await _copy(upstream, writer)

    server = await asyncio.start_unix_server(accept, folder / "hiding.sock")
    try:
        yield f"unix://{folder / 'hiding.sock'}"
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        if serving:
            await asyncio.wait(set(serving))
        await asyncio.sleep(0)  # transports close in the next turn of the loop


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        to.write(data)
        await to.drain()
    with contextlib.suppress(OSError):
        to.write_eof()


def _without(is_hidden: Callable[[dict[str, Any]], bool], answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        chunks = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            chunks += body[: int(size, 16)]
            body = body[int(size, 16) + 2 :]
        body = chunks
    return json.dumps([each for each in json.loads(body) if not is_hidden(each)]).encode()
