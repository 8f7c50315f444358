"""The benchmarks run, check what commands print, and end with the one line that others read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from requirements import check, use_testbed

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def last_line(script: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark's smoke mode; its last line, parsed."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--smoke", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "RAY_DEDUP_LOGS": "0"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def names(line: dict[str, Any]) -> set[str]:
    """Arms that were measured, having checked the output of every step."""
    for path in line["paths"]:
        assert path["checked"] == path["steps"] > 0, path
        assert 0 < path["p50_ms"] <= path["p95_ms"] <= path["p99_ms"]
        assert path["steps_per_s"] > 0
        assert 0 < path["rollout_share"] < 1
    return {path["name"] for path in line["paths"]}


def test_a_step_is_measured_and_checked_on_local_sandboxes() -> None:
    check("local")
    line = last_line("step_overhead.py", "--substrates", "local", "--baselines", "docker-exec")
    assert names(line) == {"runner-local", "rayroll-local"}
    assert {path["output_bytes"] for path in line["paths"]} == {0, 65536}
    assert 0 < line["floor_ms"]["p50"] <= line["floor_ms"]["p95"]
    assert "runner-docker" in line["skipped"]["docker-exec"]  # said, not silent
    assert line["machine"]["kernel"] and line["machine"]["commit"]


def test_every_way_through_docker_is_measured_and_checked() -> None:
    use_testbed()
    check("docker")
    ways = "docker-exec,docker-cli,held-shell"
    line = last_line("step_overhead.py", "--substrates", "docker", "--baselines", ways, "--envs", "2")
    assert names(line) == {"runner-docker", "rayroll-docker", *ways.split(",")}
    assert {path["envs"] for path in line["paths"]} == {2}
    assert line["skipped"] == {}
    assert line["machine"]["docker"]["engine"]


def test_one_host_and_an_actor_per_env_are_measured_and_checked() -> None:
    check("local")
    line = last_line("host_scale.py")
    for figure in (line, line["actor_per_env"], line["actor_per_env_line"]):
        assert figure["envs"] > 0 and figure["checked"] > 0
        assert figure["create_s"] > 0 and figure["rss_mb"] > 0 and figure["steps_per_s"] > 0
    assert line["real"]["checked"] > 0
    assert 0 <= line["real"]["loop_lag_p50_ms"] <= line["real"]["loop_lag_p99_ms"]


@pytest.mark.parametrize("script", ["step_overhead.py", "host_scale.py"])
def test_a_wrong_option_is_refused_with_what_is_known(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--substrates", "dokcer"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "dokcer" in done.stderr
