"""What people write by hand on a Docker engine: a process per call, or one bash held open. No rayroll in here."""

from __future__ import annotations

import functools
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import docker
from _arms import Arm, Burst, Load, Skipped, thread_burst

__all__ = ["DockerCli", "DockerExec", "HeldShell"]


class _ThreadArm(Arm):
    """A blocking call per step, a thread per environment; in containers that are somebody else's."""

    def __init__(self, containers: list[str]) -> None:
        self._containers = containers
        self._pool = ThreadPoolExecutor(len(containers))
        self._api: Any = None
        self._steps: list[Callable[[str], str]] = []

    async def open(self) -> None:
        # A connection for each thread: docker-py's pool of 10 would let 22 of 32 threads connect anew every time.
        self._api = docker.APIClient(**docker.utils.kwargs_from_env(), max_pool_size=len(self._containers) + 1)
        self._steps = [self._step_in(container) for container in self._containers]

    def _step_in(self, container: str) -> Callable[[str], str]:
        raise NotImplementedError

    async def burst(self, load: Load) -> Burst:
        return await thread_burst(load, self._pool, self._steps)

    async def close(self) -> None:
        self._pool.shutdown()
        if self._api is not None:
            self._api.close()


class DockerExec(_ThreadArm):
    """docker-py, two calls a step (a third would fetch the exit code)."""

    name = "docker-exec"

    def _step_in(self, container: str) -> Callable[[str], str]:
        return functools.partial(self._step, container)

    def _step(self, container: str, script: str) -> str:
        made = self._api.exec_create(container, ["bash", "-c", script])
        output: bytes = self._api.exec_start(made["Id"])
        return output.decode(errors="replace")  # a peer's damaged answer is counted as a wrong one, and ends nothing


class DockerCli(_ThreadArm):
    """A ``docker exec`` process a step."""

    name = "docker-cli"

    async def open(self) -> None:
        if shutil.which("docker") is None:
            raise Skipped("the docker command is not installed")
        await super().open()

    def _step_in(self, container: str) -> Callable[[str], str]:
        return functools.partial(self._step, container)

    @staticmethod
    def _step(container: str, script: str) -> str:
        done = subprocess.run(
            ["docker", "exec", container, "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


class HeldShell(_ThreadArm):
    """One ``docker exec`` with a bash, kept open; an end marker tells when a command is done and with which code.

    No limits, no kill, no lease, and ``exit`` or an open quote ends it: the fastest that people write by hand, and all
    that it leaves out is what a runner is for.
    """

    name = "held-shell"

    def __init__(self, containers: list[str]) -> None:
        super().__init__(containers)
        self._shells: list[_Shell] = []

    def _step_in(self, container: str) -> Callable[[str], str]:
        made = self._api.exec_create(container, ["bash"], stdin=True)
        shell = _Shell(self._api.exec_start(made["Id"], socket=True))
        self._shells.append(shell)
        return shell.run

    async def close(self) -> None:
        for shell in self._shells:
            shell.close()
        await super().close()


class _Shell:
    """A bash at the other end of a hijacked connection."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # keeps the response, and with it the socket, from being collected
        self._socket: socket.socket = stream._sock
        self._mark = f"done-{secrets.token_hex(8)}:"
        self._end = re.compile(f"{self._mark}(\\d+)\n".encode())
        self._received = bytearray()

    def run(self, script: str) -> str:
        self._socket.sendall(f"{script}\necho {self._mark}$?\n".encode())
        output = bytearray()
        while not (end := self._end.search(output, max(0, len(output) - 65536))):
            output += self._block()
        assert end[1] == b"0", f"exit code {end[1].decode()}"
        return output[: end.start()].decode()

    def _block(self) -> bytes:
        """One block of the engine's multiplexed stream: a head of 8 bytes, the last 4 its length, and the bytes."""
        size = int.from_bytes(self._take(8)[4:])
        return self._take(size)

    def _take(self, n: int) -> bytes:
        while len(self._received) < n:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the shell is gone")
            self._received += data
        taken = bytes(self._received[:n])
        del self._received[:n]
        return taken

    def close(self) -> None:
        self._socket.close()
