"""An OpenSandbox server of a test's own, to be killed: the test bed's program and engine, but none of its sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import little
from hiding_engine import hiding_engine
from requirements import TESTBED_ENV, check, miss, require

from rayroll.substrates import _endpoint as endpoints

PORTS = (18000, 19999)
"""Where its sandboxes are published: beside the test bed's own, and below what the kernel takes outgoing ports from."""
PORT_LABEL = "opensandbox.io/embedding-proxy-port"
PROGRAM = "cache/opensandbox/venv/bin/opensandbox-python"
PATIENCE_S = 60.0


class Server:
    """One; ``kill`` and ``start`` it as often as you like."""

    def __init__(self, folder: Path, program: Path, config: dict[str, Any], engine: str) -> None:
        self.domain = f"127.0.0.1:{config['server']['port']}"
        self._folder = folder
        self._argv = [str(program), "-m", "opensandbox_server.cli", "--config", str(folder / "server.toml")]
        self._env = {**os.environ, "DOCKER_HOST": engine, "HOME": str(folder)}
        self._process: asyncio.subprocess.Process | None = None
        tables = {
            name: "\n".join(f"{key} = {json.dumps(value)}" for key, value in of.items()) for name, of in config.items()
        }
        (folder / "server.toml").write_text("\n".join(f"[{name}]\n{text}" for name, text in tables.items()))

    async def start(self) -> None:
        """Returns when it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        await little.until_true(self._answers, within_s=PATIENCE_S)

    async def _answers(self) -> bool:
        assert self._process is not None and self._process.returncode is None, self.log()
        with contextlib.suppress(httpx.TransportError):
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"http://{self.domain}/health")).status_code == 200
        return False

    async def kill(self) -> None:
        """At once, whatever it is doing."""
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def log(self) -> str:
        """The end of what it printed."""
        return (self._folder / "server.log").read_text(errors="replace")[-4000:]


@asynccontextmanager
async def own_server(folder: Path) -> AsyncIterator[Server]:
    """It runs; skips where the test bed has none that it could be like."""
    check("opensandbox")
    check("docker")
    program = Path(os.environ.get("RAYROLL_TESTBED_DIR", "/var/lib/rayroll-testbed"), PROGRAM)
    config, real = _config_of_the_bed(program), endpoints.find(None).url
    require("opensandbox-server", None if real.startswith("unix://") else "its engine is on another machine")
    config["server"] |= {"port": _free_port(), "api_key": os.environ["OPEN_SANDBOX_API_KEY"]}
    config["store"]["path"] = str(folder / "server.db")
    config["docker"] |= {"port_range_min": PORTS[0], "port_range_max": PORTS[1]}

    # A server takes every sandbox on its engine for its own, and ends what it thinks has run out.
    def is_anothers(container: dict[str, Any]) -> bool:
        return not PORTS[0] <= int(container["Labels"].get(PORT_LABEL, PORTS[0])) <= PORTS[1]

    async with hiding_engine(Path(real.removeprefix("unix://")), folder, "containers", is_anothers) as engine:
        server = Server(folder, program, config, engine)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()


def _config_of_the_bed(program: Path) -> dict[str, Any]:
    file = TESTBED_ENV.with_name("opensandbox.toml")
    if not (file.exists() and program.exists()):
        miss("opensandbox-server", "it is not the test bed's; fix: cluster/testbed/testbed up opensandbox")
    return tomllib.loads(file.read_text())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
