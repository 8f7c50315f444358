"""What TraceLab published of its data set, beside what we compute: the same statistic, the same row, the same column.

The numbers are in ``published.toml``, each under the statistic of ours that is the same number, as it was printed.

>>> found = statistics.compute(store.connection, "prefix_hit_rate")
>>> [c.difference for c in compare("prefix_hit_rate", found)]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

__all__ = ["Comparison", "Published", "compare", "is_public_data", "numbers"]

Row = Mapping[str, Any]

_NEAR = 1e-3
"""A release may lack a row or two; three counts that are all this near by accident are not to be expected."""


@dataclass(frozen=True, slots=True)
class Published:
    """A number that TraceLab printed."""

    statistic: str
    """Ours that is the same number."""
    row: Row
    """Which of its rows: columns and their values. ``#`` is the row's place, from 1."""
    column: str
    value: float
    """In the statistic's unit."""
    exactness: Literal["T", "R", "D", "C"]
    """T: typeset, exact as printed. R: from a README, often rounded. D: read off a figure. C: computed from others."""
    facts: str
    """Where ``facts.json`` has it, as printed: keys and places, with a slash in between."""
    factor: float
    """From the printed unit to the statistic's."""

    @property
    def label(self) -> str:
        """The row in words, such as ``all, user``."""
        return ", ".join("none" if value is None else f"{value}" for value in self.row.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published number beside ours."""

    published: Published
    ours: float | None
    """None: the trace has no such row, or nothing to compute it of."""

    @property
    def difference(self) -> float | None:
        """(ours - published) / published; None where one of the two is missing, or 0 was published."""
        if self.ours is None or not self.published.value:
            return None
        return (self.ours - self.published.value) / self.published.value


@cache
def numbers(statistic: str | None = None) -> tuple[Published, ...]:
    """All that was published, or what was of one statistic, in the file's order."""
    if statistic is not None:
        return tuple(number for number in numbers() if number.statistic == statistic)
    text = files("rayroll.traces").joinpath("published.toml").read_text(encoding="utf-8")
    return tuple(
        _number(name, table["by"], line) for name, table in tomllib.loads(text).items() for line in table["numbers"]
    )


def _number(statistic: str, by: Sequence[str], line: Sequence[Any]) -> Published:
    facts, *keys = line[: len(by) + 1]
    column, printed, exactness, *factor = line[len(by) + 1 :]
    row = {name: None if key == "" else key for name, key in zip(by, keys, strict=True)}
    scale = factor[0] if factor else 1
    return Published(statistic, row, column, printed * scale, exactness, facts, scale)


def compare(statistic: str, found: Sequence[Row]) -> list[Comparison]:
    """Each published number of a statistic beside ours.

    Args:
        statistic: Its name; one that nothing was published of has no comparison.
        found: Its rows, as ``statistics.compute`` gives them with the parameters at their defaults.
    """
    return [Comparison(number, _value(number, found)) for number in numbers(statistic)]


def _value(number: Published, found: Sequence[Row]) -> float | None:
    for place, row in enumerate(found, 1):
        if all((place if name == "#" else row.get(name)) == key for name, key in number.row.items()):
            value = row[number.column]
            return None if value is None else float(value)
    return None


def is_public_data(scope: Sequence[Row]) -> bool:
    """Whether a store holds the whole public data set, so that differences are of definitions and not of data.

    Args:
        scope: The rows of ``counts_scope``: sessions, steps and tool calls are to be as many as were published.
    """
    counted = [
        comparison.difference
        for comparison in compare("counts_scope", scope)
        if comparison.published.column in ("sessions", "steps", "tool_calls")
    ]
    return all(difference is not None and abs(difference) <= _NEAR for difference in counted)
