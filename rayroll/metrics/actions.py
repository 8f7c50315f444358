"""What one action takes, and how much of that is not its command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rayroll.metrics import Distribution, metric
from rayroll.types import Rollout, Step


def latency_s(step: Step) -> float:
    """Action sent to its full result: all its phases but the wait for the policy."""
    return sum(seconds for name, seconds in step.phases_s.items() if name != "policy")


def overhead_s(step: Step) -> float:
    """Latency minus the command's own run."""
    return latency_s(step) - step.phases_s.get("run", 0.0)


@metric("action/n", unit="actions")
def count(rollouts: Sequence[Rollout]) -> float:
    """Actions that were executed."""
    return float(sum(len(r.steps) for r in rollouts))


@metric("action/latency_s", unit="s")
def latency(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Action sent to its full result."""
    return Distribution.of(latency_s(step) for step in _steps(rollouts))


@metric("action/overhead_s", unit="s")
def overhead(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Latency minus the command's own run: what infrastructure adds to an action."""
    return Distribution.of(overhead_s(step) for step in _steps(rollouts))


@metric("action/run_s", unit="s")
def run(rollouts: Sequence[Rollout]) -> Distribution | None:
    """The command's own run, by the clock in the sandbox."""
    return Distribution.of(step.timing.run_ns / 1e9 for step in _steps(rollouts))


@metric("action/cpu_s", unit="s")
def cpu(rollouts: Sequence[Rollout]) -> Distribution | None:
    """User and system CPU time of an action; below ``run`` the command waited, also for a crowded CPU."""
    return Distribution.of((s.timing.user_ns + s.timing.system_ns) / 1e9 for s in _steps(rollouts))


@metric("action/throttled_s", unit="s")
def throttled(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Time in which the sandbox's CPU limit held an action back."""
    return Distribution.of(step.timing.throttled_ns / 1e9 for step in _steps(rollouts))


@metric("action/timed_out_share", unit="1")
def timed_out_share(rollouts: Sequence[Rollout]) -> float | None:
    """Share of actions that hit a time limit."""
    flags = [step.timed_out for step in _steps(rollouts)]
    return sum(flags) / len(flags) if flags else None


def _steps(rollouts: Sequence[Rollout]) -> Iterator[Step]:
    for rollout in rollouts:
        yield from rollout.steps
