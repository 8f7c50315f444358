"""What an agent's logs look like: one file in this folder is one agent, and its name is the format's ``kind``.

A format says where its logs lie, how a log is known by its first records, and how records become rows. A third agent is
one more file with a ``Format`` class in it; nothing else is edited.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rayroll.errors import unknown_name
from rayroll.traces.rows import RowEnd
from rayroll.traces.steps import Steps, Tally

__all__ = ["LogFormat", "LogReader", "Source", "closing", "formats", "load_format", "names"]


def names(words: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(words.split())


@dataclass(frozen=True, slots=True)
class Source:
    """Where a log lay; a row says so."""

    path: Path
    home: str
    user: str
    store: str
    """Folder within the home, such as ``.claude``."""
    project: str
    """First folder below the logs' own."""
    session_key: str
    """The path below the project, without its endings; for most logs, the name of the file."""


def closing(source: Source, *, is_subagent: bool, agent: str | None, parent: str | None) -> RowEnd:
    """The last fields of a row; what follows from the others is filled in when the row is whole."""
    return {
        "current_input_event_count": 0,
        "current_user_message_count": 0,
        "current_tool_result_count": 0,
        "current_user_message_chars": 0,
        "current_tool_result_chars": 0,
        "current_input_chars": 0,
        "first_input_event_type": None,
        "home": source.home,
        "user": source.user,
        "store": source.store,
        "trace_key": "",
        "is_subagent": is_subagent,
        "agent_id": agent,
        "parent_session_id": parent,
        "flags": [],
    }


class LogReader(ABC):
    """Turns the records of one log into rows, in the log's order."""

    def __init__(self, source: Source, steps: Steps, state: dict[str, Any] | None = None) -> None:
        """``state`` is what ``state()`` of an earlier reader gave, and ``steps`` then holds its rows."""
        self.source = source
        self.steps = steps
        self.tally = Tally()

    @abstractmethod
    def feed(self, record: dict[str, Any]) -> None:
        """Take the next record, whatever is in it."""

    @abstractmethod
    def finish(self) -> None:
        """The log ends here for now: add rows of steps that are still open. ``state`` was asked for before."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a later reader needs to go on, beside the rows; JSON."""

    def lineage(self) -> Iterable[tuple[str, str]]:
        """Pairs of session and the session that it repeats the history of, as this log tells it."""
        return ()


class LogFormat(ABC):
    """One agent's logs."""

    kind: ClassVar[str]
    """Name of the file it is in; the rows' ``provider``."""
    folders: ClassVar[tuple[tuple[str, str], ...]]
    """Pairs of store and folder in it: a home has logs in ``home/store/folder`` and below."""
    home_variable: ClassVar[str]
    """Environment variable that names the store instead."""
    has_projects: ClassVar[bool]
    """The first folders below are projects, and part of no session's name."""
    reader: ClassVar[type[LogReader]]

    @abstractmethod
    def recognises(self, record: dict[str, Any]) -> bool:
        """Is this record one that only this agent writes?"""


@cache
def formats() -> tuple[LogFormat, ...]:
    """Every format, sorted by kind."""
    kinds = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{kind}").Format() for kind in kinds)


def load_format(kind: str) -> LogFormat:
    """The format of that kind.

    Raises:
        ConfigError: There is none, with the nearest names.
    """
    known = {one.kind: one for one in formats()}
    if kind not in known:
        raise unknown_name("log format", kind, known)
    return known[kind]
