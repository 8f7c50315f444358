#!/usr/bin/env python3
"""Fetch, make, prove and write out the tasks of this pack; what each does is in rayroll/tasks/_generate.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from rayroll.errors import RayrollError
from rayroll.tasks import _generate, _sdist, harbor, load_pack
from rayroll.tasks._generate import Settings
from rayroll.tasks._prove import Prover

PACK = Path(__file__).resolve().parent

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(highlight=False)
Names = Annotated[list[str] | None, typer.Argument(help="Packages by name; all of them by default.")]
Jobs = Annotated[int, typer.Option(help="Sandboxes at once; what is found does not depend on it.")]
Rounds = Annotated[int, typer.Option(help="How many times in a row everything must come out the same.")]
Python = Annotated[Path | None, typer.Option(help="Interpreter inside the sandbox, with its packages.")]


@app.command()
def fetch(packages: Names = None) -> None:
    """Get the source distributions with pip, check their hashes, keep them in the cache."""
    wanted = [p for p in _generate.chosen(_generate.read_config(PACK), packages or []) if p.sha256]
    for package in track(wanted, "Fetching", console=console):
        path = _sdist.fetch(package.name, package.version, package.sha256)
        console.print(f"{package.name} {package.version}: {path}")


@app.command()
def make(
    packages: Names = None,
    seed: Annotated[int, typer.Option(help="Decides which changes are tried first.")] = 0,
    per_package: Annotated[int, typer.Option(help="Bugs wanted in each package.")] = 8,
    rounds: Rounds = 5,
    jobs: Jobs = 1,
    python: Python = None,
    also_python: Annotated[
        list[Path] | None,
        typer.Option(help="Another interpreter on which the untouched tests must pass under their names."),
    ] = None,
) -> None:
    """Search bugs, prove them, and write recipes and baselines; those of other packages stay."""
    fetch(packages)
    chosen = _generate.chosen(_generate.read_config(PACK), packages or [])
    settings = Settings(seed=seed, per_package=per_package, rounds=rounds, jobs=jobs)
    provers = [Prover(path) for path in (python, *(also_python or []))]
    _generate.make(PACK, chosen, settings, provers, console.print)


@app.command()
def prove(
    tasks: Annotated[list[str] | None, typer.Argument(help="Task ids; all of them by default.")] = None,
    rounds: Rounds = 5,
    jobs: Jobs = 1,
    python: Python = None,
) -> None:
    """Check that each task fails untouched and passes with its known fix, every time."""
    pack = load_pack(PACK)
    for refused in pack.refused:
        console.print(f"refused: {refused}")
    wanted = [pack.by_id(name) for name in tasks] if tasks else list(pack.tasks)
    proofs = _generate.prove(wanted, Settings(rounds=rounds, jobs=jobs), Prover(python))
    broken = 0
    for task, error in track(proofs, "Proving", total=len(wanted), console=console):
        broken += error is not None
        if error is not None:
            console.print(f"{task.id}: {error}")
    console.print(f"{len(wanted) - broken} of {len(wanted)} tasks proven")
    raise typer.Exit(code=1 if broken or pack.refused else 0)


@app.command()
def write(target: Annotated[Path, typer.Argument(help="An empty or new folder.")]) -> None:
    """Write every task out as a folder in Harbor's format, for other programs."""
    for task in load_pack(PACK).tasks:
        harbor.write_task(task, target / task.id.partition("/")[2])


if __name__ == "__main__":
    try:
        app()
    except RayrollError as error:
        raise SystemExit(f"error: {error}") from None
