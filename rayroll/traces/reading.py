"""What files are meant by a path, what each of them is, and its rows one by one, also where lines are damaged.

DuckDB reads whole files of rows by itself, several times faster; what is here is for finding out, for other formats
and for the lines that DuckDB gives up on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rayroll.errors import ConfigError
from rayroll.traces.formats import formats
from rayroll.traces.lines import LogLines, Loss
from rayroll.traces.rows import is_row

__all__ = ["Found", "Kind", "files_of", "find", "recognise", "rows_in"]

Kind = Literal["rows", "rollouts", "duckdb", "raw"]
"""TraceLab's row format; rayroll's own rollouts; a DuckDB file; an agent's own session log."""

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")

KNOWN = (
    "session logs of Claude Code or Codex",
    "rows (TraceLab's format)",
    "rollouts.jsonl",
    "a DuckDB file of TraceLab's",
)
"""What a trace may be."""

_ROW_FIELDS = frozenset(("timing_events", "tools", "input_tokens_total", "round_index", "round_id"))
_LOOKED_AT_RECORDS = 50
_LOOKED_AT_BYTES = 1 << 20
"""So far into a file, one record of a known kind says what it is; at least one line is looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    """The traces that are meant, and what lies between them in folders."""

    files: tuple[tuple[Path, Kind], ...]
    foreign: tuple[Loss, ...]
    """Files of other programs, or empty ones: only in folders, for who names a file means it."""

    def of(self, kind: Kind) -> list[Path]:
        """The files of that kind, in their order."""
        return [path for path, this in self.files if this == kind]


def find(paths: Path | str | Iterable[Path | str]) -> Found:
    """The traces that are meant: of a folder, all below it that are traces.

    Raises:
        ConfigError: A path is not there; a file that was named is no trace; or there is none below a folder.
    """
    files: list[tuple[Path, Kind]] = []
    foreign: list[Loss] = []
    for path in map(Path, [paths] if isinstance(paths, (str, Path)) else paths):
        if not path.is_dir():
            files += ((file, recognise(file)) for file in files_of(path))
            continue
        before, others = len(files), []
        for file in files_of(path):
            try:
                files.append((file, recognise(file)))
            except ConfigError as error:
                others.append(Loss(str(file), 0, error.message.removeprefix(f"{file} ")))
        if len(files) == before:
            raise ConfigError(f"no traces in {path}", files=[str(one) for one in others[:5]], known=KNOWN)
        foreign += others
    return Found(tuple(files), tuple(foreign))


def files_of(paths: Path | str | Iterable[Path | str]) -> list[Path]:
    """The files that are meant: a folder stands for all below it that may be traces, by their names.

    Raises:
        ConfigError: A path is not there, or a folder holds nothing of the kind.
    """
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, (str, Path)) else paths):
        if path.is_dir():
            below = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
            if not below:
                raise ConfigError(
                    f"no traces in {path}",
                    looked_for=[f"*{suffix}" for suffix in SUFFIXES],
                    fix="name a folder of logs, such as ~/.claude/projects, or a file",
                )
            found += below
        elif path.is_file():
            found.append(path)
        elif path.exists():
            raise ConfigError(f"{path} is no regular file", fix="write what it gives to a file, and name that")
        else:
            raise ConfigError(f"there is no file {path}", fix="name a file or folder of traces")
    return found


def recognise(path: Path) -> Kind:
    """What a file is, by its beginning.

    Raises:
        ConfigError: It cannot be read, is empty, or of a program that is not known here.
    """
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", fix="see to it that this user may") from error
    if head[8:] == b"DUCK":
        return "duckdb"
    losses: list[Loss] = []
    others: list[dict[str, Any]] = []
    log = LogLines(
        path, until=_LOOKED_AT_BYTES, on_loss=losses.append, is_record=lambda value: _kind(value) is not None
    )
    for record in islice(log, _LOOKED_AT_RECORDS):
        if kind := _kind(record):
            return kind
        others.append(record)
    if others:
        seen = f"is no trace: its first record has {sorted(others[0])[:8]}"
    elif losses:
        seen = "is no trace: its first lines are not JSON objects" if log.offset else f"is no trace: {losses[0].reason}"
    else:
        seen = "is empty"
    raise ConfigError(f"{path} {seen}", known=KNOWN)


def _kind(record: dict[str, Any]) -> Kind | None:
    keys = record.keys()
    if is_row(record) and keys & _ROW_FIELDS:
        return "rows"
    if {"v", "task_id", "timing"} <= keys:
        return "rollouts"
    return "raw" if any(one.recognises(record) for one in formats()) else None


def rows_in(path: Path, *, only_damaged: bool = False) -> Iterator[dict[str, Any] | Loss]:
    """Rows line by line: bad text with a replacement mark, records that stand behind half a line or glued together.

    Args:
        path: A file of rows.
        only_damaged: Leave out the lines that are sound, since DuckDB has read them.
    """
    told: list[Loss] = []
    log = LogLines(path, on_loss=told.append, is_record=is_row)
    for row in log.mended() if only_damaged else log:
        yield from told
        told.clear()
        yield row
    yield from told
