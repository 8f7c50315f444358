"""A row is one model step: TraceLab's row format, field for field, with a few fields of ours at its end.

One JSON object a line. Times are strings exactly as the agent wrote them (ISO 8601, UTC); whoever needs a number parses
them. What is not known is ``null``, never 0. Fields that TraceLab does not have are marked *ours*: a reader that knows
only TraceLab's may pass over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

import orjson

from rayroll.errors import ConfigError
from rayroll.traces._streams import open_write
from rayroll.traces.lines import LogLines, Loss

__all__ = ["Event", "Row", "RowEnd", "Status", "Tool", "dumps", "is_row", "read_rows", "write_rows"]

Status = Literal["finished", "unfinished", "aborted"]
"""finished: a result came; unfinished: none did; aborted: the turn was ended while the call was open."""


class Event(TypedDict):
    """Something with a moment: input events first, then output in the order in which it was written."""

    event_type: str
    """user_message, tool_result (input); reasoning, text, tool_call (output); usage_report (Codex, after output)."""
    timestamp: str | None
    source: str
    """Which record of the log it was, such as ``assistant.content.text``."""
    content_chars: NotRequired[int]
    """Characters (code points) of a message, text or readable reasoning; JSON text where it is not plain."""
    result_chars: NotRequired[int]
    is_error: NotRequired[bool]
    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    tool_index: NotRequired[int]


class Tool(TypedDict):
    """A call the step made, and what is known of its end."""

    tool_index: int
    """From 0, in the order of emission within the step."""
    tool_name: str | None
    tool_call_id: str
    emitted_at: str | None
    result_at: str | None
    input: Any
    """The arguments as the agent logged them: an object (Claude) or mostly JSON text (Codex). Private."""
    input_chars: int
    result_chars: int | None
    tool_wall_latency_ms: int | None
    """Result minus emission by the client's clock. ``None``: no result, or the clock ran backwards in between."""
    tool_internal_latency_ms: int | None
    """What the tool's own runner reported."""
    is_error: bool | None
    status: Status
    """Ours."""


class RowEnd(TypedDict):
    """The last fields of a row: what follows from its events, where it was recorded, and what is only ours."""

    current_input_event_count: int
    """User messages and tool results that came in for this step."""
    current_user_message_count: int
    current_tool_result_count: int
    current_user_message_chars: int
    current_tool_result_chars: int
    current_input_chars: int
    first_input_event_type: str | None
    """user_message or tool_result: what triggered the step. ``None``: neither came in."""
    home: str
    user: str
    store: str
    """Folder in the home that the log lay in, such as ``.claude``."""
    trace_key: str
    """``provider:session_id:round_id``; unique in a trace."""
    is_subagent: bool
    """Ours."""
    agent_id: str | None
    """Ours: which subagent, as its log calls it; each has a context of its own. ``None``: the session itself, or an
    older subagent whose log does not say."""
    parent_session_id: str | None
    """Ours: the session that started this subagent, or that this one was forked from."""
    flags: list[str]
    """Ours, sorted: clock_backwards (a result before its call, by the clock), duplicate_result (a call was answered
    again; the first answer counts), made_up_id (the log has none; stable all the same), no_usage (tokens were never
    reported)."""


class Row(RowEnd):
    """One model call, its input, output, tokens and tools."""

    provider: str
    """claude, codex."""
    project: NotRequired[str]
    """Claude: folder of the project, as Claude Code names it."""
    session_id: str
    """``provider:`` and the session's own id; of a subagent, its own, not its parent's."""
    session_file: str
    round_index: int
    """From 0 within the session."""
    round_id: str
    """Claude: id of the response. Codex: ``turn:number within the turn``."""
    turn_id: NotRequired[str | None]
    """Codex."""
    cwd: NotRequired[str | None]
    """Codex."""
    model: str | None
    input_tokens_total: int | None
    """Prefix and append."""
    prefix_tokens: int | None
    """Read from the cache."""
    newly_append_tokens: int | None
    """Not read from the cache."""
    claude_uncached_input_tokens: int | None
    claude_cache_creation_input_tokens: int | None
    claude_cache_read_input_tokens: int | None
    output_tokens: int | None
    """Codex: with reasoning. Claude: the message's count."""
    reasoning_output_tokens: int | None
    timing_events: list[Event]
    tools: list[Tool]


_NEEDED = ("provider", "session_id", "timing_events", "tools")

BadRow = Callable[[int, str], None]
"""Called with a line number, from 1, and the reason why there is no row."""


def dumps(value: Any) -> bytes:
    """JSON without spaces, in UTF-8.

    Raises:
        TypeError: Nested too deep to be read back (254 levels), or text with half a surrogate pair.
    """
    return orjson.dumps(value)


def read_rows(path: str | PathLike[str], *, on_bad: BadRow | None = None) -> Iterator[Row]:
    """Every row of a file, in its order; ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``.

    A line that is no row is told to ``on_bad`` and passed over, and so is the rest of a damaged archive; of a damaged
    line, whole rows are kept, and bad text in them is replaced by U+FFFD.

    Raises:
        ConfigError: There is no such file.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError("there is no such file of rows", path=str(file), fix="name a file that collect has written")
    complain = on_bad or (lambda _line, _reason: None)

    def tell(loss: Loss) -> None:
        if not loss.kept:
            complain(loss.line, loss.reason)

    lines = LogLines(file, on_loss=tell, is_record=is_row)
    for value in lines:
        if absent := [name for name in _NEEDED if name not in value]:
            complain(lines.line, f"not a row: it has no {', '.join(absent)}")
        else:
            yield cast(Row, value)


def is_row(value: dict[str, Any]) -> bool:
    """Tells a row from the objects inside it, where a line is damaged: it has a session."""
    return "session_id" in value


def write_rows(path: str | PathLike[str], rows: Iterable[Row]) -> int:
    """Write rows, compressed as the file's name says; readable by its owner only. Returns how many."""
    count = 0
    with open_write(Path(path)) as stream:
        for row in rows:
            stream.write(dumps(row) + b"\n")
            count += 1
    return count
