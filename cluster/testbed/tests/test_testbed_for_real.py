"""A second test bed beside the first, put through what a machine does to it: kills, leftovers, repeated commands."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from second_bed import CACHE, SecondBed, second_bed

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (CACHE / "images").is_dir(),
    reason="needs root and the image cache of a test bed (cluster/testbed/testbed up)",
)


@pytest.fixture(scope="module")
def bed() -> Iterator[SecondBed]:
    with second_bed("images") as bed:
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
