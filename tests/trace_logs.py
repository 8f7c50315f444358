"""Agents' logs for tests, small enough to be read in the test that writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rayroll.traces.discover import source_of
from rayroll.traces.formats import load_format
from rayroll.traces.lines import LogLines, Loss
from rayroll.traces.rows import Row
from rayroll.traces.steps import MemoryShelf, Steps, Tally

DATA = Path(__file__).parent / "traces/data"


def published(provider: str) -> list[dict[str, Any]]:
    """TraceLab's own rows of the samples."""
    rows = [json.loads(line) for line in (DATA / "normalized_rounds.jsonl").read_text().splitlines()]
    return [row for row in rows if row["provider"] == provider]


def rows_of(kind: str, log: Path) -> tuple[list[Row], Tally, list[Loss]]:
    """One log, read by its format alone."""
    losses: list[Loss] = []
    shelf = MemoryShelf()
    steps = Steps(shelf)
    reader = load_format(kind).reader(source_of(log, log.parent), steps)
    for record in LogLines(log, on_loss=losses.append):
        reader.feed(record)
    reader.finish()
    steps.shelve()
    return [row for _, row, _ in shelf], reader.tally, losses


def gives_what_is_published(kind: str, log: Path) -> None:
    """A sample's rows are TraceLab's, field by field."""
    rows, tally, losses = rows_of(kind, log)
    differs = {
        "session_file",  # where the file lay when TraceLab read it
        "home",  # the same, below this test's folder
    }
    ours = {"is_subagent": False, "agent_id": None, "parent_session_id": None, "flags": []}
    theirs = published(kind)
    assert len(rows) == len(theirs) > 0
    for row, wanted in zip(rows, theirs, strict=True):
        assert all(tool.pop("status") == "finished" for tool in row["tools"])
        assert {name: value for name, value in row.items() if name not in differs | ours.keys()} == {
            name: value for name, value in wanted.items() if name not in differs
        }
        assert {name: row[name] for name in ours} == ours
        assert row["home"].endswith(wanted["home"])
        assert list(row)[: len(wanted)] == list(wanted)
    assert not losses
    assert not tally.unknown_types


def write(log: Path, records: Iterable[Any]) -> Path:
    """One line each; bytes are written as they are."""
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in records]
    log.write_bytes(b"".join(lines))
    return log


def at(seconds: float) -> str:
    """A moment of the day on which all tests play."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"2026-06-01T{hours:02}:{minutes:02}:{rest:06.3f}Z"


# --- Claude Code


def user(seconds: float, content: Any = "go on", *, session: str = "S1", **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"type": "user", "message": message, "timestamp": at(seconds), "sessionId": session, **more}


def result(seconds: float, call: str, content: Any = "done", *, session: str = "S1", **more: Any) -> dict[str, Any]:
    return user(seconds, [{"type": "tool_result", "tool_use_id": call, "content": content}], session=session, **more)


def assistant(
    seconds: float, message_id: str | None, *blocks: dict[str, Any], session: str = "S1", **more: Any
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "model": "claude-opus-4-8", "content": list(blocks)}
    message["usage"] = more.pop("usage", usage(output=10))
    if message_id is not None:
        message["id"] = message_id
    return {"type": "assistant", "message": message, "timestamp": at(seconds), "sessionId": session, **more}


def usage(*, output: int, uncached: int = 10, read: int = 100, written: int = 5) -> dict[str, int]:
    return {
        "input_tokens": uncached,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": output,
    }


def text(words: str = "hello") -> dict[str, Any]:
    return {"type": "text", "text": words}


def tool_use(call: str, command: str = "ls") -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": command}}


# --- Codex


def codex(seconds: float, top: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": at(seconds), "type": top, "payload": payload}


def meta(seconds: float, session: str, **more: Any) -> dict[str, Any]:
    return codex(seconds, "session_meta", id=session, cwd="/workspace", **more)


def tokens(seconds: float, total: int, *, last: int = 100) -> dict[str, Any]:
    """A token_count whose running total of input is ``total``."""
    info = {"total_token_usage": _counted(total), "last_token_usage": _counted(last)}
    return codex(seconds, "event_msg", type="token_count", info=info)


def _counted(inputs: int) -> dict[str, int]:
    return {
        "input_tokens": inputs,
        "cached_input_tokens": inputs // 2,
        "output_tokens": inputs // 10,
        "reasoning_output_tokens": inputs // 20,
    }


def call(seconds: float, call_id: str, command: str = "ls") -> dict[str, Any]:
    arguments = json.dumps({"cmd": command})
    return codex(
        seconds, "response_item", type="function_call", name="exec_command", arguments=arguments, call_id=call_id
    )


def output(seconds: float, call_id: str, words: str = "Wall time: 0.5 seconds\nOutput:\n") -> dict[str, Any]:
    return codex(seconds, "response_item", type="function_call_output", call_id=call_id, output=words)
