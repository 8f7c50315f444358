"""How a replay compares with its recording: how many times as long it took, and what the rest of the time was for.

The recording is what was asked to be replayed: think times and calls one after another, at the workload's pace. The
replay is everything in a rollout's slot, from asking for its sandbox to its end, the wait for the slot apart. Their
difference is the tax: infrastructure by phase, what calls took beyond their recorded time, and likewise thinking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rayroll.metrics import Distribution
from rayroll.metrics.projected import concurrency_of, measured_slot_hours, measured_worker_hours
from rayroll.metrics.shares import in_slot_s
from rayroll.projection import ACTION_PHASES, Cell, project, slot_sample, worker_sample
from rayroll.timing import PHASES, TIMELINE
from rayroll.types import Rollout

__all__ = ["Leg", "Recorded", "compare"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a session took when it was recorded, at the workload's pace."""

    think_s: float
    tool_s: float

    @property
    def total_s(self) -> float:
        """Without any overhead, a replay takes so long."""
        return self.think_s + self.tool_s


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of a cell that was played in one go."""

    cell: str
    wall_s: float
    """From the first rollout asked for to the last one ended."""
    in_slot_s: float
    """Of its rollouts, summed."""


def compare(
    rollouts: Iterable[Rollout],
    recorded: Mapping[str, Recorded],
    *,
    legs: Sequence[Leg] = (),
    target_rollouts: int = 1_000_000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One record of plain values for each cell, in the order in which cells first appear.

    Args:
        rollouts: Of a replay; ``labels["cell"]`` says which cell, else the substrate.
        recorded: By task id.
        legs: For the concurrency that was reached.
        target_rollouts: Of the run that is projected: so many rollouts like these.
        seed: Of the projection's bootstrap.

    Returns:
        Per cell, sessions that were played to their end (``compared``) against their recording: ``slowdown`` and, for
        the time between the first command's turn and the last one's end, ``acting_slowdown``: over all sessions
        (``sum``) and its spread over them (``least``, ``p25``, ``p50``, ``p75``, ``most``); ``tax_s``: mean seconds per
        session by what they were for, which add up to replayed minus recorded; and hours.
    """
    cells: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        cells[rollout.labels.get("cell", rollout.substrate)].append(rollout)
    return [_cell(name, found, recorded, legs, target_rollouts, seed) for name, found in cells.items()]


def _cell(
    name: str,
    rollouts: Sequence[Rollout],
    recorded: Mapping[str, Recorded],
    legs: Sequence[Leg],
    target_rollouts: int,
    seed: int,
) -> dict[str, Any]:
    # What a limit ended, or the machine spoilt, did not do all of the recorded work.
    pairs = [(r, recorded[r.task_id]) for r in rollouts if r.valid and r.submitted and r.task_id in recorded]
    own = [leg for leg in legs if leg.cell == name]
    wall_s = sum(leg.wall_s for leg in own)
    return {
        "cell": name,
        "substrate": rollouts[0].substrate,
        "concurrency": concurrency_of(rollouts),
        "concurrency_reached": sum(leg.in_slot_s for leg in own) / wall_s if wall_s else None,
        "rollouts": len(rollouts),
        "valid": sum(r.valid for r in rollouts),
        "compared": len(pairs),
        "recorded_s": sum(known.total_s for _, known in pairs),
        "replayed_s": sum(in_slot_s(r) for r, _ in pairs),
        "slowdown": _ratios([(in_slot_s(r), known.total_s) for r, known in pairs]),
        "acting_slowdown": _ratios([(_acting_s(r), known.total_s) for r, known in pairs]),
        "tax_s": _tax_s(pairs),
        "worker_hours": measured_worker_hours(rollouts),
        "slot_hours": measured_slot_hours(rollouts),
        "projected": {
            "rollouts": target_rollouts,
            "worker_hours": _projected(rollouts, worker_sample, target_rollouts, seed),
            "slot_hours": _projected(rollouts, slot_sample, target_rollouts, seed),
        },
        "sessions": [
            {"task": r.task_id, "recorded_s": known.total_s, "replayed_s": in_slot_s(r), "actions": len(r.steps)}
            for r, known in sorted(pairs, key=lambda pair: pair[0].task_id)
        ],
    }


def _acting_s(rollout: Rollout) -> float:
    return sum(seconds for name, seconds in rollout.timing.phases.items() if name in ACTION_PHASES)


def _ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """None: nothing was played to its end, or nothing of it took any time when it was recorded."""
    known = [(took_s, recorded_s) for took_s, recorded_s in pairs if recorded_s > 0]
    if not known:
        return None
    found = Distribution(took_s / recorded_s for took_s, recorded_s in known)
    return {
        "n": len(known),
        "sum": sum(took_s for took_s, _ in known) / sum(recorded_s for _, recorded_s in known),
        **{f"p{percent}": found.quantile(percent / 100) for percent in (25, 50, 75)},
        "least": found.values[0],
        "most": found.values[-1],
    }


def _tax_s(pairs: Sequence[tuple[Rollout, Recorded]]) -> dict[str, float]:
    if not pairs:
        return {}
    sums: dict[str, float] = defaultdict(float)
    for rollout, known in pairs:
        for name, seconds in rollout.timing.phases.items():
            if PHASES[name].kind != "policy" and name not in ("queue", "run"):
                sums[name] += seconds
        sums["calls"] += rollout.timing.phases.get("run", 0.0) - known.tool_s
        sums["thinking"] += rollout.timing.policy_s - known.think_s
    order = [*(name for name in TIMELINE if name in sums), "calls", "thinking"]
    return {name: sums[name] / len(pairs) for name in order}


def _projected(rollouts: Sequence[Rollout], sample: Any, target_rollouts: int, seed: int) -> dict[str, Any] | None:
    actions = sum(len(r.steps) for r in rollouts) / len(rollouts)
    cell = Cell(actions, concurrency_of(rollouts), tuple(map(sample, rollouts)))
    found = project([cell], rollouts=target_rollouts, seed=seed)
    return None if found is None else asdict(found)
