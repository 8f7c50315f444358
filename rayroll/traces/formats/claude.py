"""Claude Code: ``~/.claude/projects/<project>/<session>.jsonl``, subagents in ``<session>/subagents/agent-*.jsonl``.

A response is written as one line per content block, each with the response's usage as known by then, so lines are
joined by ``message.id`` and the fullest usage counts. A resumed or forked session begins with a copy of its parent's
lines; whose step it is, is decided over all files, later.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from rayroll.traces.formats import LogFormat, LogReader, Source, closing, names
from rayroll.traces.rows import Event, Row, Tool
from rayroll.traces.steps import (
    Answer,
    Steps,
    add_event,
    answer,
    chars,
    count,
    duration_ms,
    flag,
    new_tool,
)

__all__ = ["Format", "Reader"]

_KNOWN_TYPES = names("""
    agent-color agent-name agent-setting ai-title assistant attachment attribution-snapshot bridge-session
    content-replacement custom-title file-history-snapshot hook_result last-prompt marble-origami-commit
    marble-origami-snapshot mode permission-mode pr-link progress queue-operation speculation-accept summary system
    tag task-summary turn_end user worktree-state
""")
_KNOWN_BLOCKS = names("""
    text thinking redacted_thinking tool_use server_tool_use image document fallback web_search_tool_result
    web_fetch_tool_result code_execution_tool_result mcp_tool_use mcp_tool_result
""")
_AGENT_FILE = re.compile(r"(?:^|/)agent-([^/]+)$")
_SUBAGENT_KEY = re.compile(r"(.+)/subagents/(?:.*/)?agent-[^/]+$")
_SYNTHETIC = "<synthetic>"


class Format(LogFormat):
    """Claude Code's logs."""

    kind = "claude"
    folders = ((".claude", "projects"), (".claude.back", "projects"), (".config/claude", "projects"))
    home_variable = "CLAUDE_CONFIG_DIR"
    has_projects = True

    def recognises(self, record: dict[str, Any]) -> bool:
        kind = record.get("type")
        if kind in ("assistant", "user") and isinstance(record.get("message"), dict):
            return True
        return kind in _KNOWN_TYPES and ("sessionId" in record or "uuid" in record or "messageId" in record)


@dataclass(slots=True)
class _Thread:
    """The main conversation of a log, or a subagent's that older versions wrote into the same log."""

    rounds: int = 0
    pending: list[Event] = field(default_factory=list)
    """Input that came in since the last response began."""


class Reader(LogReader):
    """One log of Claude Code."""

    def __init__(self, source: Source, steps: Steps, state: dict[str, Any] | None = None) -> None:
        super().__init__(source, steps, state)
        state = state or {"threads": {}, "early": {}}
        self._threads = {name: _Thread(**thread) for name, thread in state["threads"].items()}
        self._early = {call_id: Answer(**result) for call_id, result in state["early"].items()}
        """Results that were written before their call."""
        self._session = f"claude:{source.session_key}"
        of_agent = _AGENT_FILE.search(source.session_key)
        self._agent_of_file = of_agent[1] if of_agent else None

    def state(self) -> dict[str, Any]:
        return {
            "threads": {name: asdict(thread) for name, thread in self._threads.items()},
            "early": {call_id: asdict(result) for call_id, result in self._early.items()},
        }

    def finish(self) -> None:
        self.tally.waiting_results = len(self._early)

    def feed(self, record: dict[str, Any]) -> None:
        kind, message = record.get("type"), record.get("message")
        if not isinstance(message, dict):
            if kind not in _KNOWN_TYPES:
                self.tally.unknown(kind)
        elif kind == "assistant":
            self._assistant(record, message)
        elif kind == "user" or message.get("role") == "user":
            self._user(record, message)
        elif kind not in _KNOWN_TYPES:
            self.tally.unknown(kind)

    def _assistant(self, record: dict[str, Any], message: dict[str, Any]) -> None:
        if message.get("id") == _SYNTHETIC or message.get("model") == _SYNTHETIC:
            self.tally.synthetic += 1
            return
        key = message.get("id")
        made_up = not isinstance(key, str) or not key
        if made_up:
            key = _made_up(record)
        name, key = str(key), f"|{key}"
        row = self.steps.find(key)
        if row is None:
            row = self._new_row(record, name)
            if made_up:
                flag(row, "made_up_id")
            self.steps.add(key, row, copied=self._is_copy(record))
        if row["model"] is None and isinstance(message.get("model"), str):
            row["model"] = message["model"]
        _take_usage(row, message.get("usage"))
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if isinstance(content, list):
            self._blocks(record, key, row, content)

    def _blocks(self, record: dict[str, Any], key: str, row: Row, content: list[Any]) -> None:
        at, events, seen = record.get("timestamp"), row["timing_events"], len(row["timing_events"])
        for index, block in enumerate(content):
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "thinking":
                add_event(
                    events, "reasoning", at, "assistant.content.thinking", content_chars=chars(block.get("thinking"))
                )
            elif kind == "text":
                add_event(events, "text", at, "assistant.content.text", content_chars=chars(block.get("text")))
            elif kind == "tool_use":
                self._call(record, key, row, block, index)
                continue
            else:
                if kind not in _KNOWN_BLOCKS:
                    self.tally.unknown(f"assistant.{kind}")
                continue
            # The same line may stand in a log twice.
            if events[-1] in events[:seen]:
                events.pop()

    def _call(self, record: dict[str, Any], key: str, row: Row, block: dict[str, Any], index: int) -> None:
        call_id = block.get("id")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"{_made_up(record)}:{index}"
        if self.steps.call(call_id) is not None:
            return
        at = record.get("timestamp")
        tool = new_tool(len(row["tools"]), block.get("name"), call_id, at, block.get("input"))
        row["tools"].append(tool)
        self.steps.add_call(key, tool)
        add_event(
            row["timing_events"],
            "tool_call",
            at,
            "assistant.content.tool_use",
            tool_call_id=call_id,
            tool_name=tool["tool_name"],
            tool_index=tool["tool_index"],
        )
        if early := self._early.pop(call_id, None):
            _answer(row, tool, early)

    def _user(self, record: dict[str, Any], message: dict[str, Any]) -> None:
        content, at = message.get("content"), record.get("timestamp")
        pending = self._thread(record).pending
        results = []
        if isinstance(content, list):
            results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
        for block in results:
            self._result(record, block, pending)
        if not results and isinstance(content, str | list):
            event = add_event(pending, "user_message", at, "user.message", content_chars=chars(content))
            if event in pending[:-1]:  # the same line, twice
                pending.pop()

    def _result(self, record: dict[str, Any], block: dict[str, Any], pending: list[Event]) -> None:
        call_id, at = block.get("tool_use_id"), record.get("timestamp")
        if not isinstance(call_id, str):
            self.tally.nameless_results += 1
            return
        result = Answer(
            at if isinstance(at, str) else None,
            chars(block.get("content")),
            bool(block.get("is_error", False)),
            _reported_ms(record.get("toolUseResult")),
        )
        call = self.steps.call(call_id)
        if call_id in self._early or (call is not None and call[1]["result_chars"] is not None):
            self.tally.duplicate_results += 1
            if call is not None:
                flag(call[0], "duplicate_result")
            return
        add_event(
            pending,
            "tool_result",
            at,
            "user.content.tool_result",
            tool_call_id=call_id,
            result_chars=result.result_chars,
            is_error=result.is_error,
        )
        if call is None:
            self._early[call_id] = result
        else:
            _answer(*call, result)

    def _thread_name(self, record: dict[str, Any]) -> str:
        if self._agent_of_file is not None or record.get("isSidechain") is not True:
            return ""
        agent = record.get("agentId")
        return f"subagents/agent-{agent}" if isinstance(agent, str) else "sidechain"

    def _thread(self, record: dict[str, Any]) -> _Thread:
        return self._threads.setdefault(self._thread_name(record), _Thread())

    def _is_copy(self, record: dict[str, Any]) -> bool:
        """Does the line itself say that it was first written elsewhere?"""
        session = record.get("sessionId")
        elsewhere = isinstance(session, str) and session != self.source.session_key and self._agent_of_file is None
        return elsewhere or "forkedFrom" in record

    def _new_row(self, record: dict[str, Any], key: str) -> Row:
        name, thread = self._thread_name(record), self._thread(record)
        session, parent = self._session, None
        if name:
            session, parent = f"{self._session}/{name}", self._session
        elif self._agent_of_file is not None:
            folder, started_by = _SUBAGENT_KEY.match(self.source.session_key), record.get("sessionId")
            parent = f"claude:{folder[1] if folder else started_by}" if folder or isinstance(started_by, str) else None
        agent = record.get("agentId") if isinstance(record.get("agentId"), str) else self._agent_of_file
        aside = bool(name) or self._agent_of_file is not None or record.get("isSidechain") is True
        row: Row = {
            "provider": "claude",
            "project": self.source.project,
            "session_id": session,
            "session_file": str(self.source.path),
            "round_index": thread.rounds,
            "round_id": key,
            "model": None,
            "input_tokens_total": None,
            "prefix_tokens": None,
            "newly_append_tokens": None,
            "claude_uncached_input_tokens": None,
            "claude_cache_creation_input_tokens": None,
            "claude_cache_read_input_tokens": None,
            "output_tokens": None,
            "reasoning_output_tokens": None,
            "timing_events": thread.pending,
            "tools": [],
            **closing(self.source, is_subagent=aside, agent=agent if aside else None, parent=parent),  # type: ignore[typeddict-item]
        }
        row["flags"] = ["no_usage"]
        thread.pending = []
        thread.rounds += 1
        return row


def _answer(row: Row, tool: Tool, result: Answer) -> None:
    if answer(tool, result):
        flag(row, "clock_backwards")


def _made_up(record: dict[str, Any]) -> str:
    """An id that the same line has in every copy of it."""
    for name in ("requestId", "uuid"):
        if isinstance(record.get(name), str) and record[name]:
            return f"made-up-{record[name]}"
    lasting = {name: value for name, value in record.items() if name not in ("sessionId", "forkedFrom", "parentUuid")}
    try:
        text = orjson.dumps(lasting, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        text = repr(lasting).encode("utf-8", "replace")
    return f"made-up-{blake2b(text, digest_size=12).hexdigest()}"


def _take_usage(row: Row, usage: Any) -> None:
    """The fullest report counts: early lines are written before all output exists, a stray copy may hold zeros."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    if not isinstance(usage, dict) or not any(isinstance(usage.get(name), int | float) for name in names):
        return
    uncached, written, read, output = (count(usage, name) for name in names)
    total = uncached + written + read
    if (output, total) < (row["output_tokens"] or 0, row["input_tokens_total"] or 0):
        return
    row["flags"] = [name for name in row["flags"] if name != "no_usage"]
    row["input_tokens_total"] = total
    row["prefix_tokens"] = read
    row["newly_append_tokens"] = uncached + written
    row["claude_uncached_input_tokens"] = uncached
    row["claude_cache_creation_input_tokens"] = written
    row["claude_cache_read_input_tokens"] = read
    row["output_tokens"] = output


def _reported_ms(result: Any) -> int | None:
    if not isinstance(result, dict):
        return None
    for name, per_unit in (
        ("durationMs", 1),
        ("duration_ms", 1),
        ("durationSeconds", 1000),
        ("duration_seconds", 1000),
    ):
        if (value := duration_ms(result.get(name), per_unit)) is not None:
            return value
    return None


Format.reader = Reader
