#!/usr/bin/env python3
"""Does a run survive everything, for long: thousands of rollouts, and a random fault after every so many?

Each rollout plays a script whose right reward is known beforehand: half of them solve the task, half do not. Faults
come from outside (hosts and sandboxes killed, stopped, an engine's connections cut) and from within (an agent that
fills the memory, the processes, the disk of its own sandbox; it never solves the task). Counted are

* leaks: containers, processes, cgroups, mounts, folders, volumes of the run that are there after its end,
* lost: samples that were not told exactly once,
* invented: rewards that the script contradicts, and rewards of rollouts that are not valid,
* growth of the resident memory of host and driver, from after the first tenth to the last tenth. Hosts are killed only
  in the second half, so that one of them lives through the first; growth is that of the host that played most.

Prints faults and a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _facts import facts, load_average
from _faults import FAULTS, MARK, DockerGround, Ground, LocalGround, Scene, traces
from _ray import start_ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import rayroll
from rayroll import Act, Executor, Rollout, Task, Turn
from rayroll.executor import rollout_id
from rayroll.substrates import load
from rayroll.testing import leaks
from rayroll.testing.tap import Tap

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)

LEASE_S = 5.0
LOOK_S = 0.25
"""How often memory is read."""
STALL_S = 240.0
"""A run that tells nothing for so long hangs: it is ended, and what it did not tell is lost."""
CLEAN_S = 60.0
"""By then nothing may be left: a lease, and the reapers' second look."""
GROWTH = 0.10
RIGHT = 'grep . /app/names.txt | while IFS= read -r name; do echo "Hello, $name!"; done > /app/greetings.txt'
WRONG = "echo nobody > /app/greetings.txt"
COMMAND_S = 10.0
"""A shell that gets no more processes tries again and again: whoever fills them is ended by this."""
BESIDE = "sleep 600 > /dev/null 2>&1 &"
"""Something that would outlive its sandbox if it could."""


class Known:
    """A policy whose rewards are known beforehand, and that does harm where it is told to."""

    def __init__(self, seed: int, hogs: deque[str]) -> None:
        self._seed, self._hogs = seed, hogs
        self._harm: dict[int, str] = {}

    async def act(self, turn: Turn) -> Act:
        """See ``Policy``."""
        harm = self._harm.get(turn.sample_index)
        if harm is None and turn.index == 0 and self._hogs:
            harm = self._harm[turn.sample_index] = self._hogs.popleft()
        work = RIGHT if self.reward(turn.sample_index) else WRONG
        script = [f"{BESIDE} {work}", *([harm] if harm else []), "sleep 0.05"]
        return Act(script[turn.index], timeout_s=COMMAND_S) if turn.index < len(script) else Act(submit=True)

    def reward(self, sample_index: int) -> float:
        """What a sample has to get, unless it is spoilt."""
        if sample_index in self._harm:
            return 0.0
        return float(random.Random(f"{self._seed} {sample_index}").random() < 0.5)


@dataclass
class Memory:
    """Resident memory over the course of a run."""

    driver: list[tuple[int, int]] = field(default_factory=list)
    """Rollouts told, and bytes."""
    hosts: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """The same by the host's pid."""

    async def watch(self, executor: Executor, course: Course) -> None:
        """Look until cancelled."""
        while True:
            for pid, seen in [(os.getpid(), self.driver), *((h.pid, self.hosts[h.pid]) for h in executor.hosts)]:
                with suppress(OSError):
                    seen.append((course.count, resident_bytes(pid)))
            await asyncio.sleep(LOOK_S)

    def host(self) -> list[tuple[int, int]]:
        """Of the host that played most."""
        return max(self.hosts.values(), key=lambda seen: seen[-1][0] - seen[0][0], default=[])


def resident_bytes(pid: int) -> int:
    """Of a process. Raises OSError when it is gone."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tenths(seen: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """Median bytes in the second tenth of a life, counted in rollouts, and in its last; None where it is too short."""
    if not seen or (life := seen[-1][0] - seen[0][0]) < 20:
        return None
    share = [((told - seen[0][0]) / life, resident) for told, resident in seen]
    early = [resident for at, resident in share if 0.1 <= at <= 0.2]
    late = [resident for at, resident in share if at >= 0.9]
    return (statistics.median(early), statistics.median(late)) if early and late else None


def growth(seen: Sequence[tuple[int, int]]) -> float | None:
    """By which share it grew after the first tenth."""
    found = tenths(seen)
    return None if found is None else round(found[1] / found[0] - 1, 4)


@dataclass
class Course:
    """One run, and what came of it."""

    kind: str
    policy: Known
    expected: dict[str, int]
    """Sample index by the id of its rollout."""
    told: Counter[str] = field(default_factory=Counter)
    """How often each was."""
    count: int = 0
    invented: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    memory: Memory = field(default_factory=Memory)
    valid: int = 0
    again: int = 0
    wall_s: float = 0.0
    left: list[str] = field(default_factory=list)
    error: str = ""

    def take(self, rollout: Rollout) -> None:
        """Compare one with what is known."""
        self.told[rollout.id] += 1
        self.count += 1
        self.valid += rollout.valid
        self.again += rollout.attempts > 1
        if rollout.failure is not None:
            self.failures[f"{rollout.failure.fault}: {rollout.failure.error}"] += 1
        right = self.policy.reward(rollout.sample_index) if rollout.valid else None
        if rollout.reward != right:
            self.invented.append(f"sample {rollout.sample_index}: {rollout.reward}, not {right}; {rollout.failure}")

    @property
    def lost(self) -> int:
        """Samples that were not told exactly once, and rollouts of none."""
        return sum(self.told[id] != 1 for id in self.expected) + len(self.told.keys() - self.expected.keys())

    def as_json(self) -> dict[str, Any]:
        """Everything but the headline, which is over all runs."""
        seen = tenths(self.memory.host())
        return {
            "rollouts": len(self.expected),
            "valid": self.valid,
            "again": self.again,
            "wall_s": round(self.wall_s, 1),
            "faults": dict(sorted(self.faults.items())),
            "failures": dict(sorted(self.failures.items())),
            "leaks": self.left,
            "lost": self.lost,
            "invented": self.invented[:20],
            "hosts": len(self.memory.hosts),
            "host_growth": growth(self.memory.host()),
            "host_mib": [round(b / 2**20, 1) for b in seen] if seen else None,
            "host_course_mib": [
                round(b / 2**20, 1) for _, b in self.memory.host()[:: len(self.memory.host()) // 20 + 1]
            ],
            "host_rollouts": self.memory.host()[-1][0] - self.memory.host()[0][0] if self.memory.host() else 0,
            "driver_growth": growth(self.memory.driver),
            "error": self.error,
        }


class Disturber:
    """Does one thing after every so many rollouts, from a shuffled deck; hosts are killed only in the second half."""

    def __init__(self, scene: Scene, course: Course, every: int, show: Callable[[str], None]) -> None:
        self._scene, self._course, self._every, self._show = scene, course, every, show
        names = [name for name in FAULTS if name != "engine-cut" or course.kind == "docker"]
        self._late, self._gentle = names, [name for name in names if name != "host-killed"]
        self._deck: list[str] = []
        self._is_late = False
        self._under_way: set[asyncio.Task[None]] = set()

    def after(self, told: int) -> None:
        """So many rollouts were told."""
        if told % self._every or told >= len(self._course.expected):
            return
        if not self._is_late and 2 * told >= len(self._course.expected):
            self._is_late, self._deck = True, ["host-killed"]
        if not self._deck:
            self._deck = self._late[:] if self._is_late else self._gentle[:]
            self._scene.random.shuffle(self._deck)
        self._under_way.add(asyncio.create_task(self._do(self._deck.pop(), told)))

    async def settle(self) -> None:
        """Before anything is closed a host that is stopped must go on, and an engine be reached again."""
        await asyncio.gather(*self._under_way)

    async def _do(self, name: str, told: int) -> None:
        what = await FAULTS[name](self._scene)
        self._course.faults[name] += 1
        self._show(f"{self._course.kind} {told:>6}  {name}  {what}")


@asynccontextmanager
async def ground_of(kind: str, run_id: str, folder: Path) -> AsyncIterator[Ground]:
    """Where a run's sandboxes will be."""
    if kind == "local":
        yield LocalGround(folder)
        return
    import docker

    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    api = await asyncio.to_thread(docker.APIClient, host)
    async with Tap(folder / "engine.sock", host.removeprefix("unix://")) as tap:
        yield DockerGround(api, run_id, tap)
    await asyncio.to_thread(api.close)


async def play(kind: str, count: int, options: argparse.Namespace, task: Task, progress: Progress) -> Course:
    """One run from beginning to end, and a look at what is left of it."""
    run_id = f"soak-{secrets.token_hex(4)}"
    task = replace(task, env={**task.env, MARK: run_id}, memory_mib=128, disk_mib=64)
    before = leaks.held_now()
    with tempfile.TemporaryDirectory(prefix="rr-soak-", dir="/tmp", ignore_cleanup_errors=True) as name:
        async with ground_of(kind, run_id, Path(name)) as ground:
            settings: dict[str, Any] = {"substrate_config": ground.substrate_config, "session": {"lease_s": LEASE_S}}
            hogs: deque[str] = deque()
            policy = Known(options.seed, hogs)
            expected = {rollout_id(run_id, task.id, index): index for index in range(count)}
            course = Course(kind, policy, expected)
            began_s = time.monotonic()
            async with Executor(kind, run_id=run_id, **settings) as executor:
                scene = Scene(executor, ground, LEASE_S, random.Random(f"{options.seed} {kind}"), hogs)
                disturber = Disturber(scene, course, options.fault_every, lambda text: say(progress, text))
                watching = asyncio.create_task(course.memory.watch(executor, course))
                try:
                    await read(executor, task, course, disturber, options, progress)
                except Exception as error:  # what it did not tell is lost
                    course.error = repr(error)
                await disturber.settle()
                watching.cancel()
            course.wall_s = time.monotonic() - began_s
            course.left = await what_is_left(ground, run_id, set(course.memory.hosts))
    held = leaks.held_now().beyond(before)
    course.left += [f"{what} {name}" for what, names in held.items() if what != "sockets" for name in names]
    return course


def say(progress: Progress, text: str) -> None:
    """A line above the bars."""
    progress.console.print(text, highlight=False, style="dim")


async def read(
    executor: Executor,
    task: Task,
    course: Course,
    disturber: Disturber,
    options: argparse.Namespace,
    progress: Progress,
) -> None:
    """Read the whole run. Raises TimeoutError where it stands still."""
    count = len(course.expected)
    bar = progress.add_task(course.kind, total=count)
    run = executor.submit(
        [task], course.policy, samples_per_task=count, max_in_flight=options.slots, max_infra_retries=3
    )
    rollouts = run.rollouts()
    while True:
        try:
            rollout = await asyncio.wait_for(anext(rollouts), STALL_S)
        except StopAsyncIteration:
            return
        course.take(rollout)
        disturber.after(course.count)
        progress.update(bar, advance=1)


async def what_is_left(ground: Ground, token: str, host_pids: set[int]) -> list[str]:
    """Look until there is nothing, or there should have been for long."""
    end_s = time.monotonic() + CLEAN_S
    while left := await asyncio.to_thread(traces, ground, token, host_pids):
        if time.monotonic() > end_s:
            return left
        await asyncio.sleep(0.5)
    return []


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All runs; the document that is printed."""
    task = next(iter(rayroll.load_pack("hello_shell")))
    machine, courses, skipped = facts(), [], {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        for kind, count in (("local", options.local), ("docker", options.docker)):
            substrate = load(kind)
            found = await substrate(substrate.config_type()).probe()
            if count and found.ok:
                courses.append(await play(kind, count, options, task, progress))
            elif count:
                skipped[kind] = found.reason
    host = [found for course in courses if (found := growth(course.memory.host())) is not None]
    driver = [found for course in courses if (found := growth(course.memory.driver)) is not None]
    return {
        "leaks": sum(len(course.left) for course in courses),
        "lost": sum(course.lost for course in courses),
        "invented": sum(len(course.invented) for course in courses),
        "host_growth": max(host, default=None),
        "driver_growth": max(driver, default=None),
        "runs": {course.kind: course.as_json() for course in courses},
        "skipped": skipped,
        "seed": options.seed,
        "fault_every": options.fault_every,
        "slots": options.slots,
        "machine": {**machine, "load_after": load_average()},
    }


def passed(line: dict[str, Any], *, smoke: bool) -> bool:
    """Whether the claims hold; of memory nothing is claimed after a minute."""
    grown = [line["host_growth"], line["driver_growth"]]
    is_flat = smoke or all(share is not None and share <= GROWTH for share in grown)
    return not (line["leaks"] or line["lost"] or line["invented"]) and is_flat and bool(line["runs"])


def show(line: dict[str, Any]) -> None:
    """For whoever watches."""
    table = Table("", "rollouts", "valid", "again", "faults", "leaks", "lost", "invented", "host", "driver")
    for kind, run in line["runs"].items():
        counts = [run["rollouts"], run["valid"], run["again"], sum(run["faults"].values()), len(run["leaks"])]
        grown = ["-" if run[name] is None else f"{run[name]:+.1%}" for name in ("host_growth", "driver_growth")]
        table.add_row(kind, *map(str, counts), str(run["lost"]), str(len(run["invented"])), *grown)
    console.print(table)
    for run in line["runs"].values():
        for what in (*run["leaks"], *run["invented"], *([run["error"]] if run["error"] else [])):
            console.print(f"  {what}", style="red", highlight=False)
    for kind, reason in line["skipped"].items():
        console.print(f"not run: {kind}: {reason}")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--local", type=int, default=10_000, help="rollouts in local sandboxes [10000]")
    add("--docker", type=int, default=1_000, help="rollouts in containers [1000]")
    add("--fault-every", type=int, default=50, help="rollouts between two faults [50]")
    add("--slots", type=int, default=8, help="rollouts at the same time [8]")
    add("--seed", type=int, default=0, help="which faults, and which rollouts solve the task [0]")
    add("--smoke", action="store_true", help="a minute: 200 local ones, 30 in containers, a fault after every 10")
    options = parser.parse_args(argv)
    if options.smoke:
        options.local, options.docker, options.fault_every = 200, 30, 10
    if min(options.fault_every, options.slots) < 1 or min(options.local, options.docker) < 0:
        parser.error("counts are positive")
    return options


def main(argv: Sequence[str]) -> int:
    """Run, show, and say whether the claims hold."""
    options = parse(argv)
    start_ray()
    line = asyncio.run(measure(options))
    show(line)
    print(json.dumps(line))
    return 0 if passed(line, smoke=options.smoke) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
