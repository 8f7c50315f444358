"""Harbor's task folders: task.toml, instruction.md, environment/, tests/test.sh and, usually, solution/solve.sh.

The format: https://harborframework.com/docs/tasks. ``tests/`` enters the sandbox at ``/tests`` for grading, and
``test.sh`` leaves its verdict in ``/logs/verifier/reward.txt`` (a number) or ``reward.json`` (a number, or names and
numbers of which ``reward`` counts); a test.sh that leaves neither has given no verdict. ``solution/`` enters at
``/solution``. Network per phase is ``agent.network_mode`` and ``verifier.network_mode``, else the environment's, else
public, as in Harbor; the build of the image is not affected.

Beyond Harbor, ``[metadata.rayroll] host_packages = [...]`` says that the task also runs on a node's own system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rayroll.errors import ConfigError
from rayroll.tasks import PackConfig, Refused, TaskFormat, _dockerfile, _task_toml
from rayroll.tasks._task_toml import TaskToml, TaskTomlError
from rayroll.tasks._toml_lines import line_of
from rayroll.types import FileTree, Task

__all__ = ["Harbor", "HarborConfig", "read_task", "write_task"]

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)
_EMPTY = FileTree.from_files({})


class HarborConfig(PackConfig):
    """``pack.toml`` of a pack in Harbor's format."""

    tasks: str = "tasks"
    """Folder of task folders, relative to the pack."""
    pass_env: tuple[str, ...] = ()
    """Variables of the driver's own environment that ``${NAME}`` in a task may read. Harbor lets a task read any; here
    the pack's owner names them, because what a task reads, the agent in its sandbox can print."""


class _Refusal(Exception):
    def __init__(self, file: Path, line: int, reason: str) -> None:
        super().__init__(reason)
        self.file, self.line, self.reason = file, line, reason


class Harbor(TaskFormat):
    """Reads Harbor's task folders."""

    kind: ClassVar[str] = "harbor"
    config_type: ClassVar[type[PackConfig]] = HarborConfig

    def read(self, folder: Path, name: str, config: PackConfig) -> Iterator[Task | Refused]:
        """Every folder below ``tasks`` that looks like a task. Raises ConfigError when there is no such folder."""
        assert isinstance(config, HarborConfig)
        root = folder / config.tasks
        if not root.is_dir():
            raise ConfigError(f"{folder / 'pack.toml'}: tasks = {config.tasks!r} is no folder")
        passed = {key: os.environ[key] for key in config.pass_env if key in os.environ}
        for path in _task_folders(root):
            task_id = f"{name}/{path.name}"
            try:
                yield read_task(path, task_id, passed)
            except _Refusal as refusal:
                yield Refused(task_id, refusal.file, refusal.line, refusal.reason)


def read_task(folder: Path, task_id: str, passed: Mapping[str, str]) -> Task:
    """One task folder as a Task; raises ``_Refusal``. ``passed``: what ``${NAME}`` may stand for."""
    toml_path = folder / "task.toml"
    toml_text = _text(toml_path)
    try:
        toml = _task_toml.parse(toml_text)
        env = _resolved(toml_text, "environment", toml.environment.env, passed)
        tests_env = _resolved(toml_text, "verifier", toml.verifier.env, passed)
        solution_env = _resolved(toml_text, "solution", toml.solution.env, passed)
    except TaskTomlError as error:
        raise _Refusal(toml_path, error.line, error.reason) from None
    instruction = _without_canary(_text(folder / "instruction.md"))
    if not instruction.strip():
        raise _Refusal(folder / "instruction.md", 0, "the instruction is empty")
    _text(folder / "tests" / "test.sh")
    _refuse_extras(folder)
    environment, workdir = _environment(folder / "environment", toml)
    return Task(
        id=task_id,
        instruction=instruction,
        environment=environment,
        tests=FileTree.from_dir(folder / "tests"),
        solution=FileTree.from_dir(folder / "solution") if (folder / "solution" / "solve.sh").is_file() else None,
        image=toml.environment.docker_image,
        workdir=toml.environment.workdir or workdir,
        env=env,
        tests_env=tests_env,
        solution_env=solution_env,
        agent_user=_user(toml.agent.user),
        grade_user=_user(toml.verifier.user),
        agent_network=toml.agent_network,
        grade_network=toml.grade_network,
        host_packages=toml.host.host_packages,
        metadata=toml.kept(),
        **_limits(toml),
    )


def write_task(task: Task, folder: Path) -> None:
    """Write a task as a folder that any reader of Harbor's format understands; ``read_task`` gives an equal one back.

    Raises:
        FileExistsError: The folder is there already.
    """
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(_task_toml.dump(task), "utf-8")
    (folder / "instruction.md").write_text(task.instruction, "utf-8")
    for name, tree in (("environment", task.environment), ("tests", task.tests), ("solution", task.solution)):
        if tree:
            tree.extract(folder / name)


def _task_folders(folder: Path) -> Iterator[Path]:
    if (folder / "task.toml").is_file():
        yield folder
    else:
        yield from (p for p in sorted(folder.iterdir()) if _is_task(p))


def _is_task(folder: Path) -> bool:
    # A folder with any part of a task is taken for one, so that a forgotten task.toml is said and not passed over.
    parts = ("task.toml", "instruction.md", "environment", "tests")
    return folder.is_dir() and not folder.name.startswith(".") and any((folder / part).exists() for part in parts)


def _environment(folder: Path, toml: TaskToml) -> tuple[FileTree, str]:
    if toml.environment.docker_image:
        return _EMPTY, "/"
    dockerfile = folder / "Dockerfile"
    for compose in folder.glob("docker-compose.y*ml"):
        raise _Refusal(compose, 0, "tasks of several containers are not supported")
    try:
        workdir = _dockerfile.workdir(_dockerfile.parse(_text(dockerfile)))
    except _dockerfile.DockerfileError as error:
        raise _Refusal(dockerfile, error.line, error.reason) from None
    return FileTree.from_dir(folder), workdir


def _refuse_extras(folder: Path) -> None:
    if (folder / "trajectory.json").exists():
        raise _Refusal(
            folder / "trajectory.json", 0, "a rollout that starts from an earlier trajectory is not supported"
        )
    for ignore in (folder / ".harborignore", folder / "tests/.harborignore", folder / "solution/.harborignore"):
        if ignore.exists():
            raise _Refusal(ignore, 0, ".harborignore is not supported; remove the files that it hides")


def _limits(toml: TaskToml) -> dict[str, Any]:
    """What the task sets; the rest keeps Task's defaults."""
    environment = toml.environment
    limits = {
        "agent_timeout_s": toml.agent.timeout_sec,
        "grade_timeout_s": toml.verifier.timeout_sec,
        "build_timeout_s": environment.build_timeout_sec,
        "cpus": environment.cpus,
        "memory_mib": environment.memory_mb,
        "disk_mib": environment.storage_mb,
    }
    return {name: value for name, value in limits.items() if value is not None}


def _resolved(text: str, section: str, env: Mapping[str, str], passed: Mapping[str, str]) -> dict[str, str]:
    resolved: dict[str, str] = {}
    for name, value in env.items():
        variable = _VARIABLE.fullmatch(value)
        if variable is None:
            resolved[name] = value
        elif variable[1] in passed:
            resolved[name] = passed[variable[1]]
        elif variable[2] is not None:
            resolved[name] = variable[2]
        else:
            reason = f"{name} needs the variable {variable[1]!r}: set it, and name it in the pack.toml's pass_env"
            raise TaskTomlError(line_of(text, (section, "env", name)), reason)
    return resolved


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _without_canary(text: str) -> str:
    """Drop the leading lines that mark benchmark data for crawlers; an agent is not shown them."""
    lines = text.split("\n")
    start = 0
    while start < len(lines) and _CANARY.fullmatch(lines[start].strip()):
        start += 1
    return "\n".join(lines[start:]).lstrip("\n") if start else text


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise _Refusal(path, 0, "missing") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise _Refusal(path, line, "not UTF-8 text") from None
    except OSError as error:
        raise _Refusal(path, 0, f"unreadable: {error.strerror}") from None
