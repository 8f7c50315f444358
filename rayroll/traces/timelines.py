"""Single sessions over time: when the model worked, which tools ran, and who waited for whom.

A span is something that took time, on the lane of its kind. What overlaps on a lane, such as parallel calls, is laid
on rows below each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rayroll.traces import statistics
from rayroll.traces._shield import Shield
from rayroll.traces.categories import CATEGORIES

if TYPE_CHECKING:
    import duckdb

__all__ = ["LANES", "MOST_SPANS", "Span", "Timeline", "timelines"]

LANES: tuple[str, ...] = ("model", *CATEGORIES, "human", "idle")
"""From top to bottom. ``idle``: nothing is known to have happened."""

MOST_SPANS = 15_000
"""Of one session; of more, the longest are kept. 15,000 are about 700 KB of a page."""

_ROWS = 4  # of a lane; what overlaps more lies over the last one
_COMMAND_CHARS = 200
_IDLE_S = 0.05  # less is what one record lags behind another


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time."""

    lane: str
    start_s: float
    """From the session's first event."""
    seconds: float
    """0: a moment, such as a call whose result never came."""
    what: str = ""
    """In words; a tool's name."""
    note: str = ""
    row: int = 0
    """Of its lane, from 0."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A session and why it was chosen."""

    session: str
    """What the report calls it."""
    why: str
    facts: dict[str, Any]
    """Of the view ``sessions``: provider, elapsed_s, human_s, generation_s, tool_s, requests, steps, tool_calls."""
    spans: tuple[Span, ...]
    """By start."""
    left_out: int = 0
    """Shorter spans beyond ``MOST_SPANS``."""


_CHOSEN = """
SELECT list(why ORDER BY place) AS why, any_value(f) AS facts
FROM (
    SELECT 'longest' AS why, 1 AS place, max_by(s, (elapsed_s, session_id)) AS f FROM timed s
    UNION ALL SELECT 'most steps', 2, max_by(s, (steps, session_id)) FROM timed s
    UNION ALL SELECT 'most tool calls', 3, max_by(s, (tool_calls, session_id)) FROM timed s
    UNION ALL SELECT 'most requests', 4, max_by(s, (requests, session_id)) FROM timed s
    UNION ALL SELECT 'median number of steps', 5, f FROM (
        SELECT s AS f FROM timed s
        QUALIFY row_number() OVER (ORDER BY steps, elapsed_s, session_id) = (count(*) OVER () + 1) // 2
    )
)
WHERE f IS NOT NULL
GROUP BY f.session_id
ORDER BY min(place)
"""

_SPANS = """
WITH spans AS (
    SELECT session_id, 'model' AS lane, input_at AS start_at, generation_s AS seconds, 'model' AS what,
        concat_ws(', ', format('{:,} tokens read', prefix_tokens), format('{:,} appended', append_tokens),
            format('{:,} written', output_tokens), if(is_subagent, 'a subagent', NULL)) AS note
    FROM steps WHERE generation_s > 0
    UNION ALL
    SELECT session_id, category, emitted_at,
        coalesce(if(result_at >= emitted_at, (epoch_us(result_at) - epoch_us(emitted_at)) / 1e6, NULL),
            effective_ms / 1000, 0),
        name,
        concat_ws(', ', if(status = 'finished', NULL, status), if(is_error, 'error', NULL), $command)
    FROM tools JOIN steps USING (step_id) WHERE emitted_at IS NOT NULL
    UNION ALL
    SELECT session_id, 'human', make_timestamp(epoch_us(ended_at) - CAST(wait_s * 1e6 AS BIGINT)), wait_s, 'human', ''
    FROM human_waits
)
SELECT lane, (epoch_us(start_at) - epoch_us($first_at)) / 1e6 AS start_s, seconds, what, note
FROM spans WHERE session_id = $session_id ORDER BY start_s, lane, seconds
"""


def timelines(connection: duckdb.DuckDBPyConnection, shield: Shield, *, include_inputs: bool = False) -> list[Timeline]:
    """The longest session, those with the most steps, calls and requests, and the middle one; one for each, once.

    Sessions without two different times cannot be drawn. Names are the shield's; commands, as far as the store has
    them, are in notes only with ``include_inputs``.
    """
    # Once: the view costs a pass over all events.
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE timed AS SELECT * FROM sessions WHERE elapsed_s IS NOT NULL ORDER BY session_id"
    )
    try:
        chosen = statistics.rows(connection, _CHOSEN, {})
        # What a store has of a call's input: its command, or else the program that it runs.
        command = f"left(coalesce(command, program), {_COMMAND_CHARS})" if include_inputs else "NULL"
        query = _SPANS.replace("$command", command)
        return [_timeline(connection, query, shield, row["why"], row["facts"]) for row in chosen]
    finally:
        connection.execute("DROP TABLE timed")


def _timeline(
    connection: duckdb.DuckDBPyConnection, query: str, shield: Shield, why: Sequence[str], facts: dict[str, Any]
) -> Timeline:
    values = {"session_id": facts["session_id"], "first_at": facts["first_at"]}
    spans = [
        Span(**row | {"what": shield.name("name", row["what"]) if row["lane"] in CATEGORIES else row["what"]})
        for row in statistics.rows(connection, query, values)
    ]
    kept = heapq.nlargest(MOST_SPANS, spans, key=lambda span: span.seconds)
    spans_in_time = sorted([*kept, *_idle(spans, facts["elapsed_s"])], key=lambda span: span.start_s)
    return Timeline(
        session=shield.name("session_id", facts["session_id"]),
        why=", ".join(why),
        facts={
            "provider": shield.name("provider", facts["provider"]),
            **{name: value for name, value in facts.items() if name.endswith("_s") or isinstance(value, int)},
        },
        spans=tuple(_rows(spans_in_time)),
        left_out=len(spans) - len(kept),
    )


def _idle(spans: Iterable[Span], elapsed_s: float) -> list[Span]:
    """What no span covers, of the session's time."""
    idle, at_s = [], 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.start_s > at_s:
            idle.append(Span("idle", at_s, span.start_s - at_s, "idle"))
        at_s = max(at_s, span.start_s + span.seconds)
    if elapsed_s > at_s:
        idle.append(Span("idle", at_s, elapsed_s - at_s, "idle"))
    return [span for span in idle if span.seconds >= _IDLE_S]


def _rows(spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap on a lane on different rows, as long as there are rows."""
    free_s: dict[str, list[float]] = {}
    laid = []
    for span in spans:
        rows = free_s.setdefault(span.lane, [])
        row = next((n for n, end_s in enumerate(rows) if end_s <= span.start_s), min(len(rows), _ROWS - 1))
        if row == len(rows):
            rows.append(0.0)
        rows[row] = max(rows[row], span.start_s + span.seconds)
        laid.append(replace(span, row=row))
    return laid
