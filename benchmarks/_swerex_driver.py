"""Runs in SWE-ReX's virtual environment: its servers on loopback, driven by its own client; a JSON line in, one out.

Standard library and SWE-ReX only. The servers are plain processes of this machine, not in containers: it flatters them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

START_TIMEOUT_S = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Servers:
    """A server and its client for each environment."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []
        self.clients: list[RemoteRuntime] = []

    async def start(self, envs: int) -> None:
        program = Path(sys.executable).with_name("swerex-remote")
        for _ in range(envs):
            port, token = free_port(), secrets.token_hex(16)
            argv = [str(program), "--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self._processes.append(await asyncio.create_subprocess_exec(*argv, **quiet))
            client = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
            client.logger.setLevel("ERROR")
            self.clients.append(client)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for client in self.clients:
            await client.wait_until_alive(timeout=deadline_s - time.monotonic())
            await client.create_session(CreateBashSessionRequest(startup_timeout=60.0))  # 1 s by default

    async def stop(self) -> None:
        # Their bashes hang on terminals that end with them.
        for process in self._processes:
            process.kill()
        for process in self._processes:
            await process.wait()


async def run(client: RemoteRuntime, call: str, script: str) -> str:
    if call == "execute":
        done = await client.execute(Command(command=["bash", "-c", script], check=False))
        return str(done.stdout)
    observation = await client.run_in_session(BashAction(command=script, check="silent"))
    return str(observation.output)


async def burst(servers: Servers, order: dict[str, Any]) -> dict[str, Any]:
    latencies_s: list[float] = []
    wrong: list[str] = []
    start_s = time.perf_counter()

    async def play(client: RemoteRuntime, echoes: list[tuple[str, str]]) -> int:
        checked = 0
        for script, expected in echoes:
            sent_s = time.perf_counter()
            output = await run(client, order["call"], script)
            done_s = time.perf_counter()
            # A session's output comes with line ends of its terminal around it.
            if output.strip() != expected.strip():
                wrong.append(f"{script!r} printed {output[:80]!r}")
            checked += 1
            latencies_s.append(done_s - sent_s)
            if done_s - start_s > order["budget_s"]:
                break
        return checked

    pairs = zip(servers.clients, order["echoes"], strict=True)
    checked = await asyncio.gather(*(play(client, echoes) for client, echoes in pairs))
    wall_s = time.perf_counter() - start_s
    return {"wall_s": wall_s, "latencies_s": latencies_s, "checked": sum(checked), "wrong": wrong}


async def main() -> None:
    servers = Servers()
    loop = asyncio.get_running_loop()
    # What SWE-ReX prints must not come between our lines.
    answers, sys.stdout = sys.stdout, sys.stderr
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            try:
                if "envs" in order:
                    await servers.start(order["envs"])
                    answer: dict[str, Any] = {"started": order["envs"]}
                else:
                    answer = await burst(servers, order)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        await servers.stop()


asyncio.run(main())
