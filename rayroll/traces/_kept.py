"""While everything is asked at once, what several statistics share is computed once: their views are tables meanwhile.

The definitions stay those of ``views*.sql``, for a table is made from its view, and statistics do not know which of the
two they read. Of 350,000 steps all statistics then take a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

__all__ = ["KEPT", "kept"]

KEPT = ("step_tools", "step_requests", "requests", "human_waits", "sessions", "contexts", "idle_gaps")
"""Each after those that it reads."""


@contextmanager
def kept(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """The views are tables until the end of the block; nothing may be loaded meanwhile."""
    done: list[tuple[str, str]] = []
    try:
        for name in KEPT:
            found = connection.execute("SELECT sql FROM duckdb_views() WHERE view_name = ?", [name]).fetchone()
            assert found is not None, f"there is no view {name}"
            connection.execute(f"CREATE TEMP TABLE kept AS FROM {name}")
            connection.execute(f"DROP VIEW {name}")
            done.append((name, found[0]))
            connection.execute(f"ALTER TABLE kept RENAME TO {name}")
        yield
    finally:
        for name, view in reversed(done):
            connection.execute(f"DROP TABLE {name}")
            connection.execute(view)
