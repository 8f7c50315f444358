"""The folder of a run is locked to one question."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rayroll.cli._results import Results
from rayroll.errors import ConfigError


def test_a_folder_is_made_and_taken_up_again_with_the_same_run(tmp_path: Path) -> None:
    first = Results.open(tmp_path / "a", "sweep", {"actions": (10, 50)})
    again = Results.open(tmp_path / "a", "sweep", {"actions": (10, 50)})
    assert (first.resumed, again.resumed) == (False, True)
    assert first.run_id == again.run_id


def test_another_question_is_refused_by_the_fields_that_differ(tmp_path: Path) -> None:
    Results.open(tmp_path, "sweep", {"seed": 1, "rollouts": 4})
    with pytest.raises(ConfigError, match="seed='1 then, 2 now'"):
        Results.open(tmp_path, "sweep", {"seed": 2, "rollouts": 4})


def test_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    Results.open(tmp_path, "run", {})
    with pytest.raises(ConfigError, match="holds a run, not a sweep"):
        Results.open(tmp_path, "sweep", {})


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        Results.open(tmp_path, "sweep", {})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is no config"):
        Results.open(tmp_path, "sweep", {})


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(ConfigError, match="choose another --out"):
        Results.open(target / "results", "sweep", {})


def test_the_machine_is_recorded(tmp_path: Path) -> None:
    results = Results.open(tmp_path, "sweep", {})
    machine = json.loads(results.config.read_text())["machine"]
    assert machine["cpus"] == os.cpu_count()
    assert machine["ray"] and machine["kernel"]


def test_a_machine_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    results = Results.open(tmp_path / "a", "sweep", {})
    assert json.loads(results.config.read_text())["machine"]["commit"] == ""
