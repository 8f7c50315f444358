"""The comparison of substrates for a terminal, and as plain rows for whoever keeps tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayroll.report import _format
from rayroll.report.html import by_hours, equal_work_line, headline, label_lines, spread_line, target_line

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["comparison", "report_rows", "report_values"]


def comparison(summary: Mapping[str, Any]) -> Table:
    """One line per substrate: what a full run would take, what an action and a start cost, what failed.

    Args:
        summary: What ``summarize`` returned or ``summary.json`` holds.
    """
    from rich.table import Table
    from rich.text import Text

    title = headline(summary)
    ordered = by_hours(summary["substrates"])
    notes = [f"spread: {spread_line(summary)}", *label_lines(ordered)]
    notes += [f"work: {equal_work_line(summary['equal_work'])}"]
    table = Table(
        title=title if target_line(summary) in title else f"{title}, for {target_line(summary)}",
        caption="\n".join(notes),
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=None,
        # Made to fit 80 columns, which is what a log has.
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
    table.add_column("substrate", no_wrap=True)
    of_them = ("env", "slow-\ndown", "infra")
    for column in ("worker-hours", *of_them, "cold start\np50", "overhead\np50 / p95", "valid\nfailed"):
        table.add_column(column, justify="right", no_wrap=True)
    for s in ordered:
        worker = s["worker_hours"] or {}
        hours = Text(("≈ " if worker.get("extrapolated") else "") + _format.hours(worker.get("hours")))
        if worker.get("lo"):
            hours.append(f"\n{_format.hours(worker['lo']).removesuffix(' h')} – {_format.hours(worker['hi'])}", "dim")
        outcome = Text(f"{s['valid']}/{s['n']}")
        for fault, count in sorted(s["failures"].items()):
            outcome.append(f"\n{count} {fault}", "red")
        name = Text(s["substrate"], style="bold")
        if s["is_floor"] or s["is_reference"]:
            name.append("\nthe floor" if s["is_floor"] else "\nreference", style="dim not bold")
        overhead = s["overhead_s"]
        table.add_row(
            name,
            hours,
            *map(_format.percent, shares(s).values()),
            _format.seconds((s["cold_start_s"] or {}).get("p50")),
            _format.several_seconds([overhead["p50"], overhead["p95"]]) if overhead else "–",
            outcome,
            style="dim" if s["is_floor"] else "",
        )
    return table


def report_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One plain row per substrate, with the same columns for all: for a W&B table or a CSV file."""
    rows = []
    for s in by_hours(summary["substrates"]):
        worker, slots, overhead = s["worker_hours"] or {}, s["slot_hours"] or {}, s["overhead_s"] or {}
        rows.append(
            {
                "substrate": s["substrate"],
                "n": s["n"],
                "valid": s["valid"],
                "failures": ", ".join(f"{count} {fault}" for fault, count in sorted(s["failures"].items())),
                "rung": s["rung"],
                "worker_hours": worker.get("hours"),
                "worker_hours_lo": worker.get("lo"),
                "worker_hours_hi": worker.get("hi"),
                "basis": worker.get("basis"),
                "slot_hours": slots.get("hours"),
                "cost": (s["cost"] or {}).get("hours"),
                "tax_share": tax_share(s),
                **{f"{name}_share": share for name, share in shares(s).items()},
                "slowdown_factor": s["slowdown_factor"],
                "cold_start_s_p50": (s["cold_start_s"] or {}).get("p50"),
                "first_action_s_p50": (s["first_action_s"] or {}).get("p50"),
                "overhead_s_p50": overhead.get("p50"),
                "overhead_s_p95": overhead.get("p95"),
                "overhead_s_p99": overhead.get("p99"),
            }
        )
    return rows


def report_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """The few numbers that a run is remembered by: spreads, and worker-hours per substrate."""
    values = {f"spread/{k}": v["ratio"] for k, v in summary["spreads"].items() if isinstance(v, Mapping)}
    for s in summary["substrates"]:
        if s["worker_hours"]:
            values[f"projection/worker_hours/{s['substrate']}"] = s["worker_hours"]["hours"]
    return values


def shares(substrate: Mapping[str, Any]) -> dict[str, float | None]:
    """Of projected worker-hours: the commands' own time, slowdown (below 0: faster than the reference; None: it cannot
    be told, and is in env), and infrastructure."""
    worker, parts = substrate["worker_hours"], substrate["parts"]
    if not worker or not worker["hours"]:
        return dict.fromkeys(("env", "slowdown", "infra"))
    env, slowdown = parts["env"] / worker["hours"], parts["slowdown"] / worker["hours"]
    known = substrate["slowdown_factor"] is not None
    return {"env": env, "slowdown": slowdown if known else None, "infra": 1 - env - slowdown}


def tax_share(substrate: Mapping[str, Any]) -> float | None:
    """Infrastructure and slowdown as a share of projected worker-hours."""
    worker = substrate["worker_hours"]
    return 1 - substrate["parts"]["env"] / worker["hours"] if worker and worker["hours"] else None
