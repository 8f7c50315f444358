"""A second test bed beside the first, in a folder of its own, with the caches of the first."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = Path(__file__).parents[1] / "cluster/testbed/testbed"
CACHE = Path("/var/lib/rayroll-testbed/cache")


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

    def facts(self, part: str = "docker") -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self("status", "--json", part))[part]
        return facts

    def processes(self) -> list[str]:
        """Command lines on this machine that name the bed's folder."""
        lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line for line in lines if str(self.folder) in line and "pytest" not in line]

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.folder) in line]


@contextmanager
def second_bed(*cached: str) -> Iterator[SecondBed]:
    """One to put through anything; nothing of it may be left afterwards.

    Args:
        cached: Names of what is taken from the first one's cache.
    """
    with tempfile.TemporaryDirectory(prefix="bed-") as name:  # short: sockets lie in it
        bed = SecondBed(Path(name))
        cache = Path(name, "state", "cache")
        cache.mkdir(parents=True)
        for entry in cached:
            (cache / entry).symlink_to(CACHE / entry)
        try:
            yield bed
        finally:
            bed("down", "--purge")
        assert bed.processes() == []
        assert bed.mounts() == []
