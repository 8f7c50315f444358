"""Makes summary and report again from the rollouts on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(results: Annotated[Path, typer.Argument(help="Results folder of a sweep.")]) -> None:
    """Write summary.json and report.html of a finished or unfinished sweep, and print the comparison."""
    from rich.console import Console

    from rayroll.report import html, summary, table

    made = summary.write_summary(results)
    html.write_report(results)
    Console(width=None if sys.stdout.isatty() else 140).print(table.comparison(made))
    typer.echo(f"{results / 'report.html'}")
