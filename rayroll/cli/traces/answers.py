"""What a store is asked: its statistics."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rayroll.cli.traces._tables import StorePath, console, folder_for, show, write_csv

__all__ = ["stats"]


def stats(
    store: StorePath,
    names: Annotated[list[str] | None, typer.Argument(help="Which statistics; default: all.")] = None,
    prices: Annotated[
        Path | None, typer.Option(help="A price table (TOML) instead of the one that comes along.")
    ] = None,
    csv_folder: Annotated[Path | None, typer.Option("--csv", help="Also write a CSV file for each here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
    definitions: Annotated[bool, typer.Option(help="Say what each means, and who defined it so.")] = False,
) -> None:
    """Compute the statistics of a store."""
    from rayroll.traces import prices as price_tables
    from rayroll.traces import statistics
    from rayroll.traces.store import Store

    folder_for(csv_folder)
    table = price_tables.load(prices).rows()
    found: dict[str, list[dict[str, Any]]] = {}
    with Store.open(store, read_only=True) as opened:
        for name in names or statistics.names():
            given = {"prices": table} if "prices" in statistics.parameters(name) else {}
            found[name] = statistics.compute(opened.connection, name, **given)
    if csv_folder is not None:
        for name, lines in found.items():
            write_csv(csv_folder / f"{name}.csv", lines)
    if as_json:
        sys.stdout.write(json.dumps(found, default=str) + "\n")
        return
    out = console(sys.stdout)
    for name, lines in found.items():
        show(out, name, lines, statistics.definition(name) if definitions else "")
