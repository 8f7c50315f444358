"""What every test gets: a run of its own, real substrates where they work, one Ray, a look at what is left behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from blockbuster import BlockBuster, blockbuster_ctx
from requirements import check
from requirements import pytest_runtest_makereport as pytest_runtest_makereport

from rayroll.substrates import Substrate, load
from rayroll.testing import leaks

RAY_CPUS = 4
"""Fixed, so that a test of placement means the same on every machine."""


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test: no child process, no thread, no socket more than before it."""
    # A class that keeps one sandbox for all its tests looks for leaks at its own end.
    if getattr(request.cls, "owns_leaks", False):
        yield
        return
    # A process that has once been a driver keeps opening and closing sockets of Ray's own.
    with leaks.watch(sockets="ray" not in sys.modules):
        yield


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[BlockBuster]:
    """A blocking call of ours on an event loop fails the test that made it. Test helpers may read /proc."""
    before = {name: value for name, value in vars(os).items() if callable(value)}
    with blockbuster_ctx("rayroll", excluded_modules=["rayroll.testing"]) as blockbuster:
        for function in blockbuster.functions.values():
            # Naming a substrate imports it, once, before anything runs; the blocking doors are there to block.
            function.can_block_in("rayroll/substrates/__init__.py", "load").can_block_in("rayroll/sync.py", "run")
            function.can_block_in("rayroll/sinks/__init__.py", "close")
            # Archives in memory.
            function.can_block_in("rayroll/types.py", {"read", "names", "from_files", "from_tar"})
        with _known_to_shutil(before):
            yield blockbuster


@contextlib.contextmanager
def _known_to_shutil(before: dict[str, Any]) -> Iterator[None]:
    """shutil looks up in sets of functions what the system can do; blockbuster's stand-ins have to be in them, too."""
    added = []
    for name, original in before.items():
        for known in (os.supports_follow_symlinks, os.supports_fd, os.supports_dir_fd):
            stand_in = getattr(os, name)
            if original in known and stand_in not in known:
                known.add(stand_in)
                added.append((known, stand_in))
    yield
    for known, stand_in in added:
        known.discard(stand_in)


@pytest.fixture(scope="session")
def session_id() -> str:
    """Beginning of every run id of this session."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def run_id(session_id: str) -> str:
    """A label for the sandboxes of one test."""
    return f"{session_id}-{secrets.token_hex(4)}"


@pytest_asyncio.fixture
async def local(run_id: str) -> AsyncIterator[Substrate]:
    """The open local substrate; whatever the test leaves of its run fails it."""
    async for substrate in _substrate("local", run_id):
        yield substrate


@pytest_asyncio.fixture
async def docker(run_id: str) -> AsyncIterator[Substrate]:
    """The same for docker."""
    async for substrate in _substrate("docker", run_id):
        yield substrate


@pytest_asyncio.fixture(params=["local", "docker"])
async def substrate(request: pytest.FixtureRequest, run_id: str) -> AsyncIterator[Substrate]:
    """Every real substrate that this machine can run, one after the other."""
    async for substrate in _substrate(request.param, run_id):
        yield substrate


async def _substrate(kind: str, run_id: str) -> AsyncIterator[Substrate]:
    check(kind)
    made = load(kind)
    async with made(made.config_type()) as substrate:
        yield substrate
        left = await substrate.list({"run": run_id})
        for ref in left:
            await substrate.destroy(ref)
        assert left == [], "the test left sandboxes behind"


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[str]:
    """Where Ray works; and the end of it. Socket paths end at 108 bytes, which pytest's own reach."""
    import ray

    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield folder
        ray.shutdown()


@pytest.fixture(scope="module")
def ray_cluster(ray_folder: str) -> Any:
    """One Ray for all tests, started when the first asks for it, and again after tests with a cluster of their own."""
    import ray

    if not ray.is_initialized():
        options = {"include_dashboard": False, "configure_logging": False, "log_to_driver": False}
        ray.init(num_cpus=RAY_CPUS, _temp_dir=ray_folder, **options)
    return ray


@pytest.fixture
def rayroll_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders for what rayroll keeps of its own accord: cache, results, offline W&B."""
    home = tmp_path / "home"
    for variable, name in (("RAYROLL_CACHE_DIR", "cache"), ("WANDB_DIR", "wandb"), ("XDG_CACHE_HOME", "xdg")):
        (home / name).mkdir(parents=True)
        monkeypatch.setenv(variable, str(home / name))
    monkeypatch.chdir(home)
    return home
