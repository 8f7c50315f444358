"""Where the sessions of a workload come from: rows, a store, or nobody: made up after the published statistics."""

from __future__ import annotations

from pathlib import Path

from rayroll.errors import ConfigError
from rayroll.traces import reading
from rayroll.traces.store import Store
from rayroll.traces.workload import Pace, Workload, build

__all__ = ["TRACELAB", "read"]

TRACELAB = "tracelab"
"""In place of a file: sessions made up after the published statistics."""
MADE_UP = 20
"""Sessions of those, where nobody says how many."""


def read(source: str, *, sessions: int | None, seed: int, pace: Pace, recorded_commands: bool = False) -> Workload:
    """The workload of a file of rows, a store, or ``tracelab``.

    Args:
        source: A file or folder that ``Store.load`` takes, a store itself, or ``tracelab``.
        sessions: How many, drawn by the seed; None: all, of made-up ones ``MADE_UP``.
        seed: Of the draw, and of made-up sessions.
        pace: How much of them, and how fast.
        recorded_commands: Play calls as their commands where rows have them.

    Raises:
        ConfigError: There is no such file, it is no trace, or nothing of it can be replayed.
    """
    if sessions is not None and sessions < 1:
        raise ConfigError("a replay has one session at least", sessions=sessions)
    if source == TRACELAB:
        if recorded_commands:
            raise ConfigError("made-up sessions have no commands", fix="play stand-ins")
        return _made_up(sessions or MADE_UP, seed, pace)
    path = Path(source).expanduser()
    with _opened(path, recorded_commands) as store:
        if recorded_commands and not _has_commands(store):
            raise ConfigError(
                f"{path} holds no recorded commands: its rows were sanitized, or have no inputs",
                fix="replay the rows that collect has written, or a store loaded with --include-inputs; "
                "or play stand-ins",
            )
        return build(
            store, source=path.name, sessions=sessions, seed=seed, pace=pace, recorded_commands=recorded_commands
        )


def _made_up(sessions: int, seed: int, pace: Pace) -> Workload:
    from rayroll.traces.synth import synthesize

    with Store.open() as store:
        # Some sessions call nothing, and are left out.
        store.load_rows(synthesize(2 * sessions + 10, seed=seed))
        return build(store, source=TRACELAB, sessions=sessions, seed=seed, pace=pace)


def _opened(path: Path, include_inputs: bool) -> Store:
    if path.is_file() and reading.recognise(path) == "duckdb":
        try:
            return Store.open(path, read_only=True)
        except ConfigError as error:
            if "tables" not in error.facts:  # else it is another program's, such as TraceLab's
                raise
    store = Store.open()
    try:
        store.load(path, include_inputs=include_inputs)
    except BaseException:
        store.close()
        raise
    return store


def _has_commands(store: Store) -> bool:
    return store.connection.execute("SELECT 1 FROM tools WHERE command IS NOT NULL LIMIT 1").fetchone() is not None
