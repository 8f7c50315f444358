"""An EC2 stand-in of a test's own, to be killed: the test bed's program and engine, and machines that only it has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
import little
from own_server import OwnServer, free_port
from requirements import check, require

from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates._hosted import FOLDER

LABEL = "rayroll.testbed.ec2"
IMAGE = "rayroll-testbed/machine:latest"
DEBIAN = "resolve:ssm:/aws/service/debian/release/12/latest/amd64"
LANDLORD = Path(__file__).parents[1] / "cluster/testbed/landlord/landlord.py"
PROGRAM = "cache/ec2/venv/bin/ec2-python"


class Ec2(OwnServer):
    """See ``OwnServer``; and its machines, asked of the engine, which knows better than moto."""

    def __init__(self, folder: Path, program: Path, engine: str) -> None:
        port = free_port()
        self.mark = str(folder)
        self.endpoint = f"http://127.0.0.1:{port}"
        self._engine = engine
        argv = (program, LANDLORD, "--docker", engine, "--image", IMAGE, "--mark", self.mark, "--port", str(port))
        env = {"MOTO_ENABLE_AMI_VALIDATION": "true", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true"}
        super().__init__(argv, env, folder / "ec2.log", f"{self.endpoint}/moto-api/config")
        self._address = f"0100007F:{port:04X}"

    @property
    def config(self) -> dict[str, Any]:
        """Of the substrate."""
        return {"endpoint_url": self.endpoint, "images": {little.IMAGE: DEBIAN}, "poll_s": 0.1}

    def is_asked(self) -> bool:
        """Whether the kernel holds a request for it that it has not read."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(words[1] == self._address and not words[4].endswith(":00000000") for words in lines)

    async def machines(self) -> list[str]:
        """Ids of containers, in any state."""
        return [container.id for container in await asyncio.to_thread(self._containers)]

    async def kill_ssh(self) -> int:
        """Of every machine: who listens and who serves a session. Returns how many processes that were."""
        return await asyncio.to_thread(self._kill_ssh)

    async def start_ssh(self) -> None:
        """Of every machine, as its user data did."""
        await asyncio.to_thread(self._start_ssh)

    async def evict_all(self) -> None:
        """Remove the machines."""
        await asyncio.to_thread(lambda: [container.remove(force=True, v=True) for container in self._containers()])

    def _containers(self) -> list[Any]:
        client = docker.DockerClient(self._engine)
        try:
            found: list[Any] = client.containers.list(all=True, filters={"label": f"{LABEL}={self.mark}"})
            return found
        finally:
            client.close()

    def _kill_ssh(self) -> int:
        # All at nearly the same moment: to ask the engine about each takes longer than commands here last.
        ours, killed = {container.id for container in self._containers()}, 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                if (process / "comm").read_text() == "sshd\n":
                    cgroup = (process / "cgroup").read_text()
                    if any(id in cgroup for id in ours):
                        os.kill(int(process.name), signal.SIGKILL)
                        killed += 1
        return killed

    def _start_ssh(self) -> None:
        for container in self._containers():
            with contextlib.suppress(docker.errors.APIError):  # its rollout was over
                container.exec_run(["/usr/sbin/sshd", "-f", f"{FOLDER}/ssh/config"])


@asynccontextmanager
async def own_ec2(folder: Path) -> AsyncIterator[Ec2]:
    """It runs; skips where the test bed has none that it could be like."""
    check("ec2")
    check("docker")
    program, engine = _program_of_the_bed(), endpoints.find(None).url
    require("ec2", None if engine.startswith("unix://") else "its engine is on another machine")
    server = Ec2(folder, program, engine)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
        await server.evict_all()


def _program_of_the_bed() -> Path:
    program = Path(os.environ.get("RAYROLL_TESTBED_DIR", "/var/lib/rayroll-testbed"), PROGRAM)
    is_there = "RAYROLL_TESTBED_EC2" in os.environ and program.exists()
    require("ec2", None if is_there else "it is not the test bed's; fix: cluster/testbed/testbed up ec2")
    return program
