"""How much slower the same work runs on one substrate than on another, and the tax that follows from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from rayroll.metrics import Context, Distribution, metric
from rayroll.types import Rollout


class Reference:
    """Mean run of every command on the reference substrate, by task and place in the rollout."""

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        seconds: dict[Hashable, list[float]] = defaultdict(list)
        for rollout in rollouts:
            for command, run_s in _runs(rollout):
                seconds[command].append(run_s)
        self._mean_s = {command: sum(found) / len(found) for command, found in seconds.items()}

    def run_s(self, rollout: Rollout) -> float | None:
        """Seconds that this rollout's commands take on the reference; None when one of them never ran there."""
        total_s = 0.0
        for command, _ in _runs(rollout):
            mean_s = self._mean_s.get(command)
            if mean_s is None:
                return None
            total_s += mean_s
        return total_s


def slowdown_s(rollout: Rollout, reference: Reference) -> float | None:
    """Seconds that a rollout's commands took beyond the reference, negative where they were faster.

    Returns:
        None when the work is not the same: a command that the reference never ran at that place.
    """
    reference_s = reference.run_s(rollout)
    return None if reference_s is None else sum(run_s for _, run_s in _runs(rollout)) - reference_s


@metric("timing_s/slowdown", unit="s")
def slowdown(rollouts: Sequence[Rollout], context: Context) -> Distribution | None:
    """Run of a valid rollout's commands minus the same commands on the reference substrate; signed."""
    reference = Reference(context.reference)
    return Distribution.of(slowdown_s(r, reference) for r in rollouts if r.valid)


@metric("timing_s/tax", unit="s")
def tax(rollouts: Sequence[Rollout], context: Context) -> Distribution | None:
    """The headline: infrastructure (the wait for a slot apart) plus slowdown in a valid rollout."""
    reference = Reference(context.reference)
    pairs = [(r, slowdown_s(r, reference)) for r in rollouts if r.valid]
    return Distribution.of(
        r.timing.infra_s - r.timing.phases.get("queue", 0.0) + slow_s for r, slow_s in pairs if slow_s is not None
    )


@metric("slowdown/factor", unit="1")
def factor(rollouts: Sequence[Rollout], context: Context) -> float | None:
    """Run of all commands as a multiple of the same commands on the reference substrate."""
    reference = Reference(context.reference)
    pairs = [(r, reference.run_s(r)) for r in rollouts if r.valid]
    there_s = sum(ref_s for _, ref_s in pairs if ref_s is not None)
    here_s = sum(run_s for r, ref_s in pairs if ref_s is not None for _, run_s in _runs(r))
    return here_s / there_s if there_s else None


def _runs(rollout: Rollout) -> Iterator[tuple[Hashable, float]]:
    """Every command of a rollout as what it is compared by, and its seconds."""
    for index, step in enumerate(rollout.steps):
        # By the command too: a policy that chose another one did other work.
        yield (rollout.task_id, index, step.act.command), step.phases_s.get("run", 0.0)
    for phase in ("setup_run", "grade_run"):
        if phase in rollout.timing.phases:
            yield (rollout.task_id, phase), rollout.timing.phases[phase]
