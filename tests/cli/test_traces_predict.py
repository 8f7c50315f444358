"""A model of how long calls take, by the command line: made, asked, judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayroll.cli.traces import traces
from rayroll.errors import ConfigError
from rayroll.traces.rows import write_rows
from rayroll.traces.store import Store
from rayroll.traces.synth import synthesize


def said(*words: str | Path) -> str:
    """What a command prints on standard output; its errors are raised."""
    done = CliRunner().invoke(traces, ["predict", *(str(word) for word in words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "rows.jsonl"
    write_rows(path, synthesize(12, seed=2))  # type: ignore[arg-type]
    return path


def test_a_model_is_made_and_asked(rows: Path, tmp_path: Path) -> None:
    told = said("fit", rows, "--out", tmp_path / "m", "--shareable")
    assert "calls in 11 sessions" in told  # the twelfth calls nothing
    assert "levels: all" in told and "program" not in told
    answer = json.loads(said("ask", tmp_path / "m", "--tool", "Bash", "--command", "pytest -q"))
    assert list(answer) == ["0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99"]
    assert list(answer.values()) == sorted(answer.values())


def test_a_cache_can_be_held_by_what_it_predicts(rows: Path, tmp_path: Path) -> None:
    said("fit", rows, "--out", tmp_path / "m")
    with Store.open(tmp_path / "t.duckdb") as store:
        store.load(rows)
    done = CliRunner().invoke(traces, ["kv", str(tmp_path / "t.duckdb"), "--model", str(tmp_path / "m"), "--json"])
    outcomes = {(one["policy"], one["provider"]): one for one in json.loads(done.stdout)["kv"]}
    predicted, oracle = outcomes["predicted 300 s", "all"], outcomes["oracle 300 s", "all"]
    assert predicted["hit_rate"] > outcomes["fixed 60 s", "all"]["hit_rate"] * 0.9
    assert predicted["storage_ratio"] >= oracle["storage_ratio"] > 0


def test_it_is_judged_beside_its_baselines(rows: Path) -> None:
    found = json.loads(said("evaluate", rows, "--json"))
    assert {"predictor", "global", "per tool", "per program"} <= {score["name"] for score in found["scores"]}
    assert "per program" in said("evaluate", rows, "--by", "time")


def test_an_unknown_split_is_refused_with_those_there_are(rows: Path) -> None:
    with pytest.raises(ConfigError, match="session"):
        said("evaluate", rows, "--by", "sesion")
