"""The store: every trace in one DuckDB file, whoever recorded it; loading something twice changes nothing."""

from __future__ import annotations

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import orjson

from rayroll.errors import ConfigError
from rayroll.traces import categories

if TYPE_CHECKING:
    import duckdb

__all__ = ["SCHEMA_VERSION", "LoadReport", "Store"]

SCHEMA_VERSION = 1
"""Raised with every change of the tables."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load found."""

    rows: int = 0
    """Rows read: steps with a session."""
    added: int = 0
    """Rows that are new in the store."""
    repeated: int = 0
    """Rows whose ``trace_key`` was there already, in the store or earlier in the same load."""
    not_json: int = 0
    """Lines that are no JSON, and could not be mended."""
    not_rows: int = 0
    """JSON values that are no row: without a session they belong to nothing."""
    without_times: int = 0
    """Added rows none of whose events has a time: counted, absent from every statistic of time."""
    clock_backwards: int = 0
    """Added tool calls whose result came before them: their wall time is unknown, their times are kept."""
    unfinished: int = 0
    """Added tool calls without a result's time."""


class Store:
    """Traces in DuckDB. A context manager; ``connection`` is DuckDB's own, for queries of any kind."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    @classmethod
    def open(cls, path: Path | str = ":memory:", *, read_only: bool = False) -> Self:
        """Open a store, and make it where there is none.

        Args:
            path: A DuckDB file; ``":memory:"`` is gone when closed.
            read_only: Several programs may read one store at a time; one that writes must be alone.

        Raises:
            ConfigError: The file is no store, is of another schema version, or is in use.
        """
        duckdb = _duckdb()
        is_new = str(path) == ":memory:" or not Path(path).exists()
        if is_new and read_only:
            raise ConfigError(f"there is no trace store at {path}", fix="rayroll traces load FILE makes one")
        try:
            connection = duckdb.connect(str(path), read_only=read_only)
        except duckdb.Error as error:
            raise _cannot_open(path, error) from error
        try:
            # Times without an offset are UTC, whatever this machine's zone.
            connection.execute("SET TimeZone = 'UTC'")
            if is_new:
                connection.execute(_sql("schema.sql"))
                connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
            else:
                _check_version(connection, path)
            views = _sql("views.sql")
            connection.execute(views.replace("REPLACE VIEW", "REPLACE TEMP VIEW") if read_only else views)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what is pending and let go of the file; again does nothing."""
        self.connection.close()

    def load_rows(self, rows: Iterable[Mapping[str, Any]]) -> LoadReport:
        """Load rows of the row format as they come, such as from a collector; all of them or, on an error, none."""
        with tempfile.TemporaryDirectory(prefix="rayroll-traces-") as folder:
            path = Path(folder, "rows.jsonl")
            with path.open("wb") as file:
                for row in rows:
                    file.write(_line(row))
            return self._load_lines(
                "SELECT row_number() OVER () AS place, json FROM read_json_objects(?, format='newline_delimited',"
                " ignore_errors=true)",
                str(path),
            )

    def _load_lines(self, query: str, path: str) -> LoadReport:
        connection = self.connection
        with self._transaction():
            connection.execute(f"CREATE TEMP VIEW lines AS {query.replace('?', _quoted(path))}")
            connection.execute(_sql("rows.sql"))
            self._insert_tools()
            report = self._report()
            for kind, name in (
                *(("TABLE", name) for name in ("parsed", "fresh", "fresh_events", "fresh_tools")),
                ("VIEW", "lines"),
            ):
                connection.execute(f"DROP {kind} {name}")
        return report

    def _insert_tools(self) -> None:
        connection = self.connection
        connection.execute("CREATE TEMP TABLE kinds (name VARCHAR, category VARCHAR, program VARCHAR)")
        names = [name for (name,) in connection.execute("SELECT DISTINCT name FROM fresh_tools").fetchall()]
        pairs = [(name, categories.category(name)) for name in names]
        connection.execute("DROP TABLE kinds")
        connection.execute(
            "CREATE TEMP TABLE kinds AS SELECT unnest($names) AS name, unnest($kinds) AS category",
            {"names": [name for name, _ in pairs], "kinds": [kind for _, kind in pairs]},
        )
        connection.execute(
            "CREATE TEMP TABLE commands AS SELECT DISTINCT input::VARCHAR AS input, NULL::VARCHAR AS program"
            " FROM fresh_tools JOIN kinds USING (name) WHERE category = 'shell_command' AND input IS NOT NULL"
        )
        connection.execute("""
            INSERT INTO tools BY NAME
            SELECT t.* EXCLUDE (told_ms, input), category, program
            FROM fresh_tools t LEFT JOIN kinds USING (name) LEFT JOIN commands c ON t.input::VARCHAR = c.input
            ORDER BY step_id, tool_index
        """)
        connection.execute("DROP TABLE kinds; DROP TABLE commands")

    def _report(self) -> LoadReport:
        values = self.connection.execute("""
            SELECT
                (SELECT count(session_id) FROM parsed),
                (SELECT count(*) FROM fresh),
                (SELECT count(session_id) FROM parsed) - (SELECT count(*) FROM fresh),
                (SELECT count(*) FROM parsed WHERE is_damaged),
                (SELECT count(*) FROM parsed WHERE NOT is_damaged AND session_id IS NULL),
                (SELECT count(*) FROM fresh ANTI JOIN (FROM fresh_events WHERE happened_at IS NOT NULL) USING (step_id)),
                (SELECT count(*) FROM fresh_tools WHERE told_ms < 0),
                (SELECT count(*) FROM fresh_tools WHERE result_at IS NULL)
        """).fetchone()
        assert values is not None
        return LoadReport(*values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise ConfigError(
            "traces are kept in DuckDB, which is not installed", fix="pip install 'rayroll[traces]'"
        ) from None
    return duckdb


def _sql(name: str) -> str:
    return files("rayroll.traces").joinpath(name).read_text(encoding="utf-8")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate, which JSON readers refuse
        return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def _cannot_open(path: Path | str, error: Exception) -> ConfigError:
    if "lock" in str(error).lower():
        return ConfigError(f"{path} is in use by another program", fix="end that one, or have both open it read-only")
    return ConfigError(f"{path} is no trace store: {error}", fix="name a new file, and load the traces into it")


def _check_version(connection: duckdb.DuckDBPyConnection, path: Path | str) -> None:
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "meta" not in tables:
        raise ConfigError(
            f"{path} is a DuckDB file, but no trace store",
            tables=sorted(tables),
            fix="rayroll traces load reads it into one",
        )
    found = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    version = int(found[0]) if found and str(found[0]).isdigit() else 0
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{path} was made by a newer rayroll", schema=version, known=SCHEMA_VERSION, fix="update rayroll"
        )
    if version < SCHEMA_VERSION:
        raise ConfigError(
            f"{path} was made by an older rayroll",
            schema=version,
            known=SCHEMA_VERSION,
            fix="load the traces into a new store",
        )
