"""The way of a trace, by the command line: collected, made fit to share, loaded, asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rayroll.cli.traces import traces
from rayroll.errors import ConfigError

DATA = Path(__file__).parents[1] / "traces" / "data"
LOGS = (DATA / "claude_session.jsonl", DATA / "codex_session.jsonl")
MEASURES = ("steps", "hit_rate", "storage_ratio", "amplification")
ROOTS = ("--root", LOGS[0], "--root", LOGS[1])


def said(*words: str | Path) -> str:
    """What a command prints on standard output; its errors are raised."""
    done = CliRunner().invoke(traces, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    said("collect", *ROOTS, *out_of(tmp_path))
    return tmp_path / "rows.jsonl"


def stats(store: Path) -> dict[str, Any]:
    """All of them; sums are added up in any order, so their last digits are left out."""
    found: dict[str, Any] = json.loads(said("stats", store, "--json"), parse_float=lambda text: f"{float(text):.9g}")
    return found


def out_of(folder: Path) -> tuple[str, Path]:
    return "--out", folder / "rows.jsonl"


def test_collect_says_what_it_found_and_reads_nothing_twice(rows: Path) -> None:
    again = said("collect", *ROOTS, *out_of(rows.parent), "--report", rows.parent / "report.json")
    assert "19 steps (10 of claude, 9 of codex) in 2 sessions" in again
    assert "0 logs read, 0 read on, 2 unchanged" in again
    assert json.loads((rows.parent / "report.json").read_text())["rows"] == 19


def test_shared_rows_have_the_statistics_of_the_private_ones(rows: Path) -> None:
    """But for how many people there are, and what their sessions are called."""
    folder = rows.parent
    assert "nothing of the input is left" in said("sanitize", rows, folder / "shared.jsonl")
    assert "nothing of the input is left" in said("sanitize", rows, folder / "shared.jsonl", "--check")
    for name in ("rows", "shared"):
        assert "19 steps added" in said("load", folder / f"{name}.jsonl", "--store", folder / f"{name}.duckdb")
    private, shared = (stats(folder / f"{name}.duckdb") for name in ("rows", "shared"))
    for found in (private, shared):
        found["counts_longest_sessions"] = [line["steps"] for line in found["counts_longest_sessions"]]
        found["counts_scope"] = [{**line, "users": "not said"} for line in found["counts_scope"]]
    assert private == shared


def test_logs_are_loaded_as_they_are(rows: Path) -> None:
    said("load", rows, "--store", rows.parent / "rows.duckdb")
    assert "19 steps added" in said("load", *LOGS, "--store", rows.parent / "logs.duckdb")
    assert stats(rows.parent / "rows.duckdb") == stats(rows.parent / "logs.duckdb")


def test_what_was_not_sanitized_does_not_pass_the_check(rows: Path) -> None:
    done = CliRunner().invoke(traces, ["sanitize", str(rows), str(rows), "--check"])
    assert done.exit_code == 1 and "leaks" in done.output


def test_statistics_are_tables_csv_files_and_json(rows: Path) -> None:
    store = rows.parent / "t.duckdb"
    said("load", rows, "--store", store)
    assert "hit_rate" in said("stats", store, "prefix_hit_rate", "--definitions", "--csv", rows.parent / "csv")
    assert (rows.parent / "csv" / "prefix_hit_rate.csv").read_text().startswith("provider,trigger,steps")
    assert "oracle 300 s" in said("kv", store)


def test_caches_and_orders_are_studied_as_tables_csv_files_and_json(rows: Path) -> None:
    store, folder = rows.parent / "t.duckdb", rows.parent / "csv"
    said("load", rows, "--store", store)
    held = json.loads(said("kv", store, "--json", "--csv", folder))
    swept = json.loads(said("stats", store, "eviction_sweep", "--json"))["eviction_sweep"]
    for line in swept:
        [same] = [
            one for one in held["kv"]
            if (one["policy"], one["provider"]) == (f"fixed {line['ttl_s']:g} s", line["provider"])
        ]  # fmt: skip
        assert [same[name] for name in MEASURES] == [line[name] for name in MEASURES]
    assert (folder / "kv.csv").read_text().startswith("policy,provider,steps")
    assert [one["policy"] for one in held["kv_published"][::3]] == ["fixed 60 s", "fixed 300 s", "fixed 3600 s"]
    assert held["is_public_data"] is False and {one["difference"] for one in held["kv_published"]} == {None}
    assert (
        (folder / "kv_published.csv").read_text().startswith("policy,measure,ours,published,difference\nfixed 60 s,hit")
    )
    orders = json.loads(said("kv", store, "--prefill", "--json", "--csv", folder))
    assert [one["order"] for one in orders["prefill"]] == ["first come", "shortest append", "append batches of 16384"]
    assert orders["load"] == 0.8 and orders["session_every_s"] > 0 and orders["token_s"] == 35e-6
    assert (orders["budget_tokens"], orders["patience_s"]) == (16384, 10)
    assert (folder / "prefill.csv").read_text().startswith("order,steps")


def test_orders_say_on_which_constants_they_were_tried(rows: Path) -> None:
    store, cost = rows.parent / "t.duckdb", rows.parent / "cost.toml"
    cost.write_text("batch_s = 1")
    said("load", rows, "--store", store)
    told = said("kv", store, "--prefill", "--cost", cost, "--session-every", "5")
    assert "batch_s = 1, token_s = 3.5e-05" in told and "session_every_s = 5.0" in told
    assert "session_every_s = recorded" in said("kv", store, "--prefill", "--as-recorded")


def test_made_up_sessions_load_like_real_ones(tmp_path: Path) -> None:
    assert "in 20 sessions" in said("synth", tmp_path / "s.jsonl.zst", "--sessions", "20", "--seed", "7")
    said("load", tmp_path / "s.jsonl.zst", "--store", tmp_path / "s.duckdb")
    (scope,) = [
        line for line in json.loads(said("stats", tmp_path / "s.duckdb", "counts_scope", "--json"))["counts_scope"]
        if line["provider"] == "all"
    ]  # fmt: skip
    assert scope["sessions"] == 20


def test_what_is_no_store_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no trace store"):
        said("stats", tmp_path / "nothing.duckdb")
