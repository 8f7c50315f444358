"""Where the sessions of a workload come from: rows, a store, or nobody: made up after the published statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rayroll.errors import ConfigError
from rayroll.traces import reading
from rayroll.traces._raw import collected
from rayroll.traces.categories import category, command_of
from rayroll.traces.lines import Loss
from rayroll.traces.rollouts import rollouts_in, rows_of
from rayroll.traces.rows import read_rows
from rayroll.traces.store import Store
from rayroll.traces.workload import Commands, Pace, Workload, build

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
    commands = _commands(path) if recorded_commands else {}
    with _opened(path) as store:
        return build(store, source=path.name, sessions=sessions, seed=seed, pace=pace, commands=commands)


def _made_up(sessions: int, seed: int, pace: Pace) -> Workload:
    from rayroll.traces.synth import synthesize

    with Store.open() as store:
        # Some sessions call nothing, and are left out.
        store.load_rows(synthesize(2 * sessions + 10, seed=seed))
        return build(store, source=TRACELAB, sessions=sessions, seed=seed, pace=pace)


def _opened(path: Path) -> Store:
    if path.is_file() and reading.recognise(path) == "duckdb":
        try:
            return Store.open(path, read_only=True)
        except ConfigError as error:
            if "tables" not in error.facts:  # else it is another program's, such as TraceLab's
                raise
    store = Store.open()
    try:
        store.load(path)
    except BaseException:
        store.close()
        raise
    return store


def _commands(path: Path) -> Commands:
    """What shell calls ran.

    Raises:
        ConfigError: The rows hold no inputs.
    """
    found = {
        (str(row["trace_key"]), index): command
        for row in _rows(path)
        for index, tool in enumerate(row.get("tools") or ())
        if (command := _command(tool)) is not None and row.get("trace_key")
    }
    if not found:
        raise ConfigError(
            f"{path} holds no recorded commands: its rows were sanitized, or have no inputs",
            fix="replay the rows that collect has written, or play stand-ins",
        )
    return found


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    found = reading.find(path)
    for file in found.of("rows"):
        yield from (row for row in reading.rows_in(file) if not isinstance(row, Loss))
    for file in found.of("rollouts"):
        yield from (row for row in rows_of(rollouts_in(file)) if not isinstance(row, Loss))
    if logs := found.of("raw"):
        with collected([path], logs, None) as (file, _):
            yield from read_rows(file)


def _command(tool: Mapping[str, Any]) -> str | None:
    return command_of(tool.get("input")) if category(str(tool.get("tool_name"))) == "shell_command" else None
