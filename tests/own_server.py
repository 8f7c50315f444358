"""A server of a test's own, to be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import little

PATIENCE_S = 60.0


class OwnServer:
    """One; ``kill`` and ``start`` it as often as you like.

    Args:
        argv: The program, which listens where ``health`` is.
        env: Variables beside those of this process.
        log: File that gets what it prints.
        health: A URL that it answers well once it works.
    """

    def __init__(self, argv: Sequence[str | Path], env: Mapping[str, str], log: Path, health: str) -> None:
        self._argv, self._env, self._log, self._health = argv, {**os.environ, **env}, log, health
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it answers."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        await little.until_true(self._answers, within_s=PATIENCE_S)

    async def _answers(self) -> bool:
        assert self._process is not None and self._process.returncode is None, self.log()
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(self._health)).is_success
        return False

    def hold(self) -> None:
        """From now on it answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        """At once, whatever it is doing."""
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def log(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-4000:]


def free_port() -> int:
    """Of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
