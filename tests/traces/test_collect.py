"""Every step is collected once, whatever the order of logs, the number of runs, and the state the logs are in."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_logs import assistant, call, codex, meta, output, result, text, tokens, tool_use, usage, user, write

from rayroll.errors import ConfigError
from rayroll.traces.collect import Progress, collect
from rayroll.traces.discover import default_roots
from rayroll.traces.formats import formats, load_format
from rayroll.traces.rows import Row, read_rows

CLAUDE, CODEX = ".claude/projects/p", ".codex/sessions/2026/06/01"


def rows(home: Path, out: Path | None = None, **options: Any) -> list[Row]:
    out = out or home.with_name("out.jsonl")
    collect([home], out, **options)
    return list(read_rows(out))


def owned(collected: list[Row]) -> dict[str, str]:
    """Which session each step went to."""
    assert len({row["trace_key"] for row in collected}) == len(collected)
    return {row["round_id"]: row["session_id"] for row in collected}


# --- once


def test_a_resumed_sessions_copy_belongs_to_the_session_that_was_resumed(tmp_path: Path):
    m1, m2 = assistant(1, "m1", text(), tool_use("t1")), assistant(3, "m2", text(), session="S2")
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [user(0), m1])
    write(tmp_path / "h" / CLAUDE / "S2.jsonl", [user(0, session="S2"), {**m1, "sessionId": "S2"}, m2])
    assert owned(rows(tmp_path / "h")) == {"m1": "claude:S1", "m2": "claude:S2"}


def test_the_parent_is_known_even_when_its_name_sorts_last(tmp_path: Path):
    m1 = assistant(1, "m1", text())
    write(tmp_path / "h" / CLAUDE / "Z.jsonl", [{**m1, "sessionId": "Z"}])
    write(tmp_path / "h" / CLAUDE / "A.jsonl", [{**m1, "sessionId": "A"}, assistant(3, "m2", text(), session="A")])
    assert owned(rows(tmp_path / "h")) == {"m1": "claude:Z", "m2": "claude:A"}


def test_rounds_are_numbered_within_the_session_they_belong_to(tmp_path: Path):
    m1 = assistant(1, "m1", text())
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [m1])
    write(tmp_path / "h" / CLAUDE / "S2.jsonl", [m1, assistant(3, "m2", session="S2")])
    assert [(row["session_id"], row["round_index"]) for row in rows(tmp_path / "h")] == [
        ("claude:S1", 0),
        ("claude:S2", 0),
    ]


def test_a_subagents_responses_count_and_are_tied_to_their_session(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [user(0), assistant(1, "m1", text())])
    write(tmp_path / "h" / CLAUDE / "S1/subagents/agent-a.jsonl", [assistant(2, "s1", text(), isSidechain=True)])
    main, aside = rows(tmp_path / "h")
    assert (main["is_subagent"], aside["is_subagent"]) == (False, True)
    assert aside["parent_session_id"] == main["session_id"] == "claude:S1"


PARENT = [meta(0, "P"), tokens(1, 100), tokens(5, 200)]
CHILD = [meta(50, "C", forked_from_id="P"), meta(50, "P"), tokens(50, 100), tokens(50, 200), tokens(60, 310)]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_codex_forks_history_is_counted_once_under_its_parent(tmp_path: Path, names: tuple[str, str]):
    for name, lines in zip(names, (PARENT, CHILD), strict=True):
        write(tmp_path / "h" / CODEX / f"rollout-{name}.jsonl", lines)
    got = rows(tmp_path / "h")
    assert sorted(row["session_id"] for row in got) == ["codex:C", "codex:P", "codex:P"]
    assert [row["timing_events"][-1]["timestamp"][-8:] for row in got if row["session_id"] == "codex:P"] == [
        "0:01.000Z"[-8:], "0:05.000Z"[-8:],
    ]  # fmt: skip


def test_history_of_a_parent_whose_log_is_gone_is_counted_once_over_its_forks(tmp_path: Path):
    write(tmp_path / "h" / CODEX / "rollout-c.jsonl", CHILD)
    again = [meta(70, "D", forked_from_id="P"), meta(70, "P"), tokens(70, 100), tokens(70, 200), tokens(80, 320)]
    write(tmp_path / "h" / CODEX / "rollout-d.jsonl", again)
    assert sorted(row["session_id"] for row in rows(tmp_path / "h")) == ["codex:C", "codex:D", "codex:P", "codex:P"]


def test_a_fork_of_a_fork_repeats_both_and_counts_neither(tmp_path: Path):
    write(tmp_path / "h" / CODEX / "rollout-p.jsonl", PARENT)
    write(tmp_path / "h" / CODEX / "rollout-c.jsonl", CHILD)
    grandchild = [meta(90, "G", forked_from_id="C"), *(tokens(90, total) for total in (100, 200, 310)), tokens(99, 420)]
    write(tmp_path / "h" / CODEX / "rollout-g.jsonl", grandchild)
    counted = sorted(row["session_id"] for row in rows(tmp_path / "h"))
    assert counted == ["codex:C", "codex:G", "codex:P", "codex:P"]


def test_two_unrelated_sessions_with_the_same_numbers_are_two(tmp_path: Path):
    for name in ("P", "Q"):
        write(tmp_path / "h" / CODEX / f"rollout-{name}.jsonl", [meta(0, name), tokens(1, 100)])
    assert len(rows(tmp_path / "h")) == 2


def test_a_log_that_lies_in_two_places_is_read_as_one_and_the_fuller_one_counts(tmp_path: Path):
    whole = [assistant(1, "m1", tool_use("t1")), result(2, "t1"), assistant(3, "m2", text())]
    write(tmp_path / "h/.claude.back/projects/p/S1.jsonl", whole)
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", whole[:1])
    first, second = rows(tmp_path / "h")
    assert first["tools"][0]["status"] == "finished"
    assert (first["round_index"], second["round_index"]) == (0, 1)


# --- only what is new


def grown(log: Path, *lines: dict[str, Any]) -> None:
    with log.open("ab") as stream:
        stream.writelines(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_second_run_reads_nothing_and_leaves_the_output_alone(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    collect([tmp_path / "h"], tmp_path / "out.jsonl")
    before = (tmp_path / "out.jsonl").stat().st_mtime_ns
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert (report.bytes_read, report.logs_unchanged, report.written, report.rows) == (0, 1, False, 1)
    assert (tmp_path / "out.jsonl").stat().st_mtime_ns == before


def test_of_a_log_that_grew_only_what_is_new_is_read_and_open_steps_are_completed(tmp_path: Path):
    log = write(tmp_path / "h" / CLAUDE / "S1.jsonl", [user(0), assistant(1, "m1", tool_use("t1"))])
    assert rows(tmp_path / "h")[0]["tools"][0]["status"] == "unfinished"
    size = log.stat().st_size
    grown(log, result(4, "t1"), assistant(5, "m1", text(), usage=usage(output=99)), assistant(6, "m2", text()))
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert (report.logs_read, report.logs_read_on, report.bytes_read) == (0, 1, log.stat().st_size - size)
    first, second = read_rows(tmp_path / "out.jsonl")
    assert (first["tools"][0]["tool_wall_latency_ms"], first["output_tokens"]) == (3000, 99)
    assert second["current_tool_result_count"] == 1


def test_a_log_that_was_written_anew_is_read_from_its_start(tmp_path: Path):
    log = write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    rows(tmp_path / "h")
    log.write_bytes(b"")
    grown(log, assistant(1, "n1", text()), assistant(2, "n2", text()))
    assert [row["round_id"] for row in rows(tmp_path / "h")] == ["n1", "n2"]


def test_rows_outlive_their_logs_until_they_are_pruned(tmp_path: Path):
    log = write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    write(tmp_path / "h" / CLAUDE / "S2.jsonl", [assistant(2, "m2", text())])
    rows(tmp_path / "h")
    log.unlink()
    assert len(rows(tmp_path / "h")) == 2
    assert len(rows(tmp_path / "h", prune=True)) == 1


def test_an_output_that_was_deleted_is_written_again_without_reading(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    collect([tmp_path / "h"], tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl").unlink()
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert (report.bytes_read, len(list(read_rows(tmp_path / "out.jsonl")))) == (0, 1)


def test_a_damaged_state_is_begun_anew_and_said(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    collect([tmp_path / "h"], tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl.state").write_bytes(b"no database" * 1000)
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert (report.state_begun_anew, report.rows) == (True, 1)


# --- what was skipped, and why


def test_what_gave_nothing_and_what_was_lost_is_told_by_file_and_line(tmp_path: Path):
    home = tmp_path / "h"
    good = write(home / CLAUDE / "S1.jsonl", [assistant(1, "m1", text()), b'{"type":"assist', assistant(2, "m2")])
    write(home / CLAUDE / "empty.jsonl", [])
    write(home / CLAUDE / "cut.jsonl", [b'{"type":"user","mess'])
    write(home / CLAUDE / "other.jsonl", [{"level": "info", "text": "another program's"}])
    write(home / CLAUDE / "rows.jsonl", [{"timing_events": [], "tools": []}])
    report = collect([home], tmp_path / "out.jsonl")
    assert report.rows == 2
    assert {Path(one.path).name: one.reason for one in report.skipped} == {
        "cut.jsonl": "no whole record in it",
        "empty.jsonl": "empty",
        "other.jsonl": "no session log of a known agent",
        "rows.jsonl": "rows, and no log: load them as they are",
    }
    assert (str(good), 2) in [(loss.file, loss.line) for loss in report.losses]
    assert report.as_dict()["losses"][0]["reason"]


def test_the_report_of_a_second_run_tells_what_the_first_one_told(tmp_path: Path):
    write(
        tmp_path / "h" / CLAUDE / "S1.jsonl", [{"type": "weather-report", "sessionId": "S1"}, b"{\n", assistant(1, "m")]
    )
    write(tmp_path / "h" / CLAUDE / "S2.jsonl", [result(1, "nobody", session="S2"), assistant(1, "n", session="S2")])
    first, second = (collect([tmp_path / "h"], tmp_path / "out.jsonl") for _ in range(2))
    assert first.unknown_types == second.unknown_types == {"claude:weather-report": 1}
    assert (first.losses, first.orphan_results) == (second.losses, second.orphan_results)
    assert (first.lost, first.orphan_results) == (1, 1)


def test_a_folder_without_logs_is_an_error_that_says_where_it_looked(tmp_path: Path):
    with pytest.raises(ConfigError, match="no logs were found") as caught:
        collect([tmp_path], tmp_path / "out.jsonl")
    assert str(tmp_path) in caught.value.facts["looked_in"]
    with pytest.raises(ConfigError, match="no such folder"):
        collect([tmp_path / "nowhere"], tmp_path / "out.jsonl")


def test_what_damaged_logs_gave_goes_into_json_and_parquet(tmp_path: Path):
    import duckdb

    call_of = json.dumps(assistant(1, "m1", tool_use("t1", "MARK"))).encode()
    half = call_of.replace(b"MARK", rb"\ud83d")
    byte = call_of.replace(b"MARK", b"\xb2").replace(b"m1", b"m2").replace(b"t1", b"t2")
    glued = call_of[:50] + json.dumps(assistant(2, "m3", text())).encode() + json.dumps(assistant(3, "m4")).encode()
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [half + b"\n", byte + b"\n", glued + b"\n", call_of[:60]])
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert (report.rows, report.lost, report.mended) == (4, 2, 2)
    assert [(loss.line, loss.kept) for loss in report.losses] == [(1, True), (2, True), (3, False), (4, False)]
    parquet = tmp_path / "out.parquet"
    duckdb.sql(f"COPY (FROM read_json_auto('{tmp_path}/out.jsonl')) TO '{parquet}'")
    assert duckdb.sql(f"SELECT count(*) FROM '{parquet}'").fetchall() == [(4,)]


# --- large


def test_a_session_of_a_hundred_thousand_lines_is_read_and_read_on(tmp_path: Path):
    lines = [assistant(0, "m0", text()) for _ in range(8)] + [assistant(0, "m0", tool_use("t0")), result(1, "t0")]
    step = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    steps = [step.replace(b'"m0"', b'"m%d"' % n).replace(b'"t0"', b'"t%d"' % n) for n in range(10_000)]
    log = write(tmp_path / "h" / CLAUDE / "S1.jsonl", steps)
    assert collect([tmp_path / "h"], tmp_path / "out.jsonl").rows == 10_000
    grown(log, result(60_000, "t0"), assistant(60_001, "last", text()))
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert (report.rows, report.logs_read_on, report.duplicate_results) == (10_001, 1, 1)


def test_a_line_of_two_hundred_megabytes_is_read(tmp_path: Path):
    log = write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", tool_use("t1"))])
    before, after = json.dumps(result(2, "t1", "MARK")).encode().split(b"MARK")
    with log.open("ab") as stream:
        stream.write(before)
        for _ in range(200):
            stream.write(b"x" * 1_000_000)
        stream.write(after + b"\n")
    (row,) = rows(tmp_path / "h")
    assert row["tools"][0]["result_chars"] == 200_000_000


# --- where logs are found


def test_compressed_logs_any_folder_and_single_logs_are_found(tmp_path: Path):
    log = write(tmp_path / "some/folder/S1.jsonl", [assistant(1, "m1", text())])
    packed = log.with_name("S2.jsonl.zst")
    packed.write_bytes(zstandard.compress(json.dumps(assistant(2, "m2", text(), session="S2")).encode() + b"\n"))
    assert owned(rows(tmp_path / "some")) == {"m1": "claude:S1", "m2": "claude:S2"}
    assert len(rows(log, tmp_path / "one.jsonl")) == 1


def test_of_a_home_only_the_agents_folders_are_looked_at(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    write(tmp_path / "h/office/S2.jsonl", [assistant(1, "m2", text())])
    assert collect([tmp_path / "h"], tmp_path / "out.jsonl").logs_found == 1


def test_a_log_below_two_roots_is_read_once(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    roots = [tmp_path / "h", tmp_path / "h/.claude", tmp_path / "h/.claude/projects"]
    assert collect(roots, tmp_path / "out.jsonl").logs_found == 1


def test_by_default_the_agents_folders_of_this_home_and_those_that_variables_name_are_looked_at(tmp_path: Path):
    for folder in ("h/.claude/projects", "h/.codex", "h/projects", "moved/sessions"):
        (tmp_path / folder).mkdir(parents=True)
    env = {"CODEX_HOME": str(tmp_path / "moved"), "CLAUDE_CONFIG_DIR": str(tmp_path / "gone")}
    found = default_roots([tmp_path / "h"], lambda *_: None, env=env)
    assert found == [tmp_path / "h/.claude/projects", tmp_path / "moved/sessions"]


def test_a_row_says_whose_home_and_project_its_log_lay_in(tmp_path: Path):
    write(tmp_path / "ada" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    write(tmp_path / "ada/.codex/sessions/2026/06/01/rollout-P.jsonl", [meta(0, "P"), tokens(1, 100)])
    claude, of_codex = rows(tmp_path / "ada")
    assert {row["home"] for row in (claude, of_codex)} == {str(tmp_path / "ada")}
    assert (claude["user"], claude["store"], claude["project"]) == ("ada", ".claude", "p")
    assert (of_codex["user"], of_codex["store"], "project" in of_codex) == ("ada", ".codex", False)


def test_progress_ends_with_everything_done(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    seen: list[Progress] = []
    collect([tmp_path / "h"], tmp_path / "out.jsonl", progress=seen.append)
    assert [(one.logs_done, one.bytes_done == one.bytes) for one in seen] == [(0, False), (1, True)]


# --- properties

moments = st.integers(0, 30)  # in no order: clocks run backwards
ids = st.sampled_from(["a", "b", "c", "d"])
claude_lines = st.one_of(
    st.builds(user, moments),
    st.builds(lambda t, m, c: assistant(t, m, text(), tool_use(c)), moments, ids, ids),
    st.builds(lambda t, m, n: assistant(t, m, text("x" * n), usage=usage(output=n)), moments, ids, moments),
    st.builds(lambda t, c: assistant(t, None, tool_use(c)), moments, ids),
    st.builds(result, moments, ids),
    st.builds(lambda t, m: assistant(t, m, text(), isSidechain=True), moments, ids),
    st.sampled_from([
        {"type": "weather-report"},
        {"type": "user", "message": {"content": 7}},
        {"type": "assistant", "message": {"id": [], "content": [{"type": "tool_use", "id": 3}], "usage": {
            "output_tokens": -5,
        }}},
    ]),
)  # fmt: skip
codex_lines = st.one_of(
    st.builds(lambda t, n: tokens(t, 100 * n), moments, moments),
    st.builds(call, moments, ids),
    st.builds(output, moments, ids),
    st.builds(lambda t, c: codex(t, "event_msg", type="exec_command_end", call_id=c, exit_code=1), moments, ids),
    st.builds(lambda t: codex(t, "event_msg", type="turn_aborted"), moments),
    st.builds(lambda t, c: codex(t, "turn_context", turn_id=f"turn-{c}"), moments, ids),
    st.builds(lambda t: codex(t, "event_msg", type="user_message", message="hi"), moments),
    st.builds(lambda t, c: meta(t, c, forked_from_id="a"), moments, ids),
    st.sampled_from([
        {"type": "event_msg"},
        {"type": "event_msg", "payload": {"type": "token_count", "info": {"last_token_usage": {"input_tokens": -1}}}},
    ]),
)  # fmt: skip
logs = st.dictionaries(
    st.sampled_from([f"{CLAUDE}/S1.jsonl", f"{CLAUDE}/S2.jsonl", f"{CLAUDE}/S1/subagents/agent-a.jsonl"]),
    st.lists(claude_lines, min_size=1, max_size=12),
    max_size=3,
) | st.dictionaries(
    st.sampled_from(
        [f"{CODEX}/rollout-a.jsonl", f"{CODEX}/rollout-b.jsonl", ".codex/archived_sessions/rollout-a.jsonl"]
    ),
    st.lists(codex_lines, min_size=1, max_size=12),
    min_size=1,
    max_size=3,
)
quickly = settings(max_examples=15, derandomize=True, deadline=None)


def lay(home: Path, written: dict[str, list[Any]]) -> list[Path]:
    home.mkdir(parents=True, exist_ok=True)
    return [write(home / name, lines) for name, lines in written.items()]


def check(collected: list[Row]) -> None:
    """Nothing twice, nothing negative, whatever the logs hold."""
    assert len({row["trace_key"] for row in collected}) == len(collected)
    calls = [(row["session_file"], tool["tool_call_id"]) for row in collected for tool in row["tools"]]
    assert len(set(calls)) == len(calls)
    for row in collected:
        numbers = [value for name, value in row.items() if isinstance(value, int) and name != "is_subagent"]
        for tool in row["tools"]:
            numbers += [value for value in tool.values() if isinstance(value, int)]
            assert (tool["status"] == "finished") <= (tool["result_chars"] is not None)
        assert min(numbers) >= 0


def test_no_log_is_fatal_and_nothing_is_negative_or_counted_twice(tmp_path_factory: pytest.TempPathFactory):
    @quickly
    @given(logs, st.randoms(use_true_random=False))
    def holds(written: dict[str, list[Any]], dice: random.Random) -> None:
        home = tmp_path_factory.mktemp("home") / "h"
        for log in lay(home, written):
            data = log.read_bytes()
            log.write_bytes(data[: dice.randint(0, len(data))])  # cut at any byte
        if written:
            check(rows(home))

    holds()


def test_the_order_of_logs_never_matters(tmp_path_factory: pytest.TempPathFactory):
    @quickly
    @given(logs, st.randoms(use_true_random=False))
    def holds(written: dict[str, list[Any]], dice: random.Random) -> None:
        base = tmp_path_factory.mktemp("home")
        paths = lay(base / "h", written)
        if not paths:
            return
        outputs = []
        for name in ("one", "two"):
            dice.shuffle(paths)
            # One more in each run: what is read when differs as well.
            for upto in range(1, len(paths) + 1):
                collect(paths[:upto], base / f"{name}.jsonl")
            outputs.append((base / f"{name}.jsonl").read_bytes())
        assert outputs[0] == outputs[1]

    holds()


def test_a_copy_of_a_log_cut_at_any_byte_adds_nothing(tmp_path_factory: pytest.TempPathFactory):
    @quickly
    @given(logs, st.randoms(use_true_random=False))
    def holds(written: dict[str, list[Any]], dice: random.Random) -> None:
        base = tmp_path_factory.mktemp("home")
        headed = {
            name: [meta(0, Path(name).stem), *lines] if ".codex" in name else lines for name, lines in written.items()
        }
        paths = lay(base / "h", headed)
        if not paths:
            return
        once = rows(base / "h", base / "once.jsonl")
        for path in paths:
            copy = base / "copy/h" / path.relative_to(base / "h")
            copy.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            copy.write_bytes(data[: dice.choice([len(data), dice.randint(0, len(data))])])
        collect([base / "h", base / "copy/h"], base / "twice.jsonl")
        twice = list(read_rows(base / "twice.jsonl"))
        assert sorted(row["trace_key"] for row in twice) == sorted(row["trace_key"] for row in once)
        assert sum(row["output_tokens"] or 0 for row in twice) == sum(row["output_tokens"] or 0 for row in once)

    holds()


def test_many_runs_over_growing_logs_give_what_one_run_gives(tmp_path_factory: pytest.TempPathFactory):
    @quickly
    @given(logs, st.randoms(use_true_random=False))
    def holds(written: dict[str, list[Any]], dice: random.Random) -> None:
        base = tmp_path_factory.mktemp("home")
        paths = lay(base / "h", written)
        whole = {path: path.read_bytes() for path in paths}
        for path in paths:
            path.write_bytes(b"")
        for _ in range(4):
            for path, data in whole.items():
                with path.open("ab") as stream:  # a piece that ends anywhere
                    stream.write(data[path.stat().st_size :][: dice.randint(0, len(data))])
            if paths:
                collect([base / "h"], base / "many.jsonl")
        for path, data in whole.items():
            with path.open("ab") as stream:
                stream.write(data[path.stat().st_size :])
        if paths:
            many = collect([base / "h"], base / "many.jsonl")
            one = collect([base / "h"], base / "one.jsonl")
            assert (base / "many.jsonl").read_bytes() == (base / "one.jsonl").read_bytes()
            told = (
                "losses",
                "lost",
                "unknown_types",
                "orphan_results",
                "duplicate_results",
                "repeated_steps",
                "skipped",
            )
            assert [getattr(many, name) for name in told] == [getattr(one, name) for name in told]

    holds()


def test_a_log_that_may_not_be_read_costs_only_itself(tmp_path: Path):
    write(tmp_path / "h" / CLAUDE / "S1.jsonl", [assistant(1, "m1", text())])
    (tmp_path / "h" / CLAUDE / "S2.jsonl").symlink_to(tmp_path / "nowhere")
    report = collect([tmp_path / "h"], tmp_path / "out.jsonl")
    assert report.rows == 1
    assert [Path(one.path).name for one in report.skipped] == ["S2.jsonl"]


def test_formats_are_found_by_their_names_and_a_wrong_one_is_told_the_nearest():
    assert [one.kind for one in formats()] == ["claude", "codex"]
    with pytest.raises(ConfigError, match="did you mean 'codex'"):
        load_format("codec")
