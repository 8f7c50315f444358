"""A socket in front of another: passes bytes, and stops where it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rayroll.testing.tap import Tap


@pytest_asyncio.fixture
async def tap(tmp_path: Path) -> AsyncIterator[Tap]:
    """In front of an echo that says goodbye when its input ends."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.write(b"goodbye")
        writer.close()

    server = await asyncio.start_unix_server(echo, tmp_path / "e")
    async with Tap(tmp_path / "t", tmp_path / "e") as tap:
        yield tap
    server.close()


async def connected(tap: Tap) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(tap.url.removeprefix("unix://"))
    writer.write(b"hello")
    return reader, writer


async def test_each_direction_ends_by_itself(tap: Tap) -> None:
    reader, writer = await connected(tap)
    writer.write_eof()
    assert await reader.read() == b"hellogoodbye"
    writer.close()


async def test_a_cut_ends_what_is_connected_and_refuses_what_would_until_it_is_mended(tap: Tap) -> None:
    reader, writer = await connected(tap)
    assert await reader.readexactly(5) == b"hello"
    await tap.cut()
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await connected(tap)
    await tap.mend()
    reader, writer = await connected(tap)
    assert await reader.readexactly(5) == b"hello"
    writer.close()


async def test_what_is_held_arrives_when_it_goes_on(tap: Tap) -> None:
    tap.hold()
    reader, writer = await connected(tap)
    answer = asyncio.ensure_future(reader.readexactly(5))
    assert not (await asyncio.wait({answer}, timeout=0.1))[0]
    await tap.mend()
    assert await answer == b"hello"
    writer.close()
