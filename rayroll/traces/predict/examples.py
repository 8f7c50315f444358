"""What a predictor learns from: the calls of recorded sessions, each with its time by the store's one definition.

Times are ``tools.effective_ms`` of the store, whatever the source, so that prediction and statistics speak of the same.
A store has commands only if it was loaded with inputs, else the programs that they run; rows and rollouts have both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayroll.errors import ConfigError
from rayroll.traces import reading
from rayroll.traces._raw import collected
from rayroll.traces.lines import Loss
from rayroll.traces.predict.features import Call
from rayroll.traces.rollouts import rollouts_in, rows_of
from rayroll.traces.rows import read_rows
from rayroll.traces.store import Store

if TYPE_CHECKING:
    import duckdb

__all__ = ["Recorded", "Timed", "in_time", "sessions_in", "sessions_of"]


@dataclass(frozen=True, slots=True)
class Timed:
    """A call and what came of it."""

    call: Call
    seconds: float | None
    """None: unfinished, or not above 0 by its clock."""
    ended_s: float | None
    result_chars: int | None
    step_id: int
    """The store's."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session's calls, in the order in which they started."""

    id: str
    provider: str
    project: str | None
    calls: tuple[Timed, ...]


def sessions_in(paths: Path | str | Iterable[Path | str]) -> list[Recorded]:
    """Sessions of stores, rows, rollouts or TraceLab's DuckDB file, the earlier before the later.

    Rollouts have no date: they follow one another in the order of their file, each as if it had begun when the one
    before was over.

    Raises:
        ConfigError: As of ``Store.load``; or no call in them has a time.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    found: list[Recorded] = []
    stores = [file for file in reading.find(given).of("duckdb") if _is_store(file)]
    for file in stores:
        with Store.open(file, read_only=True) as store:
            found += sessions_of(store.connection)
    if others := given if not stores else [file for file, _ in reading.find(given).files if file not in stores]:
        with Store.open() as store:
            store.load(others)
            found += sessions_of(store.connection, _inputs(others))
    if not any(timed.seconds is not None for session in found for timed in session.calls):
        raise ConfigError("no tool call in these traces has a time", files=[str(path) for path in given][:5])
    return _ordered(found)


def sessions_of(
    connection: duckdb.DuckDBPyConnection, inputs: Mapping[tuple[str, int], Any] | None = None
) -> list[Recorded]:
    """Sessions of an open store.

    Args:
        connection: Of an open ``Store``.
        inputs: Of calls, by their row's ``trace_key`` and their index in it; in the order of the sessions.
    """
    inputs = inputs or {}
    place = {key: at for at, (key, _) in enumerate(inputs)}
    rows = connection.execute("""
        SELECT session_id, provider, project, trace_key, step_id, tool_index, name, program, command, input_chars,
            result_chars,
            epoch_us(emitted_at) / 1e6, epoch_us(result_at) / 1e6, effective_ms / 1000
        FROM tools JOIN steps USING (step_id)
        ORDER BY session_id, coalesce(emitted_at, last_output_at) NULLS LAST, round_index, step_id, tool_index
    """).fetchall()
    kept: dict[str, tuple[str, str | None, list[Timed]]] = {}
    first: dict[str, int] = {}
    for session, provider, project, key, step_id, index, name, program, command, size, result_chars, at, end, s in rows:
        call = Call(name, inputs.get((key, index), command), size, at, program)
        kept.setdefault(session, (provider, project, []))[2].append(Timed(call, s, end, result_chars, step_id))
        first[session] = min(first.get(session, len(place)), place.get(key, len(place)))
    ordered = sorted(kept, key=lambda session: (first[session], session))
    return [Recorded(id, kept[id][0], kept[id][1], tuple(kept[id][2])) for id in ordered]


def in_time(sessions: Sequence[Recorded]) -> Iterator[tuple[int, Timed, bool]]:
    """Starts and ends of all calls as they happened: the session's place, the call, and whether it is its end.

    What has no time of its start or end does not wait: it ends before the next call of its session starts.
    """
    events = [_events(at, session) for at, session in enumerate(sessions)]
    for _, at, _, timed, ended in heapq.merge(*events, key=lambda event: event[:3]):
        yield at, timed, ended


def _events(at: int, session: Recorded) -> list[tuple[float, int, int, Timed, bool]]:
    now_s = 0.0
    found = []
    for index, timed in enumerate(session.calls):
        start_s = timed.call.at_s
        # A clock that ran backwards, or that is unknown: no earlier than what came before.
        now_s = max(now_s, start_s) if start_s is not None else now_s
        end_s = now_s if timed.ended_s is None or start_s is None else max(timed.ended_s, now_s)
        found += [(now_s, at, 2 * index, timed, False), (end_s, at, 2 * index + 1, timed, True)]
    return sorted(found, key=lambda event: (event[0], event[2]))


def _ordered(sessions: list[Recorded]) -> list[Recorded]:
    def start_s(session: Recorded) -> float:
        return min((timed.call.at_s for timed in session.calls if timed.call.at_s is not None), default=0.0)

    dated = sorted((s for s in sessions if s.provider != "rayroll"), key=start_s)
    following, now_s = [], 0.0
    for session in sessions:
        if session.provider == "rayroll":
            moved = tuple(_moved(timed, now_s) for timed in session.calls)
            following.append(Recorded(session.id, session.provider, session.project, moved))
            now_s = max((timed.ended_s or 0.0 for timed in moved), default=now_s) + 1.0
    return following + dated


def _moved(timed: Timed, by_s: float) -> Timed:
    call = timed.call
    at_s = None if call.at_s is None else call.at_s + by_s
    ended_s = None if timed.ended_s is None else timed.ended_s + by_s
    moved = Call(call.tool, call.input, call.input_chars, at_s, call.program)
    return Timed(moved, timed.seconds, ended_s, timed.result_chars, timed.step_id)


def _is_store(path: Path) -> bool:
    try:
        Store.open(path, read_only=True).close()
    except ConfigError as error:
        if "no trace store" in str(error):
            return False
        raise
    return True


def _inputs(paths: Sequence[Path]) -> dict[tuple[str, int], Any]:
    """What the store does not keep. Rows without a key of their own have none here."""
    found: dict[tuple[str, int], Any] = {}
    for row in _rows(paths):
        key, tools = row.get("trace_key"), row.get("tools")
        if isinstance(key, str) and isinstance(tools, list):
            for index, tool in enumerate(tools):
                if isinstance(tool, dict):
                    found.setdefault((key, index), tool.get("input"))
    return found


def _rows(paths: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    found = reading.find(paths)
    for file in found.of("rows"):
        yield from (row for row in reading.rows_in(file) if not isinstance(row, Loss))
    for file in found.of("rollouts"):
        yield from (row for row in rows_of(rollouts_in(file)) if not isinstance(row, Loss))
    if logs := found.of("raw"):
        with collected(paths, logs, None) as (file, _):
            yield from read_rows(file)
