"""Thousands of commands: no descriptor, no process and no memory more than at the beginning."""

from __future__ import annotations

import asyncio
import os

import pytest
from requirements import require
from runner.live import children, sandbox, until

pytestmark = pytest.mark.usefixtures("namespaces")

MANY = int(os.environ.get("RAYROLL_MANY", "2000"))


@pytest.fixture(autouse=True)
def may_look() -> None:
    require("root", None if os.geteuid() == 0 else "only root may look at the runner's descriptors")


async def test_two_thousand_commands_leave_nothing(shell: str) -> None:
    async with sandbox(shell=shell) as box:

        async def some() -> None:
            await box.sh("export A=$((A + 1)); cd /tmp")
            await box.sh("exit 3", carry=False)
            await asyncio.gather(*(box.sh(f"echo {i}") for i in range(4)))
            await box.sh("sleep 0.01 & kill -9 $$")
            await box.client.write_file("/tmp/f", b"x" * 1000)
            assert await box.client.read_file("/tmp/f") == b"x" * 1000

        for _ in range(5):
            await some()
        await until(lambda: len(children(box.pid)) <= 2)
        descriptors, resident_kib = box.descriptors(), box.resident_kib()
        for _ in range(MANY // 7 // (1 if shell == "bash" else 4)):
            await some()
        await box.client.close()
        # A second keeper may be free or not; the last job may only just have ended.
        await until(lambda: len(children(box.pid)) <= 2 and len(box.descriptors()) <= len(descriptors) + 1)
        assert box.resident_kib() <= resident_kib + 256


async def test_errors_of_every_kind_leave_nothing() -> None:
    async with sandbox() as box:

        async def fail() -> None:
            options = ({"cwd": "/no"}, {"user": "no-such"}, {"env": {"A": "x" * 131_000}}, {"timeout_s": 0.01})
            await asyncio.gather(*(box.sh("sleep 0.05", **o) for o in options), return_exceptions=True)
            await asyncio.gather(
                box.client.exec(argv=["/no"]), box.client.exec(argv=["x" * 100_000] * 40), return_exceptions=True
            )
            works = (box.client.read_file("/no"), box.client.write_file("/proc/no", b""), box.client.digest("/no"))
            await asyncio.gather(*works, return_exceptions=True)
            call = asyncio.ensure_future(box.sh("sleep 60"))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await box.sh("kill -9 $PPID; sleep 5")

        for _ in range(3):
            await fail()
        before, resident_kib = len(box.descriptors()), box.resident_kib()
        for _ in range(40):
            await fail()
        await until(lambda: len(children(box.pid)) <= 3 and len(box.descriptors()) <= before + 2)
        assert box.resident_kib() <= resident_kib + 256


async def test_sixty_four_mebibytes_each_way_are_moved_in_one_piece() -> None:
    """Throughput is printed, and not a limit: the machine may be busy."""
    data = await asyncio.to_thread(os.urandom, 64 << 20)
    loop = asyncio.get_running_loop()
    async with sandbox() as box:
        start_s = loop.time()
        await box.client.write_file("/tmp/big", data)
        up_s, start_s = loop.time() - start_s, loop.time()
        assert await box.client.read_file("/tmp/big") == data
        down_s, start_s = loop.time() - start_s, loop.time()
        r = await box.sh("cat /tmp/big", output_cap_bytes=1 << 20, timeout_s=100)
        assert r.output_bytes == 64 << 20
        read_s = loop.time() - start_s
    print(f"64 MiB: up {64 / up_s:.0f} MiB/s, down {64 / down_s:.0f} MiB/s, output {64 / read_s:.0f} MiB/s")  # noqa: T201
