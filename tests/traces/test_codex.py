"""Codex's logs become rows: TraceLab's sample field by field, and what real logs do to their readers."""

from __future__ import annotations

from pathlib import Path

from trace_logs import DATA, at, call, codex, gives_what_is_published, meta, output, rows_of, tokens, write


def test_the_sample_gives_tracelabs_rows_field_by_field(tmp_path: Path):
    log = tmp_path / "home/user/.codex/sessions/2026/03/21/rollout-2026-03-21T10-05-38.jsonl"
    log.parent.mkdir(parents=True)
    log.write_bytes((DATA / "codex_session.jsonl").read_bytes())
    gives_what_is_published("codex", log)


def test_a_usage_report_that_repeats_the_last_one_is_no_step(tmp_path: Path):
    lines = [meta(0, "P"), tokens(1, 100), tokens(2, 100), tokens(3, 200)]
    rows, tally, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert [row["round_index"] for row in rows] == [0, 1]
    assert tally.repeated_steps == 1


def test_a_forks_history_is_its_parents_whatever_its_new_times(tmp_path: Path):
    head = [meta(50, "C", forked_from_id="P"), meta(50, "P")]
    rows, _, _ = rows_of(
        "codex", write(tmp_path / "C.jsonl", [*head, tokens(50, 100), tokens(50, 200), tokens(60, 310)])
    )
    assert [row["session_id"] for row in rows] == ["codex:P", "codex:P", "codex:C"]
    assert [row["parent_session_id"] for row in rows] == [None, None, "codex:P"]
    assert [row["round_index"] for row in rows] == [0, 1, 0]


def test_turn_ids_tell_history_from_own_work_in_the_second_of_the_fork(tmp_path: Path):
    parent, child = "019a0000-0000-7000-8000-000000000000", "019a0001-0000-7000-8000-000000000000"
    old, new = "019a0000-ffff-7000-8000-000000000000", "019a0001-0001-7000-8000-000000000000"
    lines = [meta(50, child, forked_from_id=parent), codex(50, "turn_context", turn_id=old), tokens(50, 100)]
    lines += [codex(50, "turn_context", turn_id=new), tokens(50, 200)]
    rows, _, _ = rows_of("codex", write(tmp_path / "C.jsonl", lines))
    assert [row["session_id"] for row in rows] == [f"codex:{parent}", f"codex:{child}"]


def test_a_spawned_log_is_a_subagents(tmp_path: Path):
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "P", "depth": 1}}}
    (row,), _, _ = rows_of("codex", write(tmp_path / "C.jsonl", [meta(50, "C", source=source), tokens(60, 100)]))
    assert (row["is_subagent"], row["agent_id"], row["parent_session_id"]) == (True, "C", "codex:P")


def test_an_abort_without_a_turn_id_ends_the_open_call_as_aborted(tmp_path: Path):
    lines = [meta(0, "P"), codex(0, "turn_context", turn_id="turn-1"), call(1, "c1"), call(1, "c2"), tokens(2, 100)]
    lines += [output(3, "c1"), codex(4, "event_msg", type="turn_aborted", reason="interrupted")]
    (row,), _, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert [tool["status"] for tool in row["tools"]] == ["finished", "aborted"]
    assert row["tools"][1]["tool_wall_latency_ms"] is None


def test_a_step_whose_tokens_were_never_reported_is_kept_without_them(tmp_path: Path):
    lines = [meta(0, "P"), call(1, "c1"), codex(4, "event_msg", type="turn_aborted"), tokens(9, 100)]
    aborted, after = rows_of("codex", write(tmp_path / "P.jsonl", lines))[0]
    assert (aborted["flags"], aborted["output_tokens"], aborted["tools"][0]["status"]) == (
        ["no_usage"],
        None,
        "aborted",
    )
    assert (after["tools"], after["input_tokens_total"]) == ([], 100)


def test_a_call_without_an_output_is_unfinished(tmp_path: Path):
    (row,), _, _ = rows_of("codex", write(tmp_path / "P.jsonl", [meta(0, "P"), call(1, "c1"), tokens(2, 100)]))
    assert (row["tools"][0]["status"], row["tools"][0]["tool_wall_latency_ms"]) == ("unfinished", None)


def test_the_first_output_counts_and_the_repeat_is_a_duplicate(tmp_path: Path):
    lines = [meta(0, "P"), call(1, "c1"), tokens(1.5, 100), output(2, "c1"), output(3601, "c1"), tokens(3602, 200)]
    (row, later), tally, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert row["tools"][0]["tool_wall_latency_ms"] == 1000
    assert (row["flags"], tally.duplicate_results) == (["duplicate_result"], 1)
    assert later["current_tool_result_count"] == 1


def test_the_end_shown_on_the_screen_and_the_output_for_the_model_are_one_result(tmp_path: Path):
    shown = codex(2, "event_msg", type="exec_command_end", call_id="c1", exit_code=3, aggregated_output="oh", duration={
        "secs": 1, "nanos": 5_000_000,
    })  # fmt: skip
    lines = [meta(0, "P"), call(1, "c1"), tokens(1, 100), shown, output(2, "c1"), tokens(3, 200)]
    (row, later), tally, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert (row["tools"][0]["is_error"], row["tools"][0]["tool_internal_latency_ms"]) == (True, 1005)
    assert (later["current_tool_result_count"], tally.duplicate_results) == (1, 0)


def test_an_output_before_its_call_has_no_latency_and_flags_the_row(tmp_path: Path):
    lines = [meta(0, "P"), output(1, "c1"), call(3, "c1"), tokens(4, 100)]
    (row,), tally, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    (tool,) = row["tools"]
    assert (tool["tool_wall_latency_ms"], tool["emitted_at"], tool["result_at"]) == (None, at(3), at(1))
    assert (row["flags"], tally.orphan_results) == (["clock_backwards"], 0)


def test_an_output_of_an_unknown_call_is_an_orphan(tmp_path: Path):
    lines = [meta(0, "P"), tokens(1, 100), output(2, "nobody"), tokens(3, 200)]
    rows, tally, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert (len(rows), tally.orphan_results) == (2, 1)


def test_what_a_command_prints_is_not_taken_for_what_its_runner_reports(tmp_path: Path):
    words = (
        "Wall time: 2 seconds\nProcess exited with code 0\nOutput:\nProcess exited with code 1\nWall time: 9 seconds\n"
    )
    lines = [meta(0, "P"), call(1, "c1"), tokens(1, 100), output(4, "c1", words)]
    (row,), _, _ = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert (row["tools"][0]["is_error"], row["tools"][0]["tool_internal_latency_ms"]) == (False, 2000)


def test_unknown_types_are_passed_over_and_counted(tmp_path: Path):
    lines = [meta(0, "P"), codex(1, "weather-report"), codex(1, "event_msg", type="thunder"), tokens(2, 100)]
    rows, tally, losses = rows_of("codex", write(tmp_path / "P.jsonl", lines))
    assert (len(rows), losses) == (1, [])
    assert dict(tally.unknown_types) == {"weather-report": 1, "event_msg.thunder": 1}


def test_a_step_of_the_parents_that_was_aborted_does_not_end_its_history(tmp_path: Path):
    aborted = [call(50, "c1"), codex(50, "event_msg", type="turn_aborted")]
    lines = [meta(50, "C", forked_from_id="P"), *aborted, tokens(50, 100), tokens(60, 210)]
    rows, _, _ = rows_of("codex", write(tmp_path / "C.jsonl", lines))
    assert [row["session_id"] for row in rows] == ["codex:P", "codex:P", "codex:C"]
