"""Live tests need a sandbox of their own: never kill(-1) outside a pid namespace."""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from requirements import require
from runner.live import SHELLS, binary, why_no_namespaces

_reason = functools.cache(why_no_namespaces)
_started_s = time.monotonic()
_stop_after_s = float(os.environ.get("RAYROLL_STOP_AFTER_S", "inf"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With a bound on time (sanitize.sh), another order each time, so that all of it has its turn."""
    if _stop_after_s < float("inf"):
        random.Random(os.environ.get("RAYROLL_SEED")).shuffle(items)


@pytest.fixture(autouse=True)
def within_its_time() -> None:
    """Skip what does not fit into the time that there is."""
    if time.monotonic() - _started_s > _stop_after_s:
        pytest.skip(f"out of its {_stop_after_s:.0f} s")


@pytest.fixture
def namespaces() -> None:
    """Skip, or fail where ``RAYROLL_REQUIRE=local`` says so, without bubblewrap."""
    require("local", _reason())
    binary()  # built here, and not on an event loop


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, namespaces: None) -> str:
    """Each of the shells that images come with."""
    name: str = request.param
    require(name, None if os.access(f"/usr/bin/{name}", os.X_OK) else f"/usr/bin/{name} is not installed")
    return name


@pytest.fixture(autouse=True)
def no_sanitizer_reports() -> Iterator[None]:
    """Under the sanitizers, the test in which a report was written fails with its text."""
    logs = os.environ.get("RAYROLL_SANITIZER_LOGS")
    before = set(Path(logs).iterdir()) if logs else set()
    yield
    new = set(Path(logs).iterdir()) - before if logs else set()
    if logs and new:
        pytest.fail("\n".join(report.read_text() for report in sorted(new)), pytrace=False)
