"""What people see of a run from outside: the board behind ``rayroll top``, and what Prometheus is told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

import little
from executor.conftest import Opened

from rayroll import Act, Turn
from rayroll.cli.top import picture
from rayroll.executor.board import boards

TOP = [sys.executable, "-c", "from rayroll.cli import main; main()", "top", "--once"]


class Hangs:
    """A policy that never answers the second turn of the first sample."""

    async def act(self, turn: Turn) -> Act:
        if turn.sample_index == 0 and turn.index == 1:
            await asyncio.Future()
        return Act("true") if turn.index == 0 else Act(submit=True)


async def board_of(run_id: str, **wanted: Any) -> dict[str, Any]:
    """The board of a run, once it says so."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        nonlocal found
        found = [b for b in await boards() if b["run_id"] == run_id]
        return bool(found) and all(found[0][key] == value for key, value in wanted.items())

    await little.until_true(look)
    return found[0]


async def test_a_board_says_what_a_run_does_and_top_shows_it(opened: Opened) -> None:
    import ray

    async with opened(
        "simulated", run_id="watched", substrate_config={"profile": {"pull": {"median_s": 0.01}}}
    ) as executor:
        executor.submit([little.task()], Hangs(), samples_per_task=5)
        board = await board_of("watched", rollouts=4, stages={"policy": 1})
        assert (board["valid"], board["mean_reward"], board["waiting"], board["failures"]) == (4, 1.0, 0, {})
        (host,) = board["hosts"]
        assert (host["running"], host["starting"], host["is_up"]) == (1, 0, True)
        (image,) = board["images"]
        assert (image["name"], image["starts"], image["infra"]) == (little.IMAGE, 4, 0)
        address = ray.get_runtime_context().gcs_address
        command = [*TOP, "--json", "--address", address]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [b["run_id"] for b in json.loads(done.stdout.splitlines()[-1])] == ["watched"]
    await little.until_true(lambda: _is_empty())


async def _is_empty() -> bool:
    return await boards() == []


def test_the_picture_has_a_row_for_each_executor_its_hosts_and_its_slowest_images() -> None:
    from rich.console import Console

    host = {
        "name": "ab-0",
        "running": 3,
        "starting": 1,
        "start_limit": 4,
        "warm": 2,
        "rests_s": 7.0,
        "is_up": True,
        "short_of": "",
    }
    short = {**host, "name": "cd-0", "short_of": "disk: 3 MiB are free, 1024 are to stay so", "start_p50_s": None}
    board: dict[str, Any] = {
        "run_id": "r1",
        "substrate": "docker",
        "up_s": 61.0,
        "waiting": 9,
        "stages": {"policy": 2, "exec": 1},
        "rollouts": 10,
        "valid": 9,
        "mean_reward": 0.5,
        "rollouts_per_s": 0.25,
        "steps_per_s": 12.5,
        "retries": 1,
        "spares": 0,
        "failures": {"infra": 1, "policy": 2},
        "hosts": [{**host, "start_p50_s": 0.31}, short],
        "images": [{"name": "debian:slow", "start_p50_s": 75.0, "starts": 2, "infra": 1}],
    }
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(picture([board]))
    console.file.close()
    text = console.export_text()
    words = ("run r1 on docker", "infra 1, policy 2", "ab-0", "310 ms", "rests 7 s", "debian:slow", "75.0 s")
    for word in (*words, "short of disk: 3 MiB are free"):
        assert word in text


def test_without_a_cluster_top_says_what_to_do() -> None:
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [*TOP, "--address", "127.0.0.1:1"], capture_output=True, text=True, check=False, env=env, timeout=120
    )
    assert (done.returncode, "--address" in done.stderr) == (2, True), done.stderr


async def test_prometheus_is_told_of_rollouts_seconds_and_slots(opened: Opened) -> None:
    import ray

    async with opened("simulated") as executor:
        run = executor.submit([little.task()], Hangs(), samples_per_task=3, max_in_flight=3)
        reader = run.rollouts()
        for _ in range(2):
            await anext(reader)
        (node,) = ray.nodes()
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

        def exported() -> str:
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return str(answer.read().decode())
            except OSError:
                return ""

        async def is_told() -> bool:
            text = await asyncio.to_thread(exported)
            return all(
                name in text for name in ("ray_rayroll_rollouts_total", "ray_rayroll_seconds", "ray_rayroll_slots")
            )

        await little.until_true(is_told)
        lines = (await asyncio.to_thread(exported)).splitlines()
    rollouts = [line for line in lines if line.startswith("ray_rayroll_rollouts_total") and 'outcome="valid"' in line]
    assert sum(float(line.split()[-1]) for line in rollouts) >= 2
    assert any(line.startswith("ray_rayroll_start_seconds_bucket") for line in lines)
