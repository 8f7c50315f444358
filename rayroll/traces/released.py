"""Another program's DuckDB file, read as it is: TraceLab's tables, or any table whose columns are those of a row.

TraceLab's file has a table of steps (``rounds``) and two that belong to it by ``round_pk``: ``tool_calls`` and
``timing_events``. Tables are known by their columns, not by their names, so that a renamed or reworked file is read
as long as the fields are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rayroll.errors import ConfigError

if TYPE_CHECKING:
    import duckdb

__all__ = ["attached"]

_STEP = {"provider", "session_id", "round_index"}
_EVENT = {"event_type", "timestamp"}
_TOOL = {"tool_name", "tool_wall_latency_ms"}

Tables = Mapping[str, frozenset[str]]


@contextmanager
def attached(connection: duckdb.DuckDBPyConnection, path: Path) -> Iterator[str]:
    """The query for a file's rows: ``place``, ``json`` and ``damaged`` (NULL); the file is open meanwhile.

    Raises:
        ConfigError: None of its tables has the fields of a row, or it cannot be opened.
    """
    import duckdb

    quoted = "'" + str(path).replace("'", "''") + "'"
    try:
        connection.execute(f"ATTACH {quoted} AS other (READ_ONLY)")
    except duckdb.Error as error:
        raise ConfigError(f"{path} cannot be opened: {error}") from error
    try:
        yield _query(_tables(connection), path)
    finally:
        connection.execute("DETACH other")


def _tables(connection: duckdb.DuckDBPyConnection) -> Tables:
    columns = connection.execute("""
        SELECT '"' || schema_name || '"."' || table_name || '"', list(column_name)
        FROM duckdb_columns() WHERE database_name = 'other' AND NOT internal GROUP BY ALL ORDER BY ALL
    """).fetchall()
    return {table: frozenset(names) for table, names in columns}


def _query(tables: Tables, path: Path) -> str:
    steps = [name for name, columns in tables.items() if columns >= _STEP]
    whole = [name for name in steps if tables[name] >= {"timing_events", "tools"}]
    if whole:
        return f"SELECT row_number() OVER () AS place, to_json(t) AS json, NULL AS damaged FROM other.{whole[0]} t"
    for step in steps:
        for key in sorted(tables[step]):
            events = _child(tables, step, key, _EVENT)
            tools = _child(tables, step, key, _TOOL)
            if events and tools:
                return _joined(tables, step, key, events, tools)
    ours = {"steps", "events", "tools", "meta"} <= {name.split(".")[1].strip('"') for name in tables}
    raise ConfigError(
        f"{path} has no table with the fields of a row ({', '.join(sorted(_STEP))}, events and tools)",
        tables=[name.replace('"', "").removeprefix("main.") for name in tables],
        fix="it is a store already: open it" if ours else "load the trace's JSON lines",
    )


def _child(tables: Tables, step: str, key: str, fields: set[str]) -> str | None:
    # A shared column that is a key: not one of the fields that steps and calls both happen to have.
    if not key.endswith(("_pk", "_id", "id")) or key in ("session_id", "round_id", "turn_id", "tool_call_id"):
        return None
    return next((name for name, columns in tables.items() if name != step and columns >= fields | {key}), None)


def _joined(tables: Tables, step: str, key: str, events: str, tools: str) -> str:
    def order(table: str, index: str) -> str:
        return f"c.{index}" if index in tables[table] else "c.rowid"

    def children(table: str, index: str) -> str:
        return f'SELECT "{key}", list(c ORDER BY {order(table, index)}) AS items FROM other.{table} c GROUP BY "{key}"'

    return f"""
        SELECT row_number() OVER (ORDER BY s."{key}") AS place,
            json_merge_patch(to_json(s), json_object('timing_events', e.items, 'tools', coalesce(t.items, [])))::JSON
                AS json,
            NULL AS damaged
        FROM other.{step} s
        LEFT JOIN ({children(events, "event_index")}) e USING ("{key}")
        LEFT JOIN ({children(tools, "tool_index")}) t USING ("{key}")
    """
