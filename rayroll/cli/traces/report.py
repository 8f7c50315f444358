"""One page about a store: every statistic beside what was published, figures, timelines, CSV files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayroll.cli.traces._tables import StorePath, console, folder_for, show

if TYPE_CHECKING:
    from rayroll.traces.findings import Findings

__all__ = ["report"]


def report(
    store: StorePath,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    csv_folder: Annotated[
        Path | None, typer.Option("--csv", help="Also a CSV file for each statistic and figure, and published.csv.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A price table (TOML) instead of the one that comes along.")
    ] = None,
    include_inputs: Annotated[
        bool, typer.Option("--include-inputs", help="Show commands and names as they are: a page for yourself.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Everything as one JSON document on standard output.")
    ] = False,
) -> None:
    """Compute everything about a store, beside what was published, and write one self-contained page."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from rayroll.errors import ConfigError
    from rayroll.report import traces as page
    from rayroll.traces import prices as price_tables
    from rayroll.traces.findings import find
    from rayroll.traces.store import Store

    page.check_extra()
    if out.is_dir():
        raise ConfigError(f"{out} is a folder", fix=f"--out {out / 'report.html'}")
    if not out.parent.is_dir():
        raise ConfigError(f"cannot write {out}: there is no folder {out.parent}", fix=f"mkdir -p {out.parent}")
    folder_for(csv_folder)
    table = price_tables.load(prices)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Store.open(store, read_only=True) as opened, Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("", total=None)
        found = find(
            opened,
            table,
            include_inputs=include_inputs,
            progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
        bar.update(task, description="the page")
        text = page.render(found)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror}", fix="name another with --out") from error
    if csv_folder is not None:
        found.write_csv(csv_folder)
    if as_json:
        sys.stdout.write(json.dumps(_document(found), default=str) + "\n")
        return
    show(console(sys.stdout), "traces", page.main_table(found), "")
    for sentence in found.missing:
        typer.echo(f"  {sentence}", err=True)
    for name, reason in found.failed.items():
        typer.echo(f"  {name} could not be computed: {reason}", err=True)
    typer.echo(f"{out}" + (f", and CSV files in {csv_folder}" if csv_folder is not None else ""))


def _document(found: Findings) -> dict[str, Any]:
    return {
        "is_public_data": found.is_public_data,
        "missing": list(found.missing),
        "failed": dict(found.failed),
        "statistics": found.statistics,
        "figures": found.figures,
        "published": found.published(),
    }
