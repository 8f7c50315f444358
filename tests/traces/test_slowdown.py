"""A replay is held against its recording: by the session, by the cell, and by what the difference was for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import synthetic

from rayroll.errors import Failure
from rayroll.timing import PHASES
from rayroll.traces.slowdown import Leg, Recorded, compare
from rayroll.types import Rollout, Timing


def rollout(task: str, phases: Mapping[str, float], **changes: Any) -> Rollout:
    """One that was played to its end, of known phases in seconds."""
    kinds = {"env": 0.0, "infra": 0.0, "policy": 0.0}
    for name, seconds in phases.items():
        kinds[PHASES[name].kind] += seconds
    timing = Timing(sum(phases.values()), kinds["env"], kinds["infra"], kinds["policy"], 0.0, phases)
    labels = {"cell": "docker-trace-c2", "concurrency": "2"}
    record = synthetic.rollout("docker", task=task, actions=1)
    values = {"timing": timing, "labels": labels, "submitted": True, "reward": 1.0, "valid": True, "failure": None}
    return replace(record, **{**values, **changes})


FIRST = rollout("trace/1", {"queue": 50.0, "boot": 1.0, "policy": 4.5, "transport": 0.5, "run": 2.0, "teardown": 2.0})
SECOND = rollout("trace/2", {"policy": 10.0, "run": 3.0, "grade_run": 1.0, "other": 1.0})
RECORDED = {"trace/1": Recorded(4.0, 1.0), "trace/2": Recorded(10.0, 5.0)}


def only(*rollouts: Rollout, **options: Any) -> dict[str, Any]:
    (cell,) = compare(rollouts, RECORDED, **options)
    return cell


def test_slowdown_is_the_time_in_the_slot_over_the_recorded_time() -> None:
    """10 s for 5 recorded, and 15 s for 15; the wait for the slot is no part."""
    cell = only(FIRST, SECOND)
    assert (cell["replayed_s"], cell["recorded_s"]) == (25.0, 20.0)
    assert cell["slowdown"] == {"n": 2, "sum": 1.25, "p25": 1.25, "p50": 1.5, "p75": 1.75, "least": 1.0, "most": 2.0}
    assert [session["replayed_s"] for session in cell["sessions"]] == [10.0, 15.0]


def test_the_actions_slowdown_leaves_start_and_end_out() -> None:
    assert only(FIRST)["acting_slowdown"]["sum"] == pytest.approx(7.0 / 5.0)


def test_the_tax_adds_up_to_what_the_replay_took_beyond_the_recording() -> None:
    cell = only(FIRST, SECOND)
    assert sum(cell["tax_s"].values()) == pytest.approx((25.0 - 20.0) / 2)
    assert cell["tax_s"]["calls"] == pytest.approx((1.0 - 2.0) / 2)
    assert cell["tax_s"]["thinking"] == pytest.approx(0.5 / 2)
    assert "queue" not in cell["tax_s"]


def test_what_was_not_played_to_its_end_is_compared_with_nothing_but_was_paid_for() -> None:
    spoilt = replace(SECOND, valid=False, reward=None, failure=Failure("infra", "gone"))
    cut = replace(SECOND, submitted=False, truncated=True)
    cell = only(FIRST, spoilt, cut)
    assert (cell["compared"], cell["valid"], cell["rollouts"]) == (1, 2, 3)
    assert cell["worker_hours"] > only(FIRST)["worker_hours"]


def test_a_session_that_took_no_time_has_no_slowdown() -> None:
    (cell,) = compare([FIRST], {"trace/1": Recorded(0.0, 0.0)})
    assert (cell["slowdown"], cell["compared"]) == (None, 1)


def test_concurrency_that_was_reached_is_the_time_in_slots_over_the_time_of_the_legs() -> None:
    legs = [Leg("docker-trace-c2", 10.0, 18.0), Leg("docker-trace-c2", 10.0, 12.0), Leg("another", 1.0, 9.0)]
    assert only(FIRST, SECOND, legs=legs)["concurrency_reached"] == 1.5
    assert only(FIRST)["concurrency_reached"] is None


def test_hours_are_those_of_the_projection() -> None:
    """Worker-hours leave the policy out, slot-hours do not."""
    cell = only(FIRST, SECOND, target_rollouts=3600)
    assert cell["worker_hours"] * 3600 == pytest.approx(5.5 + 5.0)
    assert cell["slot_hours"] * 3600 == pytest.approx(25.0)
    assert cell["projected"]["slot_hours"]["hours"] == pytest.approx(12.5)


def test_cells_come_apart() -> None:
    other = replace(SECOND, labels={"cell": "docker-trace-c8", "concurrency": "8"})
    assert [cell["concurrency"] for cell in compare([FIRST, other], RECORDED)] == [2, 8]
