"""Where traces come from: agents' logs, made-up sessions, a store to ask; and what of them may be shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rayroll.cli.traces._tables import logs_bar

__all__ = ["collect", "load", "sanitize", "synth"]

_KINDS = {"raw": "an agent's log", "rollouts": "rollouts of rayroll's own", "duckdb": "a DuckDB file"}


def collect(
    out: Annotated[Path, typer.Option(help="Rows go here: .jsonl, .jsonl.gz or .jsonl.zst.")] = Path("traces.jsonl"),
    root: Annotated[
        list[Path] | None, typer.Option(help="A home, an agent's folder or a log, instead of this user's; repeatable.")
    ] = None,
    all_users: Annotated[bool, typer.Option(help="Every home of this machine.")] = False,
    fresh: Annotated[bool, typer.Option(help="Read everything again, and forget logs that are gone.")] = False,
    prune: Annotated[bool, typer.Option(help="Drop the rows of logs that are gone.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write what was skipped, by file and line, as JSON.")] = None,
) -> None:
    """Read sessions of Claude Code and Codex into rows, one for each call of a model; again reads only what is new."""
    from rayroll.errors import ConfigError
    from rayroll.traces import collect as collecting

    if report is not None and (report.is_dir() or not report.parent.is_dir()):
        raise ConfigError(f"cannot write {report}", fix="name a file in a folder that is there")
    with logs_bar() as show:
        found = collecting.collect(root, out, all_users=all_users, fresh=fresh, prune=prune, progress=show)
    if report is not None:
        report.write_text(json.dumps(found.as_dict(), indent=2) + "\n")
    by = ", ".join(f"{count} of {provider}" for provider, count in found.rows_by_provider.items())
    typer.echo(f"{found.rows} steps ({by or 'none'}) in {found.sessions} sessions: {out}")
    typer.echo(
        f"{found.logs_read} logs read, {found.logs_read_on} read on, {found.logs_unchanged} unchanged; "
        f"{found.copies_dropped} steps that stood in a second log; {found.mended} lines mended, {found.lost} lost"
    )
    for what in [*found.skipped, *(loss for loss in found.losses if not loss.kept)][:10]:
        typer.echo(f"  {what}", err=True)
    if found.unknown_types:
        typer.echo(f"  passed over: {', '.join(f'{n} {name}' for name, n in found.unknown_types.items())}", err=True)


def sanitize(
    rows: Annotated[Path, typer.Argument(help="Rows of `rayroll traces collect`.")],
    out: Annotated[Path, typer.Argument(help="Rows that may be shared; with --check, those to be checked.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing: prove that OUT gives nothing away.")] = False,
) -> None:
    """Make rows that may be shared: sizes and times stay, names become pseudonyms, inputs and texts go.

    The key of the pseudonyms is made for this run and written nowhere. What was written is checked as it is written.
    """
    from rayroll.errors import ConfigError
    from rayroll.traces.reading import recognise
    from rayroll.traces.rows import read_rows, write_rows
    from rayroll.traces.sanitize import check as leaks_of
    from rayroll.traces.sanitize import sanitize_rows

    for file in (rows, out) if check else (rows,):
        if not file.is_file():
            raise ConfigError(
                f"there is no file of rows {file}", fix="name a file that rayroll traces collect has written"
            )
        # Of another kind of file there would be no rows, and nothing that leaks.
        if (kind := recognise(file)) != "rows":
            raise ConfigError(
                f"{file} is no file of rows, but {_KINDS[kind]}",
                fix="rayroll traces collect makes rows of agents' logs",
            )
    lost: list[str] = []
    if check:
        leaks = leaks_of(read_rows(rows), read_rows(out))
    else:
        if out.exists() and out.samefile(rows):
            raise ConfigError("the rows would be overwritten by their sanitized ones", fix="name another file")
        told = read_rows(rows, on_bad=lambda line, reason: lost.append(f"{rows}:{line}: {reason}"))
        count = write_rows(out, sanitize_rows(told))  # type: ignore[arg-type]
        leaks = leaks_of(read_rows(rows), read_rows(out))
        typer.echo(f"{count} rows: {out}")
    if lost:
        typer.echo(f"  {len(lost)} lines left out, for they are no rows", err=True)
    for what in [*lost[:10], *leaks[:20]]:
        typer.echo(f"  {what}", err=True)
    typer.echo(f"{len(leaks)} leaks" if leaks else "nothing of the input is left but what is on the list")
    if leaks:
        raise typer.Exit(1)


def load(
    files: Annotated[
        list[Path],
        typer.Argument(help="Agents' logs, rows, rollouts.jsonl, TraceLab's DuckDB file, or folders of them."),
    ],
    store: Annotated[Path, typer.Option(help="Made where it is not there.")] = Path("traces.duckdb"),
    include_inputs: Annotated[
        bool, typer.Option("--include-inputs", help="Keep what shell calls ran: a store for yourself.")
    ] = False,
) -> None:
    """Load traces into a store; what is there already is not loaded twice."""
    from rayroll.traces.store import Store

    with Store.open(store) as opened, logs_bar() as show:
        report = opened.load(files, include_inputs=include_inputs, progress=show)
    typer.echo(f"{report.added} steps added, {report.repeated} were there already: {store}")
    told = {
        "without times": report.without_times,
        "calls without a result": report.unfinished,
        "calls whose result came before them": report.clock_backwards,
        "values that are no rows": report.not_rows,
        "lines lost": report.lost_lines,
        "lines mended": report.mended_lines,
        "files passed over": report.skipped_files,
    }
    for what, count in told.items():
        if count:
            typer.echo(f"  {count} {what}", err=True)
    for loss in report.lost[:10]:
        typer.echo(f"  {loss}", err=True)


def synth(
    out: Annotated[Path, typer.Argument(help="Rows go here: .jsonl, .jsonl.gz or .jsonl.zst.")],
    sessions: Annotated[int, typer.Option(min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows.")] = 0,
) -> None:
    """Make sessions up that have the statistics that TraceLab published of real ones."""
    from rayroll.traces.rows import write_rows
    from rayroll.traces.synth import synthesize

    count = write_rows(out, synthesize(sessions, seed=seed))  # type: ignore[arg-type]
    typer.echo(f"{count} steps in {sessions} sessions: {out}")
