"""What a test needs from this machine: probed for real, once, and answered with a skip that says what would fix it.

``RAYROLL_REQUIRE=docker,local`` turns those skips into failures, so that a suite cannot go quietly green.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayroll.substrates import Probe, load

TESTBED_ENV = Path("/run/rayroll-testbed/env.sh")


def check(kind: str) -> None:
    """Skip the running test where a substrate does not work; fail where ``RAYROLL_REQUIRE`` names it."""
    found = probe(kind)
    if found.ok:
        return
    message = f"{kind}: {found.reason}" + (f"; fix: {found.fix}" if found.fix else "")
    if kind in os.environ.get("RAYROLL_REQUIRE", "").split(","):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def needs(kind: str) -> Callable[[], Iterator[None]]:
    """An autouse fixture for a test module: ``needs_docker = needs("docker")``."""

    def fixture() -> Iterator[None]:
        check(kind)
        yield

    return pytest.fixture(autouse=True, scope="module", name=f"needs_{kind}")(fixture)


@functools.cache
def probe(kind: str) -> Probe:
    """Whether a substrate works on this machine, asked once."""
    use_testbed()
    substrate = load(kind)
    found: list[Probe] = []

    def ask() -> None:
        found.append(asyncio.run(substrate(substrate.config_type()).probe()))

    # In a thread of its own: the caller may be on an event loop.
    asking = threading.Thread(target=ask)
    asking.start()
    asking.join()
    return found[0]


def use_testbed() -> None:
    """Point this process at the test bed's engine where it is up and nothing else is set."""
    if TESTBED_ENV.exists():
        for line in TESTBED_ENV.read_text().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ.setdefault(name, value.strip("'\""))
