"""The list of checks as docs/conformance.md has it, made from the registry."""

from __future__ import annotations

import sys
from pathlib import Path

from rayroll.testing.conformance._registry import CHECKS, Check

__all__ = ["BEGIN", "END", "check_list", "replace_list"]

BEGIN = "<!-- list of checks: make it with `python -m rayroll.testing.conformance --write-list docs/conformance.md` -->"
END = "<!-- end of the list -->"


def check_list() -> str:
    """One section per theme, one line per check."""
    themes: dict[str, list[Check]] = {}
    for check in CHECKS.values():
        themes.setdefault(check.theme, []).append(check)
    sections = []
    for theme, checks in themes.items():
        module = sys.modules[checks[0].function.__module__]
        first = (module.__doc__ or "").strip().splitlines()[0]
        sections.append("\n".join([f"### {theme}", "", first, "", *map(_line, checks)]))
    return f"{len(CHECKS)} checks.\n\n" + "\n\n".join(sections) + "\n"


def _line(check: Check) -> str:
    conditions = [*(f"needs {c.name}" for c in check.needs), *(f"without {c.name}" for c in check.without)]
    conditions += [f"needs {tool}" for tool in check.tools]
    if check.is_slow:
        conditions.append("slow")
    notes = "; ".join(([check.source] if check.source else []) + conditions)
    return f"* `{check.name}`{f' ({notes})' if notes else ''}: {check.claim}"


def replace_list(file: Path) -> None:
    """Put the list between its two marks in a file."""
    before, _, rest = file.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}\n\n{check_list()}\n{END}{after}")
