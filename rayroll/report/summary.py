"""``summary.json``: every cell's metrics, every substrate's projection, and how far apart substrates are.

Read from ``config.json``, ``rollouts.jsonl`` and ``prepare.jsonl`` of a results folder, so that it can be made again
at any time. Substrates are compared within one rung of the start ladder (``cached`` where there is one); ``local`` is a
floor and takes no part.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from rayroll.metrics import Context, Distribution, compute
from rayroll.metrics.actions import overhead_s
from rayroll.metrics.projected import actions_of, concurrency_of
from rayroll.metrics.shares import in_slot_s
from rayroll.metrics.slowdown import Reference
from rayroll.projection import (
    Cell,
    Estimate,
    Spread,
    cost,
    phase_sample,
    project,
    retry_sample,
    slot_sample,
    spread,
    worker_sample,
)
from rayroll.redact import redacted
from rayroll.report.results import FLOOR, Results, on_rung, primary_rung
from rayroll.timing import PHASES, TIMELINE
from rayroll.types import Rollout

__all__ = ["build_summary", "summarize", "write_summary"]

# Least share of a substrate's commands that must have run on the reference too, to speak of a slowdown.
_LEAST_PAIRED = 0.5
_MOST_VALUES = 4
_OF_THE_CELL = frozenset({"cell", "substrate", "actions", "concurrency", "block"})
"""Labels that say what a rollout was made for."""


def build_summary(folder: Path | str) -> dict[str, Any]:
    """The summary of a results folder. Raises ConfigError when that is none."""
    return summarize(Results.load(folder))


def write_summary(folder: Path | str) -> dict[str, Any]:
    """Build the summary and write it to ``summary.json`` in the folder."""
    summary = build_summary(folder)
    (Path(folder) / "summary.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    return summary


def summarize(results: Results) -> dict[str, Any]:
    """The summary of results at hand: plain values, as they go into ``summary.json``."""
    config = results.config
    reference = _reference(config.get("reference"), results.substrates)
    context = Context(
        target_rollouts=int(config.get("target_rollouts") or 1_000_000),
        target_actions=config.get("target_actions"),
        price_per_slot_hour=config.get("price_per_slot_hour"),
        seed=results.seed,
    )
    substrates = [_substrate(name, results, context, reference) for name in results.substrates]
    return {
        "run_id": config.get("run_id", ""),
        "target": {
            "rollouts": context.target_rollouts,
            "actions": context.target_actions,
            "price_per_slot_hour": context.price_per_slot_hour,
        },
        "reference": reference,
        "floor": FLOOR if FLOOR in results.substrates else None,
        "rollouts": {
            "n": results.counts.total(),
            "valid": results.valid.total(),
            "failures": dict(sum(results.failures.values(), Counter[str]())),
        },
        "substrates": substrates,
        "spreads": _spreads(substrates, results, context),
        "equal_work": _equal_work(results, reference),
        "preparation": _preparation(results.prepared),
        "cells": [
            _cell(name, results, context, reference)
            for substrate in results.substrates
            for name in results.cells_of(substrate)
        ],
        # A run's folder repeats what determines its rollouts under "question", to compare on resuming.
        "config": redacted({key: value for key, value in config.items() if key != "question"}),
    }


def _reference(asked: Any, substrates: Sequence[str]) -> str | None:
    """The substrate whose run times others are held against."""
    for name in (asked, "docker", FLOOR):
        if name in substrates:
            return str(name)
    return substrates[0] if substrates else None


def _cell(name: str, results: Results, context: Context, reference: str | None) -> dict[str, Any]:
    rollouts = results.kept[name]
    compared = results.like(name, reference) if reference else []
    cell_context = Context(
        target_rollouts=context.target_rollouts,
        target_actions=context.target_actions,
        reference=compared,
        price_per_slot_hour=context.price_per_slot_hour,
        seed=context.seed,
    )
    return {
        "cell": name,
        "substrate": rollouts[0].substrate,
        "actions": actions_of(rollouts),
        "concurrency": concurrency_of(rollouts),
        "n": results.counts[name],
        "valid": results.valid[name],
        "sampled": len(rollouts) < results.counts[name],
        "tasks": len({r.task_id for r in rollouts}),
        "failures": dict(results.failures[name]),
        "rungs": dict(results.rungs[name]),
        "metrics": compute(rollouts, cell_context),
    }


def _substrate(name: str, results: Results, context: Context, reference: str | None) -> dict[str, Any]:
    names = results.cells_of(name)
    rungs = sum((results.rungs[n] for n in names), Counter[str]())
    rung = primary_rung(rungs)
    groups = {n: on_rung(results.kept[n], rung) for n in names}
    worker = _project(groups, worker_sample, context)
    slots = _project(groups, slot_sample, context)
    lowest = min((concurrency_of(results.kept[n]) for n in names), default=1)
    calm = [r for n in names if concurrency_of(results.kept[n]) == lowest for r in groups[n]]
    overheads = [overhead_s(step) for r in calm for step in r.steps]
    factor, paired = _slowdown(name, names, calm, results, reference)
    price = context.price_per_slot_hour
    return {
        "substrate": name,
        "is_floor": name == FLOOR,
        "is_reference": name == reference,
        "n": sum(results.counts[n] for n in names),
        "valid": sum(results.valid[n] for n in names),
        "failures": dict(sum((results.failures[n] for n in names), Counter[str]())),
        "rung": rung,
        "rungs": dict(rungs),
        "labels": _labels(r for n in names for r in results.kept[n]),
        "concurrency": lowest,
        "worker_hours": None if worker is None else asdict(worker),
        "slot_hours": None if slots is None else asdict(slots),
        "cost": None if slots is None or price is None else asdict(cost(slots, price)),
        "parts": {} if worker is None else _parts(groups, context, factor),
        "slowdown_factor": factor,
        "slowdown_paired": paired,
        "cold_start_s": _told(r.cold_start_s for r in calm),
        "first_action_s": _told(r.first_action_s for r in calm),
        "reset_s": _told(r.reset_s for r in calm),
        "rollout_s": _told(in_slot_s(r) for r in calm if r.valid),
        "overhead_s": _told(overheads),
        "overhead_histogram": _histogram(overheads),
    }


def _labels(rollouts: Iterable[Rollout]) -> dict[str, list[str]]:
    """What is said of their sandboxes, such as ``accelerator``: each with all its values, of which there are few."""
    values: dict[str, set[str]] = defaultdict(set)
    for r in rollouts:
        for label, value in r.labels.items():
            values[label].add(value)
    return {
        label: sorted(found)
        for label, found in sorted(values.items())
        if label not in _OF_THE_CELL and len(found) <= _MOST_VALUES
    }


def _project(groups: Mapping[str, Sequence[Rollout]], sample: Any, context: Context, **options: Any) -> Estimate | None:
    return project(
        _projection_cells(groups, sample),
        rollouts=context.target_rollouts,
        actions=context.target_actions,
        seed=context.seed,
        **options,
    )


def _projection_cells(groups: Mapping[str, Sequence[Rollout]], sample: Any) -> list[Cell]:
    return [Cell(actions_of(g), concurrency_of(g), tuple(map(sample, g))) for g in groups.values() if g]


def _parts(groups: Mapping[str, Sequence[Rollout]], context: Context, factor: float | None) -> dict[str, float]:
    """Worker-hours by what they are for: they add up to ``worker_hours``, slowdown being a part of env, signed."""
    parts = {}
    for name in TIMELINE:
        if name != "queue" and PHASES[name].kind == "infra":
            parts[name] = _hours(groups, phase_sample(name), context)
    parts["retry"] = _hours(groups, retry_sample, context)
    env = _hours(groups, phase_sample(*(p.name for p in PHASES.values() if p.kind == "env")), context)
    slow = 0.0 if factor is None else env * (1 - 1 / factor)
    return {"env": env - slow, "slowdown": slow, **{name: hours for name, hours in parts.items() if hours}}


def _hours(groups: Mapping[str, Sequence[Rollout]], sample: Any, context: Context) -> float:
    estimate = _project(groups, sample, context, resamples=0)
    return 0.0 if estimate is None else estimate.hours


def _slowdown(
    name: str, cell_names: Sequence[str], rollouts: Sequence[Rollout], results: Results, reference: str | None
) -> tuple[float | None, float]:
    """Run time as a multiple of the reference's for the same commands; the share of rollouts it could be told for."""
    valid = [r for r in rollouts if r.valid]
    if name == reference or reference is None or not valid:
        return (1.0, 1.0) if name == reference else (None, 0.0)
    indexes = {n: Reference(results.like(n, reference)) for n in cell_names}
    expected = [(r, indexes[results.cell_of(r)].run_s(r)) for r in valid]
    paired = [(r.timing.env_s, expected_s) for r, expected_s in expected if expected_s]
    share = len(paired) / len(valid)
    if share < _LEAST_PAIRED:
        return None, share
    return sum(here_s for here_s, _ in paired) / sum(there_s for _, there_s in paired), share


def _preparation(prepared: Sequence[Rollout]) -> list[dict[str, Any]]:
    """What it took to bring tasks to substrates, by substrate and rung: pull and build, and the start after it."""
    groups: dict[tuple[str, str], list[Rollout]] = defaultdict(list)
    for r in prepared:
        if r.cold_start_s is not None:
            groups[r.substrate, r.rung].append(r)
    return [
        {
            "substrate": substrate,
            "rung": rung,
            "n": len(found),
            "image_s": _told(r.timing.phases.get("pull", 0.0) + r.timing.phases.get("build", 0.0) for r in found),
            "cold_start_s": _told(r.cold_start_s for r in found),
        }
        for (substrate, rung), found in sorted(groups.items())
    ]


def _told(values: Iterable[float | None]) -> dict[str, float] | None:
    found = Distribution.of(values)
    return None if found is None else found.parts() | {"n": len(found.values)}


def _histogram(values: Sequence[float], per_decade: int = 12) -> list[dict[str, float]]:
    """Counts in bins of equal width on a log axis; what is not above zero (clock resolution) is in the lowest bin."""
    positive = [value for value in values if value > 0]
    if not positive:
        return []
    first = math.floor(math.log10(min(positive)) * per_decade)
    counts = Counter(max(first, math.floor(math.log10(v) * per_decade)) if v > 0 else first for v in values)
    return [
        {"from_s": 10 ** (i / per_decade), "to_s": 10 ** ((i + 1) / per_decade), "n": counts[i]}
        for i in range(first, max(counts) + 1)
    ]


def _spreads(substrates: Sequence[Mapping[str, Any]], results: Results, context: Context) -> dict[str, Any]:
    """Largest over smallest among comparable substrates: on one rung, the floor apart."""
    rung = primary_rung(sum((Counter(s["rungs"]) for s in substrates if not s["is_floor"]), Counter[str]()))
    compared = [s for s in substrates if not s["is_floor"] and s["rung"] == rung]
    picks: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
        "worker_hours": lambda s: (s["worker_hours"] or {}).get("hours"),
        "slot_hours": lambda s: (s["slot_hours"] or {}).get("hours"),
        "cold_start_s": lambda s: (s["cold_start_s"] or {}).get("p50"),
        "first_action_s": lambda s: (s["first_action_s"] or {}).get("p50"),
        "overhead_s": lambda s: (s["overhead_s"] or {}).get("p50"),
    }
    spreads: dict[str, Any] = {"rung": rung, "substrates": [s["substrate"] for s in compared]}
    for key, pick in picks.items():
        values = {s["substrate"]: value for s in compared if (value := pick(s))}
        if len(values) < 2:
            continue
        (least, _), *_, (most, _) = sorted(values.items(), key=lambda item: item[1])
        spreads[key] = {"least": least, "most": most, "ratio": values[most] / values[least]}
        if key in ("worker_hours", "slot_hours"):
            found = _paired(
                most, least, results, context, rung, worker_sample if key == "worker_hours" else slot_sample
            )
            spreads[key]["paired"] = None if found is None else asdict(found)
    return spreads


def _paired(most: str, least: str, results: Results, context: Context, rung: str | None, sample: Any) -> Spread | None:
    sides = [
        _projection_cells({n: on_rung(results.kept[n], rung) for n in results.cells_of(side)}, sample)
        for side in (most, least)
    ]
    return spread(*sides, actions=context.target_actions, seed=context.seed)


def _equal_work(results: Results, reference: str | None) -> dict[str, Any]:
    """Whether substrates did the same work: equal digests for equal task, actions and sample."""
    groups: dict[tuple[str, str, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for kept in results.kept.values():
        for r in kept:
            if r.valid and r.work_digest:
                groups[r.task_id, r.labels.get("actions", ""), r.sample_index][r.substrate].add(r.work_digest)
    compared = {key: found for key, found in groups.items() if len(found) > 1}
    differing: Counter[str] = Counter()
    tasks: set[str] = set()
    for (task, _, _), found in compared.items():
        if len(set().union(*found.values())) == 1:
            continue
        tasks.add(task)
        counted = Counter(digest for digests in found.values() for digest in digests)
        right = found.get(reference or "", set()) or {counted.most_common(1)[0][0]}
        differing.update(substrate for substrate, digests in found.items() if digests != right or len(digests) > 1)
    return {
        "compared": len(compared),
        "differing": dict(sorted(differing.items())),
        "tasks": sorted(tasks)[:20],
        "equal": bool(compared) and not differing,
    }
