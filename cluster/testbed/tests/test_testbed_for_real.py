"""A second test bed beside the first, put through what a machine does to it: kills, leftovers, repeated commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bed.daemon import within
from second_bed import CACHE, SecondBed, second_bed

CACHED_SERVER = CACHE / "opensandbox"
CACHED_EC2 = CACHE / "ec2"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (CACHE / "images").is_dir(),
    reason="needs root and the image cache of a test bed (cluster/testbed/testbed up)",
)


@pytest.fixture(scope="module")
def bed() -> Iterator[SecondBed]:
    with second_bed("images", *(folder.name for folder in (CACHED_SERVER, CACHED_EC2) if folder.is_dir())) as bed:
        yield bed


def test_a_second_up_changes_nothing(bed: SecondBed):
    bed("up", "docker")
    before = bed.facts()["pids"]
    bed("up", "docker")
    assert bed.facts()["pids"] == before


def test_limits_and_no_network_hold(bed: SecondBed):
    bed("up", "docker")
    limits = ["--network", "none", "--memory", "64m", "--pids-limit", "16"]
    shown = "tail /dev/zero > /dev/null; echo $?; ls /sys/class/net; (for i in $(seq 20); do sleep 1 & done) 2>&1; :"
    answer = bed.docker("run", "--rm", *limits, "busybox", "sh", "-c", shown).split("\n")
    assert answer[:2] == ["137", "lo"]
    assert "can't fork" in answer[2]


def test_a_build_reaches_the_package_registries(bed: SecondBed):
    bed("up", "docker")
    dockerfile = bed.folder / "Dockerfile"
    dockerfile.write_text("FROM python:3.11-slim\nRUN pip install six && apt-get update\n")
    bed.docker("build", "--quiet", "--tag", "built", "--file", str(dockerfile), str(bed.folder / "run"))
    assert bed.docker("run", "--rm", "built", "python", "-c", "import six; print(six.__name__)") == "six"


@pytest.mark.parametrize("killed", [["dockerd"], ["containerd"], ["dockerd", "containerd"]])
def test_up_recovers_from_killed_daemons(bed: SecondBed, killed: list[str]):
    bed("up", "docker")
    bed.docker("run", "--detach", "--rm", "--stop-timeout", "1", "busybox", "sleep", "3600")
    pids = bed.facts()["pids"]
    for name in killed:
        os.kill(pids[name], signal.SIGKILL)
    bed("up", "docker")
    assert bed.docker("run", "--rm", "busybox", "echo", "alive") == "alive"


def hosted(bed: SecondBed, path: str, body: dict[str, Any] | None = None) -> Any:
    """One call to the bed's OpenSandbox server."""
    variables = dict(line.removeprefix("export ").split("=", 1) for line in bed("env").splitlines())
    request = urllib.request.Request(
        f"http://{variables['OPEN_SANDBOX_DOMAIN']}/v1/{path}",
        data=json.dumps(body).encode() if body else None,
        headers={"OPEN-SANDBOX-API-KEY": variables["OPEN_SANDBOX_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


@pytest.mark.skipif(not CACHED_SERVER.is_dir(), reason="needs the cache of cluster/testbed/testbed up opensandbox")
def test_the_hosted_server_comes_back_and_down_ends_its_sandboxes_and_no_others(bed: SecondBed):
    bed("up", "opensandbox")
    limits = {"cpu": "500m", "memory": "64Mi"}
    image = {"uri": "busybox:latest"}
    made = hosted(bed, "sandboxes", {"image": image, "entrypoint": ["sleep", "600"], "resourceLimits": limits})
    other = bed.docker("run", "--detach", "--rm", "busybox", "sleep", "600")
    server = json.loads(bed("status", "--json", "opensandbox"))["opensandbox"]["pids"]["opensandbox-server"]
    os.kill(server, signal.SIGKILL)
    bed("up", "opensandbox")
    assert [item["id"] for item in hosted(bed, "sandboxes")["items"]] == [made["id"]]
    bed("down", "opensandbox")
    left = bed.docker("ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Image}} {{.Labels}}")
    assert other in left and "opensandbox" not in left and "execd" not in left
    bed.docker("kill", other)


@pytest.mark.skipif(not CACHED_EC2.is_dir(), reason="needs the cache of cluster/testbed/testbed up ec2")
def test_an_instance_is_a_machine_that_runs_its_user_data_and_may_switch_itself_off(bed: SecondBed):
    boto3 = pytest.importorskip("boto3")
    bed("up", "ec2")
    ec2 = boto3.client(
        "ec2",
        endpoint_url=bed.facts("ec2")["endpoint"],
        region_name="eu-central-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
    debian = "resolve:ssm:/aws/service/debian/release/12/latest/amd64"

    def launch(script: str, then: str) -> dict[str, Any]:
        options = {"UserData": f"#!/bin/sh\n{script}\n", "InstanceInitiatedShutdownBehavior": then, "ImageId": debian}
        made = ec2.run_instances(MinCount=1, MaxCount=1, InstanceType="t3.micro", **options)["Instances"][0]
        assert made["State"]["Name"] == "pending"
        return {"InstanceIds": [made["InstanceId"]]}

    def state(machine: dict[str, Any]) -> Any:
        return ec2.describe_instances(**machine)["Reservations"][0]["Instances"][0]

    lives, stops, ends = launch("touch /ran", "stop"), launch("poweroff", "stop"), launch("poweroff", "terminate")
    assert within(30, lambda: state(stops)["State"]["Name"] == "stopped")
    assert within(30, lambda: state(ends)["State"]["Name"] == "terminated")
    assert within(30, lambda: state(lives)["State"]["Name"] == "running")
    with socket.create_connection((state(lives)["PrivateIpAddress"], 22), timeout=10) as sshd:
        assert sshd.recv(4) == b"SSH-"
    bed.docker("exec", f"ec2-{lives['InstanceIds'][0]}", "test", "-e", "/ran")
    ec2.terminate_instances(**stops)
    other = bed.docker("run", "--detach", "--rm", "busybox", "sleep", "600")
    bed("down", "ec2")
    assert bed.docker("ps", "--all", "--quiet", "--no-trunc") == other
    bed.docker("kill", other)


def test_down_leaves_no_process_no_mount_and_no_bridge(bed: SecondBed):
    bed("up", "docker")
    bed.docker("network", "create", "left-behind")
    bed.docker("run", "--detach", "--network", "left-behind", "busybox", "sleep", "3600")
    bridges = {path.name for path in Path("/sys/class/net").iterdir()}
    device = bed.facts()["bridge"].split()[0]
    bed("down")
    gone = bridges - {path.name for path in Path("/sys/class/net").iterdir()}
    assert device in gone and any(name.startswith("br-") for name in gone)
    assert bed.processes() == []
    assert bed.mounts() == []


def test_down_ends_containers_whose_engine_was_killed_and_whose_state_is_gone(bed: SecondBed):
    bed("up", "docker")
    bed.docker("run", "--detach", "busybox", "sleep", "3600")
    pids = bed.facts()["pids"]
    for name in ("dockerd", "containerd"):
        os.kill(pids[name], signal.SIGKILL)
    subprocess.run(["rm", "-rf", f"{bed.folder}/run"], stderr=subprocess.DEVNULL, check=False)  # mounts resist
    bed("down")
    assert bed.processes() == []
    assert bed.mounts() == []
