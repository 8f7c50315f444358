"""Removes sandboxes that nobody owns any more: the second net below leases."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from rayroll.cli._settings import Given, settings
from rayroll.substrates import kinds

__all__ = ["gc"]


def gc(
    run_id: Annotated[str | None, typer.Option("--run", help="Only sandboxes of this run.")] = None,
    older_than_s: Annotated[
        float | None, typer.Option("--older-than", help="Only sandboxes older than so many seconds.")
    ] = 3600.0,
    everything: Annotated[
        bool, typer.Option("--all", help="Of any age: also kept ones and those of runs under way.")
    ] = False,
    kind: Annotated[list[str] | None, typer.Option(help="Only these substrates.")] = None,
    given_settings: Given = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, remove nothing.")] = False,
) -> None:
    """Find and remove sandboxes that were left on this node. Needs no Ray.

    What was kept for `rayroll shell` stays until its time is over, unless --all or --run says otherwise.
    """
    from rayroll.cleanup import sweep

    age_s = None if everything or run_id is not None else older_than_s
    gone = asyncio.run(
        sweep(
            kind or kinds(),
            configs=settings(given_settings),
            run_id=run_id,
            older_than_s=age_s,
            also_kept=age_s is None,
            dry_run=dry_run,
        )
    )
    for ref in gone:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {ref.kind} {ref.id} of run {ref.run_id} ({ref.state})")
    typer.echo(f"{len(gone)} sandboxes {'to remove' if dry_run else 'removed'}")
