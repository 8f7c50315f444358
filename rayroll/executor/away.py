"""What a trainer and the gateway of another cluster say to each other, over a ``Line``: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayroll.types import Act, Rollout, Turn

__all__ = ["PORT", "SILENCE_S", "Acted", "Answer", "Ask", "Finished", "Over", "Read", "Turned", "Withdrawn"]

PORT = 7433
"""Where a gateway listens, unless told otherwise."""
SILENCE_S = 30.0
"""A machine that says nothing at all for so long is gone."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Do something, and answer. From the trainer."""

    id: int
    what: str
    """``open``, ``stats``, ``snapshot``, ``submit``, ``pause``, ``resume`` or ``cancel``."""
    run: int
    """Which of the trainer's runs; 0: none."""
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """To an ``Ask``."""

    id: int
    value: Any
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Turned:
    """It is the policy's turn. From the gateway."""

    run: int
    number: int
    turn: Turn
    is_last: bool
    """Only to be looked at: the rollout is over (``policy.last``)."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nobody waits for the answer to this turn any more. From the gateway."""

    run: int
    number: int


@dataclass(frozen=True, slots=True)
class Acted:
    """What the policy answered. From the trainer."""

    run: int
    number: int
    act: Act | None
    """None: it raised, and the trainer knows what."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout is over. From the gateway."""

    run: int
    task_id: str
    rollout: Rollout | None


@dataclass(frozen=True, slots=True)
class Read:
    """The trainer's reader took one, and may be sent another. From the trainer."""

    run: int


@dataclass(frozen=True, slots=True)
class Over:
    """A run has ended, and nothing more comes of it. From the gateway."""

    run: int
    error: BaseException | None
