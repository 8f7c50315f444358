"""`cluster/check.py` asks every node, and the files beside it are what Ray's own validation takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodes import cheap_nodes
from requirements import check

CLUSTER = Path(__file__).parent.parent.parent / "cluster"


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Ray opens sockets and threads of this process as it likes."""


def asked(address: str, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RAY_ADDRESS": address}
    return subprocess.run(
        [sys.executable, CLUSTER / "check.py", *words], capture_output=True, text=True, check=False, env=env
    )


def test_each_node_says_what_it_can_run_and_what_would_fix_the_rest() -> None:
    check("docker")
    nowhere = {"DOCKER_HOST": "unix:///nowhere.sock"}
    with cheap_nodes(2, labels=[{"zone": "a"}, {"zone": "b"}], env=[{}, nowhere]) as cluster:
        done = asked(cluster.address, "--require", "docker", "--json")
        shown = asked(cluster.address, "--require", "nonsense")
    assert done.returncode == 1, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    can = {row["labels"].get("zone", "head"): row["substrates"]["docker"]["ok"] for row in told["nodes"]}
    assert can == {"head": True, "a": True, "b": False}
    (problem,) = told["problems"]
    assert "cannot run docker" in problem and "fix: " in problem
    assert shown.returncode == 1
    assert "zone=b" in shown.stdout and "does not know the substrate 'nonsense'" in shown.stderr


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config, validate_config

    made: dict[str, Any] = prepare_config(config)
    validate_config(made)
    return made


def test_the_aws_cluster_is_one_that_ray_takes_and_its_head_plays_nothing() -> None:
    config = yaml.safe_load((CLUSTER / "aws.yaml").read_text())
    made = prepared(config)
    assert made["available_node_types"]["head"]["resources"]["CPU"] == 0
    assert set(made["available_node_types"]) == {"head", "docker", "kvm"}
    assert not any("pip install 'boto3" in command for command in made["head_setup_commands"]), "only what is asked for"
    with pytest.raises(Exception, match="max_workerz"):
        prepared({**config, "max_workerz": 3})
