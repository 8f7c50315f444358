"""What a test needs from this machine: probed for real, once, and answered with a skip that says what would fix it.

``RAYROLL_REQUIRE=docker,local`` turns those skips into failures, so that a suite cannot go quietly green; with
``everything`` in it no test at all may be skipped for what is missing.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from rayroll.substrates import Probe, load

TESTBED_ENV = Path("/run/rayroll-testbed/env.sh")

NOT_APPLICABLE = "conformance/_run.py"
"""Where checks are skipped that make no sense on a substrate, whatever this machine has."""


def check(kind: str) -> None:
    """Skip the running test where a substrate does not work; fail where ``RAYROLL_REQUIRE`` names it."""
    found = probe(kind)
    require(kind, None if found.ok else found.reason + (f"; fix: {found.fix}" if found.fix else ""))


def require(what: str, missing: str | None) -> None:
    """Skip the running test where something is missing; fail where ``RAYROLL_REQUIRE`` names it."""
    if missing is not None:
        miss(what, missing)


def miss(what: str, missing: str) -> NoReturn:
    """Skip the running test for what is missing; fail where ``RAYROLL_REQUIRE`` names it."""
    if is_required(what):
        pytest.fail(f"{what}: {missing}", pytrace=False)
    pytest.skip(f"{what}: {missing}")


def is_required(what: str) -> bool:
    """Whether ``RAYROLL_REQUIRE`` names it."""
    return what in os.environ.get("RAYROLL_REQUIRE", "").split(",")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """For ``conftest.py``: a skip is a failure where everything is required."""
    report = yield
    if report.skipped and is_required("everything"):
        assert isinstance(report.longrepr, tuple)
        path, line, reason = report.longrepr
        if not path.endswith(NOT_APPLICABLE):
            report.outcome = "failed"
            report.longrepr = f"{path}:{line}: skipped, where RAYROLL_REQUIRE asks for everything: {reason}"
    return report


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
    """Point this process at what the test bed runs where it is up and nothing else is set."""
    if TESTBED_ENV.exists():
        for line in TESTBED_ENV.read_text().splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ.setdefault(name, value.strip("'\""))
    if "RAYROLL_TESTBED_KUBECONFIG" in os.environ and not Path("~/.kube/config").expanduser().exists():
        os.environ.setdefault("KUBECONFIG", os.environ["RAYROLL_TESTBED_KUBECONFIG"])
    if "RAYROLL_TESTBED_EC2" in os.environ and "AWS_ENDPOINT_URL_EC2" not in os.environ:
        # All of them: a stand-in takes any credentials, and nobody's real ones are to be sent there.
        os.environ |= {
            "AWS_ENDPOINT_URL_EC2": os.environ["RAYROLL_TESTBED_EC2"],
            "AWS_ACCESS_KEY_ID": "testbed",
            "AWS_SECRET_ACCESS_KEY": "testbed",
            "AWS_REGION": "eu-central-1",
            "AWS_DEFAULT_REGION": "eu-central-1",
        }
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)
