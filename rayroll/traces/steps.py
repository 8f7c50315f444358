"""The rows of one log while it is read: late answers find their call, whichever row it is in.

A log writes one response over many lines and a tool's result long after its call, so a row is open until the log ends.
Only the newest rows are held; the others lie on a shelf, which is memory or the collector's state file, and are taken
down again when something late belongs to them. That keeps memory flat in a session of a hundred thousand lines, and it
lets a log that has grown be read on from where it ended.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayroll.traces.rows import Event, Row, Tool, dumps

__all__ = [
    "Answer",
    "MemoryShelf",
    "Shelf",
    "Steps",
    "Tally",
    "add_event",
    "answer",
    "chars",
    "count",
    "duration_ms",
    "flag",
    "new_tool",
    "time_ms",
]

_HELD_ROWS = 128
"""Parallel calls answer within a few rows; a call that is answered later costs one look at the shelf."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND = dt.timedelta(milliseconds=1)

TOO_DEEP = "(nested too deep)"


def time_ms(value: object) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 time; ``None`` where it is none. A time without a zone is UTC."""
    if not isinstance(value, str):
        return None
    try:
        moment = dt.datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        return round((moment - _EPOCH) / _MILLISECOND)
    except (ValueError, OverflowError):
        return None


def chars(value: Any) -> int:
    """Characters of a text; of anything else, of its JSON without spaces."""
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value)
    try:
        return len(dumps(value).decode())
    except TypeError:
        return len(TOO_DEEP)


def storable(value: Any) -> Any:
    """The value itself, or a mark where JSON cannot hold it."""
    if value is None or isinstance(value, str):
        return value
    try:
        dumps([[[value]]])  # it will stand that deep in its row
    except TypeError:
        return TOO_DEEP
    return value


def count(mapping: Any, key: str) -> int:
    """A number of tokens: never negative, 0 where there is none."""
    value = mapping.get(key) if isinstance(mapping, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return max(0, int(value)) if abs(value) < 1 << 53 else 0


def duration_ms(value: object, per_unit: float) -> int | None:
    """A reported duration in milliseconds; ``None`` where it is no number, or negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value * per_unit) if 0 <= value * per_unit < 1 << 53 else None


def add_event(events: list[Event], kind: str, at: object, source: str, **more: Any) -> Event:
    """Append an event; what is ``None`` is left out."""
    event: Any = {"event_type": kind, "timestamp": at if isinstance(at, str) else None, "source": source}
    event.update({name: value for name, value in more.items() if value is not None})
    events.append(event)
    return event  # type: ignore[no-any-return]


def new_tool(index: int, name: object, call_id: str, at: object, given: Any) -> Tool:
    """A call that was just emitted."""
    return {
        "tool_index": index,
        "tool_name": name if isinstance(name, str) else None,
        "tool_call_id": call_id,
        "emitted_at": at if isinstance(at, str) else None,
        "result_at": None,
        "input": storable(given),
        "input_chars": chars(given),
        "result_chars": None,
        "tool_wall_latency_ms": None,
        "tool_internal_latency_ms": None,
        "is_error": None,
        "status": "unfinished",
    }


@dataclass(slots=True)
class Answer:
    """A tool's result, before it is known whose it is."""

    at: str | None
    result_chars: int
    is_error: bool | None
    internal_ms: int | None


def answer(tool: Tool, result: Answer) -> bool:
    """Give a call its first result. Returns True when the result came before the call, by the clock."""
    tool["result_at"] = result.at
    tool["result_chars"] = result.result_chars
    tool["tool_internal_latency_ms"] = result.internal_ms
    tool["is_error"] = result.is_error
    if tool["status"] == "unfinished":
        tool["status"] = "finished"
    emitted_ms, result_ms = time_ms(tool["emitted_at"]), time_ms(result.at)
    if emitted_ms is None or result_ms is None:
        return False
    tool["tool_wall_latency_ms"] = result_ms - emitted_ms if result_ms >= emitted_ms else None
    return result_ms < emitted_ms


def flag(row: Row, name: str) -> None:
    """Add to a row's flags."""
    if name not in row["flags"]:
        row["flags"] = sorted([*row["flags"], name])


@dataclass(slots=True)
class Tally:
    """What a log held beside its rows."""

    unknown_types: dict[str, int] = field(default_factory=dict)
    """Records of types that are not known, passed over."""
    nameless_results: int = 0
    """Results that do not say whose they are."""
    waiting_results: int = 0
    """Results of calls that the log does not have, by now."""
    duplicate_results: int = 0
    """Second and later results of one call."""
    repeated_steps: int = 0
    """Reports of tokens that repeat an earlier one of the same log."""
    synthetic: int = 0
    """Messages that the agent itself put in a model's mouth, such as an API error: no model call."""

    def unknown(self, name: object) -> None:
        """Count a record, or a part of one, that is passed over."""
        self.unknown_types[str(name)] = self.unknown_types.get(str(name), 0) + 1

    @property
    def orphan_results(self) -> int:
        """Results that belong to no call."""
        return self.nameless_results + self.waiting_results


class Shelf(Protocol):
    """Where rows lie that are not held."""

    def put(self, position: int, key: str, row: Row, copied: bool) -> None: ...
    def get(self, position: int) -> Row: ...
    def cut(self, length: int) -> None:
        """Forget the rows from that position on."""

    def __iter__(self) -> Iterator[tuple[str, Row, bool]]: ...


class MemoryShelf:
    """A shelf in memory, for one log."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[str, Row, bool]] = {}

    def put(self, position: int, key: str, row: Row, copied: bool) -> None:
        self._rows[position] = (key, row, copied)

    def get(self, position: int) -> Row:
        return self._rows[position][1]

    def cut(self, length: int) -> None:
        for position in range(length, len(self._rows)):
            del self._rows[position]

    def __iter__(self) -> Iterator[tuple[str, Row, bool]]:
        return (self._rows[position] for position in sorted(self._rows))


class Steps:
    """The rows of one log, by position, by key and by the calls in them.

    A key is ``family|name``: the same name within one family of sessions is the same step, whichever log it stands in.
    The family is a session's id, or empty where names are unique everywhere.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._held: OrderedDict[int, Row] = OrderedDict()
        self._keys: dict[str, int] = {}
        self._names: list[tuple[str, bool]] = []
        self._calls: dict[str, int] = {}
        for position, (key, row, copied) in enumerate(shelf):
            self._keys[key] = position
            self._names.append((key, copied))
            for tool in row["tools"]:
                self._calls[tool["tool_call_id"]] = position

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def find(self, key: str) -> Row | None:
        """The row of that key, to be read or changed at once, before the next call here."""
        position = self._keys.get(key)
        return None if position is None else self._hold(position)

    def add(self, key: str, row: Row, *, copied: bool = False) -> None:
        position = len(self._names)
        self._names.append((key, copied))
        self._keys[key] = position
        for tool in row["tools"]:
            self._calls[tool["tool_call_id"]] = position
        self._held[position] = row
        self._let_go(_HELD_ROWS)

    def call(self, call_id: str) -> tuple[Row, Tool] | None:
        """The call of that id and its row, to be changed at once."""
        position = self._calls.get(call_id)
        if position is None:
            return None
        row = self._hold(position)
        return row, next(tool for tool in row["tools"] if tool["tool_call_id"] == call_id)

    def add_call(self, key: str, tool: Tool) -> None:
        """Say that the row of that key has this call now."""
        self._calls[tool["tool_call_id"]] = self._keys[key]

    def shelve(self) -> None:
        """Put everything on the shelf."""
        self._let_go(0)

    def _hold(self, position: int) -> Row:
        if position not in self._held:
            self._held[position] = self._shelf.get(position)
            self._let_go(_HELD_ROWS)
        self._held.move_to_end(position)
        return self._held[position]

    def _let_go(self, keep: int) -> None:
        while len(self._held) > keep:
            position, row = self._held.popitem(last=False)
            summarise(row)
            key, copied = self._names[position]
            self._shelf.put(position, key, row, copied)


def summarise(row: Row) -> None:
    """Fill in what follows from a row's events and names."""
    messages = [event for event in row["timing_events"] if event["event_type"] == "user_message"]
    results = [event for event in row["timing_events"] if event["event_type"] == "tool_result"]
    message_chars = sum(event.get("content_chars", 0) for event in messages)
    result_chars = sum(event.get("result_chars", 0) for event in results)
    row["current_input_event_count"] = len(messages) + len(results)
    row["current_user_message_count"] = len(messages)
    row["current_tool_result_count"] = len(results)
    row["current_user_message_chars"] = message_chars
    row["current_tool_result_chars"] = result_chars
    row["current_input_chars"] = message_chars + result_chars
    row["first_input_event_type"] = next(
        (e["event_type"] for e in row["timing_events"] if e["event_type"] in ("user_message", "tool_result")), None
    )
    row["trace_key"] = f"{row['provider']}:{row['session_id']}:{row['round_id']}"
