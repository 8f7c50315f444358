"""Synthetic steps as rows of TraceLab's format: one clock for each session, ids in the agents' forms, no inputs."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from rayroll.traces import _calibration as calibration

__all__ = ["Call", "Step", "rows"]

_FIRST_DAY = datetime(2025, 9, 23, tzinfo=UTC)
_DAYS = 255  # meta.collection_window
_DAY_MS = 86_400_000
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_USAGE_LAG_MS = 5  # from the last output to Codex's report of tokens, in the sample
_REASONS, _SPEAKS = 0.58, 0.38  # shares of steps with reasoning, and of calling steps with text (scope.timing_events)
_SOURCES = {
    "claude": {
        "user_message": "user.message",
        "tool_result": "user.content.tool_result",
        "reasoning": "assistant.content.thinking",
        "text": "assistant.content.text",
        "tool_call": "assistant.content.tool_use",
    },
    "codex": {
        "user_message": "event_msg.user_message",
        "tool_result": "response_item.function_call_output",
        "reasoning": "response_item.reasoning",
        "text": "response_item.message",
        "tool_call": "response_item.function_call",
        "usage_report": "event_msg.token_count",
    },
}


class Step(NamedTuple):
    """What is drawn of a step before it is a row."""

    session: int
    is_user: bool
    calls: int
    output_tokens: int
    generation_ms: int
    wait_ms: int
    typed_chars: int
    prefix_tokens: int
    append_tokens: int


class Call(NamedTuple):
    """What is drawn of a tool call."""

    name: str
    wall_ms: int
    internal_ms: int | None
    is_error: bool
    input_chars: int
    result_chars: int


def rows(
    steps: Iterable[Step], calls: Iterable[Call], codex_sessions: list[bool], draw: random.Random
) -> Iterator[dict[str, Any]]:
    """One row for each step; calls are taken in order, as many as each step has."""
    calls = iter(calls)
    current, session = -1, _Session("claude", draw)
    for step in steps:
        if step.session != current:
            current = step.session
            session = _Session("codex" if codex_sessions[current] else "claude", draw)
        yield session.row(step, [next(calls) for _ in range(step.calls)])


class _Session:
    """What one step of a session leaves for the next: the time, the turn and the results of its calls."""

    def __init__(self, provider: str, draw: random.Random) -> None:
        self.provider = provider
        self.draw = draw
        self.sources = _SOURCES[provider]
        self.id = f"{provider}:{_uuid(draw)}"
        self.project = f"project_{draw.getrandbits(32):08x}"
        models = calibration.MODELS[provider]
        self.model = draw.choices(list(models), list(models.values()))[0]
        self.clock_ms = draw.randrange(_DAYS * _DAY_MS)
        self.index = 0
        self.turn, self.turn_index = "", 0
        self.results: list[tuple[int, dict[str, Any]]] = []
        self.answered = 0

    def row(self, step: Step, calls: list[Call]) -> dict[str, Any]:
        events = self._inputs(step)
        input_chars = step.typed_chars if step.is_user else sum(event["result_chars"] for event in events)
        round_id = self._round(step.is_user)
        reasoning, tools = self._outputs(step, calls, events)
        is_claude = self.provider == "claude"
        uncached = min(step.append_tokens, 2 + self.draw.getrandbits(2))
        row: dict[str, Any] = {
            "provider": self.provider,
            "project": self.project,
            "session_id": self.id,
            "round_index": self.index,
            "round_id": round_id,
            "turn_id": self.turn,
            "model": self.model,
            "input_tokens_total": step.prefix_tokens + step.append_tokens,
            "prefix_tokens": step.prefix_tokens,
            "newly_append_tokens": step.append_tokens,
            "claude_uncached_input_tokens": uncached if is_claude else None,
            "claude_cache_creation_input_tokens": step.append_tokens - uncached if is_claude else None,
            "claude_cache_read_input_tokens": step.prefix_tokens if is_claude else None,
            "output_tokens": step.output_tokens,
            "reasoning_output_tokens": None if is_claude else reasoning,
            "timing_events": events,
            "tools": tools,
            "current_input_event_count": 1 if step.is_user else self.answered,
            "current_user_message_count": int(step.is_user),
            "current_tool_result_count": 0 if step.is_user else self.answered,
            "current_user_message_chars": step.typed_chars if step.is_user else 0,
            "current_tool_result_chars": 0 if step.is_user else input_chars,
            "current_input_chars": input_chars,
            "first_input_event_type": "user_message" if step.is_user else "tool_result",
            "store": f".{self.provider}",
            "trace_key": f"{self.provider}:{self.id}:{round_id}",
        }
        del row["turn_id" if is_claude else "project"]  # as TraceLab has it: each provider its own
        self.index += 1
        return row

    def _inputs(self, step: Step) -> list[dict[str, Any]]:
        """The events that the step answers; the clock then stands at the newest."""
        if step.is_user:
            self.clock_ms += step.wait_ms
            self.answered = 0
            event = self._event("user_message", self.clock_ms)
            event["content_chars"] = step.typed_chars
            return [event]
        self.results.sort(key=lambda result: result[0])
        self.answered = len(self.results)
        self.clock_ms = self.results[-1][0]
        events = []
        for at_ms, tool in self.results:
            event = self._event("tool_result", at_ms)
            event["tool_call_id"] = tool["tool_call_id"]
            event["result_chars"] = tool["result_chars"]
            event["is_error"] = tool["is_error"]
            events.append(event)
        return events

    def _outputs(self, step: Step, calls: list[Call], events: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
        """Adds what the model says to the events, the last of it when its span ends, and starts the calls."""
        draw = self.draw.random
        began_ms, ended_ms = self.clock_ms, self.clock_ms + step.generation_ms
        reasoning = 0
        if draw() < _REASONS:
            reasoning = int(step.output_tokens * (0.4 + 0.6 * draw()))
            event = self._event("reasoning", began_ms + int(step.generation_ms * (0.3 + 0.3 * draw())))
            events.append(event)
        if not calls or draw() < _SPEAKS:
            event = self._event("text", began_ms + int(0.7 * step.generation_ms) if calls else ended_ms)
            event["content_chars"] = 4 * (step.output_tokens - reasoning) // (1 + len(calls))
            events.append(event)
        self.results = []
        tools = []
        apart_ms = min(500, step.generation_ms // 5 // max(1, len(calls)))
        for index, call in enumerate(calls):
            emitted_ms = ended_ms - apart_ms * (len(calls) - 1 - index)
            result_ms = emitted_ms + call.wall_ms
            tool = {
                "tool_index": index,
                "tool_name": call.name,
                "tool_call_id": self._call_id(),
                "emitted_at": _stamp(emitted_ms),
                "input_chars": call.input_chars,
                "result_chars": call.result_chars,
                "tool_wall_latency_ms": call.wall_ms,
                "tool_internal_latency_ms": call.internal_ms,
                "is_error": call.is_error,
                "result_at": _stamp(result_ms),
            }
            event = self._event("tool_call", emitted_ms)
            event["tool_call_id"] = tool["tool_call_id"]
            event["tool_name"] = call.name
            event["tool_index"] = index
            events.append(event)
            tools.append(tool)
            self.results.append((result_ms, tool))
        self.clock_ms = ended_ms
        if self.provider == "codex":
            self.clock_ms += _USAGE_LAG_MS
            events.append(self._event("usage_report", self.clock_ms))
        return reasoning, tools

    def _event(self, kind: str, at_ms: int) -> dict[str, Any]:
        return {"event_type": kind, "timestamp": _stamp(at_ms), "source": self.sources[kind]}

    def _round(self, is_user: bool) -> str:
        if self.provider == "claude":
            return f"msg_{self.draw.getrandbits(96):024x}"
        self.turn_index += 1
        if is_user:
            self.turn, self.turn_index = _uuid(self.draw), 0
        return f"{self.turn}:{self.turn_index}"

    def _call_id(self) -> str:
        if self.provider == "claude":
            return f"toolu_{self.draw.getrandbits(88):022x}"
        return "call_" + "".join(self.draw.choices(_BASE62, k=24))


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128)))


def _stamp(ms: int) -> str:
    """ISO 8601 from milliseconds after the first day began; two million a set, so no datetime each."""
    day, ms = divmod(ms, _DAY_MS)
    minutes, ms = divmod(ms, 60_000)
    return f"{_date(day)}T{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}.{ms % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _date(day: int) -> str:
    return (_FIRST_DAY + timedelta(days=day)).date().isoformat()
