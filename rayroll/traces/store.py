"""The store: every trace in one DuckDB file, whoever recorded it; loading something twice changes nothing."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import orjson

from rayroll.errors import ConfigError
from rayroll.traces import categories, reading
from rayroll.traces._load_report import LoadReport
from rayroll.traces.lines import Loss
from rayroll.traces.released import attached
from rayroll.traces.rollouts import rollouts_in, rows_of

if TYPE_CHECKING:
    import duckdb

    from rayroll.traces.collect import Progress

__all__ = ["SCHEMA_VERSION", "LoadReport", "Store"]

SCHEMA_VERSION = 2
"""Raised with every change of the tables."""

logger = logging.getLogger(__name__)


class Store:
    """Traces in DuckDB. A context manager; ``connection`` is DuckDB's own, for queries of any kind."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, read_only: bool = False) -> None:
        self.connection = connection
        self.read_only = read_only

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
        if read_only and not Path(path).exists():
            raise ConfigError(f"there is no trace store at {path}", fix="rayroll traces load FILE makes one")
        if not Path(path).parent.is_dir():
            raise ConfigError(f"there is no folder for the store {path}", fix=f"mkdir -p {Path(path).parent}")
        try:
            connection = duckdb.connect(str(path), read_only=read_only)
        except duckdb.Error as error:
            raise _cannot_open(path, error) from error
        try:
            # Times without an offset are UTC, whatever this machine's zone.
            connection.execute("SET TimeZone = 'UTC'")
            # Of what takes longer than two seconds it would be drawn on standard output, which is ours.
            connection.execute("SET enable_progress_bar = false")
            _make_or_check(connection, path)
            # Views are code, not data: those of this version, also over a file of an earlier one.
            for name in _views():
                connection.execute(_sql(name))
            connection.create_function("category_of", categories.category, ["VARCHAR"], "VARCHAR")
            for name, function in (("command_of", categories.command_of), ("program_of", _program_of)):
                connection.create_function(name, function, ["VARCHAR"], "VARCHAR", null_handling="special")
        except BaseException:
            connection.close()
            raise
        return cls(connection, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what is pending and let go of the file; again does nothing."""
        self.connection.close()

    def load(
        self,
        paths: Path | str | Iterable[Path | str],
        *,
        include_inputs: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> LoadReport:
        """Load agents' session logs, rows, rayroll's ``rollouts.jsonl`` (plain, gzip, zstd), TraceLab's DuckDB file.

        Logs are collected on the way. What one log repeats of another counts once if both are loaded together.

        Args:
            paths: A file, a folder (all traces below it, of any kind; what is none is told of) or several.
            include_inputs: Keep what shell calls ran, where the traces tell. Whoever has the store can read it then.
            progress: Called as session logs are read.

        Raises:
            ConfigError: A path is missing, a file that was named is no trace, or a folder holds none; nothing is
                loaded then.
        """
        given = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
        self._keep_inputs(include_inputs)
        found = reading.find(given)
        report = LoadReport.of(found.foreign)
        if rows := found.of("rows"):
            report += self._load_files(rows)
        if logs := found.of("raw"):
            report += self._load_logs(given, logs, progress)
        for file in found.of("rollouts"):
            report += self._load_rows(rows_of(rollouts_in(file)))
        for file in found.of("duckdb"):
            with attached(self.connection, file) as query:
                report += self._load_lines(query)[0]
        return report

    def load_rows(self, rows: Iterable[Mapping[str, Any] | Loss], *, include_inputs: bool = False) -> LoadReport:
        """Load rows of the row format as they come, such as from a collector; all of them or, on an error, none.

        Args:
            rows: Rows, and what could not be read, for the report.
            include_inputs: As of ``load``.
        """
        self._keep_inputs(include_inputs)
        return self._load_rows(rows)

    def _keep_inputs(self, include_inputs: bool) -> None:
        self.connection.execute(f"SET VARIABLE keeps_inputs = {include_inputs}")

    def _load_rows(self, rows: Iterable[Mapping[str, Any] | Loss]) -> LoadReport:
        with tempfile.TemporaryDirectory(prefix="rayroll-traces-") as folder:
            path = Path(folder, "rows.jsonl")
            with path.open("wb") as file:
                lost = LoadReport.of(_write(rows, file))
            report, _ = self._load_lines(_query([path]))
        return report + lost

    def _load_logs(
        self, given: list[Path], logs: list[Path], progress: Callable[[Progress], None] | None
    ) -> LoadReport:
        from rayroll.traces._raw import collected

        with collected(given, logs, progress) as (rows, found):
            skipped = [Loss(one.path, 0, one.reason) for one in found.skipped]
            return self._load_files([rows]) + LoadReport.of([*skipped, *found.losses])

    def _load_files(self, paths: list[Path]) -> LoadReport:
        import duckdb

        try:
            report, damaged = self._load_lines(_query(paths))
        except (duckdb.InvalidInputException, duckdb.IOException) as error:
            # A cut archive, an object beyond DuckDB's limit: line by line there is a part to be had.
            logger.info("read line by line: %s", error)
            return self._load_rows(row for path in paths for row in reading.rows_in(path))
        if not damaged:
            return report
        return report + self._load_rows(row for path in damaged for row in reading.rows_in(path, only_damaged=True))

    def _load_lines(self, query: str) -> tuple[LoadReport, list[Path]]:
        """Load a query's ``place``, ``json`` and ``damaged`` (the file of a line that is no JSON); also those files."""
        if self.read_only:
            raise ConfigError("this store was opened for reading only", fix="open it with read_only=False")
        connection = self.connection
        with self._transaction():
            connection.execute(f"CREATE TEMP VIEW lines AS {query}")
            connection.execute(_sql("rows.sql"))
            report = self._report()
            damaged = connection.execute(
                "SELECT DISTINCT damaged FROM parsed WHERE damaged IS NOT NULL ORDER BY 1"
            ).fetchall()
            connection.execute("DROP TABLE parsed; DROP TABLE fresh; DROP TABLE fresh_events; DROP TABLE fresh_tools")
            connection.execute("DROP VIEW lines")
        return report, [Path(name) for (name,) in damaged]

    def _report(self) -> LoadReport:
        values = self.connection.execute("""
            SELECT
                (SELECT count(session_id) FROM parsed),
                (SELECT count(*) FROM fresh),
                (SELECT count(session_id) FROM parsed) - (SELECT count(*) FROM fresh),
                (SELECT count(*) FROM parsed WHERE damaged IS NULL AND session_id IS NULL),
                (SELECT count(*) FROM fresh
                    ANTI JOIN (SELECT step_id FROM fresh_events WHERE happened_at IS NOT NULL) USING (step_id)),
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


def _views() -> list[str]:
    names = (entry.name for entry in files("rayroll.traces").iterdir())
    return sorted(name for name in names if name.startswith("views") and name.endswith(".sql"))


def _query(paths: Sequence[Path]) -> str:
    listed = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"""
        SELECT row_number() OVER () AS place, json, if(json IS NULL, filename, NULL) AS damaged
        FROM read_json_objects([{listed}], format = 'newline_delimited', ignore_errors = true, filename = true)
    """


def _program_of(command: str | None) -> str | None:
    return None if command is None else categories.program(command)


def _write(rows: Iterable[Mapping[str, Any] | Loss], file: IO[bytes]) -> Iterator[Loss]:
    """Write the rows, pass the losses on."""
    for row in rows:
        if isinstance(row, Loss):
            yield row
        else:
            file.write(_line(row))


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate, which JSON readers refuse
        return json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def _cannot_open(path: Path | str, error: Exception) -> ConfigError:
    if "lock" in str(error).lower():
        return ConfigError(f"{path} is in use by another program", fix="end that one, or have both open it read-only")
    if not _is_duckdb(Path(path)):  # what DuckDB says then depends on the file's name
        return ConfigError(f"{path} is no trace store", fix=f"if it is a trace: rayroll traces load {path}")
    return ConfigError(f"{path} is no trace store: {error}", fix="name a new file, and load the traces into it")


def _is_duckdb(path: Path) -> bool:
    """False of another program's file; what cannot be read may be one."""
    try:
        with path.open("rb") as file:
            return file.read(12)[8:] == b"DUCK"
    except OSError:
        return True


def _make_or_check(connection: duckdb.DuckDBPyConnection, path: Path | str) -> None:
    tables = sorted(name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall())
    if not tables:
        connection.execute(f"BEGIN; {_sql('schema.sql')}")
        connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
        connection.execute("COMMIT")
        return
    if "meta" not in tables:
        raise ConfigError(
            f"{path} is a DuckDB file, but no trace store", tables=tables, fix="rayroll traces load reads it into one"
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
