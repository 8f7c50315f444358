"""A rollout survives its line, whatever policies and graders put into it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import orjson
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from rayroll.errors import Failure
from rayroll.record import finished_ids, from_line, read_rollouts, to_line
from rayroll.types import Rollout

unhurried = settings(deadline=None)  # a busy machine stalls; how long is not what is tested

RECORD = synthetic.rollout(actions=2)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def with_tokens(tokens: Any) -> Rollout:
    step = RECORD.steps[0]
    return replace(RECORD, steps=(replace(step, act=replace(step.act, tokens=tokens)),))


@pytest.mark.parametrize("failure", [None, Failure("infra", "engine gone", "EngineDownError")])
def test_a_rollout_comes_back_equal(failure: Failure | None) -> None:
    record = synthetic.rollout(actions=3, failure=failure)
    assert from_line(to_line(record)) == record


@unhurried
@given(json_values)
def test_whatever_json_can_hold_is_carried_untouched(tokens: Any) -> None:
    record = with_tokens(tokens)
    assert from_line(to_line(record)) == record


def test_a_lone_surrogate_and_an_integer_above_64_bits_are_carried_too() -> None:
    record = replace(with_tokens({"text": "half an emoji \ud83d", "big": 2**80}), seed=2**70)
    assert from_line(to_line(record)) == record


def test_arrays_come_back_as_lists_and_strangers_leave_their_name() -> None:
    record = from_line(to_line(with_tokens({"ids": numpy.array([1, 2]), "handle": object()})))
    assert record.steps[0].act.tokens == {"ids": [1, 2], "handle": {"unserializable": "builtins.object"}}


def test_a_line_says_where_the_time_went_under_the_promised_names() -> None:
    values = orjson.loads(to_line(RECORD))
    assert list(values["timing"]) == ["wall_s", "env_s", "infra_s", "policy_s", "hidden_s", "phases"]
    assert sum(values["timing"]["phases"].values()) == pytest.approx(values["timing"]["wall_s"])


def test_fields_of_a_newer_writer_are_ignored_but_a_newer_format_is_refused() -> None:
    values = orjson.loads(to_line(RECORD))
    assert from_line(orjson.dumps(values | {"mood": "sunny"})) == RECORD
    with pytest.raises(ValueError, match="update rayroll"):
        from_line(orjson.dumps(values | {"v": 2}))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"v":1}', b'{"v":1,"timing":{},"steps":7}', b"\xff\n"])
def test_what_is_no_rollout_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        from_line(line)


@unhurried
@given(st.integers(0, len(to_line(RECORD)) - 2))
def test_a_line_cut_anywhere_is_never_taken_for_a_rollout(length: int) -> None:
    with pytest.raises(ValueError):
        from_line(to_line(RECORD)[:length])


def test_a_damaged_line_costs_only_itself_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(to_line(RECORD) + b'{"v":1,"id":\n' + to_line(RECORD) + to_line(RECORD)[:60])
    with caplog.at_level(logging.WARNING):
        assert list(read_rollouts(path)) == [RECORD, RECORD]
    assert [m for m in caplog.messages if "line 2" in m] and [m for m in caplog.messages if "line 4: torn" in m]


def test_finished_are_all_but_those_that_the_machine_spoilt(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    faults = ["infra", "policy", "task", "grader"]
    records = [RECORD] + [replace(RECORD, id=f, failure=Failure(f, "why")) for f in faults]  # type: ignore[arg-type]
    path.write_bytes(b"".join(map(to_line, records)))
    assert finished_ids(path) == {RECORD.id, "policy", "task", "grader"}
    assert finished_ids(tmp_path / "never.jsonl") == set()
