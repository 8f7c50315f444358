"""A driver that is killed while its rollouts are in every phase, and another that goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from chaos.stage import BYSTANDER, PHASES, phase_of
from executor.conftest import PLUGINS
from executor.test_drivers import seen, wait_until_nothing_is_left
from requirements import check

from rayroll.sinks.jsonl import read_rollouts

TESTS = Path(__file__).parents[1]
PATH = f"{TESTS}:{PLUGINS}:{os.environ.get('PYTHONPATH', '')}"


def test_a_driver_that_is_killed_loses_nothing_that_had_finished_and_leaves_nothing(
    ray_cluster: Any, tmp_path: Path, run_id: str
) -> None:
    check("local")
    folder = tmp_path / run_id
    folder.mkdir()
    env = os.environ | {"RAY_ADDRESS": ray_cluster.get_runtime_context().gcs_address, "PYTHONPATH": PATH}
    words = [sys.executable, str(Path(__file__).with_name("driver.py")), str(folder)]
    with (
        (folder / "errors").open("w+") as errors,
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=errors, start_new_session=True) as first,
    ):
        assert first.stdout is not None
        said = {first.stdout.readline(), first.stdout.readline()}
        assert said == {b"kept\n", b"there\n"}, (folder / "errors").read_text()[-3000:]
        names = set(seen("local", run_id))
        os.killpg(first.pid, signal.SIGKILL)
    wait_until_nothing_is_left("local", run_id, names)
    (kept,) = read_rollouts(folder / "rollouts.jsonl")

    second = subprocess.run([*words, "on"], env=env, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr[-3000:]
    rollouts = list(read_rollouts(folder / "rollouts.jsonl"))
    assert rollouts[0].id == kept.id
    assert sorted(map(phase_of, rollouts)) == sorted(["before", BYSTANDER, *PHASES]), "each is played once"
    assert {rollout.reward for rollout in rollouts} == {1.0}
