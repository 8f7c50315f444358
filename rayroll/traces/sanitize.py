"""Rows in, rows that may be shared out: sizes and times stay, ids become keyed pseudonyms, the rest goes.

The forms are those of TraceLab's public rows. A key is made for each run and kept nowhere; two files match if the
caller gives both the same. What may stay is listed in `_allowed`; anything unlisted is dropped, so a new field is
private until somebody has looked at it.
"""

from __future__ import annotations

import hmac
import re
import secrets
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from rayroll.errors import ConfigError
from rayroll.traces import _allowed
from rayroll.traces._seal import SEAL, digest, is_sealed
from rayroll.traces.leaks import Leak, check

__all__ = ["Leak", "Sanitizer", "check", "sanitize_rows"]

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBERED = re.compile(r"(.+):([0-9]{1,6})", re.DOTALL)
_MIN_KEY_BYTES = 16
_GREATEST = 2**53  # what JSON readers of other languages keep exact; no size or time comes near it


def sanitize_rows(rows: Iterable[Mapping[str, Any]], *, key: bytes | None = None) -> Iterator[dict[str, Any]]:
    """Each row as it may be shared, in order, one in memory at a time."""
    return map(Sanitizer(key).row, rows)


class Sanitizer:
    """One key, and so one consistent set of pseudonyms.

    Raises:
        ConfigError: the key is shorter than 16 bytes.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) < _MIN_KEY_BYTES:
            raise ConfigError(
                "the key is too short to keep pseudonyms from being guessed",
                key_bytes=len(key),
                fix=f"give {_MIN_KEY_BYTES} random bytes or more, or none: a key is made for this run",
            )
        self.__key = secrets.token_bytes(32) if key is None else bytes(key)

    def __repr__(self) -> str:
        return "Sanitizer(key=<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sanitizer holds a key, which is written nowhere")

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row without what is private; one that comes from here, with whichever key, is returned as it is.

        Raises:
            ConfigError: it is not a row, but a list, text or number.
        """
        if not isinstance(row, Mapping):
            raise ConfigError(f"a row is a JSON object, not {type(row).__name__}", fix="give rows, one object per line")
        if is_sealed(row):
            return dict(row)
        clean = self._fields(row, _allowed.ROW_FIELDS)
        if isinstance(row.get("trace_key"), str):
            clean["trace_key"] = self._trace_key(row, clean)
        return {**clean, SEAL: digest(clean)}

    def _fields(self, values: Any, kinds: dict[str, str]) -> dict[str, Any]:
        return {name: self._value(kinds[name], value) for name, value in values.items() if name in kinds}

    def _value(self, kind: str, value: Any) -> Any:
        if kind == "flag":
            return value if isinstance(value, bool) else None
        if kind == "number":
            return value if _is_number(value) else None
        if kind == "flags":
            return (
                [flag for flag in value if isinstance(flag, str) and flag in _allowed.FLAGS]
                if isinstance(value, list)
                else []
            )
        if kind in ("events", "tools"):
            kinds = _allowed.EVENT_FIELDS if kind == "events" else _allowed.TOOL_FIELDS
            items = value if isinstance(value, list) else []
            return [self._fields(item, kinds) for item in items if isinstance(item, Mapping)]
        return self._text(kind, value) if isinstance(value, str) else None

    def _text(self, kind: str, value: str) -> str | None:
        match kind:
            case "time":
                return value if _allowed.TIME.fullmatch(value) else None
            case "event_type":
                return value if value in _allowed.EVENT_TYPES else "other"
            case "source":
                return value if value in _allowed.SOURCES else None
            case "store":
                return value if value in _allowed.STORES else None
            case "status":
                return value if value in _allowed.STATUSES else None
            case "provider":
                return value if value in _allowed.PROVIDERS else f"provider_{self._hex(value, 8)}"
            case "model":
                return value if _allowed.MODEL.fullmatch(value) else f"model_{self._hex(value, 8)}"
            case "project":
                return f"project_{self._hex(value, 8)}"
            case "tool":
                return self._tool(value)
            case "session":
                return self._session(value)
            case "round":
                numbered = _NUMBERED.fullmatch(value)
                return f"{self._id(numbered[1])}:{int(numbered[2])}" if numbered else self._id(value)
            case "id":
                return self._id(value)
        return None

    def _tool(self, name: str) -> str:
        """Its name if everybody knows it; else its family, or, of an MCP tool, which calls go to the same server."""
        if name in _allowed.TOOLS:
            return name
        for prefix in _allowed.TOOL_PREFIXES:
            if name.startswith(prefix):
                return f"{prefix}tool_{self._hex(name, 8)}"
        if name.startswith("mcp__"):
            server, _, tool = name.removeprefix("mcp__").partition("__")
            return f"mcp__server_{self._hex(server, 8)}__tool_{self._hex(tool, 8)}"
        return f"tool_{self._hex(name, 8)}"

    def _session(self, value: str) -> str:
        provider, colon, name = value.partition(":")
        known = bool(colon) and provider in _allowed.PROVIDERS
        return f"{provider}:{self._uuid(name)}" if known else self._uuid(value)

    def _id(self, value: str) -> str:
        if _UUID.fullmatch(value):
            return self._uuid(value)
        if value.startswith("call_"):
            number = int.from_bytes(self._mac(value))
            return "call_" + "".join(_BASE62[number // 62**place % 62] for place in range(24))
        prefix = value[: value.find("_") + 1]
        prefix = prefix if prefix in _allowed.ID_DIGITS else "id_"
        return prefix + self._hex(value, _allowed.ID_DIGITS[prefix])

    def _trace_key(self, row: Mapping[str, Any], clean: Mapping[str, Any]) -> str:
        """Made of the pseudonyms of what it was made of; a key of another make stays one of a kind."""
        own = all(isinstance(row.get(name), str) for name in ("provider", "session_id", "round_id"))
        if own and row["trace_key"] == f"{row['provider']}:{row['session_id']}:{row['round_id']}":
            return f"{clean['provider']}:{clean['session_id']}:{clean['round_id']}"
        return f"id_{self._hex(row['trace_key'], 24)}"

    def _uuid(self, value: str) -> str:
        return str(uuid.UUID(bytes=self._mac(value)[:16]))

    def _hex(self, value: str, digits: int) -> str:
        return self._mac(value).hex()[:digits]

    def _mac(self, value: str) -> bytes:
        # Lone surrogates come from emoji that were cut in two.
        return hmac.digest(self.__key, value.encode(errors="surrogatepass"), "sha256")


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) < _GREATEST  # neither NaN nor infinity is
