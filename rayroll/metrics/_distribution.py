"""Many values of one thing, told by their mean and a few quantiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

__all__ = ["Distribution"]


class Distribution:
    """Values in ascending order; at least one."""

    PARTS: ClassVar[tuple[str, ...]] = ("mean", "p50", "p95", "p99")

    def __init__(self, values: Iterable[float]) -> None:
        self.values = sorted(values)
        assert self.values, "a distribution of nothing"

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Distribution | None:
        """The distribution of what is not None; None when that is nothing."""
        present = [value for value in values if value is not None]
        return cls(present) if present else None

    def quantile(self, share: float) -> float:
        """The value below which ``share`` of the values lie, interpolated between the two nearest."""
        position = share * (len(self.values) - 1)
        below = int(position)
        above = min(below + 1, len(self.values) - 1)
        return self.values[below] + (self.values[above] - self.values[below]) * (position - below)

    def parts(self) -> dict[str, float]:
        """Mean and quantiles by name."""
        mean = sum(self.values) / len(self.values)
        return {"mean": mean, **{part: self.quantile(int(part[1:]) / 100) for part in self.PARTS[1:]}}

    def __repr__(self) -> str:
        return f"Distribution(n={len(self.values)}, p50={self.quantile(0.5):.6g})"
