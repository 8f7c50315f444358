"""Traces small enough to check in one's head: a session is steps, a step is what happened at which second.

>>> rows = session("a", step(user(0), call(4, "Bash", result=6)), step(result(6), text(9)))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rayroll.traces.store import Store

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Second 0 of every tiny trace."""


@dataclass(frozen=True)
class Event:
    """Something at a second of the trace; a call also brings its row among the step's tools."""

    kind: str
    at_s: float | None
    fields: dict[str, Any]
    tool: dict[str, Any] | None = None


def moment(at_s: float | None) -> str | None:
    """The time as rows write it."""
    if at_s is None:
        return None
    return (START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def user(at_s: float | None, *, chars: int = 10) -> Event:
    """A user's message."""
    return Event("user_message", at_s, {"content_chars": chars})


def result(at_s: float | None, *, id: str | None = None, chars: int = 100) -> Event:
    """A tool's result, as input of the step."""
    return Event("tool_result", at_s, {"tool_call_id": id, "result_chars": chars})


def reasoning(at_s: float | None) -> Event:
    """The model has thought."""
    return Event("reasoning", at_s, {})


def text(at_s: float | None) -> Event:
    """The model has written."""
    return Event("text", at_s, {"content_chars": 20})


def usage(at_s: float | None) -> Event:
    """Codex reports the step's tokens: neither input nor output."""
    return Event("usage_report", at_s, {})


def call(
    at_s: float | None,
    name: str = "Bash",
    *,
    result: float | None = None,
    internal_ms: float | None = None,
    wall_ms: float | None = None,
    error: bool | None = False,
    id: str | None = None,
    input: Any = None,
    input_chars: int = 30,
    result_chars: int = 100,
) -> Event:
    """A tool call; ``result`` is the second of its result (None: unfinished), from which its wall time follows."""
    if wall_ms is None and at_s is not None and result is not None:
        wall_ms = round((result - at_s) * 1000)
    tool = {
        "tool_name": name,
        "tool_call_id": id,
        "emitted_at": moment(at_s),
        "result_at": moment(result),
        "input": input,
        "input_chars": input_chars,
        "result_chars": result_chars,
        "tool_wall_latency_ms": wall_ms,
        "tool_internal_latency_ms": internal_ms,
        "is_error": error,
    }
    return Event("tool_call", at_s, {"tool_call_id": id, "tool_name": name}, tool)


def step(
    *events: Event,
    prefix: int = 0,
    append: int = 0,
    output: int = 0,
    reasoning: int | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """One model call: its events in order, its tokens, and any other field of a row."""
    calls = [dict(event.tool) for event in events if event.tool is not None]
    for index, tool in enumerate(calls):
        tool["tool_index"] = index
    kinds = [event.kind for event in events if event.kind in ("user_message", "tool_result")]
    return {
        "model": "model-1",
        "input_tokens_total": prefix + append,
        "prefix_tokens": prefix,
        "newly_append_tokens": append,
        "output_tokens": output,
        "reasoning_output_tokens": reasoning,
        "timing_events": [
            {"event_type": event.kind, "timestamp": moment(event.at_s), **event.fields} for event in events
        ],
        "tools": calls,
        "first_input_event_type": kinds[0] if kinds else None,
        **fields,
    }


def session(name: str, *steps: dict[str, Any], provider: str = "claude", user: str = "ann") -> list[dict[str, Any]]:
    """The rows of one session, its steps numbered from 0."""
    key = f"{provider}:{name}"
    return [
        {
            "provider": provider,
            "session_id": key,
            "round_index": index,
            "round_id": f"{name}-{index}",
            "trace_key": f"{provider}:{key}:{name}-{index}",
            "project": "p",
            "user": user,
            **row,
        }
        for index, row in enumerate(steps)
    ]


def store(*sessions: Iterable[dict[str, Any]]) -> Store:
    """All of them in a store in memory; to be used as a context manager, or closed."""
    opened = Store.open(":memory:")
    opened.load_rows(row for rows in sessions for row in rows)
    return opened
