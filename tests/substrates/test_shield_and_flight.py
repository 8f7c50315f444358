"""Clean-up that cannot be cut short, and work that is done once for all who want it."""

from __future__ import annotations

import asyncio

import pytest

from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._shield import finish


async def test_finish_returns_the_result() -> None:
    assert await finish(asyncio.sleep(0, "done")) == "done"


async def test_finish_runs_to_the_end_however_often_it_is_cancelled() -> None:
    steps: list[str] = []
    release = asyncio.Event()

    async def clean_up() -> None:
        steps.append("begun")
        await release.wait()
        steps.append("ended")

    task = asyncio.ensure_future(finish(clean_up()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begun", "ended"]


async def test_finish_passes_on_what_the_work_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await finish(fail())


async def test_callers_for_one_key_share_one_run_and_its_error() -> None:
    runs = 0

    async def fail() -> int:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0)
        raise ValueError("no")

    flight: SingleFlight[int] = SingleFlight()
    results = await asyncio.gather(*(flight("key", fail) for _ in range(5)), return_exceptions=True)
    assert runs == 1
    assert [str(result) for result in results] == ["no"] * 5
    await asyncio.gather(flight("key", fail), return_exceptions=True)
    assert runs == 2


async def test_one_caller_leaving_does_not_disturb_the_others() -> None:
    release = asyncio.Event()

    async def work() -> str:
        await release.wait()
        return "done"

    flight: SingleFlight[str] = SingleFlight()
    first, second = (asyncio.ensure_future(flight("key", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    release.set()
    assert await second == "done"


async def test_the_last_caller_to_leave_cancels_the_work() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.ensure_future(SingleFlight[None]()("key", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert cancelled.is_set()
