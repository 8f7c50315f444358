"""Lines of JSON are read one at a time and never trusted: what is whole is kept, what is lost is told, by line.

A kill in mid-write leaves half a record, and the next one is appended to the same line; a cut emoji leaves half a
surrogate pair; a log may hold a byte that is no UTF-8. The good path is one ``orjson.loads``; only a line that it
refuses is looked at closer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rayroll.traces._streams import damaged, open_read

__all__ = ["MAX_LINE_BYTES", "LogLines", "Loss"]

MAX_LINE_BYTES = 256 << 20
"""A longer line is passed over without being held. Lines of 200 MB exist: a tool's result with a file in it."""

_LOOKS_PER_CHARACTER = 16
"""A broken line is looked at so many times over, at most; a record's own nesting is about six deep."""

_WHITE = " \t\r\n\0\ufeff"
"""A crash can leave a run of NULs at the end of a file; some editors put a byte order mark at its beginning."""

# A pair stays, half a pair is replaced, and any other escape is stepped over, so that an escaped backslash before a
# "u" is never taken for the start of one.
_HALF_PAIR = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL
)

_OPENING = re.compile(r'\{\s*"')

_RECORD_KEYS = frozenset({"timestamp", "sessionId", "uuid", "message", "messageId", "payload"})
"""One of these stands beside ``type`` in a record, and in hardly any object inside one."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something of a file that could not be read as written."""

    file: str
    line: int
    """From 1; 0: the file as a whole."""
    reason: str
    kept: bool = False
    """True: the record was mended and is counted; only some characters were replaced by U+FFFD."""

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.reason}"


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 19 else float(digits)  # orjson writes 64 bits


def _is_log_record(value: dict[str, Any]) -> bool:
    return isinstance(value.get("type"), str) and not _RECORD_KEYS.isdisjoint(value)


# Control characters inside strings are let through; whoever wrote them meant text.
_decoder = json.JSONDecoder(strict=False, parse_int=_integer)


class LogLines:
    """The whole records of a file, one by one; holds one line at a time.

    Iterate once. Afterwards ``offset`` and ``line`` say where to go on when the file has grown, and ``complete`` says
    whether that is exact: False when the last line has no end yet.
    """

    def __init__(
        self,
        path: Path,
        *,
        offset: int = 0,
        line: int = 0,
        until: float = math.inf,
        on_loss: Callable[[Loss], None] = lambda _: None,
        is_record: Callable[[dict[str, Any]], bool] = _is_log_record,
    ) -> None:
        """Read what lies from ``offset`` on, up to the end of the line that reaches ``until``.

        ``is_record`` tells records from other objects where a line is damaged; a log's, if nothing else is said.
        """
        self.path = path
        self.offset = offset
        """Uncompressed bytes up to the end of the last line that had one."""
        self.line = line
        """Number of the last line read, from 1."""
        self.complete = True
        self._until = until
        self._on_loss = on_loss
        self._is_record = is_record

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self.lines():
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                yield from self._mend(line)
                continue
            if isinstance(record, dict):
                yield record
            else:
                self._lost("not a JSON object")

    def mended(self) -> Iterator[dict[str, Any]]:
        """The records of damaged lines alone, for who has read the sound ones by other means."""
        for line in self.lines():
            try:
                orjson.loads(line)
            except orjson.JSONDecodeError:
                yield from self._mend(line)

    def lines(self) -> Iterator[bytes]:
        """Each line as it is, blank ones too; what cannot be read at all is told."""
        try:
            with open_read(self.path, offset=self.offset) as stream:
                while self.offset < self._until and (line := stream.readline(MAX_LINE_BYTES)):
                    self.line += 1
                    self.complete = line.endswith(b"\n")
                    if not self.complete and len(line) == MAX_LINE_BYTES:
                        self._pass_over(stream, len(line))
                        continue
                    if self.complete:
                        self.offset += len(line)
                    yield line
        except damaged() as error:
            self.complete = False
            self.line += 1
            self._lost(f"the file cannot be read from here on: {error}")

    def _lost(self, reason: str, *, kept: bool = False) -> None:
        self._on_loss(Loss(str(self.path), self.line, reason, kept))

    def _pass_over(self, stream: Any, length: int) -> None:
        while chunk := stream.readline(1 << 20):
            length += len(chunk)
            if chunk.endswith(b"\n"):
                self.complete = True
                self.offset += length
                break
        self._lost(f"a line of {length:,} bytes; more than {MAX_LINE_BYTES:,} are not read")

    def _mend(self, line: bytes) -> Iterator[dict[str, Any]]:
        written = line.decode("utf-8", "replace").strip(_WHITE)
        if not written:
            return
        text = _HALF_PAIR.sub(lambda m: "\\ufffd" if m[1] else m[0], written)
        try:
            record = orjson.loads(text)
        except orjson.JSONDecodeError:
            yield from self._whole_ones(text)
            return
        if isinstance(record, dict):
            if text != written or "\ufffd" in written:  # else only NULs or a byte order mark were in the way
                why = "bytes that are not UTF-8" if "\ufffd" in written else "half a surrogate pair"
                self._lost(f"{why}: replaced by U+FFFD", kept=True)
            yield record
        else:
            self._lost("not a JSON object")

    def _whole_ones(self, text: str) -> Iterator[dict[str, Any]]:
        """Records that stand whole in a line: between two of them, and around them, may be pieces of others."""
        at = lost_from = 0
        looks = _LOOKS_PER_CHARACTER * len(text) + 100_000
        while looks > 0 and (opening := _OPENING.search(text, at)):
            start = opening.start()
            try:
                value, end = _decoder.raw_decode(text, start)
            except json.JSONDecodeError as error:
                looks -= error.pos - start + 1
                at = start + 1
                continue
            except (ValueError, RecursionError):  # nested a thousand deep
                looks -= 10_000
                at = start + 1
                continue
            looks -= end - start
            # Inside a torn record whole objects stand too; those are followed by more of their own record, or are
            # no records by their look.
            after = text[end : end + 64].lstrip(_WHITE)
            if (not after or after[0] == "{") and self._is_record(value):
                if text[lost_from:start].strip(_WHITE):
                    self._lost(f"{start - lost_from} characters of a torn record before a whole one")
                yield value
                lost_from = end
            at = end
        if rest := text[lost_from:].strip(_WHITE):
            torn = "damaged JSON" if self.complete else "a record that is cut off"
            self._lost(f"{len(rest)} characters of {torn}")
