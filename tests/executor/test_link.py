"""The driver's end of a host, and what becomes of whoever waits there when it is given up."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import little
import pytest

from rayroll.errors import HostLostError
from rayroll.executor.link import HostLink
from rayroll.executor.messages import HostSetup

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
async def link() -> AsyncIterator[HostLink]:
    """To a host that is up."""
    link = HostLink(HostSetup("simulated", secrets.token_hex(6), "link"))
    await link.start()
    yield link
    link.abandon()


async def test_whoever_makes_a_task_known_hears_that_the_host_was_given_up(link: HostLink) -> None:
    telling = asyncio.ensure_future(link.teach(little.task()))
    await asyncio.sleep(0)
    link.abandon()
    with pytest.raises(HostLostError):
        await telling


async def test_whoever_stops_waiting_for_a_task_to_be_known_is_cancelled(link: HostLink) -> None:
    telling = asyncio.ensure_future(link.teach(little.task()))
    await asyncio.sleep(0)
    telling.cancel()
    link.abandon()
    with pytest.raises(asyncio.CancelledError):
        await telling
