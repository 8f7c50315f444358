"""Which log a step belongs to when several have it, and in what order steps are written: over all logs at once.

A resumed or forked session's log begins with its parent's steps. The copy of a step loses to the one that was written
first; where the two are alike to the last digit, the session that did nothing of its own, or did so first, is the
parent. Nothing here depends on the order in which logs were read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Kept", "decide", "in_order"]

_CLAIMS = """
CREATE TEMP TABLE claims AS
SELECT s.id, s.log, s.position, s.name, s.session, s.at, s.first_call, s.weight, s.copied,
       s.flags LIKE '%no_usage%' AS open,
       s.provider || '|' || coalesce(roots.root, s.family) || '|' || s.name AS identity
FROM steps s LEFT JOIN roots ON roots.family = s.family;

CREATE TEMP TABLE shared AS
SELECT identity, count(DISTINCT session) AS sessions FROM claims GROUP BY identity HAVING count(*) > 1;
CREATE UNIQUE INDEX temp.shared_identity ON shared (identity);

-- When each session first did something that no other session has.
CREATE TEMP TABLE own_work AS
SELECT c.session, min(c.at) AS first
FROM claims c LEFT JOIN shared USING (identity)
WHERE coalesce(shared.sessions, 1) = 1
GROUP BY c.session;
CREATE UNIQUE INDEX temp.own_work_session ON own_work (session);

CREATE TEMP TABLE dropped AS
SELECT id FROM (
    SELECT c.id, row_number() OVER (
        PARTITION BY c.identity
        ORDER BY c.copied, c.at IS NULL, c.at, o.first IS NOT NULL, o.first, c.session,
                 c.weight DESC, l.gone, l.path, c.position
    ) AS place
    FROM claims c JOIN shared USING (identity) JOIN logs l ON l.id = c.log LEFT JOIN own_work o USING (session)
) WHERE place > 1;
CREATE UNIQUE INDEX temp.dropped_id ON dropped (id);

-- A copy of a log that ends earlier may end within a step: that is no step beside the whole one.
CREATE INDEX temp.claims_at ON claims (session, at);
CREATE INDEX temp.claims_call ON claims (session, first_call);
INSERT OR IGNORE INTO dropped
SELECT part.id FROM claims part JOIN claims whole
ON whole.log <> part.log
   AND (whole.session = part.session AND whole.at = part.at
        OR whole.session = part.session AND whole.first_call = part.first_call)  -- so written, each uses its index
WHERE part.open AND whole.id NOT IN dropped
  AND (NOT whole.open OR whole.weight > part.weight OR (whole.weight = part.weight AND whole.name < part.name));

CREATE TEMP TABLE kept AS
SELECT s.id, s.log, s.position, s.provider, s.session, s.at, s.flags FROM steps s WHERE s.id NOT IN dropped;

-- The part of a session that one log has, and when the session and this part of it began.
CREATE TEMP TABLE parts AS
SELECT session, log, min(at) AS first, min(min(at)) OVER (PARTITION BY session) AS session_first
FROM kept GROUP BY session, log;
CREATE UNIQUE INDEX temp.parts_session_log ON parts (session, log);

CREATE TEMP TABLE in_order AS
SELECT k.id
FROM kept k JOIN parts p USING (session, log) JOIN logs l ON l.id = k.log
ORDER BY k.provider, p.session_first IS NULL, p.session_first, k.session, p.first IS NULL, p.first, l.path, k.position;
"""


class Kept(NamedTuple):
    """A step that is written."""

    provider: str
    session: str
    round_index: int
    trace_key: str
    body: bytes


def decide(db: sqlite3.Connection) -> int:
    """Settle whose each step is. Returns how many copies are dropped."""
    for table in ("roots", "claims", "shared", "own_work", "dropped", "kept", "parts", "in_order"):
        db.execute(f"DROP TABLE IF EXISTS temp.{table}")
    db.execute("CREATE TEMP TABLE roots (family TEXT PRIMARY KEY, root TEXT NOT NULL)")
    parents = dict(db.execute("SELECT child, min(parent) FROM lineage GROUP BY child"))
    db.executemany("INSERT INTO roots VALUES (?, ?)", [(child, _root(child, parents)) for child in parents])
    db.executescript(_CLAIMS)
    return int(db.execute("SELECT count(*) FROM dropped").fetchone()[0])


def in_order(db: sqlite3.Connection) -> Iterator[Kept]:
    """The steps that ``decide`` has kept: by agent, session by its first moment, and then as they were written."""
    columns = "s.provider, s.session, s.round_index, s.trace_key, s.body"
    for row in db.execute(f"SELECT {columns} FROM in_order o CROSS JOIN steps s ON s.id = o.id ORDER BY o.rowid"):
        yield Kept(*row)


def _root(session: str, parents: dict[str, str]) -> str:
    """The session that a family goes back to; damaged logs can tell of a circle, which then has its smallest name."""
    path = [session]
    while (parent := parents.get(path[-1])) is not None:
        if parent in path:
            return min(path[path.index(parent) :])
        path.append(parent)
    return path[-1]
