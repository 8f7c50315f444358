"""What the commands for traces say of what they cannot use: one sentence, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from traces.tiny import session, step, user
from typer.testing import CliRunner

from rayroll.cli.traces import traces
from rayroll.errors import ConfigError
from rayroll.traces.rows import write_rows
from rayroll.traces.store import Store
from rayroll.traces.synth import synthesize

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def newer(path: Path) -> None:
    with Store.open(path) as store:
        store.connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")


def of_another_program(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE customers (name VARCHAR)")


MADE: dict[str, Callable[[Path], object]] = {
    "picture": lambda path: path.write_bytes(PNG),
    "table.csv": lambda path: path.write_text("a,b\n1,2\n"),
    "list.json": lambda path: path.write_text("[1, 2, 3]"),
    "others.json": lambda path: path.write_text('[{"name": "somebody else\'s"}]'),
    "empty.jsonl": lambda path: path.touch(),
    "empty.duckdb": lambda path: Store.open(path).close(),
    "folder": lambda path: path.mkdir(),
    "newer.duckdb": newer,
    "other.duckdb": of_another_program,
    "rows.jsonl": lambda path: write_rows(path, synthesize(2, seed=0)),  # type: ignore[arg-type]
    "prices.toml": lambda path: path.write_text("[[models]]\nname = 3\n"),
    "cost.toml": lambda path: path.write_text("speed = 'fast'\n"),
}
STORES = ("newer.duckdb", "other.duckdb", "picture", "folder", "missing.duckdb", "rows.jsonl")
FOREIGN = ("picture", "table.csv", "list.json", "others.json", "empty.jsonl")
REFUSED = [
    *(("load", name) for name in (*FOREIGN, "folder", "missing")),
    *(("load", "rows.jsonl", "--store", name) for name in ("newer.duckdb", "other.duckdb", "picture", "folder")),
    *((command, name) for command in ("stats", "kv", "report") for name in STORES),
    ("stats", "t.duckdb", "no_such_statistic"),
    ("stats", "t.duckdb", "--prices", "prices.toml"),
    ("stats", "t.duckdb", "--prices", "missing"),
    ("report", "t.duckdb", "--prices", "picture"),
    ("report", "t.duckdb", "--out", "folder"),
    ("kv", "t.duckdb", "--prefill", "--cost", "cost.toml"),
    *(("kv", "t.duckdb", "--prefill", "--cost", name) for name in ("missing", "folder", "picture")),
    *(
        ("kv", "t.duckdb", "--prefill", *wrong)
        for wrong in (("--budget", "0"), ("--load", "nan"), ("--patience", "-1"))
    ),
    ("kv", "t.duckdb", "--cost", "cost.toml"),
    ("kv", "t.duckdb", "--prefill", "--as-recorded", "--session-every", "3"),
    ("kv", "t.duckdb", "--break-even", "nan"),
    ("kv", "t.duckdb", "--model", "picture"),
    ("kv", "t.duckdb", "--prefill", "--model", "picture"),
    ("kv", "empty.duckdb"),
    ("kv", "empty.duckdb", "--prefill"),
    *((command, "t.duckdb", "--csv", "table.csv") for command in ("stats", "kv", "report")),
    *(("sanitize", name, "out.jsonl") for name in (*FOREIGN, "other.duckdb", "missing", "folder")),
    ("sanitize", "rows.jsonl", "picture", "--check"),
    ("sanitize", "rows.jsonl", "folder"),
    ("sanitize", "rows.jsonl", "rows.jsonl"),
    ("synth", "folder"),
    ("synth", "out.parquet"),
    ("collect", "--root", "folder", "--out", "out.jsonl"),
    ("collect", "--root", "missing", "--out", "out.jsonl"),
    ("collect", "--root", "rows.jsonl", "--out", "folder"),
    ("collect", "--root", "rows.jsonl", "--out", "out.jsonl", "--report", "folder"),
    *(("predict", "fit", name) for name in ("picture", "folder", "missing")),
    ("predict", "ask", "picture"),
    *(("replay", name) for name in ("picture", "folder", "missing")),
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_it_is_refused_with_one_sentence_and_a_way_out(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in {*words, "rows.jsonl"} & MADE.keys():
        MADE[name](tmp_path / name)
    if "t.duckdb" in words:
        with Store.open(tmp_path / "t.duckdb") as store:
            store.load(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(traces, list(words), catch_exceptions=False)
    assert "\n" not in str(refused.value).strip()
    assert any(way in str(refused.value) for way in ("fix=", "known=", "did you mean")), refused.value
    assert not (tmp_path / "out.jsonl").exists()


def said(*words: str) -> str:
    done = CliRunner().invoke(traces, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_trace_without_times_is_loaded_and_tells_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = session("a", step(user(None), append=100), step(user(None), prefix=100, append=20))
    write_rows(Path("rows.jsonl"), rows)  # type: ignore[arg-type]
    assert (
        "2 steps added" in (loaded := said("load", "rows.jsonl", "--store", "t.duckdb")) and "2 without times" in loaded
    )
    assert "0.4545" in said("stats", "t.duckdb", "prefix_hit_rate")
    for study in ((), ("--prefill",)):
        assert "no step of this trace has both times and tokens" in said("kv", "t.duckdb", *study)


def test_lines_that_are_no_rows_are_left_out_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), session("a", step(user(0), append=1)))  # type: ignore[arg-type]
    with Path("rows.jsonl").open("a") as file:
        file.write('{"a": 1}\nnothing\n')
    told = said("sanitize", "rows.jsonl", "out.jsonl")
    assert "1 rows: out.jsonl" in told and "2 lines left out" in told and "rows.jsonl:2: not a row" in told
