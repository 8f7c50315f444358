"""Traces of coding agents: collect them, make them fit to share, load them into a store, ask the store, replay."""

from __future__ import annotations

import typer

from rayroll.cli.traces import answers, replay, report, serving, sources
from rayroll.cli.traces.predict import predict

__all__ = ["traces"]

traces = typer.Typer(help="Traces of coding agents: Claude Code, Codex, and rollouts of our own.", no_args_is_help=True)

for command in (
    sources.collect,
    sources.sanitize,
    sources.load,
    answers.stats,
    serving.kv,
    report.report,
    sources.synth,
    replay.replay,
):
    traces.command()(command)

traces.add_typer(predict, name="predict")
