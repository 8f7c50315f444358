"""Prints docs/metrics.md: ``python -m rayroll.metrics > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rayroll.metrics import metrics


def page() -> str:
    """The table of all metrics as Markdown."""
    lines = [
        "# Metrics",
        "",
        "Functions of finished rollouts (`rayroll/metrics/`), for one sweep cell or any other list of rollouts. In the",
        "results folder they are in `summary.json`, in W&B in the run of the cell. Written by",
        "`python -m rayroll.metrics > docs/metrics.md`; formulas and phases are in [timing.md](timing.md).",
        "",
        "| name | unit | what it says |",
        "|---|---|---|",
    ]
    for found in metrics().values():
        about = found.about.replace("``", "`")
        lines.append(f"| `{found.name}{_ends(found.suffixes)}` | {found.unit} | {about} |")
    return "\n".join(lines) + "\n"


def _ends(suffixes: Sequence[str]) -> str:
    slash = "/" if all(suffix.startswith("/") for suffix in suffixes) else ""
    ends = ",".join(suffix.removeprefix(slash) for suffix in suffixes)
    return f"{slash}{{{ends}}}" if ends else ""


if __name__ == "__main__":
    sys.stdout.write(page())
