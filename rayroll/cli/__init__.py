"""The command line: thin doors to what the package does."""

from __future__ import annotations

import sys

import typer

from rayroll.errors import RayrollError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Rollouts of coding agents in sandboxes: run them, and see what the sandboxes cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a log wants a plain traceback, and no values of local variables
)


def _register() -> None:
    from rayroll.cli import doctor, gc, report, run, serve, shell, sweep, top, traces, vm

    commands = (doctor.doctor, sweep.sweep, run.run, report.report, shell.shell, top.top, serve.serve, gc.gc)
    for command in commands:
        app.command()(command)
    app.add_typer(vm.vm, name="vm")
    app.add_typer(traces.traces, name="traces")


def main() -> None:
    """Entry point of ``rayroll``. Our own errors become one sentence and exit code 2."""
    _register()
    try:
        app()
    except RayrollError as error:
        print(f"rayroll: {error}", file=sys.stderr)  # noqa: T201 - the command line's own voice
        sys.exit(2)
