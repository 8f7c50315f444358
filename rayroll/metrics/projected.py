"""What a full run of such rollouts would take, and what these have taken so far."""

from __future__ import annotations

from collections.abc import Sequence

from rayroll.metrics import Context, metric
from rayroll.projection import Cell, Estimate, cost, project, slot_sample, worker_sample
from rayroll.types import Rollout


def actions_of(rollouts: Sequence[Rollout]) -> float:
    """Actions in each of these rollouts: as their sweep cell says, or the mean of valid ones."""
    asked = {r.labels.get("actions", "") for r in rollouts}
    if len(asked) == 1 and (only := asked.pop()).isdigit():
        return float(only)
    counts = [len(r.steps) for r in rollouts if r.valid]
    return sum(counts) / len(counts) if counts else 0.0


def concurrency_of(rollouts: Sequence[Rollout]) -> int:
    """Rollouts that ran at a time, as their sweep cell says; 1 where nobody said."""
    asked = {r.labels.get("concurrency", "") for r in rollouts}
    return int(only) if len(asked) == 1 and (only := asked.pop()).isdigit() else 1


@metric("projection/worker_hours", unit="h")
def worker_hours(rollouts: Sequence[Rollout], context: Context) -> Estimate | None:
    """Env and infra hours of the full run, slot waits apart, with its 95 % interval; see docs/timing.md."""
    cell = Cell(actions_of(rollouts), concurrency_of(rollouts), tuple(map(worker_sample, rollouts)))
    return project([cell], rollouts=context.target_rollouts, actions=context.target_actions, seed=context.seed)


@metric("projection/slot_hours", unit="h")
def slot_hours(rollouts: Sequence[Rollout], context: Context) -> Estimate | None:
    """Hours in which slots are taken in the full run, policy time included: what is paid for."""
    cell = Cell(actions_of(rollouts), concurrency_of(rollouts), tuple(map(slot_sample, rollouts)))
    return project([cell], rollouts=context.target_rollouts, actions=context.target_actions, seed=context.seed)


@metric("projection/cost", unit="money")
def projected_cost(rollouts: Sequence[Rollout], context: Context) -> Estimate | None:
    """Slot-hours of the full run times ``price_per_slot_hour``, in the currency of that price."""
    hours = slot_hours(rollouts, context)
    if hours is None or context.price_per_slot_hour is None:
        return None
    return cost(hours, context.price_per_slot_hour)


@metric("projection/extrapolated", unit="0 or 1")
def extrapolated(rollouts: Sequence[Rollout], context: Context) -> float | None:
    """1 when the target's number of actions is not the measured one, and action phases were scaled."""
    if not any(r.valid for r in rollouts):
        return None
    return float(context.target_actions is not None and context.target_actions != actions_of(rollouts))


@metric("measured/worker_hours", unit="h")
def measured_worker_hours(rollouts: Sequence[Rollout]) -> float:
    """Env and infra hours that these rollouts took, slot waits apart, spoilt attempts included."""
    return sum(s.fixed_s + s.action_s for s in map(worker_sample, rollouts)) / 3600


@metric("measured/slot_hours", unit="h")
def measured_slot_hours(rollouts: Sequence[Rollout]) -> float:
    """Hours in which these rollouts took a slot, policy time included."""
    return sum(s.fixed_s + s.action_s for s in map(slot_sample, rollouts)) / 3600
