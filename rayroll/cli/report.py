"""Makes summary and report again from the rollouts on disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(results: Annotated[Path, typer.Argument(help="Results folder of a sweep.")]) -> None:
    """Write summary.json and report.html of a finished or unfinished sweep, and print the comparison."""
    from rich.console import Console

    from rayroll.report import html, table

    page = html.write_report(results)  # and the summary beside it
    made = json.loads((results / "summary.json").read_bytes())
    Console(width=None if sys.stdout.isatty() else 140).print(table.comparison(made))
    typer.echo(str(page))
