"""Traces of coding agents: collect them, make them fit to share, load them into a store, ask the store."""

from __future__ import annotations

import typer

from rayroll.cli.traces import answers, serving, sources

__all__ = ["traces"]

traces = typer.Typer(help="Traces of coding agents: Claude Code, Codex, and rollouts of our own.", no_args_is_help=True)

for command in (sources.collect, sources.sanitize, sources.load, answers.stats, serving.kv, sources.synth):
    traces.command()(command)
