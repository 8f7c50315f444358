"""A trace's rows become steps, events and tools, whatever file they come in and whatever is wrong with them."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import rollout
from traces.tiny import call, result, session, step, store, text, usage, user

from rayroll.errors import ConfigError
from rayroll.record import to_line
from rayroll.traces import statistics
from rayroll.traces.store import LoadReport, Store
from rayroll.types import Act, CommandTiming, Rollout, Step, Timing

DATA = Path(__file__).parent / "data"

ROWS = session(
    "a",
    step(user(0), call(4, "Bash", result=6, id="t1"), prefix=100, append=50, output=7),
    step(result(6, id="t1"), text(9), prefix=150, append=10, output=3),
)


def query(traces: Store, sql: str) -> list[dict[str, Any]]:
    return statistics.rows(traces.connection, sql, {})


def write(path: Path, rows: list[dict[str, Any]], pack: Callable[[bytes], bytes] = bytes) -> Path:
    path.write_bytes(pack(b"".join(orjson.dumps(row) + b"\n" for row in rows)))
    return path


def loaded(path: Path) -> tuple[LoadReport, list[dict[str, Any]]]:
    with Store.open() as traces:
        report = traces.load(path)
        return report, query(traces, "FROM steps JOIN events USING (step_id) ORDER BY ALL")


def test_a_step_has_its_moments_and_its_generation_from_its_newest_input_to_its_last_output() -> None:
    rows = session("a", step(user(0), user(2), text(5), call(9, result=12), usage(10)))
    with store(rows) as traces:
        [found] = query(
            traces, "SELECT epoch(COLUMNS('.*_at') - TIMESTAMP '2026-01-01'), generation_s, trigger FROM steps"
        )
    assert found == {
        "first_at": 0,
        "input_at": 2,
        "first_output_at": 5,
        "last_output_at": 9,
        "last_at": 10,
        "generation_s": 7,
        "trigger": "user",
    }


@pytest.mark.parametrize(
    ("events", "trigger"),
    [((user(0), text(1)), "user"), ((result(0), text(1)), "tool"), ((text(1),), None), ((usage(0), user(1)), None)],
)
def test_the_first_event_says_what_triggered_a_step(events: Any, trigger: str | None) -> None:
    with store(session("a", step(*events))) as traces:
        assert query(traces, "SELECT trigger FROM steps") == [{"trigger": trigger}]


def test_an_output_before_every_input_has_no_generation() -> None:
    with store(session("a", step(text(1), result(2)))) as traces:
        assert query(traces, "SELECT generation_s FROM steps") == [{"generation_s": None}]


@pytest.mark.parametrize(
    ("made", "wall", "effective"),
    [
        (call(4, result=6), 2000, 2000),
        (call(4, result=6, internal_ms=1500), 2000, 1500),
        (call(4, result=6, internal_ms=0), 2000, None),  # the runner says: it took no time
        (call(4, result=4), 0, None),
        (call(4, result=None), None, None),
        (call(4, result=2), None, None),  # its clock ran backwards
        (call(4, result=2, internal_ms=-5), None, None),
        (call(None, result=None, internal_ms=30), None, 30),
    ],
)
def test_a_call_s_effective_time_is_what_its_runner_reported_else_by_the_clock_and_only_above_0(
    made: Any, wall: float | None, effective: float | None
) -> None:
    with store(session("a", step(user(0), made))) as traces:
        assert query(traces, "SELECT wall_ms, effective_ms FROM tools") == [
            {"wall_ms": wall, "effective_ms": effective}
        ]


def test_what_is_wrong_with_a_row_is_counted_and_the_row_is_kept() -> None:
    rows = session(
        "a",
        step(user(0), call(4, result=2)),
        step(user(None), text(None)),
        step(user(9), call(10)),
        {"round_index": 3, "timing_events": "none", "tools": [None, 7], "prefix_tokens": "many"},
    )
    with Store.open() as traces:
        report = traces.load_rows([*rows, {"no": "session"}])
        assert query(traces, "SELECT count(*) AS n FROM steps") == [{"n": 4}]
    assert report == LoadReport(rows=4, added=4, not_rows=1, without_times=2, clock_backwards=1, unfinished=1)


ODD = (
    *(
        2**63 - 1,
        -(2**63),
        2**70,
        1e308,
        -1e308,
        1e-320,
        -7,
        0.5,
        True,
        None,
        [],
        {},
        [None],
        [7],
        [[]],
        [{}],
        {"a": 1},
    ),
    *("", "x", "NaN", "infinity", "-infinity", "290000-01-01", "0001-01-01T00:00:00Z", "2026-13-40", "\x00", "é" * 50),
)
"""What no program would write, and some program has written."""


@pytest.mark.parametrize("seed", range(3))
def test_no_value_in_any_field_is_fatal(seed: int) -> None:
    chance = random.Random(seed)
    rows = []
    for index in range(200):
        row = {**copy.deepcopy(ROWS[0]), "trace_key": str(index)}
        for part in (row, row["tools"][0], row["timing_events"][0], row["timing_events"][1]):
            part.update({field: chance.choice(ODD) for field in part if chance.random() < 0.2})
        rows.append({**row, "session_id": f"s{index % 5}", "trace_key": str(index)})
    with Store.open() as traces:
        assert traces.load_rows(rows).added == 200
        for name in statistics.names():
            statistics.compute(traces.connection, name)


def test_raw_times_of_a_call_whose_clock_ran_backwards_are_kept() -> None:
    with store(session("a", step(user(0), call(4, result=2)))) as traces:
        [found] = query(traces, "SELECT emitted_at, result_at FROM tools")
    assert found == {"emitted_at": datetime(2026, 1, 1, 0, 0, 4), "result_at": datetime(2026, 1, 1, 0, 0, 2)}


def test_loading_twice_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    with Store.open(tmp_path / "s.duckdb") as traces:
        first = traces.load(path)
        before = [query(traces, f"FROM {table} ORDER BY ALL") for table in ("steps", "events", "tools")]
    with Store.open(tmp_path / "s.duckdb") as traces:
        again = traces.load([path, path])
        assert [query(traces, f"FROM {table} ORDER BY ALL") for table in ("steps", "events", "tools")] == before
    assert (first.added, first.repeated) == (2, 0)
    assert (again.added, again.repeated) == (0, 4)


def test_rows_without_a_key_are_known_again_by_session_and_round() -> None:
    rows = [{k: v for k, v in row.items() if k not in ("trace_key", "round_id", "provider")} for row in ROWS]
    with store(rows, rows) as traces:
        assert query(traces, "SELECT trace_key, provider FROM steps ORDER BY ALL") == [
            {"trace_key": "claude:claude:a:0", "provider": "claude"},
            {"trace_key": "claude:claude:a:1", "provider": "claude"},
        ]


@settings(derandomize=True, max_examples=5, deadline=None)
@given(st.permutations(range(4)))
def test_the_order_of_rows_does_not_matter(order: list[int]) -> None:
    rows = ROWS + session("b", step(user(0), text(3)), step(user(9), text(12)))
    with store(rows) as straight, store([rows[index] for index in order]) as shuffled:
        for table in ("steps", "events", "tools"):
            assert query(shuffled, f"FROM {table} ORDER BY ALL") == query(straight, f"FROM {table} ORDER BY ALL")


@pytest.mark.parametrize(
    ("name", "pack"),
    [("r.jsonl", bytes), ("r.jsonl.gz", gzip.compress), ("r.jsonl.zst", zstandard.compress)],
    ids=["plain", "gzip", "zstd"],
)
def test_rows_are_read_packed_or_not(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    report, found = loaded(write(tmp_path / name, ROWS, pack))
    assert report == LoadReport(rows=2, added=2)
    assert len(found) == 4


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_an_archive_that_was_appended_to_is_read_to_its_end(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / ("rows.jsonl.gz" if pack is gzip.compress else "rows.jsonl.zst")
    write(path, ROWS[:1], pack)
    path.write_bytes(path.read_bytes() + write(tmp_path / "more", ROWS[1:], pack).read_bytes())
    assert loaded(path)[0].added == 2


def test_a_folder_is_all_the_traces_in_it(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", ROWS[:1])
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "two.jsonl.gz", ROWS[1:], gzip.compress)
    assert loaded(tmp_path)[0].added == 2


def test_damaged_lines_cost_themselves_and_nothing_else(tmp_path: Path) -> None:
    one, two = (orjson.dumps(row) for row in ROWS)
    three, four = (
        orjson.dumps(row) for row in session("b", step(user(0), call(1, input={"command": "X"})), step(text(2)))
    )
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b"\n".join(
            [
                one[:50] + two,  # half a record, then a whole one
                three.replace(b'"X"', b'"\\ud83d"') + four.replace(b'"p"', b'"\xb2"'),  # glued, with bad text
                one[:60],
            ]
        )
    )
    report, _ = loaded(path)
    assert report.added == 3
    assert [(lost.line, Path(lost.file).name) for lost in report.lost] == [(1, "rows.jsonl"), (3, "rows.jsonl")]
    assert report.lost_lines == 2


def test_bad_text_is_kept_with_a_replacement_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(orjson.dumps(ROWS[0]).replace(b'"p"', b'"a\xb2b"') + b"\n" + orjson.dumps(ROWS[1]))
    with Store.open() as traces:
        report = traces.load(path)
        assert (report.added, report.lost_lines, report.mended_lines, report.lost) == (2, 0, 1, ())
        assert query(traces, "SELECT project FROM steps ORDER BY round_index") == [
            {"project": "a\ufffdb"},
            {"project": "p"},
        ]


def test_of_a_cut_archive_the_rows_before_the_cut_are_loaded(tmp_path: Path) -> None:
    rows = session("a", *(step(user(n), text(n + 1), cwd=f"{n * n * 7919:x}") for n in range(2000)))
    path = write(tmp_path / "rows.jsonl.gz", rows, lambda data: gzip.compress(data)[:-20000])
    report, _ = loaded(path)
    assert 0 < report.added < 2000
    assert report.lost_lines >= 1


def test_lone_surrogates_of_a_program_s_own_rows_are_replaced() -> None:
    with store(session("a", step(user(0), project="x\ud83dy"))) as traces:
        assert query(traces, "SELECT project FROM steps") == [{"project": "x?y"}]


def test_times_with_an_offset_are_turned_to_utc_and_those_without_one_are_utc() -> None:
    made = step(user(0), text(1))
    made["timing_events"][0]["timestamp"] = "2026-01-01T02:00:00+02:00"
    made["timing_events"][1]["timestamp"] = "2026-01-01 00:00:01"
    with store(session("a", made)) as traces:
        assert query(traces, "SELECT generation_s FROM steps") == [{"generation_s": 1}]


def test_sanitized_rows_have_the_same_steps_events_and_tools() -> None:
    def numbers(path: Path) -> list[dict[str, Any]]:
        with Store.open() as traces:
            assert traces.load(path).added == 19
            return query(
                traces,
                "SELECT provider, round_index, model, generation_s, append_tokens, name, category, effective_ms"
                " FROM steps LEFT JOIN tools USING (step_id) ORDER BY ALL",
            )

    assert numbers(DATA / "normalized_rounds.jsonl") == numbers(DATA / "sanitized_rounds.jsonl")


def test_programs_are_known_where_inputs_were_kept() -> None:
    with Store.open() as traces:
        traces.load(DATA / "normalized_rounds.jsonl")
        found = query(traces, "SELECT DISTINCT name, program FROM tools WHERE category = 'shell_command' ORDER BY ALL")
    assert [(one["name"], one["program"]) for one in found] == [
        ("Bash", "ls"),
        ("Bash", "python3"),
        *[("exec_command", name) for name in ("find", "ls", "mv", "pwd", "rg")],
        ("write_stdin", None),  # keys for a program that runs already
    ]


# Other files


def made_by_tracelab(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of the tables that TraceLab's documentation describes (artifacts/utils/DB_SCHEMA.md)."""
    source = write(path.with_suffix(".jsonl"), rows)
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TEMP TABLE raw AS SELECT row_number() OVER () AS round_pk, * FROM '{source}'")
        connection.execute(
            "CREATE TABLE rounds AS SELECT round_pk AS ingest_seq, * EXCLUDE (tools, timing_events) FROM raw"
        )
        connection.execute("CREATE TABLE tool_calls AS SELECT round_pk, unnest(tools, max_depth := 2) FROM raw")
        connection.execute(
            "CREATE TABLE timing_events AS SELECT round_pk, unnest(range(1, length(timing_events) + 1)) AS event_index,"
            " unnest(timing_events, max_depth := 2) FROM raw"
        )
        connection.execute("CREATE TABLE trace_source AS SELECT 'somewhere' AS path")
    return path


def test_a_duckdb_file_of_tracelab_s_is_read_as_it_is(tmp_path: Path) -> None:
    rows = [orjson.loads(line) for line in (DATA / "sanitized_rounds.jsonl").read_bytes().splitlines()]
    theirs = made_by_tracelab(tmp_path / "trace.duckdb", rows)
    with Store.open() as ours, Store.open() as straight:
        report = ours.load(theirs)
        straight.load(DATA / "sanitized_rounds.jsonl")
        for table in ("steps", "events", "tools"):
            assert query(ours, f"FROM {table} ORDER BY ALL") == query(straight, f"FROM {table} ORDER BY ALL")
    assert report == LoadReport(rows=19, added=19)


def test_a_table_with_the_columns_of_a_row_is_read_under_any_name(tmp_path: Path) -> None:
    source = write(tmp_path / "rows.jsonl", ROWS)
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute(f"CREATE TABLE everything AS FROM '{source}'")
    assert loaded(tmp_path / "x.duckdb")[1] == loaded(source)[1]


def test_a_duckdb_file_of_something_else_is_refused_with_its_tables(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "x.duckdb")) as connection:
        connection.execute("CREATE TABLE birds (name VARCHAR)")
    with Store.open() as traces, pytest.raises(ConfigError, match=r"tables=\['birds'\]"):
        traces.load(tmp_path / "x.duckdb")


def acted(command: str, *, think_s: float, run_s: float, trip_s: float, exit_code: int = 0) -> Step:
    timing = CommandTiming(run_ns=round(run_s * 1e9), round_trip_ns=round(trip_s * 1e9))
    act = Act(command=command, submit=not command)
    return Step(act, exit_code, False, False, 12, "", timing, {"policy": think_s})


def test_a_rollout_is_a_session_whose_commands_are_calls_of_run_time_inside_a_round_trip(tmp_path: Path) -> None:
    timing = Timing(wall_s=9, env_s=3, infra_s=1, policy_s=5, hidden_s=0, phases={})
    steps = (
        acted("cd /src && make test", think_s=2, run_s=3, trip_s=3.5, exit_code=2),
        acted("", think_s=1.5, run_s=0, trip_s=0),
    )
    made = Rollout("r1", "run", "pack/task", "docker", 1.0, True, timing, steps=steps)
    (tmp_path / "rollouts.jsonl").write_bytes(to_line(made) + to_line(replace(made, steps=steps[:1])))
    with Store.open() as traces:
        assert traces.load(tmp_path / "rollouts.jsonl").added == 3
        assert traces.load(tmp_path / "rollouts.jsonl").added == 0
        assert query(traces, "SELECT session_id, trigger, generation_s, project FROM steps ORDER BY step_id") == [
            {"session_id": "rayroll:r1", "trigger": "user", "generation_s": 2, "project": "pack/task"},
            {"session_id": "rayroll:r1", "trigger": "tool", "generation_s": 1.5, "project": "pack/task"},
            {"session_id": "rayroll:r1:2", "trigger": "user", "generation_s": 2, "project": "pack/task"},
        ]
        assert query(traces, "SELECT program, category, wall_ms, effective_ms, is_error, result_chars FROM tools")[
            :1
        ] == [
            {
                "program": "make",
                "category": "shell_command",
                "wall_ms": 3500,
                "effective_ms": 3000,
                "is_error": True,
                "result_chars": 12,
            }
        ]


def test_a_rollout_torn_by_a_crash_costs_itself(tmp_path: Path) -> None:
    whole = to_line(rollout("docker"))
    (tmp_path / "rollouts.jsonl.gz").write_bytes(gzip.compress(whole + whole[:200]))
    with Store.open() as traces:
        report = traces.load(tmp_path / "rollouts.jsonl.gz")
    assert report.added > 0
    assert [(lost.line, lost.reason) for lost in report.lost] == [(2, "torn by a crash")]


def test_recorded_rollouts_keep_every_command(tmp_path: Path) -> None:
    made = [rollout("docker", sample=n) for n in range(3)]
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(map(to_line, made)))
    with Store.open() as traces:
        traces.load(tmp_path / "rollouts.jsonl")
        [found] = query(
            traces, "SELECT count(*) AS steps, sum(effective_ms) AS ms FROM steps LEFT JOIN tools USING (step_id)"
        )
    assert found["steps"] == sum(len(one.steps) for one in made)
    assert found["ms"] == pytest.approx(sum(s.timing.run_ns for one in made for s in one.steps if s.act.command) / 1e6)


# The file itself


def test_a_store_is_read_by_several_and_not_written_by_readers(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.duckdb") as traces:
        traces.load_rows(ROWS)
    with Store.open(tmp_path / "s.duckdb", read_only=True) as one:
        assert statistics.compute(one.connection, "counts_scope")[0]["steps"] == 2
        with pytest.raises(ConfigError, match="opened for reading only"):
            one.load_rows(ROWS)


@pytest.mark.parametrize(("version", "fix"), [("0", "load the traces into a new store"), ("99", "update rayroll")])
def test_another_schema_version_says_what_to_do(tmp_path: Path, version: str, fix: str) -> None:
    with Store.open(tmp_path / "s.duckdb") as traces:
        traces.connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", [version])
    with pytest.raises(ConfigError, match=fix):
        Store.open(tmp_path / "s.duckdb")


def test_files_that_are_no_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello" * 1000)
    with pytest.raises(ConfigError, match="is no trace store"):
        Store.open(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="there is no trace store"):
        Store.open(tmp_path / "gone.duckdb", read_only=True)
    with pytest.raises(ConfigError, match="there is no folder"):
        Store.open(tmp_path / "gone" / "s.duckdb")
    with duckdb.connect(str(tmp_path / "other.duckdb")) as connection:
        connection.execute("CREATE TABLE birds (name VARCHAR)")
    with pytest.raises(ConfigError, match="no trace store"):
        Store.open(tmp_path / "other.duckdb")


def test_a_load_that_fails_leaves_the_store_as_it_was() -> None:
    def broken() -> Any:
        yield ROWS[0]
        raise RuntimeError("the collector failed")

    with Store.open() as traces:
        with pytest.raises(RuntimeError):
            traces.load_rows(broken())
        assert query(traces, "SELECT count(*) AS n FROM steps") == [{"n": 0}]
        assert traces.load_rows(ROWS).added == 2


def test_later_rows_of_a_session_come_behind_its_earlier_ones() -> None:
    with store(ROWS[:1]) as traces:
        traces.load_rows(json.loads(json.dumps(ROWS)))
        found = query(traces, "SELECT step_id, round_index FROM steps ORDER BY step_id")
    assert found == [{"step_id": 0, "round_index": 0}, {"step_id": 1, "round_index": 1}]
