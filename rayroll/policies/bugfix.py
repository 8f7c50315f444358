"""The sweep's workload: how an agent repairs a bug (look around, search, read, edit, run tests), written down.

The same commands on every substrate, so that what differs is the substrate. The mix follows what recorded coding agents
do: most actions read and take milliseconds, one in a dozen runs tests and takes longest.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from itertools import count

from rayroll.errors import ConfigError
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.types import Task

__all__ = ["BugfixPolicy", "bugfix_script"]

TESTS_EVERY = 12
"""One action in so many runs the tests."""
LEAST_ACTIONS = 4
"""Look, edit, test, and room for one more."""


class BugfixPolicy(ScriptedPolicy):
    """Repairs every task in exactly ``actions`` commands, then submits."""

    def __init__(self, tasks: Iterable[Task], actions: int, *, think_s: float = 0.0) -> None:
        """Raises ConfigError for too few actions, or for a task that says not where its bug is."""
        super().__init__({task.id: bugfix_script(task, actions) for task in tasks}, think_s=think_s)


def bugfix_script(task: Task, actions: int) -> list[str]:
    """Commands for one task.

    Args:
        task: Of the ``repo_fix`` format: its known fix holds ``fix.json`` (file, line, broken, fixed).
        actions: How many commands; the edit comes after about two thirds, a test run right after it and at the end.
    """
    if actions < LEAST_ACTIONS:
        raise ConfigError(f"a bug-fix takes at least {LEAST_ACTIONS} actions", actions=actions)
    fix = _fix(task)
    edit_at = actions * 2 // 3
    tests = _tests(task)
    looking = _looking(fix["file"], int(fix["line"]))
    script: list[str] = []
    for index in range(actions):
        if index == edit_at:
            script.append(_edit(fix))
        elif index in (edit_at + 1, actions - 1) or index % TESTS_EVERY == TESTS_EVERY - 1:
            script.append(tests)
        else:
            script.append(next(looking))
    return script


def _fix(task: Task) -> dict[str, str]:
    if task.solution is None or "fix.json" not in task.solution.names():
        raise ConfigError("the bug-fix workload needs tasks of the repo_fix format", task=task.id)
    fix: dict[str, str] = json.loads(task.solution.read("fix.json"))
    return fix


def _tests(task: Task) -> str:
    """As the instruction says the tests are run."""
    expected = json.loads(task.tests.read("expected.json"))
    where = " ".join(shlex.quote(path) for path in expected["tests"])
    if expected["runner"] == "pytest":
        run = f"python3 -m pytest -q -x -p no:cacheprovider {where}"
    else:
        run = f"python3 -m unittest discover -q -t . -s {where}"
    # Not through a pipe: the exit code is what the tests said, and part of the proof of equal work.
    return f"{run} >/tmp/tests.log 2>&1; code=$?; tail -n 20 /tmp/tests.log; (exit $code)"


def _looking(file: str, line: int) -> Iterator[str]:
    """Endless: what an agent reads on its way to a bug, each time a little elsewhere."""
    quoted = shlex.quote(file)
    folder = shlex.quote(file.rpartition("/")[0] or ".")
    for turn in count():
        first = max(1, line - 20 - 10 * (turn % 5))
        yield from (
            "ls -la",
            "head -n 40 README* 2>/dev/null || true",
            "find . -name '*.py' | sort | head -n 60",
            f"grep -n 'def ' {quoted} | head -n {20 + turn % 7}",
            f"sed -n '{first},{first + 60}p' {quoted}",
            f"grep -rn 'import' {folder} --include='*.py' | head -n {10 + turn % 9}",
            f"wc -l {quoted} && cd {folder} && ls && cd - >/dev/null",
            f"python3 -c 'import ast,sys; print(len(ast.parse(open(sys.argv[1]).read()).body))' {quoted}",
            "export TURN=$((${TURN:-0} + 1)); echo turn $TURN in $(pwd)",
        )


def _edit(fix: dict[str, str]) -> str:
    """An edit as agents write them: a small program in a heredoc."""
    return (
        f"python3 - <<'EOF'\nimport pathlib\npath = pathlib.Path({fix['file']!r})\n"
        f"lines = path.read_bytes().decode().split('\\n')\nat = {int(fix['line'])} - 1\n"
        f"broken, fixed = ({fix['broken']!r}.split('\\n')[:-1], {fix['fixed']!r}.split('\\n')[:-1])\n"
        "assert lines[at : at + len(broken)] == broken\nlines[at : at + len(broken)] = fixed\n"
        "path.write_bytes('\\n'.join(lines).encode())\nEOF"
    )
