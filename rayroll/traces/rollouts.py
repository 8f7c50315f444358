"""Rollouts as rows, so that what a policy did here and what agents do in the wild are measured with the same numbers.

A rollout is a session of provider ``rayroll``, and each of its steps is a model call:

* A rollout has no date, so that its clock starts at 1970-01-01T00:00:00Z; its waits for a slot or a boot are no part.
* The task is the user's message, at 0. From an input to the command it led to is the policy's time.
* The command is a call of the tool ``command``. Its wall time is the round trip by the host's clock, its internal time
  what the shell ran by the runner's clock; the difference is the tax, as it is for Codex. A step that only submits
  has a text and no call.
* Tokens are unknown: a policy's ``tokens`` are its own affair.
* ``project`` is the task. A rollout that the machine spoilt and that was made again is a session of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rayroll.record import from_line
from rayroll.traces.lines import LogLines, Loss
from rayroll.types import Rollout, Step

__all__ = ["rollouts_in", "rows_of"]

_START = datetime(1970, 1, 1, tzinfo=UTC)


def rollouts_in(path: Path) -> Iterator[Rollout | Loss]:
    """Every rollout of a file, packed or not, and the lines that are none."""
    told: list[Loss] = []
    log = LogLines(path, on_loss=told.append)
    for line in log.lines():
        if not line.strip():
            continue
        try:
            yield from_line(line)
        except ValueError as error:
            yield Loss(str(path), log.line, str(error) if log.complete else "torn by a crash")
    yield from told


def rows_of(rollouts: Iterable[Rollout | Loss]) -> Iterator[dict[str, Any] | Loss]:
    """One row for each step of each rollout; what was lost is passed on."""
    seen: Counter[str] = Counter()
    for rollout in rollouts:
        if isinstance(rollout, Loss):
            yield rollout
            continue
        seen[rollout.id] += 1
        made = seen[rollout.id]
        yield from _rows(rollout, f"rayroll:{rollout.id}" + (f":{made}" if made > 1 else ""))


def _rows(rollout: Rollout, session: str) -> Iterator[dict[str, Any]]:
    now_ns = 0
    given = _event("user_message", now_ns)
    for index, step in enumerate(rollout.steps):
        acted_ns = now_ns + round(step.phases_s.get("policy", 0.0) * 1e9)
        now_ns = acted_ns + (step.timing.round_trip_ns or step.timing.busy_ns)
        call_id = f"{session}:{index}"
        has_call = bool(step.act.command)
        done = _event("tool_call", acted_ns, tool_call_id=call_id) if has_call else _event("text", acted_ns)
        yield {
            "provider": "rayroll",
            "session_id": session,
            "round_index": index,
            "round_id": str(index),
            "trace_key": f"rayroll:{session}:{index}",
            "project": rollout.task_id,
            "model": rollout.labels.get("policy"),
            "timing_events": [given, done],
            "tools": [_tool(step, call_id, acted_ns, now_ns)] if has_call else [],
            "first_input_event_type": given["event_type"],
        }
        given = _event("tool_result", now_ns, tool_call_id=call_id, result_chars=step.output_bytes)


def _tool(step: Step, call_id: str, acted_ns: int, done_ns: int) -> dict[str, Any]:
    return {
        "tool_index": 0,
        "tool_name": "command",
        "tool_call_id": call_id,
        "emitted_at": _moment(acted_ns),
        "result_at": _moment(done_ns),
        "input": step.act.command,
        "input_chars": len(step.act.command),
        "result_chars": step.output_bytes,
        "tool_wall_latency_ms": (done_ns - acted_ns) / 1e6,
        "tool_internal_latency_ms": step.timing.run_ns / 1e6,
        "is_error": step.timed_out or step.exit_code != 0,
    }


def _event(kind: str, at_ns: int, **fields: Any) -> dict[str, Any]:
    return {"event_type": kind, "timestamp": _moment(at_ns), **fields}


def _moment(at_ns: int) -> str:
    return (_START + timedelta(microseconds=at_ns / 1000)).isoformat(timespec="microseconds")
