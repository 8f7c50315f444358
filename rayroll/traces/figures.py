"""What the figures of a report show beyond the statistics: curves, taken at a few points by the store itself.

A curve of 400,000 calls is a hundred of its quantiles, and a trade-off is its statistic at more limits than the three
of the published table, so that a page stays small whatever it is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rayroll.traces import statistics

if TYPE_CHECKING:
    import duckdb

__all__ = ["CURVES", "SHARES", "SWEEPS", "Sweep", "curves", "sweep"]

SHARES: tuple[float, ...] = (
    *(0.0, 0.001, 0.002, 0.005),
    *(percent / 100 for percent in range(1, 100)),
    *(0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0),
)
"""Where a curve is taken: evenly, and closer where its tail is."""

CURVES = {
    "tool_latency_s": "tools_categories",
    "human_wait_s": "human_waits",
    "generation_s": "timing_per_event",
    "request_s": "timing_per_request",
    "session_s": "timing_per_session",
    "prefix_tokens": "tokens_length",
    "append_tokens": "tokens_length",
    "output_tokens": "tokens_length",
}
"""Each curve, and the statistic whose definition it has."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A statistic at many limits."""

    statistic: str
    parameter: str
    column: str
    """Which of its columns says the limit."""
    values: tuple[float, ...]


_LIMITS_S = tuple(
    float(f"{base * 10**exponent:g}") for exponent in range(5) for base in (1, 1.5, 2, 3, 4.5, 7)
)  # 1 s to 19 h
_PUBLISHED_S = (60.0, 300.0, 600.0, 3600.0)

SWEEPS = {
    "eviction_curve": Sweep("eviction_sweep", "ttl_s", "ttl_s", tuple(sorted({*_LIMITS_S, *_PUBLISHED_S}))),
    "kv_active_curve": Sweep("kv_active_ratio", "limits_s", "limit_s", tuple(sorted({*_LIMITS_S, *_PUBLISHED_S}))),
}
"""Each trade-off that is drawn as a curve."""


def curves(connection: duckdb.DuckDBPyConnection) -> dict[str, list[dict[str, Any]]]:
    """Every curve's rows: ``series``, ``n`` (how many were measured), ``share``, ``value`` (in the curve's unit).

    ``tool_latency_s`` has a series for each category, the others one for each provider, and all have ``all``. A curve
    that nothing was measured for has no rows.
    """
    query = files("rayroll.traces").joinpath("figures.sql").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CURVES}
    for row in statistics.rows(connection, query, {"shares": list(SHARES)}):
        found[row.pop("curve")].append(row)
    return found


def sweep(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    """A trade-off's rows: those of its statistic, at more limits."""
    wanted = SWEEPS[name]
    return statistics.compute(connection, wanted.statistic, **{wanted.parameter: list(wanted.values)})
