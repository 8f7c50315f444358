"""How a replay of a trace is asked for and shown: its pace as options, and how it did against its recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from rayroll.report import _format
from rayroll.timing import TIMELINE

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["HumanWaits", "MaxCall", "MaxSteps", "ThinkScale", "ToolScale", "replay_tables"]

ThinkScale: TypeAlias = Annotated[
    float | None, typer.Option(help="Of a trace: times its models' recorded thinking; 0: none. [1]")
]
ToolScale: TypeAlias = Annotated[float | None, typer.Option(help="Of a trace: times its stand-ins' durations. [1]")]
HumanWaits: TypeAlias = Annotated[
    float | None, typer.Option(help="Of a trace: times the waits for people, which are left out otherwise. [0]")
]
MaxCall: TypeAlias = Annotated[float | None, typer.Option(help="Of a trace: seconds after which a call is cut.")]
MaxSteps: TypeAlias = Annotated[int | None, typer.Option(help="Of a trace: only so many steps of each session.")]

_TAX_SHOWN = 0.0005
"""Parts of a tax below this many seconds in every cell are not listed."""


def replay_tables(cells: Sequence[Mapping[str, Any]]) -> list[Table]:
    """One table of the cells and one of what the tax consists of.

    Args:
        cells: What ``rayroll.traces.slowdown.compare`` returned.
    """
    from rich.table import Table

    style: dict[str, Any] = {"box": None, "padding": (0, 1, 0, 0), "header_style": "dim", "title_justify": "left"}
    against = Table(title="against the recording", title_style="bold", **style)
    against.add_column("cell", no_wrap=True)
    for column in (
        "slowdown\nall",
        "per session\np50 (p25 – p75)",
        "its actions\np50",
        "tax per\nsession",
        "at once\nasked / reached",
        "worker-hours\nhere",
        "slot-hours\nhere",
        "played",
    ):
        against.add_column(column, justify="right", no_wrap=True)
    for cell in cells:
        against.add_row(cell["cell"], *_facts(cell))
    tax = Table(title="the tax by phase, mean seconds per session", title_style="bold", **style)
    tax.add_column("phase")
    for cell in cells:
        tax.add_column(cell["cell"], justify="right", no_wrap=True)
    for name in (*TIMELINE, "calls", "thinking"):
        values = [cell["tax_s"].get(name, 0.0) for cell in cells]
        if max(map(abs, values), default=0.0) >= _TAX_SHOWN:
            tax.add_row(_PARTS.get(name, name), *map(_format.seconds, values))
    return [against, tax]


_PARTS = {"calls": "calls beyond their record", "thinking": "thinking beyond its record", "grade_run": "grader's run"}


def _facts(cell: Mapping[str, Any]) -> list[str]:
    whole, acting = cell["slowdown"], cell["acting_slowdown"]
    reached = cell["concurrency_reached"]
    return [
        _times(whole["sum"]) if whole else "–",
        f"{_times(whole['p50'])} ({_times(whole['p25'])} – {_times(whole['p75'])})" if whole else "–",
        _times(acting["p50"]) if acting else "–",
        _format.seconds(sum(cell["tax_s"].values())) if cell["tax_s"] else "–",
        f"{cell['concurrency']} / {'–' if reached is None else f'{reached:.2f}'}",
        f"{cell['worker_hours']:.4g}",
        f"{cell['slot_hours']:.4g}",
        f"{cell['compared']}/{cell['rollouts']}",
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.3f}×" if ratio < 10 else _format.ratio(ratio)
