#!/usr/bin/env python3
"""What can each node of a Ray cluster run? Asks every one of them, and shows the answers in one table.

    python cluster/check.py --require docker
    ray job submit --working-dir . -- python cluster/check.py --require docker

A node answers what `rayroll doctor` says there. Exit code 1 where one does not answer, where they differ in Python or
Ray, or where one that has CPUs cannot run what is required.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console
from rich.markup import escape
from rich.table import Table

ANSWER_S = 120.0
"""Longest wait for a node; the first to be asked may have to unpack the program."""
CHECKOUT = Path(__file__).resolve().parent.parent
EXCLUDES = [".venv", "results", "wandb", "tests", "*.pyc"]


def examine() -> dict[str, Any]:
    """What the node that this runs on says of itself, as plain values."""
    from rayroll.cli.doctor import probe_all

    probes = asyncio.run(probe_all())
    return {
        "python": platform.python_version(),
        "ray": ray.__version__,
        "cpus": os.cpu_count(),
        "substrates": {
            kind: {"ok": probe.ok, "reason": probe.reason, "fix": probe.fix, "facts": dict(probe.facts)}
            for kind, probe in probes.items()
            if kind != "simulated"
        },
    }


def ask_all(nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each node, in their order; ``error`` where it did not answer."""
    asking = [
        ray.remote(examine)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        )
        .remote()
        for node in nodes
    ]
    ray.wait(asking, num_returns=len(asking), timeout=ANSWER_S)
    return [_row(node, answer) for node, answer in zip(nodes, asking, strict=True)]


def _row(node: dict[str, Any], answer: Any) -> dict[str, Any]:
    labels = {name: value for name, value in (node.get("Labels") or {}).items() if not name.startswith("ray.io/")}
    plays = bool(node["Resources"].get("CPU"))  # a head without CPUs gets no hosts
    row = {"node": node["NodeManagerHostname"], "id": node["NodeID"], "plays": plays, "labels": labels, "error": ""}
    try:
        return row | ray.get(answer, timeout=0)
    except ray.exceptions.GetTimeoutError:
        ray.cancel(answer, force=True)
        return row | {"error": f"no answer within {ANSWER_S:.0f} s"}
    except ray.exceptions.RayError as error:
        return row | {"error": str(error).strip().splitlines()[-1]}


def problems(rows: Sequence[dict[str, Any]], required: Sequence[str]) -> list[str]:
    """What is wrong, a line each; none: all is well."""
    found = []
    for row in rows:
        if row["error"]:
            found.append(f"{row['node']}: {row['error']}")
            continue
        for kind in required if row["plays"] else ():
            probe = row["substrates"].get(kind)
            if probe is None:
                found.append(
                    f"{row['node']}: does not know the substrate {kind!r}; known: {', '.join(row['substrates'])}"
                )
            elif not probe["ok"]:
                found.append(f"{row['node']}: cannot run {kind}: {probe['reason']}; fix: {probe['fix'] or 'unknown'}")
    for part, digits in (("python", 2), ("ray", 3)):
        versions = sorted({".".join(str(row[part]).split(".")[:digits]) for row in rows if not row["error"]})
        if len(versions) > 1:
            found.append(f"nodes differ in {part}: {', '.join(versions)}; Ray needs one version everywhere")
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table, on standard output."""
    kinds = sorted({kind for row in rows if not row["error"] for kind in row["substrates"]})
    table = Table("node", "labels", "CPUs", "Python", "Ray", *kinds, box=None)
    for row in rows:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(row["labels"].items()))
        if row["error"]:
            table.add_row(row["node"], labels, "", "", "", f"[red]{escape(row['error'])}[/]")
            continue
        marks = ("[green]yes[/]" if row["substrates"].get(kind, {}).get("ok") else "[red]no[/]" for kind in kinds)
        table.add_row(row["node"], labels, str(row["cpus"]), row["python"], row["ray"], *marks)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, show, and say whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--address", help="of the cluster, IP:PORT or ray://... [that of RAY_ADDRESS, or of this machine]"
    )
    parser.add_argument(
        "--require", default="", help="kinds of substrate that every node with CPUs must run: docker,local"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    options = parser.parse_args(argv)
    is_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ  # then the program is there already
    runtime_env = None if is_job else {"working_dir": str(CHECKOUT), "excludes": EXCLUDES}
    ray.init(
        options.address or os.environ.get("RAY_ADDRESS", "auto"),
        runtime_env=runtime_env,
        log_to_driver=False,
        logging_level="ERROR",
    )
    nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeManagerHostname"]))
    rows = ask_all(nodes)
    wrong = problems(rows, [kind for kind in options.require.split(",") if kind])
    if options.json:
        print(json.dumps({"nodes": rows, "problems": wrong}))
    else:
        show(rows)
        for line in wrong:
            print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
