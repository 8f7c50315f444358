"""How the commands for traces show what they have found: on standard error for people, as tables, as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayroll.report._format import plain

if TYPE_CHECKING:
    from rich.console import Console

    from rayroll.traces.collect import Progress

__all__ = ["StorePath", "console", "folder_for", "logs_bar", "show", "write_csv"]

StorePath = Annotated[Path, typer.Argument(help="A store that `rayroll traces load` has made.")]


def console(file: Any = None) -> Console:
    from rich.console import Console

    file = file or sys.stderr
    return Console(file=file, width=None if file.isatty() else 140)


@contextmanager
def logs_bar() -> Iterator[Callable[[Progress], None]]:
    """How far the reading of agents' logs is, on standard error; nothing where there are none."""
    from rich import progress as rich

    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.DownloadColumn())
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=console()) as bar:
        task = bar.add_task("logs", total=None, visible=False)

        def show(at: Progress) -> None:
            what = f"log {at.logs_done + 1} of {at.logs}" if at.path else "writing rows"
            bar.update(task, description=what, completed=at.bytes_done, total=at.bytes, visible=True)

        yield show


def show(on: Console, name: str, lines: Sequence[Mapping[str, Any]], definition: str) -> None:
    from rich.table import Table

    on.print(f"[bold]{name}[/bold]" + (f"  [dim]{definition}" if definition else ""), highlight=False)
    table = Table(box=None, header_style="dim")
    for column in lines[0] if lines else ["nothing"]:
        table.add_column(column, justify="left" if lines and isinstance(lines[0][column], str) else "right")
    for line in lines:
        table.add_row(*map(plain, line.values()))
    on.print(table)


def folder_for(path: Path | None) -> None:
    """Make the folder that files are to go to; asked first, so that no long computation is for nothing.

    Raises:
        ConfigError: It cannot be made.
    """
    from rayroll.errors import ConfigError

    try:
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {path}: {error.strerror}", fix="name another folder") from None


def write_csv(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)
