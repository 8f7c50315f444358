"""A trace becomes work: its steps' waits and calls, at the pace that was asked for, and nothing that is not in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic
from traces.tiny import call, result, session, step, store, text, user

from rayroll.errors import ConfigError
from rayroll.policies.replay import ModelStep, ToolCall
from rayroll.record import to_line
from rayroll.traces.playable import read
from rayroll.traces.rows import write_rows
from rayroll.traces.sanitize import sanitize_rows
from rayroll.traces.store import Store
from rayroll.traces.workload import Pace, Workload, build, task_of

DATA = Path(__file__).parent / "data"

# A person asks at 0, the model calls at 4 and again at 9, and answers at 12; another message comes at 100.
ANN = session(
    "a",
    step(user(0), call(4, "Bash", result=6, input={"command": "make"}, result_chars=50)),
    step(result(6), call(9, "Read", result=9.5, result_chars=7)),
    step(result(9.5), text(12)),
    step(user(100), call(101, "Bash", result=102)),
)


def made(*sessions: Any, **options: Any) -> Workload:
    with store(*sessions) as opened:
        values: dict[str, Any] = {"source": "tiny", "sessions": None, "seed": 0, "pace": Pace(), **options}
        return build(opened, **values)


def test_steps_think_for_their_generation_spans_and_call_for_their_effective_latencies() -> None:
    (only,) = made(ANN).sessions
    assert only.steps == (
        ModelStep(4.0, (ToolCall(2.0, 50),)),
        ModelStep(3.0, (ToolCall(0.5, 7),)),
        ModelStep(2.5),
        ModelStep(1.0, (ToolCall(1.0, 100),)),
    )
    assert (only.think_s, only.tool_s, only.recorded_s, only.actions) == (10.5, 3.5, 14.0, 3)


def test_the_runners_own_time_of_a_call_comes_before_the_clients() -> None:
    rows = session("a", step(user(0), call(1, "Bash", result=5, internal_ms=3000)))
    assert made(rows).sessions[0].tool_s == 3.0


def test_waits_for_people_are_left_out_unless_asked_for() -> None:
    """88 seconds lie between the answer and the next message."""
    with_people = made(ANN, pace=Pace(human_waits=0.5)).sessions[0]
    assert [step.think_s for step in with_people.steps] == [4.0, 3.0, 2.5, 45.0]


def test_the_pace_scales_waits_and_calls_and_cuts_both_ends() -> None:
    pace = Pace(think_scale=0.0, tool_scale=2.0, max_call_s=1.5, max_steps=2)
    (only,) = made(ANN, pace=pace).sessions
    assert only.steps == (ModelStep(0.0, (ToolCall(1.5, 50),)), ModelStep(0.0, (ToolCall(1.0, 7),)))


def test_what_has_no_duration_takes_none_and_is_counted() -> None:
    unfinished = session("a", step(user(None), call(4, "Bash")), step(result(8), call(9, "Bash", result=10)))
    found = made(unfinished)
    assert found.sessions[0].steps[0] == ModelStep(0.0, (ToolCall(0.0, 100),))
    assert (found.unknown_calls, found.unknown_thinks) == (1, 1)
    assert "calls of unknown duration, which take none: 1" in found.sentence()


def test_a_call_that_took_no_time_is_not_one_of_unknown_duration() -> None:
    assert made(session("a", step(user(0), call(4, "Bash", result=4)))).unknown_calls == 0


def test_calls_side_by_side_are_counted_and_their_times_are_summed() -> None:
    rows = session("a", step(user(0), call(1, "Bash", result=5), call(2, "Bash", result=3), call(6, "Bash", result=7)))
    found = made(rows)
    assert (found.beside, found.sessions[0].tool_s) == (1, 6.0)


def test_a_subagent_is_a_session_of_its_own() -> None:
    own = session("a", step(user(0), call(1, "Task", result=9)))
    sub = [{**row, "trace_key": "sub"} for row in session("a", step(user(2), call(3, "Bash", result=4)))]
    found = made(own, [{**row, "round_index": 5, "is_subagent": True, "agent_id": "x"} for row in sub])
    assert [session.recorded_s for session in found.sessions] == [9.0, 2.0]


def test_sessions_are_drawn_by_the_seed_and_keep_their_numbers() -> None:
    many = [session(f"s{n}", step(user(0), call(1, "Bash", result=2 + n))) for n in range(9)]
    drawn = made(*many, sessions=3, seed=1)
    assert drawn == made(*many, sessions=3, seed=1)
    assert {session.task_id for session in drawn.sessions} < {session.task_id for session in made(*many).sessions}
    assert drawn.digest() != made(*many, sessions=3, seed=2).digest()


def test_equal_work_has_equal_digests_and_another_duration_another() -> None:
    longer = session("a", step(user(0), call(4, "Bash", result=6.5)))
    assert made(ANN).digest() == made(ANN).digest()
    assert made(longer).digest() != made(session("a", step(user(0), call(4, "Bash", result=6)))).digest()


def test_sessions_that_call_nothing_are_left_out_and_counted() -> None:
    found = made(ANN, session("b", step(user(0), text(3))))
    assert (len(found.sessions), found.without_calls) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "pace", "why"),
    [
        (session("a", step(user(0), text(3))), Pace(), "calls a tool"),
        (session("a", step(user(0), text(3)), step(user(4), call(5, result=6))), Pace(max_steps=1), "calls a tool"),
        (session("a", step(user(None), call(None))), Pace(), "has no times"),
    ],
)
def test_what_cannot_be_replayed_says_why(rows: list[dict[str, Any]], pace: Pace, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(rows, pace=pace)


@pytest.mark.parametrize(
    "values", [{"think_scale": -1.0}, {"tool_scale": float("nan")}, {"max_call_s": 0.0}, {"max_steps": 0}]
)
def test_an_impossible_pace_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        Pace(**values)


# --- where it comes from ---


def read_all(source: Path | str, **options: Any) -> Workload:
    return read(str(source), **{"sessions": None, "seed": 0, "pace": Pace(), **options})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows.jsonl.zst", ANN)  # type: ignore[arg-type]
    return tmp_path / "rows.jsonl.zst"


def test_rows_and_their_store_are_the_same_work(rows: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.duckdb") as opened:
        opened.load(rows)
    assert read_all(rows).sessions == read_all(tmp_path / "t.duckdb").sessions == made(ANN).sessions


def test_recorded_commands_are_those_of_shell_calls_and_end_in_time(rows: Path) -> None:
    found = read_all(rows, recorded_commands=True)
    first, second = (step.calls[0] for step in found.sessions[0].steps[:2])
    assert (first.command, first.timeout_s, second.command) == ("make", 126.0, None)
    assert found.commands == 1
    assert "stand-ins: 1" in found.sentence()


def test_a_store_has_commands_where_inputs_were_to_be_kept(rows: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "own.duckdb") as opened, Store.open(tmp_path / "shared.duckdb") as shared:
        opened.load(rows, include_inputs=True)
        shared.load(rows)
    assert read_all(tmp_path / "own.duckdb", recorded_commands=True).commands == 1
    with pytest.raises(ConfigError, match="no recorded commands"):
        read_all(tmp_path / "shared.duckdb", recorded_commands=True)


def test_a_recorded_command_keeps_its_duration_at_any_pace_of_stand_ins(rows: Path) -> None:
    found = read_all(rows, recorded_commands=True, pace=Pace(tool_scale=0.1, max_call_s=1.0))
    assert found.sessions[0].steps[0].calls == (ToolCall(1.0, 50, "make", 1.0),)


def test_sanitized_rows_have_no_commands_to_run(tmp_path: Path, rows: Path) -> None:
    write_rows(tmp_path / "shared.jsonl", sanitize_rows(ANN))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="sanitized, or have no inputs"):
        read_all(tmp_path / "shared.jsonl", recorded_commands=True)
    assert read_all(tmp_path / "shared.jsonl").recorded_s == read_all(rows).recorded_s


def test_made_up_sessions_are_as_many_as_asked_for_and_those_of_the_seed() -> None:
    assert len(read_all("tracelab", sessions=4).sessions) == 4
    assert read_all("tracelab", sessions=4).digest() == read_all("tracelab", sessions=4).digest()
    with pytest.raises(ConfigError, match="no commands"):
        read_all("tracelab", recorded_commands=True)


def test_our_own_rollouts_are_a_trace_with_commands(tmp_path: Path) -> None:

    (tmp_path / "rollouts.jsonl").write_bytes(to_line(synthetic.rollout(actions=3)))
    found = read_all(tmp_path / "rollouts.jsonl", recorded_commands=True)
    assert (found.actions, found.commands) == ((3,), 3)


def test_tracelabs_samples_are_work() -> None:
    assert read_all(DATA / "normalized_rounds.jsonl").actions == (9, 10)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [("nothing.jsonl", None, "no file"), ("empty.jsonl", "", "is empty"), ("other.jsonl", '{"a": 1}\n', "no trace")],
)
def test_what_is_no_trace_says_so(tmp_path: Path, name: str, content: str | None, why: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_all(tmp_path / name)


def test_what_is_kept_of_a_workload_holds_nothing_private(rows: Path) -> None:
    found = read_all(rows, recorded_commands=True)
    told = json.dumps(found.facts()) + found.sentence() + str(task_of(found.sessions[0]))
    assert not [word for word in ("make", "ann", "claude:a", str(rows.parent)) if word in told]
