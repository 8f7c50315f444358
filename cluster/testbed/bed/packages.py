"""Debian packages: installed when missing, and without starting the services they bring."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bed.errors import TestbedError
from bed.shell import run
from bed.steps import Steps

_QUIET = {"DEBIAN_FRONTEND": "noninteractive"}
_APT = ["apt-get", "--yes", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
_TRIES = 4
_POLICY = Path("/usr/sbin/policy-rc.d")


def install(packages: Sequence[str], steps: Steps) -> None:
    """Install those of `packages` that are missing; touches neither network nor dpkg when none is.

    Raises:
        TestbedError: They could not be installed after a fresh package list and several tries.
    """
    missing = sorted(set(packages) - _installed(packages))
    if not missing:
        return
    with steps.step(f"packages: {' '.join(missing)}"), _no_services_started():
        _retried([*_APT, "install", "--no-install-recommends", *missing])


def _installed(packages: Sequence[str]) -> set[str]:
    # dpkg-query exits with 1 when it knows nothing of a name: that is an answer, not a failure.
    query = ["sh", "-c", 'dpkg-query --show --showformat "\\${Package} \\${db:Status-Status}\\n" "$@" || true', "sh"]
    lines = run([*query, *packages]).splitlines()
    return {line.split()[0] for line in lines if line.endswith(" installed")}


def _retried(argv: Sequence[str]) -> None:
    """Try as the package lists are; after a failure, fetch fresh ones first (a list may be stale or absent)."""
    for tried in range(1, _TRIES + 1):
        try:
            if tried > 1:
                run([*_APT, "update"], env=_QUIET)
            run(argv, env=_QUIET)
        except TestbedError:
            if tried == _TRIES:
                raise
            time.sleep(2.0 ** (tried - 1) if tried > 1 else 0)
        else:
            return


@contextmanager
def _no_services_started() -> Iterator[None]:
    """docker.io and docker-registry would start daemons of their own: the test bed starts its own, in its own place."""
    if _POLICY.exists():  # the machine has its own policy, which stays
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()
