"""Is a task sound? Untouched it must fail and with its known fix it must pass, every time, in a sandbox of its own.

The sandbox is bubblewrap on this node's system: nothing of it writable, no network, no root and no engine needed. So it
proves tasks that say ``host_packages``; of their Dockerfile it honours COPY, WORKDIR and ENV, which is all that such a
task may depend on. Grading a rollout is another part's job; this is the tool of whoever writes or generates tasks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayroll.errors import ConfigError, TaskError
from rayroll.tasks import _dockerfile
from rayroll.types import FileTree, Task

__all__ = ["Prover", "Verdict"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "group", "ld.so.cache", "localtime", "nsswitch.conf", "passwd")
_OUTPUT_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said."""

    reward: float | None
    """None: test.sh left no verdict."""
    output: str
    """Of the fix, if it ran, and of the tests; the end of it."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """``/logs/verifier/report.json``, where the tests leave one."""


class Prover:
    """Runs a task's tests on this node's system in bubblewrap."""

    def __init__(self, python: Path | None = None) -> None:
        """
        Args:
            python: The interpreter that is ``python3`` inside; None: the one that runs this. Its packages come along.

        Raises:
            ConfigError: bubblewrap is not installed.
        """
        found = shutil.which("bwrap")
        if found is None:
            raise ConfigError("bubblewrap is not installed; it proves tasks", fix="apt-get install bubblewrap")
        self._bwrap = found
        # Not resolved: a virtual environment's python is a link, and what it links to knows nothing of its packages.
        self._python = Path(python or sys.executable).absolute()
        self._prefixes = _prefixes(self._python)

    def grade(self, task: Task, *, solve: bool = False) -> Verdict:
        """Run the tests once in a fresh sandbox, after the known fix if ``solve``.

        Raises:
            TaskError: The task needs more than this node's system, or its known fix fails or does not end.
        """
        with tempfile.TemporaryDirectory(prefix="rayroll-prove-") as scratch:
            root = Path(scratch) / "root"
            env = _lay_out(task, root)
            logs = Path(scratch) / "logs"
            (logs / "verifier").mkdir(parents=True)
            printed = ""
            if solve:
                printed = self._solve(task, Path(scratch), root, env)
            binds = {"/tests": _extracted(task.tests, Path(scratch) / "tests"), "/logs": logs}
            env |= task.tests_env
            _, output = self._run(["sh", "/tests/test.sh"], task, root, binds, env, task.grade_timeout_s)
            return Verdict(_reward(logs), (printed + output)[-_OUTPUT_CHARS:], _report(logs))

    def prove(self, task: Task, rounds: int = 5) -> Verdict:
        """Check that the task fails untouched and passes with its fix, ``rounds`` times out of ``rounds``.

        Returns:
            The verdict on the untouched task, the same every time.

        Raises:
            TaskError: It is not so, with what was seen instead.
        """
        if task.solution is None:
            raise TaskError("the task has no known fix to prove it with", task=task.id)
        before = [self.grade(task) for _ in range(rounds)]
        if any(verdict.reward != 0.0 for verdict in before):
            seen = [verdict.reward for verdict in before]
            raise TaskError("untouched, the task does not fail every time", task=task.id, rewards=seen)
        if any(verdict.report.get("still_failing") != before[0].report.get("still_failing") for verdict in before):
            raise TaskError("untouched, the task fails in different tests from time to time", task=task.id)
        for _ in range(rounds):
            after = self.grade(task, solve=True)
            if after.reward != 1.0:
                raise TaskError(
                    "its known fix does not pass every time",
                    task=task.id,
                    reward=after.reward,
                    output=after.output[-2000:],
                )
        return before[0]

    def _solve(self, task: Task, scratch: Path, root: Path, env: Mapping[str, str]) -> str:
        assert task.solution is not None
        binds = {"/solution": _extracted(task.solution, scratch / "solution")}
        variables = {**env, **task.env, **task.solution_env}
        code, output = self._run(["sh", "/solution/solve.sh"], task, root, binds, variables, task.agent_timeout_s)
        if code != 0:
            raise TaskError("the known fix itself fails", task=task.id, exit_code=code, output=output[-2000:])
        return output

    def _run(
        self,
        argv: list[str],
        task: Task,
        root: Path,
        binds: Mapping[str, Path],
        env: Mapping[str, str],
        timeout_s: float,
    ) -> tuple[int, str]:
        command = [self._bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
        command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *self._prefixes):
            command += _read_only(Path(path))
        for top in sorted(root.iterdir()):
            command += ["--bind", str(top), f"/{top.name}"]
        for target, source in binds.items():
            command += ["--bind", str(source), target]
        variables = {"PATH": f"{self._python.parent}:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **env}
        for name, value in variables.items():
            command += ["--setenv", name, value]
        command += ["--chdir", task.workdir if (root / task.workdir.lstrip("/")).is_dir() else "/"]
        # Address space stands in for the memory limit that a cgroup would hold.
        limited = f'ulimit -v {task.memory_mib * 1024}; exec "$@"'
        command += ["sh", "-c", limited, "sh", *argv]
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as expired:
            return 124, (expired.output or b"").decode("utf-8", "replace")
        return ended.returncode, ended.stdout.decode("utf-8", "replace")


def _lay_out(task: Task, root: Path) -> dict[str, str]:
    """Do what the Dockerfile's COPY and WORKDIR say, below ``root``; the result is what its ENV says."""
    if task.host_packages is None or task.image is not None:
        raise TaskError("the task needs its own root filesystem; only an engine can prove it", task=task.id)
    steps = _dockerfile.parse(task.environment.read("Dockerfile").decode())
    with tempfile.TemporaryDirectory(prefix="rayroll-context-") as folder:
        context = Path(folder)
        task.environment.extract(context)
        for sources, target in _dockerfile.copies(steps):
            for source in sources:
                _copy(context / source, root / target.lstrip("/"), into=target.endswith("/"))
    for folder_name in {_dockerfile.workdir(steps), task.workdir}:
        (root / folder_name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for top in root.iterdir():
        if f"/{top.name}" in {*_SYSTEM, "/etc", "/proc", "/dev", "/tmp", "/tests", "/logs", "/solution"}:
            raise TaskError("on the node's own system a task cannot write there", task=task.id, folder=f"/{top.name}")
    return _dockerfile.environment(steps)


def _copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        return
    destination = target / source.name if into else target
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, destination)


def _extracted(tree: FileTree, target: Path) -> Path:
    target.mkdir()
    tree.extract(target)
    return target


def _read_only(path: Path) -> list[str]:
    if path.is_symlink() and path.parent == Path("/"):
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.exists() else []


def _prefixes(python: Path) -> list[str]:
    """Folders outside of the system ones that the interpreter lives in."""
    asked = subprocess.run(
        [python, "-I", "-c", "import sys; print(sys.prefix); print(sys.base_prefix)"], capture_output=True, text=True
    )
    found = sorted({line for line in asked.stdout.split("\n") if line})
    return [path for path in found if not any(path == s or path.startswith(f"{s}/") for s in _SYSTEM)]


def _reward(logs: Path) -> float | None:
    try:
        return float((logs / "verifier" / "reward.txt").read_text())
    except (OSError, ValueError):
        return None


def _report(logs: Path) -> dict[str, Any]:
    try:
        report = json.loads((logs / "verifier" / "report.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}
