"""Where tasks come from: packs, which are folders of tasks, and the formats that read them.

One public file in this folder is one task format; its name is its ``kind``. Another package adds one through the
entry-point group ``rayroll.tasks``. A pack is a folder with a ``pack.toml`` that names its format; rayroll's own packs
lie in ``envs/`` of a checkout and inside the installed package. A broken task is refused alone, with file, line and
reason, and the others load.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

from rayroll.config import Config
from rayroll.errors import ConfigError, TaskError, unknown_name
from rayroll.tasks._prove import Prover, Verdict
from rayroll.types import Task

__all__ = [
    "Pack",
    "PackConfig",
    "Prover",
    "Refused",
    "TaskFormat",
    "Verdict",
    "formats",
    "load_format",
    "load_pack",
    "packs",
]


class PackConfig(Config):
    """Fields of ``pack.toml`` that every format has."""

    format: str
    """Name of the task format that reads this pack."""
    description: str = ""
    """One sentence for people who choose a pack."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that was set aside, and why."""

    task_id: str
    file: Path
    line: int
    """From 1; 0 where the file as a whole is meant, such as one that is missing."""
    reason: str

    def __str__(self) -> str:
        return f"{self.task_id}: {self.file}{f':{self.line}' if self.line else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Pack:
    """A folder of tasks, read."""

    name: str
    format: str
    description: str
    tasks: tuple[Task, ...]
    """Sorted by id."""
    refused: tuple[Refused, ...] = ()

    def by_id(self, task_id: str) -> Task:
        """The task of that id; the part after ``pack/`` is enough.

        Raises:
            ConfigError: No such task, with the nearest names.
            TaskError: It exists and was refused, with the reason.
        """
        full = task_id if task_id.startswith(f"{self.name}/") else f"{self.name}/{task_id}"
        for task in self.tasks:
            if task.id == full:
                return task
        for refused in self.refused:
            if refused.task_id == full:
                raise TaskError(
                    f"task {full!r} was refused: {refused.reason}", file=str(refused.file), line=refused.line
                )
        raise unknown_name("task", full, (task.id for task in self.tasks))

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class TaskFormat(ABC):
    """One way to write tasks down."""

    kind: ClassVar[str]
    config_type: ClassVar[type[PackConfig]] = PackConfig

    @abstractmethod
    def read(self, folder: Path, name: str, config: PackConfig) -> Iterator[Task | Refused]:
        """Every task of a pack, in any order, each either readable or refused.

        Args:
            folder: The pack's folder.
            name: The pack's name, with which task ids begin.
            config: Of this class's ``config_type``.
        """


def formats() -> list[str]:
    """Names of all task formats, built-in and installed, sorted."""
    return sorted({*_built_in(), *(e.name for e in entry_points(group="rayroll.tasks"))})


def load_format(kind: str) -> type[TaskFormat]:
    """The task format of that name.

    Raises:
        ConfigError: No such format, with the nearest names.
    """
    if kind in _built_in():
        return _only_format(importlib.import_module(f"{__name__}.{kind}"), kind)
    for entry in entry_points(group="rayroll.tasks"):
        if entry.name == kind:
            found: type[TaskFormat] = entry.load()
            return found
    raise unknown_name("task format", kind, formats())


def packs() -> list[str]:
    """Names of the packs that come with rayroll, sorted."""
    return sorted(path.parent.name for path in _packs_dir().glob("*/pack.toml"))


def load_pack(name_or_path: str | os.PathLike[str]) -> Pack:
    """Read a pack.

    Args:
        name_or_path: One of ``packs()``, or a folder: a pack (``pack.toml``), Harbor tasks, or one such task.

    Raises:
        ConfigError: No such pack, with the nearest names; or a ``pack.toml`` that cannot be read.
    """
    given = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and given in packs():
        return _read_pack(_packs_dir() / given)
    folder = Path(given).expanduser()
    if folder.is_dir():
        return _read_pack(folder.resolve())
    if os.sep in given or not isinstance(name_or_path, str):
        raise ConfigError(f"no such folder {given!r}", packs=packs())
    raise unknown_name("pack", given, packs())


def _read_pack(folder: Path) -> Pack:
    values, where = _pack_values(folder)
    format_type = load_format(PackConfig.parse({k: values[k] for k in values.keys() & {"format"}}, where=where).format)
    config = format_type.config_type.parse(values, where=where)
    tasks: list[Task] = []
    refused: list[Refused] = []
    for found in format_type().read(folder, folder.name, config):
        if isinstance(found, Task):
            tasks.append(found)
        else:
            refused.append(found)
    return Pack(
        name=folder.name,
        format=config.format,
        description=config.description,
        tasks=tuple(sorted(tasks, key=lambda task: task.id)),
        refused=tuple(sorted(refused, key=lambda refused: refused.task_id)),
    )


def _pack_values(folder: Path) -> tuple[Mapping[str, Any], str]:
    path = folder / "pack.toml"
    if path.is_file():
        try:
            return tomllib.loads(path.read_text("utf-8")), str(path)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(f"{path}: {error}") from None
    if (folder / "task.toml").is_file() or any(folder.glob("*/task.toml")):
        # A data set as Harbor users keep it: nothing but task folders.
        return {"format": "harbor", "tasks": "."}, str(folder)
    raise ConfigError(f"{folder} is no pack: it has neither a pack.toml nor a folder with a task.toml")


def _packs_dir() -> Path:
    package = Path(__file__).resolve().parents[1]
    installed = package / "_packs"
    return installed if installed.is_dir() else package.parent / "envs"


def _built_in() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]


def _only_format(module: Any, kind: str) -> type[TaskFormat]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, TaskFormat) and value.__module__ == module.__name__
    ]
    assert len(found) == 1 and found[0].kind == kind, f"{module.__name__} must define one task format named {kind}"
    return found[0]
