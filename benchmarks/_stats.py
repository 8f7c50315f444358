"""Medians, quantiles and ratios of paired rounds: what may be said on a machine where absolute times mean nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

__all__ = ["Gate", "at_least", "below", "quantile", "show_gates"]


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share ``q`` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Gate:
    """A claim about a median over rounds."""

    name: str
    value: float | None
    """The median; None: it could not be measured, which is no pass."""
    low: float | None
    high: float | None
    """Quarter and three-quarter points over the rounds."""
    limit: str
    passed: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values, rounded."""
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}


def below(name: str, limit: float, rounds: Sequence[float] | None) -> Gate:
    """The median must be at most ``limit``."""
    return _gate(name, f"<= {limit:g}", rounds, lambda value: value <= limit)


def at_least(name: str, limit: float, rounds: Sequence[float] | None) -> Gate:
    """The median must be at least ``limit``."""
    return _gate(name, f">= {limit:g}", rounds, lambda value: value >= limit)


def _gate(name: str, limit: str, rounds: Sequence[float] | None, holds: Callable[[float], bool]) -> Gate:
    if not rounds:
        return Gate(name, None, None, None, limit, False)
    median = statistics.median(rounds)
    return Gate(name, median, quantile(rounds, 0.25), quantile(rounds, 0.75), limit, holds(median))


def show_gates(console: Console, gates: Sequence[dict[str, Any]]) -> None:
    """A line for each claim."""
    for gate in gates:
        value = (
            "not measured" if gate["value"] is None else f"{gate['value']:.3g} ({gate['low']:.3g} - {gate['high']:.3g})"
        )
        verdict = "[green]pass[/]" if gate["passed"] else "[red]FAIL[/]"
        console.print(f"  {verdict}  {gate['name']}: {value}, to be {gate['limit']}", highlight=False)
