"""A host process of its own, which a check can stop or kill: it makes a sandbox, keeps it busy, and says so.

Started by ``other_host``. Standard input: one pickled ``Order``. Standard output: one line of JSON once the sandbox is
at work, with what names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from rayroll.substrates import SandboxSpec, Substrate, SubstrateConfig
from rayroll.testing.conformance._registry import Broken
from rayroll.testing.sandboxes import Live, open_sandbox

__all__ = ["OtherHost", "other_host"]

Work = Literal["idle", "flood", "download", "create"]
"""What the sandbox does meanwhile: a silent job; endless output; a file on its way to the host; ``create``: nothing is
waited for, the host is at creating sandboxes."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the other host is to do."""

    substrate: type[Substrate]
    config: SubstrateConfig
    spec: SandboxSpec
    run_id: str
    lease_s: float
    work: Work
    mark: str


@dataclass(slots=True)
class OtherHost:
    """A running host."""

    process: asyncio.subprocess.Process

    def stop(self) -> None:
        """SIGSTOP: it neither reads nor renews, and is not gone either. ProcessLookupError if it is gone."""
        self.process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        """SIGKILL: no hook of it runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def other_host(
    substrate: Substrate, spec: SandboxSpec, *, run_id: str, lease_s: float, work: Work, mark: str
) -> AsyncIterator[OtherHost]:
    """Start a host whose sandbox is at work when this returns; it is killed at the end."""
    order = Order(type(substrate), substrate.config, spec, run_id, lease_s, work, mark)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"from {__name__} import main; main()",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdin is not None and process.stdout is not None
    host = OtherHost(process)
    try:
        process.stdin.write(pickle.dumps(order))
        process.stdin.close()
        line = await process.stdout.readline()
        if not line:
            raise Broken("a second host can start a sandbox", exit_code=await process.wait())
        yield host
    finally:
        await host.kill()


async def _serve(order: Order) -> None:
    async with order.substrate(order.config) as substrate:
        if order.work == "create":
            print(json.dumps({"at": "creating"}), flush=True)  # noqa: T201 - the pipe to the check
            while True:
                creating = [
                    open_sandbox(substrate, order.spec, run_id=order.run_id, owner="killed", lease_s=order.lease_s)
                    for _ in range(2)
                ]
                await asyncio.gather(*(c.__aenter__() for c in creating))
                await asyncio.gather(*(c.__aexit__(None, None, None) for c in creating))
        async with open_sandbox(
            substrate, order.spec, run_id=order.run_id, owner="killed", lease_s=order.lease_s
        ) as live:
            job = await live.sh(f"sleep {order.mark} >/dev/null 2>&1 &")
            assert job.exit_code == 0, job
            work = asyncio.create_task(_work(order, live))
            print(json.dumps({"id": live.ref.id}), flush=True)  # noqa: T201
            await work


async def _work(order: Order, live: Live) -> None:
    match order.work:
        case "flood":
            await live.sh("yes", timeout_s=None, output_cap_bytes=8 << 20)
        case "download":
            await live.sh("head -c 67108864 /dev/zero > big", cwd=live.folder)
            while True:
                await live.client.read_file(live.path("big"))
        case _:
            await asyncio.sleep(3600)


def main() -> None:
    """The other process."""
    asyncio.run(_serve(pickle.load(sys.stdin.buffer)))
