"""How rollouts ended: how many, with what reward, and whose fault the failures were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from rayroll.errors import Fault
from rayroll.metrics import metric
from rayroll.types import Rollout


@metric("rollout/n", unit="rollouts")
def count(rollouts: Sequence[Rollout]) -> float:
    """Rollouts that finished, valid or not."""
    return float(len(rollouts))


@metric("rollout/valid_n", unit="rollouts")
def valid_count(rollouts: Sequence[Rollout]) -> float:
    """Rollouts that the machine did not spoil; only these are trained on."""
    return float(sum(r.valid for r in rollouts))


@metric("rollout/return/mean", unit="reward")
def mean_return(rollouts: Sequence[Rollout]) -> float | None:
    """Mean reward of rollouts that have one."""
    rewards = [r.reward for r in rollouts if r.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


@metric("rollout/steps/mean", unit="actions")
def mean_steps(rollouts: Sequence[Rollout]) -> float | None:
    """Mean number of actions of valid rollouts."""
    counts = [len(r.steps) for r in rollouts if r.valid]
    return sum(counts) / len(counts) if counts else None


@metric("rollout/truncated_share", unit="1")
def truncated_share(rollouts: Sequence[Rollout]) -> float | None:
    """Share of valid rollouts that a step or time limit ended."""
    valid = [r for r in rollouts if r.valid]
    return sum(r.truncated for r in valid) / len(valid) if valid else None


@metric("rollout/attempts/mean", unit="attempts")
def mean_attempts(rollouts: Sequence[Rollout]) -> float | None:
    """Mean number of attempts; above 1 the machine spoilt some."""
    return sum(r.attempts for r in rollouts) / len(rollouts) if rollouts else None


@metric("failures/<fault>", unit="rollouts")
def failures(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Rollouts with a failure, by whose fault it was."""
    found = Counter(r.failure.fault for r in rollouts if r.failure is not None)
    return {fault: float(found[fault]) for fault in get_args(Fault)}
