"""Sinks are fed beside the run: in order, bounded, and each on its own account."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import ClassVar

import pytest
import synthetic

from rayroll.errors import ClosedError, ConfigError, DiskFullError
from rayroll.sinks import Sink, SinkWorker, kinds, load
from rayroll.types import Rollout

RECORD = synthetic.rollout(actions=1)


class Kept(Sink):
    kind: ClassVar[str] = "kept"

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.seen: list[Mapping[str, float]] = []
        self.exit_codes: list[int] = []

    def add(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)

    def gauges(self, values: Mapping[str, float]) -> None:
        self.seen.append(values)

    def close(self, exit_code: int = 0) -> None:
        self.exit_codes.append(exit_code)


class Broken(Sink):
    kind: ClassVar[str] = "broken"

    def add(self, rollout: Rollout) -> None:
        raise ZeroDivisionError("a bug in a sink")


class Refusing(Kept):
    """Essential, and takes nothing while it is full."""

    kind: ClassVar[str] = "refusing"
    essential: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.full = threading.Event()

    def add(self, rollout: Rollout) -> None:
        if self.full.is_set():
            raise DiskFullError("no space")
        super().add(rollout)


class Gated(Kept):
    """Waits at its first rollout until the gate opens."""

    kind: ClassVar[str] = "gated"

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def add(self, rollout: Rollout) -> None:
        self.gate.wait()
        super().add(rollout)


async def test_every_sink_gets_every_rollout_in_order_and_learns_how_the_run_ended() -> None:
    first, second = Kept(), Kept()
    records = [synthetic.rollout(sample=i, actions=1) for i in range(5)]
    with SinkWorker([first, second]) as worker:
        for record in records:
            await worker.put(record)
        worker.gauges({"sched/in_flight": 3.0})
    assert first.rollouts == second.rollouts == records
    assert (first.seen, first.exit_codes) == ([{"sched/in_flight": 3.0}], [0])


def test_a_run_that_raised_closes_its_sinks_with_exit_code_1() -> None:
    sink = Kept()
    with pytest.raises(KeyError), SinkWorker([sink]) as worker:
        worker.put_blocking(RECORD)
        raise KeyError
    assert (len(sink.rollouts), sink.exit_codes) == (1, [1])


def test_a_broken_sink_is_reported_once_and_the_others_get_everything(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    with caplog.at_level(logging.WARNING), SinkWorker([Broken(), kept]) as worker:
        for _ in range(3):
            worker.put_blocking(RECORD)
    assert len(kept.rollouts) == 3
    assert caplog.messages == [
        "sink broken: a bug in a sink",
        "sink broken failed 3 times; what it shows is incomplete",
    ]
    assert "ZeroDivisionError" in caplog.text


async def test_sinks_that_are_behind_hold_the_run_but_not_the_event_loop() -> None:
    sink = Gated()
    with SinkWorker([sink], max_pending=2) as worker:
        puts = [asyncio.create_task(worker.put(RECORD)) for _ in range(5)]
        for _ in range(100):
            await asyncio.sleep(0)  # the loop turns
        waiting = [task for task in puts if not task.done()]
        sink.gate.set()
        await asyncio.gather(*puts)
    assert len(waiting) >= 2  # one in the sink, at most two pending
    assert len(sink.rollouts) == 5


async def test_a_cancelled_wait_loses_no_rollout() -> None:
    sink = Gated()
    with SinkWorker([sink], max_pending=1) as worker:
        puts = [asyncio.create_task(worker.put(RECORD)) for _ in range(4)]
        await asyncio.sleep(0)
        for task in puts:
            task.cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        sink.gate.set()
    assert len(sink.rollouts) == 4


def test_what_an_essential_sink_refuses_stops_the_run_and_is_tried_again_at_the_end() -> None:
    sink, other = Refusing(), Kept()
    worker = SinkWorker([sink, other])
    worker.start()
    sink.full.set()
    with pytest.raises(DiskFullError):
        while True:
            worker.put_blocking(RECORD)
    sink.full.clear()
    worker.close(1)
    assert len(sink.rollouts) == len(other.rollouts) > 0
    assert worker.unsaved == []


def test_what_stays_unsaved_is_an_error_at_the_end() -> None:
    sink = Refusing()
    worker = SinkWorker([sink])
    worker.start()
    sink.full.set()
    worker.put_blocking(RECORD)
    with pytest.raises(DiskFullError):
        worker.close()
    assert worker.unsaved == [RECORD]
    assert sink.exit_codes == [0]


def test_an_essential_sink_that_cannot_open_keeps_the_run_from_starting() -> None:
    class Locked(Refusing):
        def open(self) -> None:
            raise ConfigError("another run is writing this file")

    with pytest.raises(ConfigError):
        SinkWorker([Locked()]).start()


def test_closing_twice_is_fine_and_adding_afterwards_is_not() -> None:
    worker = SinkWorker([Kept()])
    worker.start()
    worker.close()
    worker.close()
    with pytest.raises(ClosedError):
        worker.put_blocking(RECORD)


def test_sinks_are_found_by_name_and_a_wrong_name_is_answered_with_the_nearest() -> None:
    assert {"console", "jsonl", "wandb"} <= set(kinds())
    assert all(load(kind).kind == kind for kind in kinds())
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        load("wandbd")
