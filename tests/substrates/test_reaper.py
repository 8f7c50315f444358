"""A host that is killed at any moment leaves nothing, one lease and a little later."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from requirements import check

from rayroll.substrates import Substrate, load
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._reaper import adopted_name, is_owned, kept_name, kept_until
from rayroll.substrates._reaping import Reaper

LEASE_S = 1.0
PATIENCE_S = 60.0
KINDS = [pytest.param("local", marks=pytest.mark.local), pytest.param("docker", marks=pytest.mark.docker)]

HOST = """
import asyncio, sys
from rayroll.substrates import Lease, SandboxSpec, load

async def main(kind, run):
    substrate = load(kind)
    async with substrate(substrate.config_type()) as opened:
        print("open", flush=True)
        lease = Lease(run, "host-1", float(sys.argv[3]))
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(opened.create(SandboxSpec(), lease))
        print("up", flush=True)
        if sys.argv[4:] == ["quit"]:
            for ref in await opened.list({"run": run}):
                await opened.destroy(ref)
        else:
            await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:3]))
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[Substrate]:
    check(request.param)
    return load(request.param)


@pytest.fixture
def run_id() -> str:
    return f"reaped-{secrets.token_hex(4)}"


@pytest.mark.parametrize("round", range(3))
async def test_a_host_killed_while_it_creates_leaves_nothing(kind: type[Substrate], run_id: str, round: int) -> None:
    with host(kind.kind, run_id) as process:
        assert await line(process) == b"open\n"
        await asyncio.sleep(random.uniform(0.0, 0.6))  # any moment will do; this one is drawn
        os.killpg(process.pid, signal.SIGKILL)  # as Ray ends a worker's process group
    await nothing_is_left(kind, run_id)


async def test_a_host_killed_with_living_sandboxes_leaves_nothing(kind: type[Substrate], run_id: str) -> None:
    with host(kind.kind, run_id) as process:
        assert [await line(process), await line(process)] == [b"open\n", b"up\n"]
        async with opened(kind) as substrate:
            assert len(await substrate.list({"run": run_id})) == 5
        process.kill()
    await nothing_is_left(kind, run_id)


async def test_a_host_that_ended_well_is_not_waited_for(kind: type[Substrate], run_id: str) -> None:
    with host(kind.kind, run_id, "quit") as process:
        assert [await line(process), await line(process)] == [b"open\n", b"up\n"]
        reaper = await asyncio.to_thread(reaper_of, process)
        assert await asyncio.to_thread(process.wait) == 0
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(leftovers.started_at, reaper) is not None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    await nothing_is_left(kind, run_id)


def test_a_reaper_that_was_killed_is_replaced_and_told_everything(tmp_path: Path) -> None:
    reaper = Reaper()
    order = {"sweep": "local", "base": str(tmp_path), "run": "r", "owner": "o", "lease_s": 0.0}
    reaper.watch("one", "holder", order)
    first = reaper.pid
    os.kill(first, signal.SIGKILL)
    while leftovers.started_at(first) is not None:
        pass
    reaper.watch("two", "holder", order)
    assert reaper.pid != first and leftovers.started_at(reaper.pid) is not None
    reaper.forget("one", "holder")
    reaper.forget("two", "holder")
    reaper.close()


def test_it_is_small_and_nobodys_child(tmp_path: Path) -> None:
    reaper = Reaper()
    reaper.watch("one", "holder", {"sweep": "local", "base": str(tmp_path), "run": "r", "owner": "o", "lease_s": 0.0})
    status = dict(field.split(":", 1) for field in Path(f"/proc/{reaper.pid}/status").read_text().splitlines())
    assert status["Name"].strip() == "rayroll-reaper"
    assert int(status["PPid"]) != os.getpid()
    assert os.getsid(reaper.pid) != os.getsid(0)
    assert int(status["VmRSS"].split()[0]) < 30_000
    reaper.forget("one", "holder")
    reaper.close()


def test_a_containers_name_says_until_when_it_is_kept_and_whose_it_is() -> None:
    adopted = adopted_name("rayroll-ab12", "host-2")
    name = kept_name(adopted, 1000.2)
    assert (kept_until([f"/{name}"]), kept_until([f"/{adopted}"]), kept_until(None)) == (1001.0, 0.0, 0.0)
    assert kept_until([f"/{kept_name('rayroll-ab12', 7.0)}"]) == 7.0
    container = {"Names": [f"/{name}"], "Labels": {"rayroll.owner": "host-1"}}
    assert (is_owned(container, "host-1"), is_owned(container, "host-2")) == (False, True)


# helpers


class host:
    """A process that creates five sandboxes and waits to be killed."""

    def __init__(self, kind: type[Substrate], run_id: str, *then: str) -> None:
        self._arguments = (kind, run_id, str(LEASE_S), *then)

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOST, *self._arguments], stdout=subprocess.PIPE, start_new_session=True
        )
        return self._process

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def line(process: subprocess.Popen[bytes]) -> bytes:
    stdout: IO[bytes] | None = process.stdout
    assert stdout is not None
    return await asyncio.to_thread(stdout.readline)


def opened(kind: type[Substrate]) -> Substrate:
    return kind(kind.config_type())


async def nothing_is_left(kind: type[Substrate], run_id: str) -> None:
    async with opened(kind) as substrate, asyncio.timeout(PATIENCE_S):
        while await substrate.list({"run": run_id}):  # noqa: ASYNC110 - the reaper's doing
            await asyncio.sleep(0.1)
        # Empty once may be empty too early: an engine may still be making what a dead host had asked for.
        await asyncio.sleep(1.0)
        assert await substrate.list({"run": run_id}) == []


def reaper_of(process: subprocess.Popen[bytes]) -> int:
    """The reaper that holds the other end of one of a host's pipes."""
    pipes = set(inodes(process.pid))
    for entry in Path("/proc").iterdir():
        if read(entry / "comm") == "rayroll-reaper\n" and pipes & set(inodes(int(entry.name))):
            return int(entry.name)
    raise AssertionError("the host has no reaper")


def inodes(pid: int) -> Iterator[str]:
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        if target.startswith("pipe:"):
            yield target


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
