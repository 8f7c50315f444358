"""Executors on real Ray and real sandboxes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import little
import pytest
from requirements import check

from rayroll.executor import Executor
from rayroll.substrates import load
from rayroll.sync import portal
from rayroll.testing import leaks

PLUGINS = Path(__file__).parents[1] / "plugins"
WITH_PLUGINS = {"runtime_env": {"env_vars": {"PYTHONPATH": str(PLUGINS)}}}
"""For hosts that are to find the substrate ``disturbed``."""

Opened = Callable[..., AbstractAsyncContextManager[Executor]]


@contextlib.asynccontextmanager
async def opened_executor(
    kind: str = "local", *, disturbance: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Executor]:
    """An executor, and the certainty that its run leaves nothing. ``disturbance``: see ``DisturbedConfig``."""
    options.setdefault("substrate_config", little.SUBSTRATE_CONFIG.get(kind, {}))
    if disturbance is not None:
        inner = {"inner": kind, "inner_config": options.pop("substrate_config")}
        options |= {"substrate_config": {**inner, **disturbance}, "actor_options": WITH_PLUGINS}
    options["session"] = {"lease_s": 3.0, **options.get("session", {})}
    async with Executor("disturbed" if disturbance is not None else kind, **options) as executor:
        yield executor
    await nothing_left(kind, executor.run_id)


async def nothing_left(kind: str, run_id: str) -> None:
    """Waits until nothing of a run is left: a host that was killed frees by lease."""
    for _ in range(60):
        if not (left := await sandboxes(kind, run_id)):
            return
        await little.pause(1.0)
    pytest.fail(f"left behind: {left}")


async def sandboxes(kind: str, run_id: str) -> list[Any]:
    """Sandboxes of a run, asked of a substrate object that knows nothing yet."""
    substrate = load(kind)
    async with substrate(substrate.config_type()) as fresh:
        return await fresh.list({"run": run_id})


@pytest.fixture(scope="package", autouse=True)
def blocking_door() -> None:
    """Its thread lasts as long as the process, so it is no leak of the test that opens it first."""
    portal()


@pytest.fixture(autouse=True)
def nothing_is_left(ray_cluster: Any) -> Iterator[None]:
    """No child process and no thread more than before; Ray opens and closes sockets of this process as it likes."""
    before = leaks.held_now()
    yield
    deadline_s = time.monotonic() + 10.0
    while left := {k: v for k, v in leaks.held_now().beyond(before).items() if k != "sockets"}:
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        time.sleep(0.05)


@pytest.fixture
def kills() -> int:
    """How many random moments each kind of kill falls at; ``RAYROLL_KILLS=20`` for the long form."""
    return int(os.environ.get("RAYROLL_KILLS", "1"))


@pytest.fixture
def opened(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens executors on the session's Ray."""
    check("local")
    monkeypatch.syspath_prepend(PLUGINS)
    return opened_executor
