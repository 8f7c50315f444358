"""Tasks that were set aside, told in as few lines as say everything."""

from __future__ import annotations

from collections.abc import Iterable

from rayroll.tasks import Refused

__all__ = ["refused_lines"]


def refused_lines(refused: Iterable[Refused]) -> list[str]:
    """One line for each reason: a package that is missing takes dozens of tasks with it."""
    by_reason: dict[str, list[Refused]] = {}
    for one in refused:
        by_reason.setdefault(one.reason, []).append(one)
    return [
        str(same[0]) if len(same) == 1 else f"{same[0].task_id} to {same[-1].task_id} ({len(same)} tasks): {reason}"
        for reason, same in by_reason.items()
    ]
