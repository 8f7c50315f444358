"""What an earlier run has read, beside its output: one SQLite file with every log's rows, and where each log ended.

Rows lie here before it is decided whose step each is, copies included, so that no log has to be read again when another
one changes the answer. SQLite sorts what does not fit into memory, and a killed run leaves whole logs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from rayroll.errors import ConfigError
from rayroll.traces.rows import Row, dumps
from rayroll.traces.steps import time_ms

__all__ = ["KnownLog", "State"]

_SCHEMA = 1
"""Another number: the file is begun anew."""
READERS = 2
"""Another number: logs that still exist are read again, because they would give other rows now."""

_PRAGMAS = (
    "locking_mode=EXCLUSIVE",
    # Safe when the process is killed; after a power cut the file may be damaged, and is then begun anew.
    "synchronous=OFF",
    "journal_mode=TRUNCATE",
    # Also the size of each sort: with 32 MiB, 500 MB of logs took 18 % more memory than 100 MB; with 2, 5 %, as fast.
    "cache_size=-2048",
    "temp_store=FILE",
)

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE logs (
    id INTEGER PRIMARY KEY,
    path TEXT UNIQUE NOT NULL,
    kind TEXT,              -- format; NULL: no log of a known agent
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    offset INTEGER NOT NULL, line INTEGER NOT NULL,
    mark BLOB,              -- of the bytes at the beginning and before offset
    settled INTEGER NOT NULL,
    reader BLOB,            -- its state at offset; NULL: cannot be read on
    report BLOB NOT NULL,
    gone INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE steps (
    id INTEGER PRIMARY KEY,
    log INTEGER NOT NULL, position INTEGER NOT NULL,
    family TEXT NOT NULL, name TEXT NOT NULL,
    provider TEXT NOT NULL, session TEXT NOT NULL, round_index INTEGER NOT NULL, trace_key TEXT NOT NULL,
    at INTEGER,             -- of its first output, in milliseconds
    first_call TEXT,
    weight INTEGER NOT NULL, -- grows with what is known of the step
    copied INTEGER NOT NULL, flags TEXT NOT NULL, body BLOB NOT NULL,
    UNIQUE (log, position)
);
CREATE TABLE lineage (log INTEGER NOT NULL, child TEXT NOT NULL, parent TEXT NOT NULL);
CREATE INDEX lineage_log ON lineage (log);
"""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A log as the last run left it."""

    id: int
    kind: str | None
    size: int
    mtime_ns: int
    inode: int
    offset: int
    line: int
    mark: bytes | None
    settled: int
    reader: bytes | None
    report: bytes


class State:
    """An open state file; nobody else may have it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began_anew = False
        """A state was there and could not be used."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(0o600)
        try:
            self._open()
            if self.meta("schema") != str(_SCHEMA):
                self._begin_anew()
        except sqlite3.OperationalError as error:
            self.db.close()
            if "locked" not in str(error):
                raise ConfigError(f"the state beside the output cannot be used: {error}", state=str(path)) from None
            fix = "wait for it, or choose another output"
            raise ConfigError("another collect is writing to this output", state=str(path), fix=fix) from None
        except sqlite3.DatabaseError:
            self._begin_anew()
        if self.meta("readers") != str(READERS):
            self.db.execute("UPDATE logs SET size = -1, reader = NULL")
            self.set_meta("readers", str(READERS))

    def _open(self) -> None:
        self.db = sqlite3.connect(self.path, timeout=1.0, isolation_level=None)
        for pragma in _PRAGMAS:
            self.db.execute(f"PRAGMA {pragma}")
        self.db.execute("BEGIN EXCLUSIVE")
        if not self.db.execute("SELECT 1 FROM sqlite_master").fetchone():
            self.db.executescript(_TABLES)
            self.db.execute("BEGIN EXCLUSIVE")
            self.set_meta("schema", str(_SCHEMA))
            self.set_meta("readers", str(READERS))
        self.db.execute("COMMIT")

    def _begin_anew(self) -> None:
        self.db.close()
        self.path.unlink()
        self.path.touch(0o600)
        self.began_anew = True
        self._open()

    def close(self) -> None:
        # Leaving the exclusive mode removes the journal, which is empty by now.
        for statement in ("PRAGMA locking_mode=NORMAL", "PRAGMA journal_mode=DELETE", "SELECT 1 FROM meta"):
            self.db.execute(statement).fetchall()
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it, or nothing."""
        self.db.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def meta(self, key: str) -> str | None:
        found = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None

    def set_meta(self, key: str, value: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def log(self, path: Path) -> KnownLog | None:
        columns = "id, kind, size, mtime_ns, inode, offset, line, mark, settled, reader, report"
        found = self.db.execute(f"SELECT {columns} FROM logs WHERE path = ?", (str(path),)).fetchone()
        return KnownLog(*found) if found else None

    def begin_log(self, path: Path) -> int:
        """A place for a log's rows, empty."""
        self.forget(path)
        insert = (
            "INSERT INTO logs (path, size, mtime_ns, inode, offset, line, settled, report) VALUES (?,-1,0,0,0,0,0,'{}')"
        )
        return cast(int, self.db.execute(insert, (str(path),)).lastrowid)

    def end_log(self, log: int, **columns: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)
        self.db.execute(f"UPDATE logs SET {names} WHERE id = ?", (*columns.values(), log))

    def set_lineage(self, log: int, pairs: list[tuple[str, str]]) -> None:
        self.db.execute("DELETE FROM lineage WHERE log = ?", (log,))
        self.db.executemany("INSERT INTO lineage VALUES (?, ?, ?)", [(log, *pair) for pair in pairs])

    def forget(self, path: Path) -> None:
        """A log, its rows and all."""
        for table in ("steps", "lineage"):
            self.db.execute(f"DELETE FROM {table} WHERE log IN (SELECT id FROM logs WHERE path = ?)", (str(path),))
        self.db.execute("DELETE FROM logs WHERE path = ?", (str(path),))


class SqliteShelf:
    """One log's rows in the state file."""

    def __init__(self, state: State, log: int) -> None:
        self._db = state.db
        self._log = log

    def put(self, position: int, key: str, row: Row, copied: bool) -> None:
        family, _, name = key.partition("|")
        outputs = [event["timestamp"] for event in row["timing_events"] if event["event_type"] in _OUTPUTS]
        finished = sum(tool["status"] != "unfinished" for tool in row["tools"])
        weight = (row["output_tokens"] or 0) + len(row["timing_events"]) + finished
        values = (
            *(self._log, position, family, name, row["provider"], row["session_id"], row["round_index"]),
            *(row["trace_key"], time_ms(outputs[0]) if outputs else None),
            row["tools"][0]["tool_call_id"] if row["tools"] else None,
            *(weight, copied, " ".join(row["flags"]), dumps(row)),
        )
        marks = ",".join("?" * len(values))
        self._db.execute(f"INSERT OR REPLACE INTO steps ({_COLUMNS}) VALUES ({marks})", values)

    def get(self, position: int) -> Row:
        select = "SELECT body FROM steps WHERE log = ? AND position = ?"
        return cast(Row, orjson.loads(self._db.execute(select, (self._log, position)).fetchone()[0]))

    def cut(self, length: int) -> None:
        self._db.execute("DELETE FROM steps WHERE log = ? AND position >= ?", (self._log, length))

    def __iter__(self) -> Iterator[tuple[str, Row, bool]]:
        select = "SELECT family, name, body, copied FROM steps WHERE log = ? ORDER BY position"
        for family, name, body, copied in self._db.execute(select, (self._log,)):
            yield f"{family}|{name}", orjson.loads(body), bool(copied)


_COLUMNS = (
    "log, position, family, name, provider, session, round_index, trace_key,"
    " at, first_call, weight, copied, flags, body"
)
_OUTPUTS = frozenset({"reasoning", "text", "tool_call", "usage_report"})
