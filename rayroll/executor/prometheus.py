"""The same figures for Prometheus, through Ray's own metrics: every node exports them, tagged by substrate.

Seconds are counters and not the sums of histograms, which Ray rounds to the middles of their buckets; a mean is one
counter divided by another.
"""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

from rayroll.scheduler import Snapshot
from rayroll.types import Rollout

__all__ = ["Prometheus"]

START_BUCKETS_S = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]


class Prometheus:
    """What one executor exports. Ray keeps one metric for each name, so several executors of a process add up."""

    def __init__(self, substrate: str) -> None:
        self._tags = {"substrate": substrate}
        self._rollouts = Counter("rayroll_rollouts", "Rollouts that are over.", ("substrate", "outcome"))
        self._steps = Counter("rayroll_steps", "Actions that were executed.", ("substrate",))
        self._seconds = Counter("rayroll_seconds", "Seconds of rollouts, by phase.", ("substrate", "phase"))
        self._retries = Counter("rayroll_attempts", "Attempts at rollouts, spoilt ones included.", ("substrate",))
        self._starts = Histogram(
            "rayroll_start_seconds",
            "From asking for a sandbox to its runner's hello.",
            boundaries=START_BUCKETS_S,
            tag_keys=("substrate", "rung"),
        )
        self._slots = Gauge("rayroll_slots", "Rollouts by what they wait for.", ("substrate", "stage"))
        self._shown: set[str] = set()

    def add(self, rollout: Rollout) -> None:
        """One more is over."""
        outcome = "valid" if rollout.valid else rollout.failure.fault if rollout.failure else "none"
        self._rollouts.inc(1, {**self._tags, "outcome": outcome})
        if rollout.steps:
            self._steps.inc(len(rollout.steps), self._tags)
        if rollout.attempts:
            self._retries.inc(rollout.attempts, self._tags)
        for phase, seconds in rollout.timing.phases.items():
            if seconds > 0:
                self._seconds.inc(seconds, {**self._tags, "phase": phase})
        if rollout.cold_start_s is not None:
            self._starts.observe(rollout.cold_start_s, {**self._tags, "rung": rollout.rung})

    def show(self, snapshot: Snapshot) -> None:
        """How things stand."""
        now: dict[str, int] = {"waiting": snapshot.waiting}
        now.update(snapshot.stages.items())
        for stage in self._shown | now.keys():
            self._slots.set(now.get(stage, 0), {**self._tags, "stage": stage})
        self._shown |= now.keys()
