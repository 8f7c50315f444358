"""Claude Code's logs become rows: TraceLab's sample field by field, and what real logs do to their readers."""

from __future__ import annotations

from pathlib import Path

from trace_logs import (
    DATA,
    assistant,
    gives_what_is_published,
    result,
    rows_of,
    text,
    tool_use,
    usage,
    user,
    write,
)


def test_the_sample_gives_tracelabs_rows_field_by_field(tmp_path: Path):
    log = tmp_path / "home/user/.claude/projects/example-claude-session/claude-public-example.jsonl"
    log.parent.mkdir(parents=True)
    log.write_bytes((DATA / "claude_session.jsonl").read_bytes())
    gives_what_is_published("claude", log)


def test_one_response_over_many_lines_is_one_step_with_the_fullest_usage(tmp_path: Path):
    blocks = ({"type": "thinking", "thinking": ""}, text(), tool_use("t1"))
    lines = [assistant(1 + n, "m1", block, usage=usage(output=(1, 9, 159)[n])) for n, block in enumerate(blocks)]
    stray = assistant(5, "m1", usage=usage(output=0, uncached=0, read=0, written=0))
    (row,), _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", [user(0), *lines, stray]))
    assert (row["output_tokens"], row["input_tokens_total"], row["prefix_tokens"]) == (159, 115, 100)
    outputs = [(event["event_type"], event["timestamp"]) for event in row["timing_events"][1:]]
    assert outputs == [
        ("reasoning", "2026-06-01T00:00:01.000Z"),
        ("text", "2026-06-01T00:00:02.000Z"),
        ("tool_call", "2026-06-01T00:00:03.000Z"),
    ]


def test_a_line_that_stands_twice_is_one_line(tmp_path: Path):
    lines = [user(0), assistant(1, "m1", text("one")), assistant(2, "m1", tool_use("t1"))]
    once, _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", lines))
    twice, _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", [line for line in lines for _ in range(2)]))
    assert once == twice


def test_a_subagents_file_is_marked_and_tied_to_its_session(tmp_path: Path):
    log = tmp_path / ".claude/projects/p/S1/subagents/agent-a.jsonl"
    (row,), _, _ = rows_of("claude", write(log, [assistant(1, "s1", text(), isSidechain=True, agentId="a")]))
    assert (row["is_subagent"], row["agent_id"]) == (True, "a")
    assert row["session_id"] == "claude:S1/subagents/agent-a"
    assert row["parent_session_id"] == "claude:S1"


def test_a_subagents_file_of_older_versions_lies_beside_its_session(tmp_path: Path):
    (row,), _, _ = rows_of("claude", write(tmp_path / "agent-a.jsonl", [assistant(1, "s1", text(), isSidechain=True)]))
    assert (row["is_subagent"], row["parent_session_id"]) == (True, "claude:S1")
    assert row["agent_id"] == "a"  # by its file: the line does not say


def test_side_conversations_at_the_same_time_are_told_apart(tmp_path: Path):
    sides = [assistant(n, f"s{n}", text(), isSidechain=True, agentId="ab"[n % 2]) for n in range(4)]
    found, _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", [assistant(0, "m1", text()), *sides]))
    assert [row["agent_id"] for row in found] == [None, "a", "b", "a", "b"]


def test_a_side_conversation_in_the_same_log_is_a_session_of_its_own(tmp_path: Path):
    side = {"isSidechain": True}
    lines = [user(0), user(1, "look", **side), assistant(2, "m1", text()), assistant(3, "s1", text(), **side)]
    main, aside = rows_of("claude", write(tmp_path / "S1.jsonl", lines))[0]
    assert (main["session_id"], main["round_index"], main["current_user_message_chars"]) == ("claude:S1", 0, 5)
    assert (aside["session_id"], aside["round_index"], aside["current_user_message_chars"]) == (
        "claude:S1/sidechain", 0, 4,
    )  # fmt: skip
    assert (aside["is_subagent"], aside["parent_session_id"]) == (True, "claude:S1")


def test_half_a_surrogate_pair_in_a_command_is_kept_with_a_mark(tmp_path: Path):
    line = b'{"type":"assistant","timestamp":"2026-06-01T00:00:01Z","sessionId":"S1","message":{"role":"assistant",'
    line += b'"id":"m1","content":[{"type":"tool_use","id":"t1","name":"Bash","input":{"command":"echo \\ud83d"}}]}}\n'
    (row,), _, losses = rows_of("claude", write(tmp_path / "S1.jsonl", [line]))
    assert row["tools"][0]["input"] == {"command": "echo \ufffd"}
    assert [(loss.line, loss.kept) for loss in losses] == [(1, True)]


def test_a_call_without_a_result_has_no_latency_and_is_unfinished(tmp_path: Path):
    (row,), _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", [assistant(1, "m1", tool_use("t1"))]))
    (tool,) = row["tools"]
    assert (tool["tool_wall_latency_ms"], tool["result_at"], tool["is_error"]) == (None, None, None)
    assert tool["status"] == "unfinished"


def test_the_first_result_counts_and_the_repeat_is_a_duplicate(tmp_path: Path):
    lines = [assistant(1, "m1", tool_use("t1")), result(2, "t1"), result(3601, "t1"), assistant(3602, "m2", text())]
    (row, later), tally, _ = rows_of("claude", write(tmp_path / "S1.jsonl", lines))
    assert row["tools"][0]["tool_wall_latency_ms"] == 1000
    assert row["flags"] == ["duplicate_result"]
    assert later["current_tool_result_count"] == 1
    assert tally.duplicate_results == 1


def test_a_result_before_its_call_by_the_clock_has_no_latency_and_flags_the_row(tmp_path: Path):
    lines = [assistant(3, "m1", tool_use("t1")), result(1, "t1")]
    (row,), _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", lines))
    (tool,) = row["tools"]
    assert tool["tool_wall_latency_ms"] is None
    assert (tool["emitted_at"], tool["result_at"]) == ("2026-06-01T00:00:03.000Z", "2026-06-01T00:00:01.000Z")
    assert (tool["status"], row["flags"]) == ("finished", ["clock_backwards"])


def test_a_result_that_is_written_before_its_call_finds_it(tmp_path: Path):
    lines = [user(0), result(1, "t1", "four"), assistant(3, "m1", tool_use("t1"))]
    (row,), tally, _ = rows_of("claude", write(tmp_path / "S1.jsonl", lines))
    assert (row["tools"][0]["result_chars"], row["tools"][0]["status"]) == (4, "finished")
    assert row["flags"] == ["clock_backwards"]
    assert tally.orphan_results == 0


def test_a_result_of_an_unknown_call_is_an_orphan(tmp_path: Path):
    lines = [assistant(1, "m1", text()), result(2, "nobody")]
    rows, tally, _ = rows_of("claude", write(tmp_path / "S1.jsonl", lines))
    assert len(rows) == 1
    assert tally.orphan_results == 1


def test_a_response_without_an_id_gets_a_stable_one(tmp_path: Path):
    lines = [assistant(1, None, text("one"), uuid="u1"), assistant(2, None, text("two"))]
    rows, _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", lines))
    again, _, _ = rows_of("claude", write(tmp_path / "S2.jsonl", [{**line, "sessionId": "S2"} for line in lines]))
    assert rows[0]["round_id"] == "made-up-u1"
    assert [row["round_id"] for row in rows] == [row["round_id"] for row in again]
    assert all(row["flags"] == ["made_up_id"] for row in rows)


def test_unknown_types_are_passed_over_and_counted(tmp_path: Path):
    report = {"type": "weather-report", "sessionId": "S1", "sky": {"clouds": [1, 2]}}
    known = {**user(1, "hi"), "mood": "new in this version", "nested": {"deeply": [None]}}
    rows, tally, losses = rows_of("claude", write(tmp_path / "S1.jsonl", [report, known, assistant(2, "m1"), report]))
    assert len(rows) == 1
    assert dict(tally.unknown_types) == {"weather-report": 2}
    assert not losses


def test_words_that_the_agent_puts_in_a_models_mouth_are_no_step(tmp_path: Path):
    line = assistant(1, "x1", text("API Error"))
    line["message"]["model"] = "<synthetic>"
    rows, tally, _ = rows_of("claude", write(tmp_path / "S1.jsonl", [line]))
    assert (rows, tally.synthetic) == ([], 1)


def test_a_late_result_finds_its_call_among_a_thousand_steps(tmp_path: Path):
    lines = [assistant(n, f"m{n}", tool_use(f"t{n}")) for n in range(1000)]
    rows, _, _ = rows_of("claude", write(tmp_path / "S1.jsonl", [*lines, result(2000, "t0")]))
    assert rows[0]["tools"][0]["tool_wall_latency_ms"] == 2_000_000
    assert [row["round_index"] for row in rows] == list(range(1000))
