"""Made-up rollouts for tests of metrics, sinks and reports. Nothing here was measured; only its shape is real."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from rayroll.errors import Failure
from rayroll.record import to_line
from rayroll.timing import Recorder
from rayroll.types import Act, CommandTiming, Grade, Rollout, Rung, Step

MS = 1_000_000


@dataclass(frozen=True)
class Habits:
    """How a made-up substrate behaves: medians, in milliseconds."""

    pull: float
    create: float
    boot: float
    connect: float
    transport: float
    spawn: float
    run_factor: float
    teardown: float
    failure_rate: float = 0.0
    rung: Rung = "cached"


HABITS = {
    "local": Habits(0, 1, 6, 2, 0.2, 0.9, 1.0, 3, rung="cached"),
    "docker": Habits(0, 90, 240, 15, 0.5, 1.0, 1.03, 120),
    "docker-exec": Habits(0, 90, 240, 15, 58, 6.0, 1.03, 120),
    "kubernetes": Habits(0, 160, 1900, 60, 1.1, 1.1, 1.05, 900, failure_rate=0.04),
    "qemu": Habits(0, 120, 3600, 90, 0.4, 3.6, 1.9, 250, failure_rate=0.02),
    "ec2": Habits(0, 2200, 24000, 900, 24, 1.4, 1.1, 1500, failure_rate=0.03),
}


def rollout(
    substrate: str = "docker",
    *,
    task: str = "repo_fix/more-itertools-0",
    sample: int = 0,
    actions: int = 10,
    concurrency: int = 1,
    block: int = 0,
    run: str = "run-1",
    rung: Rung | None = None,
    seed: int = 0,
    failure: Failure | None = None,
) -> Rollout:
    """One rollout with all its steps, its time split by the real recorder."""
    habits = HABITS[substrate]
    key = f"{run}/{substrate}/{task}/{sample}/{actions}/{concurrency}/{block}"
    rng = random.Random(f"{seed}/{key}")
    work = random.Random(f"work/{task}")  # equal work on every substrate

    def about(median_ms: float, sigma: float = 0.25) -> int:
        return int(median_ms * MS * math.exp(rng.gauss(0, sigma))) if median_ms else 0

    now = 5_000 * MS
    recorder = Recorder(lambda: now)
    start = now

    def passes(phase: str, ns: int) -> None:
        nonlocal now
        recorder.add(phase, now, now + ns)
        now += ns

    passes("queue", about(40.0 * max(0, concurrency - 4)))
    if rung == "cold":
        passes("pull", about(21_000))
    create_ns = now
    for phase in ("create", "boot", "connect"):
        passes(phase, about(getattr(habits, phase)))
    cold_start_s = (now - create_ns) / 1e9
    passes("setup", about(30))
    first_action_s = cold_start_s + 0.005

    steps: list[Step] = []
    lost_at = rng.randrange(actions) if failure is not None and failure.fault == "infra" and actions else None
    for index in range(actions):
        if index == lost_at:
            break
        asked, mark = now, recorder.mark()
        passes("policy", about(35, 0.1))
        passes("dispatch", about(0.5))
        median_run = [3, 8, 8, 20, 120, 400][work.randrange(6)]
        timing = CommandTiming(
            queued_ns=about(0.02),
            spawn_ns=about(habits.spawn),
            run_ns=about(median_run * habits.run_factor * (1 + 0.02 * max(0, concurrency - 2)), 0.08),
            drain_ns=about(0.15),
            user_ns=about(median_run * 0.8),
            system_ns=about(median_run * 0.1),
            throttled_ns=about(0.4) if substrate == "kubernetes" else 0,
            max_rss_bytes=30 * 2**20,
        )
        transport = about(habits.transport, 0.5) + (about(60) if rng.random() < 0.01 else 0)
        sent = now
        now += timing.busy_ns + transport
        recorder.add_command(sent, now, timing, handled_ns=now + about(0.08))
        now = recorder.spans[-1].end_ns
        passes("return", about(0.4))
        digest = hashlib.sha256(f"{task}/{index}".encode()).hexdigest()
        steps.append(
            Step(
                act=Act(command=f"pytest -q tests/test_{index}.py", tokens=[index, index + 1], policy_version=3),
                exit_code=index % 2,
                timed_out=False,
                truncated=False,
                output_bytes=200 + index,
                output_digest=digest,
                timing=replace(timing, round_trip_ns=timing.busy_ns + transport),
                phases_s=recorder.phases_s(asked, now, since=mark),
            )
        )
    grade = None
    if lost_at is None:
        sent = now
        timing = CommandTiming(spawn_ns=about(habits.spawn), run_ns=about(900 * habits.run_factor, 0.08))
        now += timing.busy_ns + about(habits.transport * 2)
        recorder.add_command(sent, now, timing, within="grade")
        passed = failure is None and work.random() < 0.6
        grade = Grade(reward=None if failure else float(passed), report="3 passed", details={"tests": 3})
    passes("teardown", about(habits.teardown))
    now += about(1.5)
    spoilt = failure is not None and failure.fault != "policy"
    return Rollout(
        id=hashlib.sha256(key.encode()).hexdigest()[:16],
        run_id=run,
        task_id=task,
        substrate=substrate,
        reward=None if spoilt or grade is None else grade.reward if failure is None else 0.0,
        valid=not spoilt,
        timing=recorder.split(start, now),
        steps=tuple(steps),
        grade=grade,
        failure=failure,
        submitted=lost_at is None,
        rung=rung or habits.rung,
        cold_start_s=cold_start_s,
        first_action_s=first_action_s,
        sample_index=sample,
        seed=seed,
        work_digest=hashlib.sha256(f"{task}/{actions}".encode()).hexdigest(),
        node="node-a",
        labels={
            "cell": f"{substrate}-a{actions}-c{concurrency}",
            "substrate": substrate,
            "actions": str(actions),
            "concurrency": str(concurrency),
            "block": str(block),
        },
    )


def sweep(
    substrates: Sequence[str] = ("local", "docker", "docker-exec", "kubernetes", "qemu"),
    *,
    actions: Sequence[int] = (10, 50),
    concurrency: Sequence[int] = (1, 8),
    tasks: int = 6,
    samples: int = 2,
    seed: int = 0,
    failures: bool = True,
    cold: bool = True,
) -> Iterator[Rollout]:
    """A sweep's rollouts in the order of its random blocks."""
    rng = random.Random(seed)
    cells = [(s, a, c) for s in substrates for a in actions for c in concurrency]
    for block in range(samples):
        for substrate, count, width in rng.sample(cells, len(cells)):
            for task in range(tasks):
                failure = None
                if failures and rng.random() < HABITS[substrate].failure_rate:
                    failure = Failure("infra", "the sandbox is gone", "SandboxLostError")
                elif failures and substrate != "local" and rng.random() < 0.01:
                    failure = Failure("policy", "killed its own sandbox", "sandbox_killed")
                made = rollout(
                    substrate,
                    task=f"repo_fix/task-{task}",
                    sample=block,
                    actions=count,
                    concurrency=width,
                    block=block,
                    rung="cold" if cold and block == 0 and task == 0 and width == 1 and substrate != "local" else None,
                    seed=seed,
                    failure=failure,
                )
                yield replace(made, attempts=2, infra_retry_s=3.5) if failures and rng.random() < 0.01 else made


def config(substrates: Sequence[str], **changes: Any) -> dict[str, Any]:
    """What a sweep leaves in config.json."""
    return {
        "run_id": "run-1",
        "target_rollouts": 1_000_000,
        "target_actions": 150,
        "price_per_slot_hour": 0.05,
        "substrates": list(substrates),
        "actions": [10, 50],
        "concurrency": [1, 8],
        "seed": 0,
        "reference": "docker",
        "machine": {
            "cpu": "Example CPU @ 2.5 GHz",
            "cpus": 2,
            "memory_gib": 8,
            "kernel": "6.1.0",
            "docker": "20.10.24",
            "commit": "0123abc",
        },
    } | changes


def write_results(folder: Path, rollouts: Sequence[Rollout], **changes: Any) -> Path:
    """A results folder as a run leaves it: config.json and rollouts.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    substrates = list(dict.fromkeys(r.substrate for r in rollouts))
    (folder / "config.json").write_bytes(orjson.dumps(config(substrates, **changes)))
    (folder / "rollouts.jsonl").write_bytes(b"".join(map(to_line, rollouts)))
    return folder
