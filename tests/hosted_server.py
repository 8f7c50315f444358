"""An OpenSandbox server of a test's own, to be killed: the test bed's program and engine, but none of its sandboxes."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hiding_engine import hiding_engine
from own_server import OwnServer, free_port
from requirements import TESTBED_ENV, check, miss, require

from rayroll.substrates import _endpoint as endpoints

PORTS = (18000, 19999)
"""Where its sandboxes are published: beside the test bed's own, and below what the kernel takes outgoing ports from."""
PORT_LABEL = "opensandbox.io/embedding-proxy-port"
PROGRAM = "cache/opensandbox/venv/bin/opensandbox-python"


class Server(OwnServer):
    """See ``OwnServer``."""

    def __init__(self, folder: Path, program: Path, config: dict[str, Any], engine: str) -> None:
        self.domain = f"127.0.0.1:{config['server']['port']}"
        settings = folder / "server.toml"
        tables = {
            name: "\n".join(f"{key} = {json.dumps(value)}" for key, value in of.items()) for name, of in config.items()
        }
        settings.write_text("\n".join(f"[{name}]\n{text}" for name, text in tables.items()))
        argv = (program, "-m", "opensandbox_server.cli", "--config", settings)
        env = {"DOCKER_HOST": engine, "HOME": str(folder)}
        super().__init__(argv, env, folder / "server.log", f"http://{self.domain}/health")


@asynccontextmanager
async def own_server(folder: Path) -> AsyncIterator[Server]:
    """It runs; skips where the test bed has none that it could be like."""
    check("opensandbox")
    check("docker")
    program = Path(os.environ.get("RAYROLL_TESTBED_DIR", "/var/lib/rayroll-testbed"), PROGRAM)
    config, real = _config_of_the_bed(program), endpoints.find(None).url
    require("opensandbox-server", None if real.startswith("unix://") else "its engine is on another machine")
    config["server"] |= {"port": free_port(), "api_key": os.environ["OPEN_SANDBOX_API_KEY"]}
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
