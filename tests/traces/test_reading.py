"""A file says by itself what it is; a folder may hold traces of every kind, and other programs' files between them."""

from __future__ import annotations

import random
import shutil
import socket
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
import zstandard
from synthetic import rollout
from trace_logs import DATA, assistant, text, user, write
from traces.tiny import session, step
from traces.tiny import text as wrote
from traces.tiny import user as asked

from rayroll.errors import ConfigError
from rayroll.record import to_line
from rayroll.traces import statistics
from rayroll.traces.collect import Progress, collect
from rayroll.traces.reading import find, recognise
from rayroll.traces.store import LoadReport, Store

ROWS = session("a", step(asked(0), wrote(9)))
TABLES = ("steps", "events", "tools")


def loaded(*paths: Path) -> tuple[LoadReport, dict[str, list[dict[str, Any]]]]:
    with Store.open() as store:
        report = store.load(paths)
        return report, {name: statistics.rows(store.connection, f"FROM {name} ORDER BY ALL", {}) for name in TABLES}


def samples(home: Path) -> Path:
    """A home with both agents' sample logs, one of them packed."""
    claude, codex = home / ".claude/projects/p", home / ".codex/sessions/2026/03/21"
    claude.mkdir(parents=True)
    codex.mkdir(parents=True)
    shutil.copy(DATA / "claude_session.jsonl", claude)
    (codex / "codex_session.jsonl.zst").write_bytes(zstandard.compress((DATA / "codex_session.jsonl").read_bytes()))
    return home


# --- an agent's own logs


@pytest.mark.parametrize("where", [".", ".claude", ".claude/projects", ".codex/sessions"])
def test_logs_that_are_loaded_give_the_store_that_collected_rows_give(tmp_path: Path, where: str):
    folder = samples(tmp_path / "home") / where
    collect([folder], tmp_path / "rows.jsonl")
    assert loaded(folder) == loaded(tmp_path / "rows.jsonl")


def test_a_log_by_its_name_is_loaded(tmp_path: Path):
    report, _ = loaded(DATA / "claude_session.jsonl", DATA / "codex_session.jsonl")
    assert report == LoadReport(rows=19, added=19)


def test_logs_are_loaded_again_without_being_counted_again(tmp_path: Path):
    with Store.open(tmp_path / "s.duckdb") as store:
        store.load(DATA / "claude_session.jsonl")
        again = store.load([DATA / "claude_session.jsonl", DATA / "codex_session.jsonl"])
    assert (again.added, again.repeated) == (9, 10)


def test_a_resumed_session_s_copy_counts_once(tmp_path: Path):
    m1 = assistant(1, "m1", text())
    write(tmp_path / "S1.jsonl", [user(0), m1])
    write(tmp_path / "S2.jsonl", [{**m1, "sessionId": "S2"}, assistant(3, "m2", text(), session="S2")])
    steps = loaded(tmp_path)[1]["steps"]
    assert [(one["round_id"], one["session_id"]) for one in steps] == [("m1", "claude:S1"), ("m2", "claude:S2")]


def test_what_a_log_lost_is_told_with_its_own_name_and_line(tmp_path: Path):
    log = write(tmp_path / "S1.jsonl", [user(0), b'{"type": "assistant", "me\n', assistant(3, "m2", text())])
    report, _ = loaded(log)
    assert (report.added, report.lost_lines) == (1, 1)
    assert [(loss.file, loss.line) for loss in report.lost] == [(str(log), 2)]


def test_who_waits_for_logs_is_told_how_far_it_is(tmp_path: Path):
    seen: list[Progress] = []
    with Store.open() as store:
        store.load(samples(tmp_path / "home"), progress=seen.append)
    assert [one.logs_done for one in seen] == [0, 1, 2]


# --- a folder of everything


def test_a_folder_holds_traces_of_every_kind_and_what_is_none_is_told(tmp_path: Path):
    samples(tmp_path)
    (tmp_path / "rows.jsonl").write_bytes(orjson.dumps(ROWS[0]))
    (tmp_path / "rollouts.jsonl").write_bytes(to_line(rollout("docker")))
    write(tmp_path / "elsewhere" / "S9.jsonl", [user(0), assistant(1, "m9", text())])
    write(tmp_path / "settings.json", [{"theme": "dark"}])
    write(tmp_path / "empty.jsonl", [])
    report, tables = loaded(tmp_path)
    assert {one["provider"] for one in tables["steps"]} == {"claude", "codex", "rayroll"}
    assert {"claude:a", "claude:S9"} <= {one["session_id"] for one in tables["steps"]}
    assert (report.skipped_files, report.lost_lines) == (2, 0)
    assert [(Path(loss.file).name, loss.reason) for loss in report.lost] == [
        ("empty.jsonl", "is empty"),
        ("settings.json", "is no trace: its first record has ['theme']"),
    ]


def test_a_folder_of_nothing_but_other_programs_files_is_refused_with_what_they_are(tmp_path: Path):
    write(tmp_path / "settings.json", [{"theme": "dark"}])
    with pytest.raises(ConfigError, match=r"no traces in .*settings.json: is no trace.*session logs of Claude Code"):
        find(tmp_path)


# --- what is no trace


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"hello\nworld\n", "its first lines are not JSON"),
        (b'{"level": "info", "msg": "started"}\n', r"its first record has \['level', 'msg'\]"),
        (b"[1, 2, 3]\n", "its first lines are not JSON objects"),
        (b'[{"session_id": "s", "tools": []}]\n', "its first lines are not JSON objects"),
        (b"step,tokens\n1,2\n", "its first lines are not JSON"),
        (b"\x89PNG\r\n\x1a\n" + random.Random(0).randbytes(9000), "its first lines are not JSON"),
    ],
    ids=["nothing", "blank", "text", "another log", "a list", "a list of rows", "csv", "png"],
)
def test_what_is_no_trace_is_refused_with_what_was_seen_and_what_was_expected(
    tmp_path: Path, content: bytes, message: str
):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        recognise(path)
    assert "session logs of Claude Code or Codex" in str(refused.value)


def test_an_archive_that_is_none_is_refused(tmp_path: Path):
    (tmp_path / "x.jsonl.gz").write_bytes(b"no archive at all")
    with pytest.raises(ConfigError, match="cannot be read"):
        recognise(tmp_path / "x.jsonl.gz")


def test_an_endless_foreign_file_is_not_read_to_its_end(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.write(b"x\n" * 600_000)
        file.truncate(1 << 40)  # a hole of a terabyte
    with pytest.raises(ConfigError, match="not JSON"):
        recognise(path)


def test_a_folder_without_traces_a_missing_file_and_what_is_no_file_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no traces in .*fix="):
        find(tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        find(tmp_path / "gone.jsonl")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.jsonl"))
        with pytest.raises(ConfigError, match="no regular file"):
            find(tmp_path / "s.jsonl")


def test_a_file_that_cannot_be_read_is_refused_with_the_system_s_reason():
    with pytest.raises(ConfigError, match="cannot be read: Input/output error"):
        recognise(Path("/proc/self/mem"))


def test_one_bad_name_among_good_ones_loads_nothing(tmp_path: Path):
    (tmp_path / "x.csv").write_text("a,b\n")
    with Store.open() as store:
        with pytest.raises(ConfigError, match=r"x\.csv is no trace"):
            store.load([DATA / "claude_session.jsonl", tmp_path / "x.csv"])
        assert statistics.rows(store.connection, "SELECT count(*) AS n FROM steps", {}) == [{"n": 0}]


def test_a_store_among_the_files_to_load_is_told_apart_from_tracelab_s(tmp_path: Path):
    Store.open(tmp_path / "ours.duckdb").close()
    assert recognise(tmp_path / "ours.duckdb") == "duckdb"
    with Store.open() as store, pytest.raises(ConfigError, match="it is a store already"):
        store.load(tmp_path / "ours.duckdb")
    with duckdb.connect(str(tmp_path / "birds.duckdb")) as connection:
        connection.execute("CREATE TABLE birds (name VARCHAR)")
    with Store.open() as store, pytest.raises(ConfigError, match=r"tables=\['birds'\]"):
        store.load(tmp_path / "birds.duckdb")
