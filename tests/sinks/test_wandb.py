"""Every rollout is in W&B, in whatever order it finished, and nothing secret is."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic

from rayroll.errors import ConfigError, Failure
from rayroll.sinks import SinkWorker
from rayroll.sinks.wandb import (
    WandbConfig,
    WandbSink,
    log_report,
    read_history,
    resolve_mode,
    rollout_row,
)

pytest.importorskip("wandb", reason="needs the extra rayroll[wandb]")


@pytest.fixture(autouse=True)
def nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def config(tmp_path: Path) -> WandbConfig:
    return WandbConfig(mode="offline", dir=str(tmp_path / "here"))


def rows_of(path: Path, key: str) -> list[dict[str, Any]]:
    return [row for row in read_history(path) if key in row]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Eight envs with ten rollouts each in two cells, finished in shuffled order."""
    rollouts = [
        synthetic.rollout(s, sample=i, actions=2, failure=Failure("infra", "gone") if i == 3 else None)
        for s in ("docker", "qemu")
        for i in range(40)
    ]
    random.Random(1).shuffle(rollouts)
    config = WandbConfig(mode="offline", dir=str(tmp_path_factory.mktemp("results")))
    sink = WandbSink(config, run_id="sweep-7", run_config={"target_rollouts": 10, "api_key": "sesame"})
    with SinkWorker([sink]) as worker:
        for rollout in rollouts:
            worker.put_blocking(rollout)
        worker.gauges({"sched/in_flight": 5.0})
    return sink.files


def test_all_rollouts_are_kept_in_whatever_order_they_finish(logged: dict[str, Path]) -> None:
    assert sorted(logged) == ["docker-a2-c1", "qemu-a2-c1"]
    for path in logged.values():
        rows = rows_of(path, "rollout/steps")
        assert [row["rollout/idx"] for row in rows] == list(range(40))
        assert sum(row["rollout/valid"] for row in rows) == 39


def test_a_rows_parts_add_up_to_its_total(logged: dict[str, Path]) -> None:
    for row in rows_of(logged["qemu-a2-c1"], "rollout/steps"):
        kinds = row["timing_s/env"] + row["timing_s/infra"] + row["timing_s/policy"]
        parts = sum(value for name, value in row.items() if name.startswith(("timing_s/infra/", "timing_s/env/")))
        assert kinds == pytest.approx(row["timing_s/total"])
        assert parts == pytest.approx(row["timing_s/env"] + row["timing_s/infra"])


def test_the_last_row_holds_quantiles_failures_and_the_projection(logged: dict[str, Path]) -> None:
    last = rows_of(logged["docker-a2-c1"], "projection/worker_hours")[-1]
    assert last["projection/worker_hours_lo"] <= last["projection/worker_hours"] <= last["projection/worker_hours_hi"]
    assert (last["failures/infra"], last["rollout/n"]) == (1, 40)
    assert last["action/overhead_s/p95"] > 0
    assert [row["sched/in_flight"] for path in logged.values() for row in rows_of(path, "sched/in_flight")] == [5.0]


def test_wandbs_own_reader_agrees_record_for_record_and_the_config_holds_no_secret(logged: dict[str, Path]) -> None:
    path = logged["docker-a2-c1"]
    leet = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    text = subprocess.run(leet, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in text.splitlines()]
    theirs = [record["history"] for record in records if record["type"] == "history"]
    ours = list(read_history(path))
    assert len(theirs) == len(ours) > 40
    assert [len(record["item"]) for record in theirs] == [len(row) for row in ours]
    assert "sesame" not in text
    assert "<redacted>" in text
    run = next(record["run"] for record in records if record["type"] == "run")
    assert json.dumps(run).count("sweep-7") >= 1


def test_a_killed_driver_loses_at_most_the_last_second(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[2])
import synthetic
from rayroll.sinks.wandb import WandbConfig, WandbSink, read_history
sink = WandbSink(WandbConfig(mode="offline", dir=sys.argv[1]))
for i in range(20):
    sink.add(synthetic.rollout(sample=i, actions=1))
path = next(iter(sink.files.values()))
deadline = time.monotonic() + 60
while sum("rollout/steps" in row for row in read_history(path)) < 20 and time.monotonic() < deadline:
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    here = str(Path(synthetic.__file__).parent)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), here], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert len(rows_of(path, "rollout/steps")) == 20


def test_without_cells_there_is_one_run_and_a_prefix_stands_before_every_name(config: WandbConfig) -> None:
    sink = WandbSink(config.model_copy(update={"prefix": "rayroll/"}), run_id="train")
    sink.add(replace(synthetic.rollout(actions=1), labels={}))
    (path,) = sink.files.values()
    sink.close()
    sink.close()
    assert Path(config.dir).resolve() in path.resolve().parents
    assert all(name.startswith(("rayroll/", "_")) for row in read_history(path) for name in row)


def test_the_report_run_holds_the_comparison_as_a_table(config: WandbConfig, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    html.write_text("<p>report")
    rows = [{"substrate": "docker", "worker_hours": 6500.0}, {"substrate": "qemu", "worker_hours": 11806.0}]
    folder = log_report(config, rows, group="sweep-7", summary={"spread/worker_hours": 1.82}, run_config={}, html=html)
    table = next(Path(folder).rglob("*.table.json"))
    assert json.loads(table.read_text())["data"] == [["docker", 6500.0], ["qemu", 11806.0]]


# -- the mode ----------------------------------------------------------------------------------------------------


def test_the_mode_is_what_was_asked_then_the_environments_then_offline_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert resolve_mode("offline") == "offline"
    assert resolve_mode(None) == "disabled"
    monkeypatch.delenv("WANDB_MODE")
    with caplog.at_level(logging.WARNING):
        assert resolve_mode(None) == "offline"
    (message,) = caplog.messages
    assert "no API key" in message and "wandb sync" in message


def test_a_mode_that_the_driver_cannot_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "shared")
    with pytest.raises(ConfigError, match="WANDB_MODE"):
        resolve_mode(None)


# -- what is told ------------------------------------------------------------------------------------------------


def test_a_spoilt_rollout_has_no_return_and_counts_as_not_valid() -> None:
    row = rollout_row(synthetic.rollout(actions=2, failure=Failure("infra", "gone")))
    assert "rollout/return" not in row
    assert row["rollout/valid"] == 0


def test_every_phase_of_a_row_belongs_to_one_kind() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    for name in rollout_row(synthetic.rollout(actions=2)):
        if name.count("/") == 2:
            _, kind, phase = name.split("/")
            kinds[phase].add(kind)
    assert kinds["run"] == {"env"}
    assert kinds["boot"] == {"infra"}
    assert all(len(found) == 1 for found in kinds.values())


def test_a_server_that_does_not_answer_costs_its_timeout_and_the_runs_are_kept_offline(tmp_path: Path) -> None:
    script = """
import logging, sys
sys.path.insert(0, sys.argv[2])
import synthetic
from rayroll.sinks.wandb import WandbConfig, WandbSink
logging.basicConfig(level=logging.WARNING, format="%(message)s")
sink = WandbSink(WandbConfig(mode="online", dir=sys.argv[1], init_timeout_s=2))
sink.add(synthetic.rollout(actions=1))
sink.close()
print(sink.mode)
"""
    here = str(Path(synthetic.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), here],
        capture_output=True,
        text=True,
        env=os.environ | {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"},
    )
    assert done.stdout.strip() == "offline", done.stderr
    assert "kept offline" in done.stderr
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1
