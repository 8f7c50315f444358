"""How long will a tool call take? A model of it: made, judged, asked."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rayroll.cli.traces._tables import console, show

__all__ = ["predict"]

predict = typer.Typer(help="How long a tool call will take, from what it means: quantiles.", no_args_is_help=True)

Sources = Annotated[list[Path], typer.Argument(help="Agents' logs, rows, rollouts.jsonl, or stores; files or folders.")]


@predict.command()
def fit(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="The model's file.")] = Path("calls.model"),
    seed: Annotated[int, typer.Option(help="Which sessions are set aside for tuning.")] = 0,
    shareable: Annotated[
        bool, typer.Option(help="Learn only from the names of agents' own tools, sizes and times.")
    ] = False,
) -> None:
    """Learn from recorded sessions."""
    from rayroll.traces.predict import fit as fitting
    from rayroll.traces.predict.examples import sessions_in

    sessions = sessions_in(sources)
    made = fitting.fit(fitting.shareable(sessions) if shareable else sessions, seed=seed)
    made.save(out)
    typer.echo(f"{made.facts['calls']} calls in {made.facts['sessions']} sessions, {len(made)} keys: {out}")
    typer.echo(f"levels: {', '.join(f'{level} {weight:g}' for level, weight in made.weights.items())}")


@predict.command()
def evaluate(
    sources: Sources,
    by: Annotated[
        str, typer.Option(help="What is held out: session (drawn), time (the last), project (drawn).")
    ] = "session",
    held_out: Annotated[float, typer.Option(min=0.01, max=0.99, help="Share that is held out.")] = 0.3,
    seed: Annotated[int, typer.Option(help="Of the split and the fit.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Judge on held-out sessions, beside the quantiles of all calls, of each tool and of each program."""
    from rayroll.errors import unknown_name
    from rayroll.traces.predict import evaluate as judging
    from rayroll.traces.predict.examples import sessions_in

    if by not in judging.SPLITS:
        raise unknown_name("split", by, judging.SPLITS)
    train, test = judging.split(sessions_in(sources), by, seed=seed, held_out=held_out)  # type: ignore[arg-type]
    found = judging.evaluate(train, test, seed=seed)
    if as_json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        return
    out = console(sys.stdout)
    out.print(
        f"learned from {found.train_sessions} sessions, judged on {found.test_calls} calls of {found.test_sessions}"
    )
    lines = [
        {
            "forecaster": score.name,
            "pinball_s": score.pinball_s,
            "pinball_log": score.pinball_log,
            **{f"<= q{level:g}": f"{share:.1%}" for level, share in score.coverage.items()},
            "inside 80 %": f"{score.inside_80:.1%}",
        }
        for score in found.scores
    ]
    show(out, "scores", lines, "mean over calls and quantiles; the share of calls that were within each quantile")
    gains = [
        {
            "over": gain.over,
            "seconds": f"{gain.seconds:.1%} ({gain.seconds_low:.1%} to {gain.seconds_high:.1%})",
            "log": f"{gain.log:.1%} ({gain.log_low:.1%} to {gain.log_high:.1%})",
        }
        for gain in found.gains
    ]
    show(out, "gains", gains, "by how much the predictor loses less; 90 % over sessions drawn again")


@predict.command()
def ask(
    model: Annotated[Path, typer.Argument(help="A model of `rayroll traces predict fit`.")],
    tool: Annotated[str, typer.Option(help="The tool's name, as the agent writes it.")] = "command",
    command: Annotated[str | None, typer.Option(help="A shell command.")] = None,
    project: Annotated[str | None, typer.Option(help="As the rows name it.")] = None,
    input_chars: Annotated[int | None, typer.Option(help="Size of the call's input, where it is no command.")] = None,
) -> None:
    """One call's quantiles in seconds, as JSON."""
    from rayroll.traces.predict.features import Call, Session
    from rayroll.traces.predict.model import Predictor

    size = len(command) if input_chars is None and command is not None else input_chars
    said = Predictor.load(model).predict(Call(tool, command, size), Session(project=project))
    seconds = {f"{level:g}": float(f"{value:.3g}") for level, value in zip(said.levels, said.quantiles_s, strict=True)}
    sys.stdout.write(json.dumps(seconds) + "\n")
