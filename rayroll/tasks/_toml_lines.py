"""Which line of a TOML file says a thing, so that a refusal can point at it."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["decode_error_line", "line_of"]

_TABLE = re.compile(r"\s*\[\[?\s*([^\]#]+?)\s*\]\]?")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'\- ]+?)\s*=")
_DECODE_ERROR = re.compile(r"\(at line (\d+), column \d+\)")


def line_of(text: str, path: Sequence[object]) -> int:
    """The line of the key at ``path``, else of the innermost table around it that is written out; 0 if neither is.

    Keys inside inline tables and arrays count as their outermost key's line.
    """
    wanted = tuple(str(part) for part in path)
    best, best_depth = 0, 0
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.fullmatch(line.split("#")[0].rstrip()):
            table = here = _parts(header[1])
        elif key := _KEY.match(line):
            here = table + _parts(key[1])
        else:
            continue
        if len(here) > best_depth and here == wanted[: len(here)]:
            best, best_depth = number, len(here)
    return best


def decode_error_line(message: str) -> int:
    """The line that ``tomllib`` names in its message; 0 when it names none."""
    found = _DECODE_ERROR.search(message)
    return int(found[1]) if found else 0


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
