"""``rayroll traces report``: a page, a table, CSV files, and what it says of stores and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traces.tiny import call, session, step, user
from typer.testing import CliRunner

from rayroll.cli.traces import traces
from rayroll.errors import ConfigError
from rayroll.traces.store import Store

pytest.importorskip("vl_convert", reason="needs the extra rayroll[report]")


@pytest.fixture(scope="module", autouse=True)
def converter() -> None:
    """It keeps a pair of sockets as long as the process, so they are no leak of the test that draws first."""
    import vl_convert

    vl_convert.vega_to_svg({"width": 1, "height": 1})


def said(*words: str | Path) -> str:
    """What the command prints on standard output; its errors are raised."""
    done = CliRunner().invoke(traces, ["report", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "t.duckdb") as opened:
        opened.load_rows(session("a", step(user(0), call(3, "Bash", result=5), append=100, output=5)))
    return tmp_path / "t.duckdb"


def test_it_writes_a_page_and_csv_files_and_tells_the_main_numbers(store: Path, tmp_path: Path) -> None:
    told = said(store, "--out", tmp_path / "r.html", "--csv", tmp_path / "csv")
    assert "published (other data)" in told and "prefix-cache hits" in told and "r.html, and CSV files in" in told
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "csv" / "published.csv").exists() and (tmp_path / "csv" / "figure_session_s.csv").exists()


def test_everything_is_one_json_document(store: Path, tmp_path: Path) -> None:
    document = json.loads(said(store, "--out", tmp_path / "r.html", "--json"))
    assert document["is_public_data"] is False and document["statistics"]["counts_scope"][0]["steps"] == 1
    assert {"published", "figures", "missing", "failed"} <= set(document)


def test_a_price_table_is_replaced_and_a_wrong_one_is_refused_before_the_work(store: Path, tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text('as_of = "1999"\n[[price]]\nmodel = "*"\nappend_usd = 1e6\nprefix_usd = 0\noutput_usd = 0\n')
    assert "$100.00" in said(store, "--out", tmp_path / "r.html", "--prices", table)
    assert "prices of 1999" in (tmp_path / "r.html").read_text()
    table.write_text("[[price]]\nmodel = 1\n")
    with pytest.raises(ConfigError, match=r"prices\.toml, line 2"):
        said(store, "--out", tmp_path / "other.html", "--prices", table)
    assert not (tmp_path / "other.html").exists()


def test_an_empty_store_a_newer_one_and_what_is_none_are_refused(store: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "r.html")
    with Store.open(tmp_path / "empty.duckdb"):
        pass
    with pytest.raises(ConfigError, match="the store is empty"):
        said(tmp_path / "empty.duckdb", *out)
    with Store.open(store) as opened:
        opened.connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    with pytest.raises(ConfigError, match="made by a newer rayroll"):
        said(store, *out)
    (tmp_path / "text.duckdb").write_text("a text")
    with pytest.raises(ConfigError, match="no trace store"):
        said(tmp_path / "text.duckdb", *out)
    with pytest.raises(ConfigError, match="no trace store"):
        said(tmp_path / "nothing.duckdb", *out)
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        said(store, "--out", tmp_path / "nowhere" / "r.html")
