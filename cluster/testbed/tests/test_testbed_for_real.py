"""A second test bed beside the first, put through what a machine does to it: kills, leftovers, repeated commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(__file__).parent.parent / "testbed"
CACHED_IMAGES = Path("/var/lib/rayroll-testbed/cache/images")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not CACHED_IMAGES.is_dir(),
    reason="needs root and the image cache of a test bed (cluster/testbed/testbed up)",
)


class SecondBed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"RAYROLL_TESTBED_DIR": f"{folder}/state", "RAYROLL_TESTBED_RUN_DIR": f"{folder}/run"}

    def __call__(self, *words: str) -> str:
        done = subprocess.run([COMMAND, *words], env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def docker(self, *words: str) -> str:
        host = {"DOCKER_HOST": f"unix://{self.folder}/run/docker.sock"}
        done = subprocess.run(["docker", *words], env=self.env | host, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self("status", "--json", "docker"))["docker"]
        return facts

    def processes(self) -> list[str]:
        """Command lines on this machine that name the bed's folder."""
        lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in lines if str(self.folder) in line and "pytest" not in line]

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.folder) in line]


@pytest.fixture(scope="module")
def bed() -> Iterator[SecondBed]:
    with tempfile.TemporaryDirectory(prefix="bed-") as name:  # short: sockets lie in it
        bed = SecondBed(Path(name))
        cache = Path(name, "state", "cache")
        cache.mkdir(parents=True)
        (cache / "images").symlink_to(CACHED_IMAGES)
        try:
            yield bed
        finally:
            bed("down", "--purge")
        assert bed.processes() == []
        assert bed.mounts() == []


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
