"""One sweep over every substrate of the test bed, as its page says to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from requirements import check, use_testbed

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"local", "docker", "kubernetes", "qemu", "ec2", "opensandbox"}


def test_one_sweep_plays_and_compares_the_same_work_on_every_substrate(tmp_path: Path) -> None:
    use_testbed()
    for kind in sorted(KINDS):
        check(kind)
    command = [ROOT / "cluster/testbed/sweep", "--actions", "10", "--rollouts", "1", "--out", tmp_path]
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run([*command, "--wandb", "disabled"], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {s["substrate"]: s["valid"] for s in summary["substrates"]} == dict.fromkeys(KINDS, 1)
    assert summary["equal_work"]["equal"] and summary["equal_work"]["compared"] == 1
    assert {"worker_hours", "cold_start_s"} <= set(summary["spreads"])
    assert "worker-hours" in done.stderr and (tmp_path / "report.html").exists()
