"""What people write by hand for a machine that SSH leads to: one connection, and a command of its own for each step."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _arms import Arm, Burst, Load, Skipped, async_burst, thread_burst
from _rayroll_arms import RunnerArm

from rayroll.substrates._ssh import SshHost, dial
from rayroll.substrates.ec2 import Ec2Substrate

__all__ = ["SshCli", "SshExec"]


async def hosts_of(machines: RunnerArm) -> list[SshHost]:
    """The machines of the arm that is compared with, and their keys. Raises Skipped: it is of another substrate."""
    substrate = machines._client.substrate
    if not isinstance(substrate, Ec2Substrate):
        raise Skipped("it runs in the machines of runner-ec2; add ec2 to --substrates")
    return [substrate._hosts[id] for id in await machines.sandbox_ids()]


class SshExec(Arm):
    """asyncssh, one open connection to each machine; for each step sshd starts root's shell, which is bash.

    Beside the machines' runners, outside of their namespaces; nothing is carried, limited or killed.
    """

    name = "ssh-exec"

    def __init__(self, machines: RunnerArm) -> None:
        self._machines = machines
        self._connections: list[Any] = []
        self._steps: list[Callable[[str], Awaitable[str]]] = []

    async def open(self) -> None:
        self._connections = [await dial(host, timeout_s=10.0) for host in await hosts_of(self._machines)]
        self._steps = [functools.partial(self._step, connection) for connection in self._connections]

    @staticmethod
    async def _step(connection: Any, script: str) -> str:
        return str((await connection.run(script, check=True)).stdout)

    async def burst(self, load: Load) -> Burst:
        return await async_burst(load, self._steps)

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
            await connection.wait_closed()
        self._connections.clear()


class SshCli(Arm):
    """OpenSSH's own ``ssh`` for each step, over a connection that another one keeps open (``ControlMaster``)."""

    name = "ssh-cli"

    def __init__(self, machines: RunnerArm) -> None:
        self._machines = machines
        self._folder = tempfile.TemporaryDirectory(prefix="ssh-")  # short: sockets lie in it
        self._pool = ThreadPoolExecutor(1)
        self._commands: list[list[str]] = []

    async def open(self) -> None:
        if shutil.which("ssh") is None:
            raise Skipped("the ssh command is not installed")
        hosts = await hosts_of(self._machines)
        self._pool = ThreadPoolExecutor(len(hosts))
        self._commands = [self._command(Path(self._folder.name), host) for host in hosts]
        self._each("-M", "-N", "-f")

    def _each(self, *options: str) -> None:
        """Speak to what holds each machine's connection. In no hurry."""
        for command in self._commands:
            words = [*command[:-1], *options, command[-1]]
            subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    @staticmethod
    def _command(folder: Path, host: SshHost) -> list[str]:
        key, known = folder / f"{host.address}.key", folder / f"{host.address}.known"
        key.touch(0o600)
        key.write_bytes(host.keys.client.export_private_key())
        known.write_text(f"{host.address} {host.keys.host.export_public_key().decode()}")
        options = {
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": known,
            "ControlPath": folder / host.address,
            "LogLevel": "ERROR",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", "-i", str(key), *words, f"root@{host.address}"]

    @staticmethod
    def _step(command: list[str], script: str) -> str:
        done = subprocess.run([*command, script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        return done.stdout

    async def burst(self, load: Load) -> Burst:
        steps = [functools.partial(self._step, command) for command in self._commands]
        return await thread_burst(load, self._pool, steps)

    async def close(self) -> None:
        self._each("-O", "exit")
        self._commands.clear()
        self._pool.shutdown()
        self._folder.cleanup()
