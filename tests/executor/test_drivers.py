"""Programs that are interrupted or killed: nothing of their run is left, and nobody else's is touched."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import little
import pytest
from requirements import check

from rayroll.sinks.jsonl import read_rollouts
from rayroll.substrates import _leftovers as leftovers

WITHIN_S = 60.0
"""By then nothing may be left; a lease is 3 s here."""


class Driver:
    """A driver in a process group of its own, as a terminal would start it."""

    def __init__(self, address: str, kind: str, out: Path, **options: Any) -> None:
        self.out = out
        self.said: dict[str, list[str]] = {"run": [], "host": [], "kept": []}
        self._heard = threading.Condition()
        self._log = out.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("driver.py")), kind, str(out), json.dumps(options)],
            env=os.environ | {"RAY_ADDRESS": address, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            with self._heard:
                self.said.setdefault(word, []).append(rest)
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def wait_for(self, word: str, count: int = 1) -> str:
        """The last of so many lines that begin with a word."""
        with self._heard:
            self._heard.wait_for(lambda: len(self.said[word]) >= count or self.process.poll() is not None, 120)
            if len(self.said[word]) < count:
                pytest.fail(f"the driver never said {word!r}: {self.errors()[-3000:]}")
            return self.said[word][count - 1]

    @property
    def run_id(self) -> str:
        return self.wait_for("run")

    @property
    def host_pid(self) -> int:
        return int(self.wait_for("host"))

    def end(self) -> None:
        """Kill what is left of the driver itself."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()

    def errors(self) -> str:
        """What it wrote to standard error."""
        self._log.seek(0)
        return self._log.read()


@contextlib.contextmanager
def driver(ray: Any, kind: str, out: Path, **options: Any) -> Iterator[Driver]:
    started = Driver(ray.get_runtime_context().gcs_address, kind, out, **options)
    try:
        yield started
    finally:
        started.end()


def seen(kind: str, run_id: str) -> list[str]:
    """Names of a run's sandboxes, as the node itself shows them."""
    if kind == "local":
        return [remains.id for remains in leftovers.find(leftovers.base_dir(), {"run": run_id})]
    return containers(run_id)


def containers(run_id: str) -> list[str]:
    import docker

    with contextlib.closing(docker.APIClient(os.environ["DOCKER_HOST"])) as engine:
        labels = {"label": [f"rayroll.run={run_id}"]}
        found = [c["Id"] for c in engine.containers(all=True, filters=labels)]
        found += [n["Id"] for n in engine.networks(filters=labels)]
        found += [v["Name"] for v in engine.volumes(filters=labels)["Volumes"] or ()]
        return found


def wait_until_nothing_is_left(kind: str, run_id: str, names: set[str]) -> None:
    end_s = time.monotonic() + WITHIN_S
    while left := [*seen(kind, run_id), *little.traces_in_the_system(names)]:
        assert time.monotonic() < end_s, f"left after {WITHIN_S:.0f} s: {left}"
        time.sleep(0.5)


def wait_until_up(kind: str, run_id: str, count: int = 1) -> set[str]:
    end_s = time.monotonic() + WITHIN_S
    while len(found := seen(kind, run_id)) < count:
        assert time.monotonic() < end_s, "no sandbox was seen"
        time.sleep(0.02)
    return set(found)


@pytest.fixture(params=["local", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    check(request.param)
    return str(request.param)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "TERM"])
def test_an_interrupted_program_ends_soon_frees_everything_and_keeps_what_had_finished(
    ray_cluster: Any, kind: str, tmp_path: Path, number: signal.Signals
) -> None:
    with driver(ray_cluster, kind, tmp_path / "rollouts.jsonl") as running:
        running.wait_for("kept", 2)
        names = wait_until_up(kind, running.run_id)
        interrupted_s = time.monotonic()
        os.killpg(running.process.pid, number)
        running.process.wait(60)
        took_s = time.monotonic() - interrupted_s
        assert seen(kind, running.run_id) == [], "freed before the program ends, not by a lease"
        assert took_s < 10.0 or os.getloadavg()[0] > 2 * (os.cpu_count() or 1), f"it took {took_s:.1f} s"
        assert "never retrieved" not in running.errors() and "it is pending" not in running.errors()
        wait_until_nothing_is_left(kind, running.run_id, names)
        assert {r.id for r in read_rollouts(running.out)} >= set(running.said["kept"])


def test_a_second_interrupt_ends_the_program_at_once_and_leases_do_the_rest(
    ray_cluster: Any, kind: str, tmp_path: Path
) -> None:
    with driver(ray_cluster, kind, tmp_path / "rollouts.jsonl") as running:
        names = wait_until_up(kind, running.run_id)
        for _ in range(2):
            os.killpg(running.process.pid, signal.SIGINT)
            time.sleep(0.05)
        running.process.wait(30)
        wait_until_nothing_is_left(kind, running.run_id, names)


VICTIMS = ("driver", "host", "driver and host")


def test_nothing_is_left_of_runs_that_are_killed_at_any_moment(
    ray_cluster: Any, kind: str, tmp_path: Path, kills: int
) -> None:
    """A SIGKILL runs no hook, and a random one falls into the middle of a creation; a second run goes on untouched."""
    with driver(ray_cluster, kind, tmp_path / "bystander.jsonl", lease_s=30.0) as bystander:
        bystander.wait_for("kept")
        for number in range(kills):
            for victim in VICTIMS:
                moment = random.Random(f"{kind} {victim} {number}").uniform(0.0, 0.8)
                kill_a_run(ray_cluster, kind, tmp_path / f"{victim} {number}.jsonl", victim, moment)
        bystander.wait_for("kept", len(bystander.said["kept"]) + 1)
        os.killpg(bystander.process.pid, signal.SIGINT)
        bystander.process.wait(60)
        assert [r for r in read_rollouts(bystander.out) if not r.valid or r.attempts > 1] == []


def kill_a_run(ray: Any, kind: str, out: Path, victim: str, moment_s: float) -> None:
    with driver(ray, kind, out) as killed:
        run_id, host_pid = killed.run_id, killed.host_pid
        time.sleep(moment_s)  # anywhere in the first starts, or between rollouts
        names = set(seen(kind, run_id))
        if "host" in victim:
            os.kill(host_pid, signal.SIGKILL)
        if "driver" in victim:
            os.killpg(killed.process.pid, signal.SIGKILL)
        else:
            # The driver lives, gets another host and goes on.
            killed.wait_for("kept", len(killed.said["kept"]) + 2)
            os.killpg(killed.process.pid, signal.SIGINT)
        killed.process.wait(60)
        wait_until_nothing_is_left(kind, run_id, names)
