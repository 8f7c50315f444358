"""A results folder in memory: its configuration, and rollouts by sweep cell."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from rayroll.errors import ConfigError
from rayroll.metrics.projected import actions_of, concurrency_of
from rayroll.metrics.shares import in_slot_s
from rayroll.record import read_rollouts
from rayroll.types import Rollout

__all__ = ["FLOOR", "Results", "on_rung", "primary_rung"]

FLOOR = "local"
"""The substrate that isolates least: what the others are above, not what they are compared with."""

# A cell with more rollouts is told by a random part of it; counts stay exact. Bounds memory for runs of a million.
_KEPT_PER_CELL = 5_000


class Results:
    """Rollouts by sweep cell (``labels["cell"]``, else the substrate): exact counts, and at most 5,000 of each cell."""

    def __init__(
        self, rollouts: Iterable[Rollout], config: Mapping[str, Any], prepared: Iterable[Rollout] = ()
    ) -> None:
        self.config = config
        self.prepared = list(prepared)
        """What brought each task to each substrate before anything was measured."""
        self.seed = int(config.get("seed") or 0)
        self.kept: dict[str, list[Rollout]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.valid: Counter[str] = Counter()
        self.failures: dict[str, Counter[str]] = defaultdict(Counter)
        self.rungs: dict[str, Counter[str]] = defaultdict(Counter)
        self._owners: dict[str, str] = {}
        rng = random.Random(self.seed)
        for rollout in rollouts:
            name = self.cell_of(rollout)
            self.counts[name] += 1
            self.valid[name] += rollout.valid
            if rollout.failure is not None:
                self.failures[name][rollout.failure.fault] += 1
            if rollout.cold_start_s is not None:
                self.rungs[name][rollout.rung] += 1
            if len(self.kept[name]) < _KEPT_PER_CELL:
                self.kept[name].append(rollout)
            elif (place := rng.randrange(self.counts[name])) < _KEPT_PER_CELL:
                self.kept[name][place] = rollout
        found = dict.fromkeys(kept[0].substrate for kept in self.kept.values())
        asked = [s for s in config.get("substrates") or () if s in found]
        self.substrates: list[str] = asked + [s for s in found if s not in asked]
        """In the order of the configuration."""

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read ``config.json``, ``rollouts.jsonl`` and, where there is one, ``prepare.jsonl``.

        Raises:
            ConfigError: One is missing, or the configuration is damaged.
        """
        path = Path(folder) / "config.json"
        try:
            config = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            raise ConfigError("no config.json here: is this a results folder?", folder=str(folder)) from None
        except orjson.JSONDecodeError as error:
            raise ConfigError("config.json is damaged", path=str(path), reason=str(error)) from None
        rollouts = Path(folder) / "rollouts.jsonl"
        if not rollouts.exists():
            raise ConfigError("no rollouts.jsonl here: nothing finished yet", folder=str(folder))
        prepared = Path(folder) / "prepare.jsonl"
        return cls(read_rollouts(rollouts), config, read_rollouts(prepared) if prepared.exists() else ())

    def cell_of(self, rollout: Rollout) -> str:
        """The cell a rollout belongs to; one label used by several substrates is as many cells."""
        name = rollout.labels.get("cell", rollout.substrate)
        owner = self._owners.setdefault(name, rollout.substrate)
        return name if owner == rollout.substrate else f"{name} ({rollout.substrate})"

    def cells_of(self, substrate: str) -> list[str]:
        """Cells of one substrate, by actions and concurrency."""
        names = [name for name, kept in self.kept.items() if kept[0].substrate == substrate]
        return sorted(names, key=lambda n: (*self.conditions(n), n))

    def conditions(self, cell: str) -> tuple[float, int]:
        """Actions and concurrency of a cell."""
        return actions_of(self.kept[cell]), concurrency_of(self.kept[cell])

    def like(self, cell: str, substrate: str) -> list[Rollout]:
        """Rollouts of another substrate under the conditions of this cell."""
        return [
            rollout
            for other in self.cells_of(substrate)
            if "cell" not in self.kept[other][0].labels or self.conditions(other) == self.conditions(cell)
            for rollout in self.kept[other]
        ]

    def example(self, substrate: str) -> Rollout | None:
        """A typical rollout to look at: of median length, in the calmest cell with the fewest actions."""
        for cell in sorted(self.cells_of(substrate), key=lambda name: self.conditions(name)[::-1]):
            rung = primary_rung(self.rungs[cell])
            valid = sorted((r for r in on_rung(self.kept[cell], rung) if r.valid), key=in_slot_s)
            if valid:
                return valid[len(valid) // 2]
        return None


def primary_rung(rungs: Counter[str]) -> str | None:
    return "cached" if rungs["cached"] else max(rungs, key=lambda r: rungs[r], default=None)


def on_rung(rollouts: Sequence[Rollout], rung: str | None) -> list[Rollout]:
    """Valid rollouts of one rung, and every spoilt one: its time was spent for them."""
    return [r for r in rollouts if r.rung == rung or rung is None or not r.valid]
