"""Where the wall time of rollouts went, by who pays and by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rayroll.metrics import Distribution, metric
from rayroll.timing import PHASES, TIMELINE
from rayroll.types import Rollout


def in_slot_s(rollout: Rollout) -> float:
    """Wall time from the slot on. The wait before it says how many rollouts were asked for at once, no more."""
    return rollout.timing.wall_s - rollout.timing.phases.get("queue", 0.0)


@metric("timing_s/in_slot", unit="s")
def in_slot(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Wall time of a valid rollout from its slot on, the wait for that apart."""
    return Distribution.of(in_slot_s(r) for r in rollouts if r.valid)


@metric("timing_s/total", unit="s")
def total(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Wall time of a valid rollout, wait for a slot included."""
    return Distribution.of(r.timing.wall_s for r in rollouts if r.valid)


@metric("timing_s/env", unit="s")
def env(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Time in the task's own commands (actions, set-up, grading) in a valid rollout."""
    return Distribution.of(r.timing.env_s for r in rollouts if r.valid)


@metric("timing_s/infra", unit="s")
def infra(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Time that is neither the task's commands nor the policy in a valid rollout."""
    return Distribution.of(r.timing.infra_s for r in rollouts if r.valid)


@metric("timing_s/policy", unit="s")
def policy(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Time spent waiting for the policy in a valid rollout."""
    return Distribution.of(r.timing.policy_s for r in rollouts if r.valid)


@metric("timing_s/hidden", unit="s")
def hidden(rollouts: Sequence[Rollout]) -> Distribution | None:
    """Work that went on behind a phase of higher priority in a valid rollout, and is not in any other figure."""
    return Distribution.of(r.timing.hidden_s for r in rollouts if r.valid)


@metric("timing_s/infra/<phase>", unit="s")
def infra_by_phase(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean seconds of each infrastructure phase in a valid rollout; they add up to ``timing_s/infra/mean``."""
    return _means(rollouts, "infra")


@metric("timing_s/env/<phase>", unit="s")
def env_by_phase(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean seconds of each environment phase in a valid rollout; they add up to ``timing_s/env/mean``."""
    return _means(rollouts, "env")


@metric("share/<kind>", unit="1")
def share_by_kind(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Shares of env, infra and policy in the summed wall time of all rollouts from their slots on; they add up to 1."""
    total_s = sum(map(in_slot_s, rollouts))
    if total_s <= 0:
        return {}
    queue_s = sum(r.timing.phases.get("queue", 0.0) for r in rollouts)
    return {
        "env": sum(r.timing.env_s for r in rollouts) / total_s,
        "infra": (sum(r.timing.infra_s for r in rollouts) - queue_s) / total_s,
        "policy": sum(r.timing.policy_s for r in rollouts) / total_s,
    }


@metric("share/phase/<phase>", unit="1")
def share_by_phase(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Share of each phase in the summed wall time of all rollouts, the wait for a slot among them; they add up to 1."""
    wall_s = sum(r.timing.wall_s for r in rollouts)
    return {name: seconds / wall_s for name, seconds in _sums(rollouts).items()} if wall_s else {}


def _means(rollouts: Sequence[Rollout], kind: str) -> dict[str, float]:
    valid = [r for r in rollouts if r.valid]
    return {name: seconds / len(valid) for name, seconds in _sums(valid).items() if PHASES[name].kind == kind}


def _sums(rollouts: Sequence[Rollout]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for rollout in rollouts:
        for name, seconds in rollout.timing.phases.items():
            sums[name] += seconds
    return {name: sums[name] for name in TIMELINE if name in sums}
