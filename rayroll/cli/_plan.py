"""What a sweep will do, decided before anything starts: its cells, their rollouts, and the order they run in."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from rayroll.config import Config
from rayroll.policies.bugfix import LEAST_ACTIONS
from rayroll.types import Task

__all__ = ["BUGFIX", "Block", "Cell", "SweepConfig", "blocks", "cells", "choose_tasks"]

BUGFIX = "bugfix"


class SweepConfig(Config):
    """The question a sweep asks. Kept in ``config.json``; a resumed sweep must ask the same one."""

    substrates: tuple[str, ...]
    """Kinds of substrate to compare."""
    workload: str = BUGFIX
    """What rollouts do: ``bugfix``, or sessions of a trace (``tracelab``, ``trace:FILE``)."""
    trace: Mapping[str, Any] = {}
    """Of a trace: what is played of it, how fast, and a digest of all that."""
    actions: tuple[int, ...] = (10, 50, 150)
    """Commands of a rollout; one cell each. Of a trace: the mean of its sessions, each of which has its own number."""
    concurrency: tuple[int, ...] = (1, 8)
    """Rollouts at the same time; one cell each."""
    rollouts: int = Field(default=24, ge=1)
    """Rollouts of each cell."""
    rounds: int = Field(default=3, ge=1)
    """Parts that each cell's rollouts are cut into; within a round the cells run in random order, so that a slow hour
    of the machine falls on all of them."""
    pack: str = "repo_fix"
    tasks: str = "*"
    """Pattern of task names to choose from, as in a shell."""
    most_tasks: int = Field(default=24, ge=1)
    """Tasks drawn from those, the same for every cell."""
    think_s: float = Field(default=0.0, ge=0.0)
    """Seconds the scripted policy waits before each action, in place of a model."""
    seed: int = 0
    target_rollouts: int = Field(default=1_000_000, ge=1)
    target_actions: int | None = Field(default=150, ge=1)
    """None: as many as were measured."""
    price_per_slot_hour: float | None = Field(default=None, ge=0.0)
    settings: Mapping[str, Mapping[str, Any]] = {}
    """Fields of substrates' configs, by kind."""

    @field_validator("substrates")
    @classmethod
    def _some_substrate(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("name at least one substrate")
        return tuple(dict.fromkeys(value))

    @field_validator("actions", "concurrency")
    @classmethod
    def _sorted_once(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("needs whole numbers of 1 or more, separated by commas")
        return tuple(sorted(set(value)))

    @model_validator(mode="after")
    def _enough_actions(self) -> Self:
        if self.workload == BUGFIX and self.actions[0] < LEAST_ACTIONS:
            raise ValueError(f"actions: the bug-fix workload takes {LEAST_ACTIONS} or more, not {self.actions[0]}")
        return self

    def question(self) -> dict[str, Any]:
        """What ``config.json`` keeps. Of the bug-fix workload as ever, so that earlier sweeps can be resumed."""
        return self.model_dump(mode="json", exclude={"workload", "trace"} if self.workload == BUGFIX else None)


@dataclass(frozen=True, slots=True)
class Cell:
    """Rollouts made under equal conditions."""

    substrate: str
    actions: int
    concurrency: int
    is_trace: bool = False
    """Sessions have as many actions as they were recorded with; ``actions`` is their mean."""

    @property
    def id(self) -> str:
        """Its name in labels, files and W&B."""
        return f"{self.substrate}-{'trace' if self.is_trace else f'a{self.actions}'}-c{self.concurrency}"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a cell's rollouts that runs in one go."""

    cell: Cell
    round: int
    tasks: tuple[Task, ...]

    @property
    def namespace(self) -> str:
        """Part of its rollouts' ids."""
        return f"{self.cell.id}/{self.round}"


def cells(config: SweepConfig) -> list[Cell]:
    """All of them, in reading order."""
    is_trace = config.workload != BUGFIX
    return [Cell(s, a, c, is_trace) for s in config.substrates for a in config.actions for c in config.concurrency]


def choose_tasks(config: SweepConfig, tasks: Sequence[Task]) -> list[Task]:
    """The tasks every cell plays, drawn by the seed."""
    drawn = random.Random(config.seed).sample(list(tasks), min(config.most_tasks, config.rollouts, len(tasks)))
    return sorted(drawn, key=lambda task: task.id)


def blocks(config: SweepConfig, tasks: Sequence[Task]) -> list[Block]:
    """Every rollout of the sweep, in the order of running: rounds of cells, shuffled by the seed.

    The n-th rollout of every cell is of the same task, so that cells compare task by task.
    """
    order = random.Random(config.seed)
    planned: list[Block] = []
    for number in range(config.rounds):
        first, until = (config.rollouts * n // config.rounds for n in (number, number + 1))
        part = tuple(tasks[n % len(tasks)] for n in range(first, until))
        shuffled = cells(config)
        order.shuffle(shuffled)
        planned += [Block(cell, number, part) for cell in shuffled if part]
    return planned
