"""Durations come from monotonic clocks, and never from two clocks at once.

A wall clock that jumps can only be tried where the clock is the sandbox's own (the suite does so in VMs). Here: what
reads a clock at all, and a runner whose monotonic clock is a day ahead of ours.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from requirements import require

import rayroll
from rayroll.runner.build import runner_path
from rayroll.runner.client import RunnerClient
from rayroll.substrates._stream import channel_over

PACKAGE = Path(rayroll.__file__).parent
A_DAY_S = 86_400


USE_THE_TIME_OF_DAY = ("baseline.c", "boot.c")
"""A file's change time is the wall clock's, so what it is compared with must be too; and a new VM's clock is set."""


def test_the_runner_measures_by_the_monotonic_clock_alone() -> None:
    sources = {path.name: path.read_text() for path in (PACKAGE / "runner" / "src").glob("*.[ch]")}
    clocks = {name: set(re.findall(r"\bCLOCK_\w+", source)) for name, source in sources.items()}
    for name in USE_THE_TIME_OF_DAY:
        assert clocks.pop(name) == {"CLOCK_REALTIME"}
    assert set().union(*clocks.values()) == {"CLOCK_MONOTONIC"}
    others = re.compile(r"\b(?:gettimeofday|ftime|timespec_get|clock|time)\s*\(")
    assert [name for name, source in sources.items() if others.search(source)] == []


@pytest.mark.parametrize("name", ["runner/client.py", "runner/protocol.py", "timing.py", "session.py", "_grade.py"])
def test_what_measures_durations_asks_no_wall_clock(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text())
    asked = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert asked & {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"} == set()


def can_shift_clocks() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--time", "--monotonic", "60", "--fork", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


async def test_a_runner_whose_clock_is_a_day_ahead_measures_the_same() -> None:
    if not can_shift_clocks():
        require("time-namespace", "none can be made here; fix: run as root on Linux 5.6 or newer, with util-linux")
    runner = await asyncio.to_thread(runner_path)
    ahead = ["unshare", "--time", "--monotonic", str(A_DAY_S), "--fork", "--kill-child"]
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
            [*ahead, runner, "serve", "--lease-ms", "20000"], stdin=theirs, stdout=theirs
        )
    channel = await channel_over(ours)
    try:
        client = await RunnerClient.connect(channel, lease_s=20)
        its_clock = await client.exec(f"{sys.executable} -c 'import time; print(time.monotonic())'")
        our_clock_s = time.monotonic()
        r = await client.exec("sleep 0.2", timeout_s=5)
        limited = await client.exec("sleep 5", timeout_s=0.3, grace_s=0.1)
        await client.close(shutdown=True)
    finally:
        process.kill()
        process.wait()
        channel.abort()
        await channel.wait_until_closed()
    assert float(its_clock.output) > our_clock_s + 0.9 * A_DAY_S
    assert 0.2 <= r.timing.run_ns / 1e9 < 5
    assert 0 <= r.timing.busy_ns <= r.timing.round_trip_ns < 10e9
    assert limited.timed_out
    assert 0.29 <= (limited.timing.spawn_ns + limited.timing.run_ns) / 1e9 < 5  # the limit begins with the start
