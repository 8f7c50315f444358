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

from rayroll.traces.predict.examples import sessions_in

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def last_line(script: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark's smoke mode; its last line, parsed."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--smoke", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"RAY_DEDUP_LOGS": "0"},
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


def test_hosted_sandboxes_and_their_sdk_are_measured_and_checked() -> None:
    check("opensandbox")
    line = last_line("step_overhead.py", "--substrates", "opensandbox", "--envs", "2")
    assert names(line) == {"runner-opensandbox", "rayroll-opensandbox", "opensandbox-sdk"}
    assert line["floors_ms"]["host"]["p50"] > 0 and line["skipped"] == {}


def test_steps_in_virtual_machines_are_measured_and_checked() -> None:
    check("qemu")
    line = last_line("step_overhead.py", "--substrates", "qemu", "--output-bytes", "0")
    assert names(line) == {"runner-qemu", "rayroll-qemu"}


def test_steps_in_pods_are_measured_and_checked_by_the_carrier_that_is_asked_for() -> None:
    check("kubernetes")
    carrier = ("--set", "kubernetes.carrier=address")
    line = last_line("step_overhead.py", "--substrates", "kubernetes", "--output-bytes", "0", *carrier)
    assert names(line) == {"runner-kubernetes", "rayroll-kubernetes", "pod-exec"}
    assert line["machine"]["kubernetes"]["carrier"] == "address"


def test_steps_in_cloud_machines_are_measured_and_checked() -> None:
    check("ec2")
    line = last_line("step_overhead.py", "--substrates", "ec2", "--output-bytes", "0")
    assert names(line) == {"runner-ec2", "rayroll-ec2", "ssh-exec", "ssh-cli"}


LADDERS = {
    "local": ["cached", "warm", "recycled", "cold"],
    "docker": ["cached", "warm", "recycled", "cold"],
    "qemu": ["cached", "snapshot", "warm", "cold"],
    "opensandbox": ["cached", "warm", "cold"],
    "kubernetes": ["cached", "warm", "recycled", "cold"],
    "ec2": ["cached", "warm", "recycled", "warm"],
}


@pytest.mark.parametrize("kinds", ["local,docker", "qemu,opensandbox", "kubernetes,ec2"])
def test_every_rung_of_every_ladder_is_reached(kinds: str) -> None:
    use_testbed()
    for kind in kinds.split(","):
        check(kind)
    line = last_line("cold_start.py", "--substrates", kinds)
    assert line["skipped"] == {}
    for kind in kinds.split(","):
        rows = [row for row in line["starts"] if row["substrate"] == kind and not row["skipped"]]
        assert [row["rung"] for row in rows] == LADDERS[kind]
        for row in rows:
            # An OpenSandbox server does not say whether it had to pull, and does it as part of a create. Of a pod that
            # was up within a second nobody asks.
            may_be_silent = row["rung"] == "cold" and kind in ("opensandbox", "kubernetes")
            assert row["failures"] == {}
            assert set(row["says"]) <= {row["rung"], *(["cached"] if may_be_silent else [])}
            assert 0 < row["cold_start_s"]["p50"] < row["first_action_s"]["p50"]
            assert row["fetch_s"]["p50"] > 0 or row["rung"] != "cold" or may_be_silent


def test_one_host_and_an_actor_per_env_are_measured_and_checked() -> None:
    check("local")
    line = last_line("host_scale.py")
    for figure in (line, line["actor_per_env"], line["actor_per_env_line"]):
        assert figure["envs"] > 0 and figure["checked"] > 0
        assert figure["create_s"] > 0 and figure["rss_mb"] > 0 and figure["steps_per_s"] > 0
    assert line["real"]["checked"] > 0
    assert 0 <= line["real"]["loop_lag_p50_ms"] <= line["real"]["loop_lag_p99_ms"]


def test_traces_are_read_stored_and_asked() -> None:
    line = last_line("trace_ingest.py")
    assert [part["rows"] for part in line["ingest"]] == [133, 266]
    assert min(line["raw_mb_per_s"], line["raw_rss_mb"], line["report_s"]) > 0
    assert line["store"]["steps"] > 0 and line["store"]["statistics"] > 40


def test_calls_are_predicted_better_than_by_their_tool() -> None:
    line = last_line("predict.py")
    assert line["gain_vs_tool"] > 0.15
    assert set(line["splits"]) == {"session", "time", "task", "repository", "made up"}
    assert line["keys"] > 0 and line["load_ms"] > 0 and line["answer_us"] > 0


def test_commands_are_recorded(tmp_path: Path) -> None:
    out = tmp_path / "commands.jsonl.zst"
    assert last_line("record_commands.py", "--out", str(out))["sessions"] == 1
    [session] = sessions_in(out)
    assert session.calls and all(timed.call.input for timed in session.calls)


def test_the_scheduler_settles_every_rollout_and_its_policies_are_compared() -> None:
    line = last_line("scheduler_scale.py")
    assert (line["slots"], line["rollouts"]) == (500, 4_000)
    assert line["wall_s"] > 0
    assert line["reached"] > 4_000 * 2 * line["turns"]
    compared: dict[str, set[str]] = {compares: set() for compares in ("starts", "pool", "spares")}
    for cell in line["policies"]:
        assert cell["start_p50_s"] > 0 or cell["hit_rate"] > 0.5, cell
        assert 0 < cell["wait_p50_s"] <= cell["wait_p95_s"] < cell["makespan_s"]
        compared[cell["compares"]].add(cell["policy"])
    assert {"adaptive", "fixed 1", "fixed 64"} < compared["starts"]
    assert "no pool" in compared["pool"] and len(compared["pool"]) > 1
    assert compared["spares"] == {"never", "start", "group"}
    # Which policy wins is the full run's to say; that an unlimited start storm is none is not a matter of size.
    assert max(line["adaptive_over_best_fixed"].values()) < 1.5


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


def test_many_environments_as_one_are_measured_beside_gymnasiums_own_way() -> None:
    use_testbed()
    check("docker")
    line = last_line("vector.py")
    assert line["rayroll_steps_per_s"] > 0 < line["async_vector_steps_per_s"]
    assert len(line["rounds"]) == len(line["single_ms"]) == 2
    assert isinstance(line["added_ms"], float)


def test_starts_at_once_are_measured_with_every_limit() -> None:
    use_testbed()
    check("docker")
    line = last_line("starts.py")
    assert {arm["name"] for arm in line["arms"]} == {"adaptive", "fixed 2"}
    assert line["failures"] == 0 and line["adaptive_s"] > 0


def test_a_run_under_random_faults_leaks_loses_and_invents_nothing() -> None:
    check("local")
    line = last_line("soak.py")
    assert (line["leaks"], line["lost"], line["invented"]) == (0, 0, 0)
    for run in line["runs"].values():
        assert run["faults"]["host-killed"] >= 1 and run["error"] == ""


def test_two_hosts_hold_their_sandboxes_at_the_same_time() -> None:
    use_testbed()
    check("docker")
    line = last_line("crowd.py", "--substrates", "local,docker", "--set", "local.rootfs=host", "--gate")
    assert [(host["substrate"], host["finished"]) for host in line["hosts"]] == [("local", 4), ("docker", 4)]
    assert all(gate["passed"] for gate in line["gates"])
