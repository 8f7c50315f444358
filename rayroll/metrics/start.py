"""How fast sandboxes start and are made clean again, by the rung of the start ladder they began on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from rayroll.metrics import Distribution, metric
from rayroll.types import Rollout


@metric("start/cold_s/<rung>", unit="s")
def cold_start(rollouts: Sequence[Rollout]) -> dict[str, Distribution]:
    """``create`` called to the runner's accepted hello; pull, build and admission apart."""
    return _by_rung((r.rung, r.cold_start_s) for r in rollouts)


@metric("start/first_action_s/<rung>", unit="s")
def first_action(rollouts: Sequence[Rollout]) -> dict[str, Distribution]:
    """``create`` asked to the result of a first no-op."""
    return _by_rung((r.rung, r.first_action_s) for r in rollouts)


@metric("start/reset_s/<rung>", unit="s")
def reset(rollouts: Sequence[Rollout]) -> dict[str, Distribution]:
    """Time to give a rollout a clean sandbox, by the rung that it got."""
    return _by_rung((r.rung, r.reset_s) for r in rollouts)


def _by_rung(pairs: Iterable[tuple[str, float | None]]) -> dict[str, Distribution]:
    values: dict[str, list[float]] = defaultdict(list)
    for rung, seconds in pairs:
        if seconds is not None:
            values[rung].append(seconds)
    return {rung: Distribution(found) for rung, found in values.items()}
