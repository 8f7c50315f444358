"""A host with a slow and lossy network between it and its sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import little
import pytest
from nodes import Wire, opened_wire
from requirements import check, use_testbed

use_testbed()
ROUND_TRIP_S = 0.2
LOSS = 0.05
ACTIONS = 12
FAR_HOST = Path(__file__).with_name("far_host.py")


async def relay(stack: AsyncExitStack, address: str, target: str) -> str:
    """For what listens on loopback only: ``host:port``, at an address of the wire, that leads to ``target``."""
    host, _, port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(serve, address)
    stack.callback(server.close)
    return f"{address}:{server.sockets[0].getsockname()[1]}"


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def config_of(kind: str, stack: AsyncExitStack, address: str) -> dict[str, Any]:
    """How a host that is not on this machine reaches the test bed's."""
    match kind:
        case "docker":
            tcp = os.environ["RAYROLL_TESTBED_DOCKER_TCP"].removeprefix("tcp://")
            return {"host": f"tcp://{await relay(stack, address, tcp)}"}
        case "opensandbox":
            domain = await relay(stack, address, os.environ["OPEN_SANDBOX_DOMAIN"])
            return {"domain": domain, "use_server_proxy": True, "network": "open"}
        case "ec2":
            endpoint = os.environ["AWS_ENDPOINT_URL_EC2"].removeprefix("http://")
            debian = "resolve:ssm:/aws/service/debian/release/12/latest/amd64"
            url = f"http://{await relay(stack, address, endpoint)}"
            return {"endpoint_url": url, "images": {little.IMAGE: debian}, "poll_s": 0.1}
        case "kubernetes":
            return {}  # its API is at an address that the wire leads to
    raise AssertionError(kind)


async def seen_from(wire: Wire, kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a host on the other side of the wire saw."""
    words = ("nsenter", f"--net={wire.namespaces[1]}", sys.executable, str(FAR_HOST), kind, json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        *words, str(ACTIONS), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await process.communicate()
    assert process.returncode == 0, said.decode()[-3000:]
    seen: dict[str, Any] = json.loads(out)
    return seen


@pytest.mark.parametrize("kind", ["docker", "ec2", "kubernetes", "opensandbox"])
async def test_a_slow_and_lossy_network_changes_latency_and_no_result(kind: str) -> None:
    check(kind)
    async with AsyncExitStack() as stack:
        wire = stack.enter_context(opened_wire(1))
        config = await config_of(kind, stack, wire.addresses[0])
        near = await seen_from(wire, kind, config)
        wire.set(1, delay_s=ROUND_TRIP_S / 2, loss=LOSS)
        far = await seen_from(wire, kind, config)
    assert far["work"] == near["work"] and near["work"][-1] == 1.0
    assert min(far["transport_s"]) >= ROUND_TRIP_S > statistics.median(near["transport_s"])
    assert statistics.median(far["run_s"]) < ROUND_TRIP_S, "what the network takes is not the command's"
