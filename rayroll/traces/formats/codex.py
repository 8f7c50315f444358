"""Codex: ``~/.codex/sessions/**/rollout-*.jsonl`` and ``archived_sessions``.

A response has no id: its items stand one after another, and a ``token_count`` ends the step. A fork or a subagent's log
begins with its parent's history, stamped anew; the running total of tokens is copied as it was, and so it names a step
within a family of sessions. Such rows are given to the parent, and counted once over all files, later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from rayroll.traces.formats import LogFormat, LogReader, Source, closing
from rayroll.traces.formats._codex_family import is_history, is_subagent, parent_of
from rayroll.traces.formats._codex_output import exit_was_error, reported_ms
from rayroll.traces.formats._codex_types import EVENTS, ITEMS, TOP_TYPES
from rayroll.traces.rows import Event, Row, Tool
from rayroll.traces.steps import (
    Answer,
    Steps,
    add_event,
    answer,
    chars,
    count,
    flag,
    new_tool,
    time_ms,
)

__all__ = ["Format", "Reader"]

_CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
_ENDS = frozenset({"exec_command_end", "patch_apply_end"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
_USAGE = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")


class Format(LogFormat):
    """Codex's logs."""

    kind = "codex"
    folders = ((".codex", "sessions"), (".codex", "archived_sessions"))
    home_variable = "CODEX_HOME"
    has_projects = False

    def recognises(self, record: dict[str, Any]) -> bool:
        return record.get("type") in TOP_TYPES and isinstance(record.get("payload"), dict)


class Reader(LogReader):
    """One log of Codex."""

    def __init__(self, source: Source, steps: Steps, state: dict[str, Any] | None = None) -> None:
        super().__init__(source, steps, state)
        self._stem = source.session_key.rsplit("/", 1)[-1]
        # Everything here is JSON; the step that is not yet ended by a token_count is in it as well.
        self._now: dict[str, Any] = state or {
            "own": None, "parent": None, "subagent": False, "history_of": None, "lineage": [], "start_ms": None,
            "replaying": True, "turn": None, "model": None, "cwd": None, "total": None,
            "turn_rounds": {}, "rounds": {}, "early": {}, "open": {}, "shown": [],
            "pending": [], "events": [], "tools": [], "flags": [],
        }  # fmt: skip
        self._events: list[Event] = self._now["events"]
        self._tools: list[Tool] = self._now["tools"]

    def state(self) -> dict[str, Any]:
        return self._now

    def lineage(self) -> Iterable[tuple[str, str]]:
        return [(child, parent) for child, parent in self._now["lineage"]]

    def finish(self) -> None:
        self.tally.waiting_results = len(self._now["early"])
        if self._events:
            self._end_step(None, None, {}, None)

    def feed(self, record: dict[str, Any]) -> None:
        payload = record.get("payload")
        top, at = record.get("type"), record.get("timestamp")
        if not isinstance(payload, dict):
            payload = {}
        kind = payload.get("type")
        if top == "session_meta":
            self._meta(payload, at)
        elif top == "turn_context":
            self._turn(payload)
        elif top == "response_item":
            self._item(kind, payload, at)
        elif top == "event_msg":
            self._event(kind, payload, at)
        elif top not in TOP_TYPES:
            self.tally.unknown(top)

    def _meta(self, payload: dict[str, Any], at: Any) -> None:
        session, parent = payload.get("id"), parent_of(payload)
        self._turn({"cwd": payload.get("cwd")})
        if not isinstance(session, str) or not session:
            return
        if parent is not None and parent != session and [session, parent] not in self._now["lineage"]:
            self._now["lineage"].append([session, parent])
        if self._now["own"] is None:
            self._now["own"], self._now["parent"] = session, parent
            self._now["history_of"] = parent
            self._now["subagent"] = is_subagent(payload)
            self._now["start_ms"] = time_ms(at) or time_ms(payload.get("timestamp"))
        elif session != self._now["own"]:
            # The history that follows carries its own session's heading.
            self._now["history_of"] = session
            if self._now["parent"] is None:
                self._now["parent"] = session
                self._now["lineage"].append([self._now["own"], session])

    def _turn(self, payload: dict[str, Any]) -> None:
        for name, key in (("turn", "turn_id"), ("model", "model"), ("cwd", "cwd")):
            if isinstance(payload.get(key), str) and payload[key]:
                self._now[name] = payload[key]

    def _item(self, kind: Any, payload: dict[str, Any], at: Any) -> None:
        if kind == "reasoning":
            add_event(self._events, "reasoning", at, "response_item.reasoning")
        elif kind == "message" and payload.get("role") == "assistant":
            text = chars(payload.get("content"))
            add_event(self._events, "text", at, "response_item.message", content_chars=text)
        elif kind in _CALLS:
            self._call(kind, payload, at)
        elif kind in _OUTPUTS:
            output = payload.get("output")
            result = Answer(_text(at), chars(output), exit_was_error(output), reported_ms(output))
            self._result(f"response_item.{kind}", payload.get("call_id"), result)
        elif kind not in ITEMS:
            self.tally.unknown(f"response_item.{kind}")

    def _event(self, kind: Any, payload: dict[str, Any], at: Any) -> None:
        if kind == "token_count":
            self._token_count(payload.get("info"), at)
        elif kind == "user_message":
            message = chars(payload.get("message"))
            add_event(self._now["pending"], "user_message", at, "event_msg.user_message", content_chars=message)
        elif kind in ("task_started", "turn_started"):
            self._turn({"turn_id": payload.get("turn_id")})
        elif kind == "turn_aborted":
            self._aborted(payload.get("turn_id"))
        elif kind in _ENDS:
            self._end_of_tool(kind, payload, at)
        elif kind not in EVENTS:
            self.tally.unknown(f"event_msg.{kind}")

    def _call(self, kind: str, payload: dict[str, Any], at: Any) -> None:
        call_id = payload.get("call_id") or payload.get("id")
        if not isinstance(call_id, str) or not call_id:
            call_id = f"made-up-{self._now['turn'] or self._stem}:{at}:{len(self._tools)}"
        if self._find(call_id) is not None:
            return
        name = payload.get("name") or ("local_shell" if kind == "local_shell_call" else None)
        tool = new_tool(len(self._tools), name, call_id, at, payload.get(_CALLS[kind]))
        self._tools.append(tool)
        self._now["open"][call_id] = self._now["turn"]
        add_event(
            self._events,
            "tool_call",
            at,
            f"response_item.{kind}",
            tool_call_id=call_id,
            tool_name=tool["tool_name"],
            tool_index=tool["tool_index"],
        )
        if early := self._now["early"].pop(call_id, None):
            self._answer(None, tool, Answer(**early["result"]), early["source"])

    def _end_of_tool(self, kind: str, payload: dict[str, Any], at: Any) -> None:
        """What the tool's runner told the screen; mostly just before the result that the model gets."""
        if kind == "exec_command_end":
            output, code = payload.get("aggregated_output"), payload.get("exit_code")
            failed = code != 0 if isinstance(code, int) else None
        else:
            output = "".join(part for part in (payload.get("stdout"), payload.get("stderr")) if isinstance(part, str))
            failed = not payload["success"] if isinstance(payload.get("success"), bool) else None
        result = Answer(_text(at), chars(output), failed, reported_ms(payload.get("duration")) or reported_ms(output))
        self._result(f"event_msg.{kind}", payload.get("call_id"), result)

    def _result(self, source: str, call_id: Any, result: Answer) -> None:
        if not isinstance(call_id, str) or not call_id:
            self.tally.nameless_results += 1
            return
        found = self._find(call_id)
        if found is None:
            if source.startswith("event_msg."):
                return  # the user's own command in the terminal: no call of the model
            if call_id in self._now["early"]:
                self.tally.duplicate_results += 1
                return
            self._now["early"][call_id] = {"source": source, "result": _as_json(result)}
            self._tell(source, call_id, result)
            return
        row, tool = found
        if tool["result_chars"] is None:
            self._answer(row, tool, result, source)
            self._tell(source, call_id, result)
            return
        shown = self._now["shown"]
        if source.startswith("response_item.") and call_id not in shown:
            self.tally.duplicate_results += 1
            self._flag(row, "duplicate_result")
            return
        # One end is told twice, to the screen and to the model: the second telling may know more.
        if call_id in shown and source.startswith("response_item."):
            shown.remove(call_id)
        if result.is_error is not None:
            tool["is_error"] = result.is_error
        if tool["tool_internal_latency_ms"] is None:
            tool["tool_internal_latency_ms"] = result.internal_ms

    def _flag(self, row: Row | None, name: str) -> None:
        """Flag the row of a call; without one yet, it is the step that is being read."""
        if row is not None:
            flag(row, name)
        elif name not in self._now["flags"]:
            self._now["flags"].append(name)

    def _answer(self, row: Row | None, tool: Tool, result: Answer, source: str) -> None:
        if answer(tool, result):
            self._flag(row, "clock_backwards")
        self._now["open"].pop(tool["tool_call_id"], None)
        if source.startswith("event_msg."):
            self._now["shown"].append(tool["tool_call_id"])

    def _tell(self, source: str, call_id: str, result: Answer) -> None:
        add_event(
            self._now["pending"],
            "tool_result",
            result.at,
            source,
            tool_call_id=call_id,
            result_chars=result.result_chars,
            is_error=result.is_error,
        )

    def _find(self, call_id: str) -> tuple[Row | None, Tool] | None:
        for tool in self._tools:
            if tool["tool_call_id"] == call_id:
                return None, tool
        return self.steps.call(call_id)

    def _aborted(self, turn: Any) -> None:
        """The turn was ended from outside: what it still waited for will not come. No id: the turn that runs."""
        turn = turn if isinstance(turn, str) and turn else self._now["turn"]
        for call_id, of_turn in list(self._now["open"].items()):
            if of_turn not in (turn, None):
                continue
            found = self._find(call_id)
            if found is not None and found[1]["status"] == "unfinished":
                found[1]["status"] = "aborted"
            del self._now["open"][call_id]
        if self._events:
            self._end_step(None, None, {}, None)

    def _token_count(self, info: Any, at: Any) -> None:
        if not isinstance(info, dict):
            return  # only rate limits
        total, last = info.get("total_token_usage"), info.get("last_token_usage")
        if not isinstance(total, dict):
            total = None
        if not isinstance(last, dict):
            if total is None:
                return
            before = self._now["total"] or {}
            last = {name: max(0, count(total, name) - count(before, name)) for name in _USAGE}
        self._end_step(total, at, last, total or {"at": _text(at)})

    def _end_step(self, total: Any, at: Any, last: dict[str, Any], name: Any) -> None:
        """Make a row of what stands since the last one. Without ``name``, nobody reported its tokens."""
        session = self._session_of_step(self._events[-1]["timestamp"] if name is None else at)
        turn = self._now["turn"] or self._stem
        number = self._now["turn_rounds"].get(turn, 0)
        if name is None:
            first_call = self._tools[0]["tool_call_id"] if self._tools else f"{turn}:{number}"
            key = f"{session}|no usage, {first_call}"
        else:
            numbers = [[count(usage, one) for one in _USAGE] for usage in (total or {}, last)]
            key = f"{session}|{orjson.dumps(numbers).decode()}"
            if total is None:
                key += str(_text(at))
            else:
                self._now["total"] = total
        if key in self.steps:
            self.tally.repeated_steps += 1
            return
        self._now["turn_rounds"][turn] = number + 1
        index = self._now["rounds"].get(session, 0)
        self._now["rounds"][session] = index + 1
        events = [*self._now["pending"], *self._events]
        if name is not None:
            add_event(events, "usage_report", at, "event_msg.token_count")
        inputs, cached = count(last, "input_tokens"), count(last, "cached_input_tokens")
        known = name is not None
        replayed = session != (self._now["own"] or self._stem)
        parent = None if replayed or self._now["parent"] is None else f"codex:{self._now['parent']}"
        aside = self._now["subagent"] and not replayed  # the agent's id is its session's
        row: Row = {
            "provider": "codex",
            "session_id": f"codex:{session}",
            "session_file": str(self.source.path),
            "round_index": index,
            "round_id": f"{turn}:{number}",
            "turn_id": self._now["turn"],
            "cwd": self._now["cwd"],
            "model": self._now["model"],
            "input_tokens_total": inputs if known else None,
            "prefix_tokens": min(cached, inputs) if known else None,
            "newly_append_tokens": max(0, inputs - cached) if known else None,
            "claude_uncached_input_tokens": None,
            "claude_cache_creation_input_tokens": None,
            "claude_cache_read_input_tokens": None,
            "output_tokens": count(last, "output_tokens") if known else None,
            "reasoning_output_tokens": count(last, "reasoning_output_tokens") if known else None,
            "timing_events": events,
            "tools": list(self._tools),
            **closing(self.source, is_subagent=aside, agent=session if aside else None, parent=parent),  # type: ignore[typeddict-item]
        }
        row["flags"] = sorted([*self._now["flags"], *([] if known else ["no_usage"])])
        self.steps.add(key, row, copied=replayed)
        for name_ in ("pending", "events", "tools", "flags"):
            self._now[name_].clear()

    def _session_of_step(self, at: Any) -> str:
        """Whose step it is: the log's own, or, at the head of a fork's log, of the session it was forked from."""
        own, history_of = self._now["own"], self._now["history_of"]
        if own is None or history_of is None or not self._now["replaying"]:
            return own or self._stem
        if is_history(own, self._now["start_ms"], self._now["turn"], at):
            return str(history_of)
        self._now["replaying"] = False
        return str(own)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_json(result: Answer) -> dict[str, Any]:
    return {name: getattr(result, name) for name in Answer.__slots__}


Format.reader = Reader
