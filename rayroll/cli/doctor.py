"""What this node can run, what is missing, and the command that would fix it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rayroll.cli._refused import refused_lines
from rayroll.cli._settings import Given, settings
from rayroll.errors import RayrollError
from rayroll.runner.build import cache_dir, runner_path
from rayroll.substrates import Probe, kinds, load
from rayroll.tasks import load_pack, packs

__all__ = ["doctor", "probe_all"]

_PARTS = {
    "docker": "docker",
    "kubernetes": "kubernetes",
    "boto3": "aws",
    "asyncssh": "aws",
    "opensandbox": "opensandbox",
    "wandb": "wandb",
    "jinja2": "report",
    "ziglang": "runner",
}
"""Optional packages and the extra that brings each."""
LOW_DISK_GIB = 5.0


def doctor(
    given_settings: Given = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")] = False,
) -> None:
    """Say what this node can run, what is missing, and how to get it. Exit code 1 when no substrate works."""
    facts = examine(settings(given_settings))
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show(facts)
    if not any(s["ok"] and kind != "simulated" for kind, s in facts["substrates"].items()):
        raise typer.Exit(1)


def examine(configs: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Everything ``doctor`` shows, as plain values. ``configs``: fields of substrates' configs, by kind."""
    probes = asyncio.run(probe_all(configs))
    return {
        "node": _node(),
        "substrates": {k: {"ok": p.ok, "reason": p.reason, "fix": p.fix, **dict(p.facts)} for k, p in probes.items()},
        "parts": {name: _part(name, extra) for name, extra in _PARTS.items()},
        "runner": _runner(),
        "packs": {name: _pack(name) for name in packs()},
    }


async def probe_all(configs: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Probe]:
    """Probes of every kind of substrate, by name; a kind whose SDK is missing is a probe that failed."""

    async def probe(kind: str) -> Probe:
        try:
            found = load(kind)
            config = found.config_type.parse((configs or {}).get(kind, {}), where=f"substrate {kind!r}")
            return await found(config).probe()
        except RayrollError as error:
            return Probe(False, str(error), str(error.facts.get("fix", "")))
        except Exception as error:  # one that is sick in a way nobody thought of must not hide the others
            return Probe(False, f"its probe failed: {error!r}", "report this")

    names = kinds()
    return dict(zip(names, await asyncio.gather(*(probe(kind) for kind in names)), strict=True))


def _node() -> dict[str, Any]:
    cache = cache_dir()
    existing = next(p for p in (cache, *cache.parents) if p.exists())
    free_gib = shutil.disk_usage(existing).free / 2**30
    return {
        "python": platform.python_version(),
        "ray": version("ray"),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpus": os.cpu_count() or 0,
        "cache": str(cache),
        "disk_free_gib": round(free_gib, 1),
        "disk_low": free_gib < LOW_DISK_GIB,
        "wandb_key": "WANDB_API_KEY" in os.environ or (Path.home() / ".netrc").exists(),
    }


def _part(name: str, extra: str) -> dict[str, Any]:
    if importlib.util.find_spec(name) is None:
        return {"ok": False, "fix": f"pip install 'rayroll[{extra}]'"}
    try:
        return {"ok": True, "version": version(name)}
    except PackageNotFoundError:
        return {"ok": True, "version": "?"}


def _runner() -> dict[str, Any]:
    try:
        return {"ok": True, "path": str(runner_path())}
    except RayrollError as error:
        return {"ok": False, "reason": str(error), "fix": "pip install 'rayroll[runner]'"}


def _pack(name: str) -> dict[str, Any]:
    try:
        pack = load_pack(name)
    except RayrollError as error:
        return {"tasks": 0, "refused": [str(error)]}
    return {"tasks": len(pack.tasks), "description": pack.description, "refused": refused_lines(pack.refused)}


def _show(facts: dict[str, Any]) -> None:
    console = Console()
    node = facts["node"]
    console.print(
        f"Python {node['python']}, Ray {node['ray']}, Linux {node['kernel']} on {node['machine']}, "
        f"{node['cpus']} CPUs, {node['disk_free_gib']} GiB free at {node['cache']}"
        + (" [red](low)[/]" if node["disk_low"] else "")
    )
    table = Table("substrate", "", "what", "fix", box=None, pad_edge=False)
    hidden = {"ok", "reason", "fix"}
    for kind, probe in facts["substrates"].items():
        about = ", ".join(f"{k} {v}" for k, v in probe.items() if k not in hidden)
        table.add_row(kind, _mark(probe["ok"]), *map(escape, (about if probe["ok"] else probe["reason"], probe["fix"])))
    for name, part in facts["parts"].items():
        table.add_row(name, _mark(part["ok"]), part.get("version", "not installed"), escape(part.get("fix", "")))
    runner = facts["runner"]
    said = runner.get("path") or runner["reason"], runner.get("fix", "")
    table.add_row("runner", _mark(runner["ok"]), *map(escape, said))
    key = "key found" if node["wandb_key"] else "no key: runs are kept offline"
    table.add_row("W&B", _mark(True), key, "" if node["wandb_key"] else "wandb login")
    console.print(table)
    table = Table("pack", "tasks", "about", box=None, pad_edge=False)
    for name, pack in facts["packs"].items():
        table.add_row(name, str(pack["tasks"]), pack.get("description", ""))
        for refused in pack["refused"]:
            table.add_row("", "[yellow]refused[/]", escape(refused))
    console.print(table)


def _mark(ok: bool) -> str:
    return "[green]yes[/]" if ok else "[red]no[/]"
