"""Numbers as people read them: three digits, the unit that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["hours", "percent", "plain", "ratio", "seconds", "several_seconds"]


def hours(value: float | None) -> str:
    """Hours with thousands separators: ``6,500 h``, ``4.25 h``."""
    if value is None:
        return "–"
    return f"{value:,.0f} h" if abs(value) >= 100 else f"{value:.3g} h"


_UNITS = ((600.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))


def seconds(value: float | None) -> str:
    """Seconds in the unit that fits: ``850 µs``, ``2.73 ms``, ``4.05 s``, ``13.2 min``."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    size, unit = _unit(value)
    return f"{_three(value / size)} {unit}"


def several_seconds(values: Sequence[float]) -> str:
    """Seconds in one unit where that stays readable: ``2.33 / 2.95 / 46 ms``."""
    largest = max(values, key=abs)
    if largest == 0 or any(value and abs(value) < abs(largest) / 500 for value in values):
        return " / ".join(seconds(value) for value in values)
    size, unit = _unit(largest)
    return " / ".join(_three(value / size) for value in values) + f" {unit}"


def percent(share: float | None) -> str:
    """A share as a whole percentage; what is small but there says so: ``<1 %``."""
    if share is None:
        return "–"
    return "<1 %" if 0 < share < 0.005 else f"{round(share * 100)} %".replace("-", "−")


def ratio(value: float | None) -> str:
    """A factor: ``1.82×``, ``110×``."""
    if value is None:
        return "–"
    return f"{value:,.0f}×" if value >= 100 else f"{value:.3g}×"


def _unit(value: float) -> tuple[float, str]:
    return next((size, unit) for least, size, unit in _UNITS if abs(value) >= least)


def _three(number: float) -> str:
    """Three digits, never in scientific notation."""
    text = f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
    return text.replace("-", "−")


def plain(value: Any) -> str:
    """A value of any kind: counts with thousands separators, other numbers to four digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
