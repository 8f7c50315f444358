#!/usr/bin/env python3
"""How many steps per second do many sandboxes take through ``make_vec``, beside Gymnasium's own way to do it?

The own way is ``AsyncVectorEnv``, a process for each environment, each of which runs ``docker exec`` for each action.
Both play the same distinct echoes in containers of the same image, checked, in turns. With one environment it is asked
what the executor adds to the runner: a step of ``make_vec`` minus a command through a client of this process.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
from _facts import facts, load_average
from _ray import start_ray
from _rayroll_arms import TASK
from _stats import at_least, below, show_gates
from gymnasium.vector import AsyncVectorEnv
from rich.console import Console
from rich.table import Table

import rayroll
from rayroll.spaces import UnicodeText
from rayroll.sync import SyncClient

IMAGE = "debian:bookworm-slim"
MOST_STEPS = 10**9

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


class Vector(Protocol):
    """What is measured of both."""

    def step(self, actions: Sequence[str]) -> tuple[Any, ...]:
        """One action for each environment; returns when all have answered."""


class DockerExecEnv(gym.Env[str, str]):
    """A container and a ``docker exec`` for each action, as most environments of this kind are written."""

    def __init__(self, container: str) -> None:
        import docker

        self.action_space = self.observation_space = UnicodeText(1 << 20)
        self._api = docker.APIClient(**docker.utils.kwargs_from_env())
        self._container = container

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Nothing is made new: only steps are measured."""
        super().reset(seed=seed)
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run a command in the container."""
        made = self._api.exec_create(self._container, ["bash", "-c", action])
        output = self._api.exec_start(made["Id"])
        code = self._api.exec_inspect(made["Id"])["ExitCode"]
        return output.decode(), 0.0, False, False, {"exit_code": code}


class _Make:
    """Makes one environment in its process; a class, because it is pickled."""

    def __init__(self, container: str) -> None:
        self._container = container

    def __call__(self) -> DockerExecEnv:
        return DockerExecEnv(self._container)


@contextlib.contextmanager
def containers(count: int) -> Iterator[list[str]]:
    """Containers that do nothing, with the limits that sandboxes have."""
    import docker

    client = docker.from_env()
    made: list[Any] = []
    try:
        for _ in range(count):
            made.append(
                client.containers.run(
                    IMAGE, ["sleep", "infinity"], detach=True, network_mode="none", mem_limit="2g", init=True
                )
            )
        yield [container.id for container in made]
    finally:
        for container in made:
            container.remove(force=True)
        client.close()


@dataclass(slots=True)
class Turn:
    """What one arm did in its turn."""

    steps_per_s: float
    """Of all environments together."""
    latencies_s: list[float]
    wrong: int
    """Outputs that were not what the command prints."""


def measure(env: Vector, envs: int, steps: int, budget_s: float) -> Turn:
    """Take steps, every output of which is checked."""
    turn = Turn(0.0, [], 0)
    began_s = time.perf_counter()
    while len(turn.latencies_s) < steps and (not turn.latencies_s or time.perf_counter() - began_s < budget_s):
        words = [secrets.token_hex(4) for _ in range(envs)]
        start_s = time.perf_counter()
        observations = env.step([f"echo {word}" for word in words])[0]
        turn.latencies_s.append(time.perf_counter() - start_s)
        turn.wrong += sum(seen != f"{word}\n" for word, seen in zip(words, observations, strict=True))
    turn.steps_per_s = envs * len(turn.latencies_s) / (time.perf_counter() - began_s)
    return turn


def ours_to_mend(turn: Turn) -> Turn:
    """Wrong outputs of ours end the benchmark; those of others are counted."""
    assert not turn.wrong, f"{turn.wrong} outputs were wrong"
    return turn


def many(options: argparse.Namespace) -> list[tuple[Turn, Turn]]:
    """Turns of both, a pair for each round."""
    envs, rounds = options.envs, []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(
            rayroll.RolloutVectorEnv(envs, tasks=[TASK], substrate="docker", max_steps=MOST_STEPS)
        )
        console.print(f"{envs} sandboxes start")
        ours.reset()
        measure(ours, envs, 1, options.turn_s)  # the first step waits for the sandboxes
        console.print(f"{envs} processes with a container each start")
        names = stack.enter_context(containers(envs))
        theirs = AsyncVectorEnv([_Make(name) for name in names], shared_memory=False)
        stack.callback(theirs.close)
        theirs.reset()
        measure(theirs, envs, 1, options.turn_s)
        for number in range(options.rounds):
            arms: list[Vector] = [ours, theirs]
            turns = {
                arm is ours: measure(arm, envs, options.steps, options.turn_s)
                for arm in (arms if number % 2 else reversed(arms))
            }
            rounds.append((ours_to_mend(turns[True]), turns[False]))
            speeds = " and ".join(f"{turn.steps_per_s:,.0f}" for turn in rounds[-1])
            console.print(f"round {number + 1}: {speeds} steps/s, {turns[False].wrong} wrong of docker exec")
    return rounds


def single(options: argparse.Namespace) -> list[tuple[float, float]]:
    """Median seconds of a step through ``make_vec`` and of the same command through a client here, for each round."""
    rounds = []
    with (
        rayroll.RolloutVectorEnv(1, tasks=[TASK], substrate="docker", max_steps=MOST_STEPS) as env,
        SyncClient("docker") as client,
        client.open(TASK) as session,
    ):

        class Direct:
            def step(self, actions: Sequence[str]) -> tuple[Any, ...]:
                return ([session.exec(actions[0]).output],)

        env.reset()
        direct = Direct()
        for arm in (env, direct):
            measure(arm, 1, 5, options.turn_s)
        for _ in range(options.rounds):
            turns = [ours_to_mend(measure(arm, 1, options.single_steps, options.turn_s)) for arm in (env, direct)]
            rounds.append((statistics.median(turns[0].latencies_s), statistics.median(turns[1].latencies_s)))
    return rounds


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What was typed, checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--envs", type=int, default=64, help="environments at the same time [64]")
    add("--rounds", type=int, default=6, help="turns of each, at least 5 for a claim [6]")
    add("--steps", type=int, default=60, help="most steps of a turn [60]")
    add("--single-steps", type=int, default=200, help="most steps of a turn with one environment [200]")
    add("--turn-s", type=float, default=4.0, help="seconds after which a turn takes no further step [4]")
    add("--gate", action="store_true", help="exit with 1 unless every claim holds")
    add("--smoke", action="store_true", help="few steps, no claims: does it work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.envs, options.rounds, options.steps, options.single_steps, options.turn_s = 2, 2, 3, 5, 2.0
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, show, and say whether the claims hold (only with --gate)."""
    options = parse(argv)
    line: dict[str, Any] = {"machine": facts()}
    start_ray()
    pairs, singles = many(options), single(options)
    ours, theirs = (statistics.median(pair[i].steps_per_s for pair in pairs) for i in (0, 1))
    added_ms = [(through - direct) * 1e3 for through, direct in singles]
    ratios = [one.steps_per_s / other.steps_per_s for one, other in pairs]
    gates = [
        at_least(f"steps/s of make_vec over AsyncVectorEnv with docker exec, {options.envs} envs", 15.0, ratios),
        below("make_vec with 1 env minus the runner, ms", 2.0, added_ms),
    ]
    line |= {
        "envs": options.envs,
        "rayroll_steps_per_s": round(ours, 1),
        "async_vector_steps_per_s": round(theirs, 1),
        "added_ms": round(statistics.median(added_ms), 3),
        "async_vector_wrong": sum(turn.wrong for _, turn in pairs),
        "rounds": [[round(turn.steps_per_s, 1) for turn in pair] for pair in pairs],
        "single_ms": [[round(value * 1e3, 3) for value in pair] for pair in singles],
        "gates": [] if options.smoke else [gate.as_json() for gate in gates],
    }
    line["machine"]["load_after"] = load_average()
    table = Table("path", "steps/s", title=f"{options.envs} environments", title_justify="left")
    table.add_row("rayroll.make_vec", f"{ours:,.0f}")
    table.add_row("AsyncVectorEnv, docker exec", f"{theirs:,.0f}")
    console.print(table)
    show_gates(console, line["gates"])
    print(json.dumps(line))
    return int(options.gate and not all(gate["passed"] for gate in line["gates"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
