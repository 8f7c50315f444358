"""Applies a task's known fix as an agent would, by commands: the proof that a task can be solved where it runs."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from rayroll.errors import TaskError
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.types import Task

__all__ = ["OraclePolicy"]

_LINE = 4000
"""Characters of one line of the heredoc; any shell takes that."""


class OraclePolicy(ScriptedPolicy):
    """Unpacks the fix at ``/solution``, runs ``solve.sh``, removes it and submits."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        """Raises TaskError for a task without a known fix."""
        super().__init__({task.id: [_command(task)] for task in tasks})


def _command(task: Task) -> str:
    if task.solution is None:
        raise TaskError("the task has no known fix", task=task.id)
    text = base64.b64encode(task.solution.tar).decode()
    lines = "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))
    return (
        f"mkdir -p /solution && base64 -d <<'EOF' | tar -x -C /solution\n{lines}\nEOF\n"
        "sh /solution/solve.sh; code=$?; rm -rf /solution; (exit $code)"
    )
