"""What a full run would take: worker-hours, slot-hours and cost for N rollouts of K actions, with intervals.

``worker_hours`` counts what the machines do: environment and infrastructure seconds of all attempts, the wait for a
slot and the policy apart. ``slot_hours`` counts what is paid for: a slot from the first request for its sandbox to the
sandbox's end, policy time included. Both divide the time of *all* rollouts by the *valid* ones, since a rollout that
the machine spoilt was paid for as well. See docs/timing.md.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter

from rayroll.timing import PHASES
from rayroll.types import Rollout

__all__ = [
    "ACTION_PHASES",
    "Cell",
    "Estimate",
    "Sample",
    "Spread",
    "cost",
    "phase_sample",
    "project",
    "retry_sample",
    "slot_sample",
    "spread",
    "worker_sample",
]

ACTION_PHASES = frozenset({"policy", "dispatch", "transport", "spawn", "run", "drain", "host", "return"})
"""Phases that grow with the number of actions; all others are paid once a rollout."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout's seconds of whatever is projected."""

    task_id: str
    valid: bool
    fixed_s: float
    """Paid once a rollout."""
    action_s: float
    """Paid per action, summed over the rollout."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Rollouts made under equal conditions."""

    actions: float
    """Actions in a rollout: as the sweep asked for, or the mean."""
    concurrency: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A projected total and how far to trust it."""

    hours: float
    lo: float | None
    """Lower end of the 95 % interval; None with fewer than two rollouts."""
    hi: float | None
    per_rollout_s: float
    extrapolated: bool
    basis: str
    """What it stands on, for people: ``measured at 150 actions`` or ``extrapolated from 10, 50 actions``."""
    rollouts: int
    """Valid rollouts behind it."""
    tasks: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How many times more one substrate takes than another, on the tasks that both did."""

    ratio: float
    lo: float | None
    hi: float | None
    tasks: int


def worker_sample(rollout: Rollout) -> Sample:
    """Seconds in which machines worked for a rollout: env and infra of all its attempts, minus the wait for a slot."""
    return _sample(rollout, lambda name: name != "queue" and PHASES[name].kind != "policy", rollout.infra_retry_s)


def slot_sample(rollout: Rollout) -> Sample:
    """Seconds in which a slot was taken: everything but the wait for it."""
    return _sample(rollout, lambda name: name != "queue", rollout.infra_retry_s)


def phase_sample(*phases: str) -> Callable[[Rollout], Sample]:
    """Makes samples of some phases alone. Projections are linear, so those of all phases add up to the whole."""
    return lambda rollout: _sample(rollout, lambda name: name in phases, 0.0)


def retry_sample(rollout: Rollout) -> Sample:
    """Seconds of earlier attempts that the machine spoilt."""
    return _sample(rollout, lambda _: False, rollout.infra_retry_s)


def project(
    cells: Iterable[Cell],
    *,
    rollouts: int,
    actions: float | None = None,
    seed: int = 0,
    resamples: int = 2000,
) -> Estimate | None:
    """Project onto a run of ``rollouts`` rollouts of ``actions`` actions.

    The basis is the cell with that number of actions at concurrency 1 (or the lowest there is). Without one, a line
    ``a + b n`` over the cells of that concurrency: ``a`` the mean of the phases that are paid once, ``b`` the slope of
    those that grow with the actions.

    Args:
        cells: What was measured on one substrate; equal conditions are pooled.
        rollouts: Rollouts of the full run.
        actions: Actions of each; None: as many as were measured.
        seed: Of the bootstrap over tasks (over rollouts where there is one task only).
        resamples: Bootstrap draws, fewer with over 500 tasks; 0 leaves the interval out.

    Returns:
        None when no rollout was valid.
    """
    basis = _basis(cells, actions)
    if basis is None:
        return None
    scale = rollouts / 3600
    value = basis.per_rollout_s()
    lo, hi = _interval(basis.draws(basis.clusters, seed, resamples), len(basis.clusters))
    return Estimate(
        hours=value * scale,
        lo=None if lo is None else lo * scale,
        hi=None if hi is None else hi * scale,
        per_rollout_s=value,
        extrapolated=basis.extrapolated,
        basis=basis.sentence,
        rollouts=sum(s.valid for weighted in basis.cells for s in weighted.cell.samples),
        tasks=len({s.task_id for weighted in basis.cells for s in weighted.cell.samples}),
    )


def spread(
    these: Iterable[Cell],
    those: Iterable[Cell],
    *,
    actions: float | None = None,
    seed: int = 0,
    resamples: int = 2000,
) -> Spread | None:
    """The ratio of ``these`` to ``those`` on the tasks they share; every draw takes the same tasks on both sides.

    Returns:
        None when they share no task with a valid rollout on both sides.
    """
    these, those = tuple(these), tuple(those)
    shared = _valid_tasks(these) & _valid_tasks(those)
    left, right = _basis(_only(these, shared), actions), _basis(_only(those, shared), actions)
    if left is None or right is None:
        return None
    ratio = _ratio(left.per_rollout_s(), right.per_rollout_s())
    if ratio is None:
        return None
    if len(shared) == 1:
        return Spread(ratio, None, None, tasks=1)
    tasks = sorted(shared)
    pairs = zip(left.draws(tasks, seed, resamples), right.draws(tasks, seed, resamples), strict=True)
    lo, hi = _interval([_ratio(a, b) for a, b in pairs], len(tasks))
    return Spread(ratio, lo, hi, tasks=len(tasks))


def cost(slot_hours: Estimate, price_per_slot_hour: float) -> Estimate:
    """The same estimate in money instead of hours."""
    return replace(
        slot_hours,
        hours=slot_hours.hours * price_per_slot_hour,
        lo=None if slot_hours.lo is None else slot_hours.lo * price_per_slot_hour,
        hi=None if slot_hours.hi is None else slot_hours.hi * price_per_slot_hour,
    )


def _sample(rollout: Rollout, counts: Callable[[str], bool], fixed_s: float) -> Sample:
    action_s = 0.0
    for name, seconds in rollout.timing.phases.items():
        if counts(name):
            if name in ACTION_PHASES:
                action_s += seconds
            else:
                fixed_s += seconds
    return Sample(rollout.task_id, rollout.valid, fixed_s, action_s)


@dataclass(frozen=True, slots=True)
class _Weighted:
    """A cell's part in an estimate: ``fixed * mean fixed_s + action * mean action_s``."""

    cell: Cell
    fixed: float = 1.0
    action: float = 1.0


class _Basis:
    """A weighted sum of cell means, which can be computed again for any draw of tasks."""

    def __init__(self, cells: Sequence[_Weighted], sentence: str, extrapolated: bool) -> None:
        self.cells = cells
        self.sentence = sentence
        self.extrapolated = extrapolated
        one_task = len({s.task_id for w in cells for s in w.cell.samples}) == 1
        self._seconds: list[dict[str, float]] = []
        self._valid: list[dict[str, int]] = []
        for weighted in cells:
            seconds: dict[str, float] = defaultdict(float)
            valid: dict[str, int] = defaultdict(int)
            for index, sample in enumerate(weighted.cell.samples):
                cluster = str(index) if one_task else sample.task_id
                seconds[cluster] += weighted.fixed * sample.fixed_s + weighted.action * sample.action_s
                valid[cluster] += sample.valid
            self._seconds.append(seconds)
            self._valid.append(valid)
        self.clusters = sorted({cluster for valid in self._valid for cluster in valid})
        """What is drawn: tasks, or the rollouts of the only task."""

    def per_rollout_s(self) -> float:
        """Seconds per valid rollout."""
        return sum(
            sum(seconds.values()) / sum(valid.values())
            for seconds, valid in zip(self._seconds, self._valid, strict=True)
        )

    def draws(self, clusters: Sequence[str], seed: int, resamples: int) -> list[float | None]:
        """Estimates for draws of ``clusters`` with replacement; equal seeds and numbers of clusters give equal draws.

        None where a draw has no valid rollout of some cell.
        """
        if not clusters:
            return []
        columns = [
            ([seconds.get(c, 0.0) for c in clusters], [valid.get(c, 0) for c in clusters])
            for seconds, valid in zip(self._seconds, self._valid, strict=True)
        ]
        estimates: list[float | None] = []
        for pick in _picks(len(clusters), seed, resamples):
            total_s: float | None = 0.0
            for seconds_of, valid_of in columns:
                count = sum(pick(valid_of))
                total_s = None if total_s is None or not count else total_s + sum(pick(seconds_of)) / count
            estimates.append(total_s)
        return estimates


@lru_cache(maxsize=8)
def _picks(size: int, seed: int, resamples: int) -> tuple[Callable[[Sequence[float]], Iterable[float]], ...]:
    """Draws of ``size`` places with replacement, as functions that take those places out of a list.

    Kept, because a report draws the same for every phase and cell. With more than 500 places there are fewer draws (at
    least 200), so that an interval over thousands of rollouts still takes a fraction of a second.
    """
    rng = random.Random(seed)
    places = range(size)
    count = min(resamples, max(200, 1_000_000 // size))
    # itemgetter of a single place would return no tuple.
    return tuple(itemgetter(*rng.choices(places, k=size)) if size > 1 else _only_place for _ in range(count))


def _only_place(values: Sequence[float]) -> Sequence[float]:
    return values


def _basis(cells: Iterable[Cell], actions: float | None) -> _Basis | None:
    pooled: dict[tuple[int, float], list[Sample]] = defaultdict(list)
    for cell in cells:
        pooled[cell.concurrency, cell.actions].extend(cell.samples)
    usable = {key: samples for key, samples in pooled.items() if any(s.valid for s in samples)}
    if not usable:
        return None
    lowest = min(concurrency for concurrency, _ in usable)
    by_actions = {n: Cell(n, lowest, tuple(s)) for (c, n), s in sorted(usable.items()) if c == lowest}
    at = "" if lowest == 1 else f", concurrency {lowest}"
    counts = list(by_actions)
    names = ", ".join(f"{n:g}" for n in counts)

    if actions is None:
        share = 1 / len(counts)
        return _Basis([_Weighted(cell, share, share) for cell in by_actions.values()], f"as measured{at}", False)
    if actions in by_actions:
        return _Basis([_Weighted(by_actions[actions])], f"measured at {actions:g} actions{at}", False)
    # ``a``: what does not grow with actions, its mean over the cells. ``b``: the least-squares slope of the action
    # phases through the origin, for no actions take no time. A free line through totals had ``a`` and ``b`` of either
    # sign where the noise of a fixed phase (a start, the grading) exceeded the few actions between two cells. Both are
    # weighted sums of the cells' means, which keeps parts adding up to the whole.
    squares = sum(n * n for n in counts)
    fit = [
        _Weighted(cell, 1 / len(counts), actions * n / squares if squares else 0.0) for n, cell in by_actions.items()
    ]
    return _Basis(fit, f"extrapolated from {names} actions{at}", True)


def _interval(draws: Sequence[float | None], clusters: int) -> tuple[float | None, float | None]:
    values = sorted(value for value in draws if value is not None)
    if clusters < 2 or len(values) < 40:  # fewer have no 2.5th percentile
        return None, None
    return values[int(0.025 * len(values))], values[min(len(values) - 1, int(0.975 * len(values)))]


def _ratio(this: float | None, that: float | None) -> float | None:
    return None if this is None or not that else this / that


def _valid_tasks(cells: Iterable[Cell]) -> set[str]:
    return {s.task_id for cell in cells for s in cell.samples if s.valid}


def _only(cells: Iterable[Cell], tasks: set[str]) -> list[Cell]:
    return [replace(cell, samples=tuple(s for s in cell.samples if s.task_id in tasks)) for cell in cells]
