"""The direct line between a driver and its host: who may use it, what arrives, and how its end is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rayroll.executor.line import Line, LineAddress, Listener, connect


class End:
    """Keeps what one end of a line hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()
        self.lost = asyncio.Event()

    def start(self, line: Line) -> None:
        line.start(self.heard.put_nowait, self.lost.set)


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[LineAddress, asyncio.Queue[Line]]]:
    """A host's listener: where it is, and the lines it hands over."""
    accepted: asyncio.Queue[Line] = asyncio.Queue()
    listener = Listener(accepted.put_nowait)
    try:
        yield await listener.open("127.0.0.1"), accepted
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[Line, End, Line, End]]:
    """A driver's and a host's end, both started."""
    async with listening() as (address, accepted):
        driver, host = await connect(address), await accepted.get()
        driver_end, host_end = End(), End()
        driver_end.start(driver)
        host_end.start(host)
        yield driver, driver_end, host, host_end
        driver.close()
        host.close()


async def test_values_arrive_in_order_at_both_ends() -> None:
    async with pair() as (driver, driver_end, host, host_end):
        for number in range(100):
            driver.send(number)
        host.send({"answer": b"x" * 300_000})
        assert [await host_end.heard.get() for _ in range(100)] == list(range(100))
        assert await driver_end.heard.get() == {"answer": b"x" * 300_000}


async def test_what_arrives_before_the_start_is_kept() -> None:
    async with listening() as (address, accepted):
        driver = await connect(address)
        driver.start(lambda value: None, lambda: None)
        driver.send("early")
        host, end = await accepted.get(), End()
        end.start(host)
        assert await end.heard.get() == "early"
        driver.close()
        await end.lost.wait()


async def test_a_driver_that_does_not_know_the_secret_is_not_listened_to() -> None:
    async with listening() as (address, accepted):
        with pytest.raises(ConnectionError):
            await connect(dataclasses.replace(address, secret=b"guessed"))
        assert accepted.empty()
        driver, host = await connect(address), await accepted.get()  # and does not keep the right one out
        driver.close()
        host.close()


async def test_nothing_of_a_stranger_is_unpickled() -> None:
    async with listening() as (address, accepted):
        reader, writer = await asyncio.open_connection(address.ip, address.port)
        writer.write(b"\0" * 32 + b"\x14\0\0\0" + b"cbuiltins\nfail\n(tR.")
        heard = b""
        with contextlib.suppress(ConnectionError):
            heard = await reader.read()
        assert len(heard) <= 32  # the host's own proof at most, then the end
        assert accepted.empty()
        writer.close()


async def test_a_second_driver_finds_nobody_listening() -> None:
    async with listening() as (address, accepted):
        driver, host = await connect(address), await accepted.get()
        with pytest.raises(OSError):
            await connect(address)
        driver.close()
        host.close()


async def test_the_end_of_the_other_side_is_noticed_and_one_s_own_is_not() -> None:
    async with pair() as (driver, driver_end, host, host_end):
        host.close()
        await driver_end.lost.wait()
        assert not driver.is_up
        assert not host_end.lost.is_set()


async def test_a_value_that_does_not_pickle_ends_the_line_instead_of_leaving_the_receiver_waiting() -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    async with pair() as (driver, _, _, host_end):
        driver.send(threading.Lock())
        await host_end.lost.wait()
    assert isinstance(raised[0]["exception"], TypeError)


async def test_an_address_where_nobody_listens_is_an_error_at_once() -> None:
    with pytest.raises(OSError):
        await connect(LineAddress("127.0.0.1", 9, b"secret"))
