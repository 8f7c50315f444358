"""Every substrate of this machine keeps its contract; which claims, and why: docs/conformance.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from requirements import check, miss, use_testbed

from rayroll.runner.build import runner_path
from rayroll.substrates import SandboxSpec, load
from rayroll.substrates.docker import DockerConfig
from rayroll.substrates.ec2 import Ec2Config
from rayroll.substrates.kubernetes import KubernetesConfig
from rayroll.substrates.local import LocalConfig
from rayroll.substrates.opensandbox import OpenSandboxConfig
from rayroll.substrates.qemu import QemuConfig
from rayroll.testing import conformance
from rayroll.testing.conformance import Capability
from rayroll.testing.conformance._program import program_path
from rayroll.types import FileTree

ISOLATED = (Capability.REATTACH, Capability.OWN_PIDS, Capability.INTRUDER, Capability.NETWORK)
LIMITED = (*ISOLATED, Capability.PID_LIMIT, Capability.MEMORY_LIMIT)
OTHER_UID = 60888
PYTHONS = ("pythons_input_raises_at_once", "a_timeout_reaches_what_python_started")

use_testbed()

TestLocal = pytest.mark.local(conformance.suite(LocalConfig(), promises=LIMITED if os.geteuid() == 0 else ISOLATED))
TestDocker = pytest.mark.docker(
    conformance.suite(DockerConfig(), promises=(*LIMITED, Capability.USERS, Capability.ADOPT))
)
TestQemu = pytest.mark.qemu(
    conformance.suite(
        QemuConfig(),
        # An emulated CPU takes 100 ms to start bash, and some claims are about half a second.
        spec=SandboxSpec(image="busybox:latest", memory_mib=512, disk_mib=1024),
        promises=(
            *(Capability.REATTACH, Capability.ADOPT, Capability.OWN_PIDS, Capability.OWN_KERNEL, Capability.USERS),
            *(Capability.INTRUDER, Capability.PID_LIMIT, Capability.MEMORY_LIMIT),
        ),
        many=3,
    )
)

# The same runner and the same engine, so only what depends on the image: its shell, its tools, its user, its root.
OF_THE_SHELL = ("commands", "output", "files", "state", "kill", "grading")
OF_THE_USER = ("files", "state", "isolation", "forgery", "sabotage", "grading")
AS_USER = FileTree.from_files({"Dockerfile": "FROM python:3.11-slim\nRUN useradd -m -u 1000 dev\nUSER dev\n"})
TestDockerWithBusybox = pytest.mark.docker(
    conformance.suite(DockerConfig(), spec=SandboxSpec(image="busybox:latest"), only=OF_THE_SHELL, slow=False)
)
TestDockerAsUser = pytest.mark.docker(
    conformance.suite(DockerConfig(), spec=SandboxSpec(environment=AS_USER), only=OF_THE_USER, slow=False)
)
TestDockerReadOnly = pytest.mark.docker(
    conformance.suite(
        DockerConfig(read_only_root=True, tmpfs_mib={"/tmp": 128}),
        only=("files", "sabotage", "forgery", "grading"),
        slow=False,
    )
)
TestDockerWithPython = pytest.mark.docker(
    conformance.suite(DockerConfig(), spec=SandboxSpec(image="python:3.11-slim"), only=PYTHONS, slow=False)
)

# The test bed's cluster enforces no NetworkPolicy. A node that holds many has no CPU for each.
PODS = KubernetesConfig(network="open", request_share=0.1)
TestKubernetes = pytest.mark.kubernetes(
    conformance.suite(
        PODS,
        promises=(
            *(Capability.REATTACH, Capability.ADOPT, Capability.OWN_PIDS, Capability.USERS, Capability.INTRUDER),
            Capability.MEMORY_LIMIT,
        ),
        many=6,
    )
)
TestKubernetesByAddress = pytest.mark.kubernetes(
    conformance.suite(
        PODS.model_copy(update={"carrier": "address"}), only=("life", "output", "reattach", "forgery"), slow=False
    )
)
TestKubernetesWithBusybox = pytest.mark.kubernetes(
    conformance.suite(PODS, spec=SandboxSpec(image="busybox:latest"), only=("commands", "files", "state"), slow=False)
)

# The test bed's server has no egress image, so its sandboxes have a network whether they ask for it or not.
TestOpenSandbox = pytest.mark.opensandbox(
    conformance.suite(
        OpenSandboxConfig(network="open"),
        promises=(Capability.REATTACH, Capability.USERS, Capability.INTRUDER, Capability.MEMORY_LIMIT),
        many=10,
    )
)

TestEc2 = pytest.mark.ec2(
    conformance.suite(
        Ec2Config(poll_s=0.1),
        promises=(
            *(Capability.REATTACH, Capability.OWN_PIDS, Capability.USERS),
            Capability.INTRUDER,
            Capability.NETWORK,
        ),
        many=10,
    )
)


OF_THE_LOOP = ("life", "output", "files", "reattach")


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_substrates_conform_on_uvloop_too(kind: str) -> None:
    """Ray runs a host on it; its transports are no asyncio classes, and close descriptors in ways of their own."""
    check(kind)
    report = uvloop.run(conformance.check(load(kind).config_type(), only=OF_THE_LOOP, many=10, slow=False))
    report.require()
    assert sum(result.outcome == "held" for result in report.results) > 30


@pytest.fixture
def folder_for_anybody() -> Iterator[Path]:
    """A temporary folder that another user owns; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="rr-") as name:
        folder = Path(name)
        os.chown(folder, OTHER_UID, OTHER_UID)
        yield folder


def python_for_anybody() -> tuple[str, dict[str, str]]:
    """An interpreter that another user can execute, with this process's packages, and the environment it needs."""
    env = {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("site-packages")),
        "PATH": os.environ["PATH"],
    }
    env["PYTHONPATH"] += os.pathsep + str(Path(conformance.__file__).parents[3])

    def executes(python: str) -> bool:
        words = [python, "-c", "import rayroll.substrates.local"]
        try:
            subprocess.run(
                words, user=OTHER_UID, group=OTHER_UID, extra_groups=[],
                env=env, cwd="/", capture_output=True, check=True,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    version = f"3.{sys.version_info.minor}"
    pythons = (sys.executable, shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin"))
    python = next((python for python in pythons if python is not None and executes(python)), None)
    if python is None:
        miss("local", f"no Python {version} here that another user can execute; fix: install it in /usr/bin")
    return python, env


@pytest.mark.local
@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user here already")
def test_local_conforms_for_an_ordinary_user(folder_for_anybody: Path) -> None:
    check("local")
    python, env = python_for_anybody()
    for source, place in ((runner_path(), "cache/runner"), (program_path(), "cache/testing")):
        target = folder_for_anybody / place
        target.mkdir(parents=True)
        shutil.copy2(source, target)
    env |= {"RAYROLL_CACHE_DIR": str(folder_for_anybody / "cache"), "TMPDIR": str(folder_for_anybody), "HOME": "/tmp"}
    promised = [f"--promise={capability.name}" for capability in ISOLATED]
    done = subprocess.run(
        [python, "-m", "rayroll.testing.conformance", "local", "--json", "--quick", *promised],
        user=OTHER_UID, group=OTHER_UID, extra_groups=[], env=env, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert {r["name"]: r["reason"] for r in report["results"] if r["outcome"] == "broken"} == {}
    assert sum(r["outcome"] == "held" for r in report["results"]) > 100
