"""What the commands for traces say of what they cannot use: one sentence, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
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
    "folder": lambda path: path.mkdir(),
    "newer.duckdb": newer,
    "other.duckdb": of_another_program,
    "rows.jsonl": lambda path: write_rows(path, synthesize(2, seed=0)),  # type: ignore[arg-type]
    "prices.toml": lambda path: path.write_text("[[models]]\nname = 3\n"),
    "cost.toml": lambda path: path.write_text("speed = 'fast'\n"),
}
STORES = ("newer.duckdb", "other.duckdb", "picture", "folder", "missing.duckdb")
REFUSED = [
    *(("load", name) for name in ("picture", "table.csv", "list.json", "folder", "missing")),
    *(("load", "rows.jsonl", "--store", name) for name in ("newer.duckdb", "other.duckdb", "picture", "folder")),
    *((command, name) for command in ("stats", "kv", "report") for name in STORES),
    ("stats", "t.duckdb", "no_such_statistic"),
    ("stats", "t.duckdb", "--prices", "prices.toml"),
    ("stats", "t.duckdb", "--prices", "missing"),
    ("report", "t.duckdb", "--prices", "picture"),
    ("report", "t.duckdb", "--out", "folder"),
    ("kv", "t.duckdb", "--prefill", "--cost", "cost.toml"),
    ("kv", "t.duckdb", "--model", "picture"),
    *(("sanitize", name, "out.jsonl") for name in ("missing", "folder")),
    ("sanitize", "rows.jsonl", "folder"),
    ("sanitize", "rows.jsonl", "rows.jsonl"),
    ("synth", "folder"),
    ("synth", "out.parquet"),
    ("collect", "--root", "folder", "--out", "out.jsonl"),
    ("collect", "--root", "missing", "--out", "out.jsonl"),
    ("collect", "--root", "rows.jsonl", "--out", "folder"),
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
