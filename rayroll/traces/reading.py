"""What a file of traces is, and its rows one by one, also where lines are damaged.

DuckDB reads whole files of rows by itself, several times faster; what is here is for finding out, for other formats
and for the lines that DuckDB gives up on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from rayroll.errors import ConfigError
from rayroll.traces._streams import damaged, open_read

__all__ = ["Kind", "Lost", "files_of", "lines", "mended", "recognise"]

Kind = Literal["rows", "rollouts", "duckdb", "raw"]
"""TraceLab's row format; rayroll's own rollouts; a DuckDB file; an agent's own session log."""

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".json.zst")

_ROW_FIELDS = frozenset(("timing_events", "tools", "input_tokens_total", "round_index", "round_id"))
_LOG_FIELDS = frozenset(("sessionId", "payload", "message", "uuid", "leafUuid"))


@dataclass(frozen=True, slots=True)
class Lost:
    """A line that could not be read, or not all of it."""

    file: str
    line: int
    """Counted from 1."""
    reason: str


def files_of(paths: Path | str | Iterable[Path | str]) -> list[Path]:
    """The files that are meant: a folder stands for all traces below it.

    Raises:
        ConfigError: A path is not there, or a folder holds nothing of the kind.
    """
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, (str, Path)) else paths):
        if path.is_dir():
            below = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
            if not below:
                raise ConfigError(f"no traces in {path}", looked_for=[f"*{suffix}" for suffix in SUFFIXES])
            found += below
        elif path.exists():
            found.append(path)
        else:
            raise ConfigError(f"there is no file {path}")
    return found


def recognise(path: Path) -> Kind:
    """What a file is, by its beginning.

    Raises:
        ConfigError: It is empty, or of a program that is not known here.
    """
    try:
        head = _head(path)
    except ImportError:
        raise ConfigError(f"{path} needs zstandard", fix="pip install 'rayroll[traces]'") from None
    if head[8:12] == b"DUCK":
        return "duckdb"
    records = [record for line in head.split(b"\n") if line.strip() for record in _records(line)]
    for record in records:
        keys = record.keys()
        if "session_id" in keys and keys & _ROW_FIELDS:
            return "rows"
        if {"v", "task_id", "timing"} <= keys:
            return "rollouts"
        if "type" in keys and keys & _LOG_FIELDS:
            return "raw"
    if not head.strip():
        raise ConfigError(f"{path} is empty")
    seen = f"its first record has {sorted(records[0])[:8]}" if records else "its first lines are not JSON"
    raise ConfigError(
        f"{path} is no trace: {seen}",
        known=["rows (TraceLab's format)", "rollouts.jsonl", "a DuckDB file of TraceLab's"],
    )


def _head(path: Path) -> bytes:
    """About the first megabyte, in whole lines; of a cut archive, what there is."""
    head = b""
    try:
        with open_read(path) as file:
            while len(head) < 1 << 20 and (line := file.readline()):
                head += line
    except damaged() as error:
        if not head:
            raise ConfigError(f"{path} cannot be read: {error}") from error
    return head


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line and its number from 1; a compressed file may be cut, and then ends where it does."""
    number = 0
    with open_read(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                yield number, line
        except damaged() as error:
            yield number + 1, f"<{error}>".encode()  # no JSON: it is counted as lost


def mended(path: Path, *, only_damaged: bool) -> Iterator[dict[str, Any] | Lost]:
    """Rows line by line: bad text with a replacement mark, records that stand behind half a line or glued together.

    Args:
        path: A file of rows.
        only_damaged: Leave out the lines that are sound, since DuckDB has read them.
    """
    for number, line in lines(path):
        if not line.strip():
            continue
        is_sound = _value(line) is not None
        if is_sound and only_damaged:
            continue
        # A half record's own objects (a tool, an event) are whole too, and no rows.
        rows = [record for record in _records(line) if is_sound or "session_id" in record]
        yield from rows
        if not is_sound and not (rows and _is_whole(line)):
            yield Lost(str(path), number, _reason(line))


def _value(line: bytes) -> Any:
    try:
        return orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except ValueError:
        return None


# Where a record may begin within a line that is not one.
_BEGIN = re.compile(r'\{\s*"')


def _records(line: bytes) -> Iterator[dict[str, Any]]:
    """The whole objects of a line, sound or not; objects inside one are not looked for, those of half a record are."""
    value = _value(line)
    if isinstance(value, dict):
        yield value
    if value is not None:
        return
    text = line.decode("utf-8", "replace")
    decoder, at = json.JSONDecoder(strict=False), 0
    while match := _BEGIN.search(text, at):
        at = match.start()
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
        else:
            yield value


def _is_whole(line: bytes) -> bool:
    """Whether records follow one another, with nothing lost between them."""
    text = line.decode("utf-8", "replace").strip()
    decoder, at = json.JSONDecoder(strict=False), 0
    try:
        while at < len(text):
            _, at = decoder.raw_decode(text, at)
            at = len(text) - len(text[at:].lstrip())
    except (ValueError, RecursionError):
        return False
    return True


def _reason(line: bytes) -> str:
    try:
        json.loads(line)
    except UnicodeDecodeError as error:
        return f"bad text: {error.reason} at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"[:200]
    return "bad text: a lone surrogate"
