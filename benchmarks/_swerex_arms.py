"""SWE-ReX, in a virtual environment of its own, driven by its own client in a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _arms import Arm, Burst, Load, Skipped, WrongOutput, next_echo

from rayroll.runner.build import cache_dir

__all__ = ["SweRexServers"]

VERSION = "1.4.0"
PACKAGES = (f"swe-rex=={VERSION}", "aiohttp<4")
"""Its client imports aiohttp, which it does not declare."""
ANSWER_MOST_BYTES = 64 << 20


class SweRexServers(Arm):
    """A server for each environment; ``arms()`` are the two ways to run a command in it."""

    name = "swe-rex servers"

    def __init__(self, envs: int) -> None:
        self._envs = envs
        self._driver: asyncio.subprocess.Process | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()

    def arms(self) -> list[Arm]:
        """``execute`` (a process per call) and ``run_in_session`` (a bash held open by the server)."""
        return [_Call("swe-rex", "execute", self), _Call("swe-rex-session", "run_in_session", self)]

    async def open(self) -> None:
        python = await asyncio.to_thread(_environment)
        self._driver = await asyncio.create_subprocess_exec(
            str(python),
            str(Path(__file__).with_name("_swerex_driver.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            limit=ANSWER_MOST_BYTES,
        )
        try:
            await self.ask({"envs": self._envs})
        except WrongOutput as error:
            raise Skipped(f"its {self._envs} servers could not be started: {str(error).splitlines()[0]}") from None

    async def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Have the driver do something. Raises WrongOutput with what it says went wrong."""
        assert self._driver is not None and self._driver.stdin is not None and self._driver.stdout is not None
        self._driver.stdin.write(json.dumps(order).encode() + b"\n")
        line = await self._driver.stdout.readline()
        if not line:
            code = await self._driver.wait()
            self._stderr.seek(0)
            said = self._stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Skipped(f"the SWE-ReX driver ended with code {code}: {' '.join(said)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WrongOutput(f"SWE-ReX: {answer['error']}")
        return answer

    async def burst(self, load: Load) -> Burst:
        raise NotImplementedError("ask one of arms()")

    async def close(self) -> None:
        if self._driver is not None and self._driver.stdin is not None:
            self._driver.stdin.close()
            await self._driver.wait()
        self._stderr.close()


class _Call(Arm):
    def __init__(self, name: str, call: str, servers: SweRexServers) -> None:
        self.name = name
        self._call = call
        self._servers = servers

    async def open(self) -> None:
        """The servers are there already."""

    async def burst(self, load: Load) -> Burst:
        echoes = [
            [(e.script, e.expected) for e in (next_echo(load.output_bytes) for _ in range(load.steps))]
            for _ in range(self._servers._envs)
        ]
        return Burst(**await self._servers.ask({"call": self._call, "echoes": echoes, "budget_s": load.budget_s}))

    async def close(self) -> None:
        """The servers close themselves."""


def _environment() -> Path:
    """Python of the virtual environment, made once. Blocks. Raises Skipped."""
    folder = cache_dir() / "benchmarks" / f"swe-rex-{VERSION}-py{sys.version_info.major}{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder / "installed"
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            _run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *PACKAGES])
            done.touch()
    return folder / "bin/python"


def _run(argv: list[str]) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip() or result.stdout.strip()).splitlines()[-1:]
        raise Skipped(f"SWE-ReX {VERSION} cannot be installed: {' '.join(argv[-3:])}: {' '.join(last)}")
