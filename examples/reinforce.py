"""REINFORCE learns to repair six bugs: where each one is, and which edit removes it.

Every episode is a sandbox with a Python package in which one line is wrong. The policy has two turns: it goes to a
function (one command of six), then edits it (one of six). The package's own tests decide: reward 1.0 when all that
failed pass and none is newly broken, else 0.0. Chance repairs one in 36.

The policy is a table, so that all of it fits here and a CPU is enough. Put a language model in its place (read the
observations, write the commands) and nothing else changes.

    python examples/reinforce.py --seeds 0 1 2 --out curve.jsonl --plot curve.svg
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

import rayroll

BUGS = [f"repo_fix/spanset-0{number}" for number in range(3, 9)]

FUNCTIONS = ["__and__", "__contains__", "gaps", "nearest", "nth", "parse_spans"]
EDITS = [
    "s/ and / or /",
    "s/<=/</",
    "s/is not None/is None/",
    r"s/\[2\]/[1]/",
    "s/number - 1/number + 1/",
    "s/stop + start/stop - start/",
]
# What a turn can do. Each command is a shell of its own; files, the folder and exported variables stay.
TURNS = [
    [f"export at='/def {name}(/,/    def /'; sed -n \"$at p\" spanset/*.py" for name in FUNCTIONS],
    [f'sed -i "$at {edit}" spanset/*.py' for edit in EDITS],
]


class Policy:
    """For each task and turn a categorical distribution over commands; all are equally likely at first."""

    def __init__(self, tasks: Sequence[str], seed: int, learning_rate: float = 2.0) -> None:
        self.row = {task: row for row, task in enumerate(tasks)}
        self.logits = np.zeros((len(tasks), len(TURNS), len(TURNS[0])))
        self.baseline = np.zeros(len(tasks))
        self.learning_rate = learning_rate
        self.rng = np.random.default_rng(seed)

    def probabilities(self, rows: np.ndarray, turn: int) -> np.ndarray:
        """``(B, commands)``."""
        scores = np.exp(self.logits[rows, turn] - self.logits[rows, turn].max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)

    def act(self, rows: np.ndarray, turn: int) -> np.ndarray:
        """A command for each row: ``(B,)`` of indices into ``TURNS[turn]``."""
        # Gumbel's trick: the largest of log p plus noise is a draw from p.
        return (np.log(self.probabilities(rows, turn)) + self.rng.gumbel(size=(len(rows), len(TURNS[turn])))).argmax(1)

    def learn(self, rows: np.ndarray, choices: np.ndarray, returns: np.ndarray) -> None:
        """One step up the gradient of E[(return - baseline) log p]. ``choices`` are ``(B, turns)``."""
        advantages = returns - self.baseline[rows]
        # All gradients before any step: the policy that acted is the one that learns.
        towards = [np.eye(len(TURNS[turn]))[choices[:, turn]] - self.probabilities(rows, turn) for turn in range(2)]
        for turn, gradient in enumerate(towards):
            np.add.at(self.logits[:, turn], rows, self.learning_rate * advantages[:, None] * gradient)
        for row in np.unique(rows):
            self.baseline[row] += 0.2 * (returns[rows == row].mean() - self.baseline[row])


def train(envs: VectorEnv, policy: Policy, updates: int, seed: int) -> Iterator[dict[str, Any]]:
    """One episode in every env, one update, again. Yields what each update saw."""
    for update in range(updates):
        # A seed the first time: later resets go on with each env's own generator, which chooses its tasks.
        _, infos = envs.reset(seed=seed if update == 0 else None)
        rows = np.array([policy.row[task] for task in infos["task"]])
        choices = np.zeros((envs.num_envs, len(TURNS)), dtype=int)
        for turn, commands in enumerate(TURNS):
            choices[:, turn] = policy.act(rows, turn)
            _, rewards, _, _, infos = envs.step([commands[c] for c in choices[:, turn]])
        # False where the machine failed, not the policy: such a row has no reward (NaN), and teaches nothing.
        valid = infos["valid"]
        policy.learn(rows[valid], choices[valid], rewards[valid])
        yield {
            "seed": seed,
            "update": update,
            "episodes": (update + 1) * envs.num_envs,
            "return": float(rewards[valid].mean()) if valid.any() else None,
            "invalid": int((~valid).sum()),
            "rollouts": infos["rollout"][valid],
        }


def make_envs(num_envs: int, substrate: str = "local", bugs: Sequence[str] = BUGS) -> VectorEnv:
    """As many sandboxes at once as there are envs; an episode ends after the last turn, and is graded."""
    pack = rayroll.load_pack("repo_fix")
    tasks = [pack.by_id(bug) for bug in bugs]
    return rayroll.make_vec("rayroll/Tasks-v0", num_envs, tasks=tasks, substrate=substrate, max_steps=len(TURNS))


def plot(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Returns over episodes as SVG: each seed thin, their mean thick, chance dashed."""
    import vl_convert  # pip install 'rayroll[report]'

    x = {"field": "episodes", "type": "quantitative", "title": "episodes"}
    y = {
        "field": "return",
        "type": "quantitative",
        "title": "mean return of an update",
        "scale": {"domain": [0, 1]},
    }
    seeds = {"detail": {"field": "seed"}, "opacity": {"value": 0.45}, "strokeWidth": {"value": 1}}
    chance = {"data": {"values": [{"return": 1 / 36}]}, "mark": {"type": "rule", "strokeDash": [4, 4]}}
    layers = [
        {"mark": "line", "encoding": {"x": x, "y": y, **seeds}},
        {"mark": {"type": "line", "strokeWidth": 3}, "encoding": {"x": x, "y": y | {"aggregate": "mean"}}},
        chance | {"encoding": {"y": y}},
    ]
    chart = {"data": {"values": list(records)}, "width": 560, "height": 220, "background": "white", "layer": layers}
    path.write_text(vl_convert.vegalite_to_svg(chart, vl_version="6.1"))


def main() -> None:
    """Train once for each seed; show returns as they come, then where the time went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--substrate", default="local", help="where sandboxes come from: local, docker")
    parser.add_argument("--num-envs", type=int, default=24, help="sandboxes at once, and episodes in an update")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, help="write the curve here, one JSON object per update")
    parser.add_argument("--plot", type=Path, help="draw the curve here, as SVG")
    options = parser.parse_args()

    curve: list[dict[str, Any]] = []
    spent_s: Counter[str] = Counter()
    with make_envs(options.num_envs, options.substrate) as envs:
        for seed in options.seeds:
            began_s = time.monotonic()
            for record in train(envs, Policy(BUGS, seed), options.updates, seed):
                for rollout in record.pop("rollouts"):
                    timing = rollout.timing
                    spent_s += Counter(env=timing.env_s, infrastructure=timing.infra_s, policy=timing.policy_s)
                record["seconds"] = round(time.monotonic() - began_s, 2)
                curve.append(record)
                if options.out:  # at once: a run that is stopped leaves its curve
                    options.out.write_text("".join(json.dumps(record) + "\n" for record in curve))
                mean = record["return"] or 0.0
                bar = "█" * round(40 * mean)
                print(f"seed {seed}  {record['seconds']:6.1f} s  {record['episodes']:5d} episodes  {mean:.2f} {bar}")

    total_s = sum(spent_s.values())
    print("time of the rollouts:", ", ".join(f"{part} {spent / total_s:.0%}" for part, spent in spent_s.items()))
    if options.plot:
        plot(curve, options.plot)


if __name__ == "__main__":
    main()
