"""Collect: find agents' logs, read what is new in them, and write every step once.

A run reads each log that is new or has changed; a log that only grew is read on from where it ended, with its reader's
state of then and its rows of then, so the rows are those that a reading from the start gives. Whose a step is that
several logs have, and the order of the output, are decided anew in every run over all rows known (``_owners``), and the
output is written anew, so it never depends on how many runs it took.

Logs that are gone are kept: agents delete theirs after some weeks, and a trace is there to outlive them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from rayroll.errors import ConfigError
from rayroll.traces._owners import Kept, decide, in_order
from rayroll.traces._report import CollectReport, LogReport, Skipped
from rayroll.traces._state import KnownLog, SqliteShelf, State
from rayroll.traces._streams import check_target, open_write
from rayroll.traces.discover import Logs, default_roots, find_logs, homes_of
from rayroll.traces.formats import LogFormat, Source, formats, load_format
from rayroll.traces.lines import LogLines, Loss
from rayroll.traces.steps import Steps

__all__ = ["CollectReport", "Progress", "Skipped", "collect"]

_SNIFFED_RECORDS = 50
"""A log whose first records are damaged, or of a type of tomorrow, is still known by one of these."""
_MARKED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come."""

    path: str
    """The log that is read now; empty: the output is being written."""
    logs_done: int
    logs: int
    bytes_done: int
    bytes: int
    """Of all logs, unchanged ones included."""


def collect(
    roots: Iterable[str | os.PathLike[str]] | None,
    out: str | os.PathLike[str],
    *,
    all_users: bool = False,
    fresh: bool = False,
    prune: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> CollectReport:
    """Write the rows of every log below the roots to ``out``; ``out`` + ``.state`` remembers what was read.

    Args:
        roots: Homes, agents' folders, any folders, or single logs. ``None``: this user's home and what
            ``CLAUDE_CONFIG_DIR`` and ``CODEX_HOME`` name.
        out: ``.jsonl``, ``.jsonl.gz`` or ``.jsonl.zst``; replaced at the end, in one go.
        all_users: With ``roots=None``: every home of this machine.
        fresh: Forget what earlier runs have read, and with it the logs that are gone.
        prune: Drop the rows of logs that this run does not find.
        progress: Called before each log, and before the output is written.

    Raises:
        ConfigError: A root does not exist, nothing was found, ``out`` is no name for rows, or another
            run is writing to it.
    """
    started, target = time.monotonic(), Path(out)
    check_target(target)
    beside = target.with_name(target.name + ".state")
    unlisted: list[Skipped] = []

    def on_error(path: str, reason: str) -> None:
        unlisted.append(Skipped(path, reason))

    places = homes_of(all_users=all_users) if roots is None else [Path(root) for root in roots]
    logs = find_logs(default_roots(places, on_error) if roots is None else places, on_error, but=[target])
    if not logs and (fresh or not beside.exists()):
        fix = "name a home or a folder that holds .jsonl or .jsonl.zst logs"
        raise ConfigError("no logs were found", looked_in=[str(place) for place in places], fix=fix)
    if fresh:
        beside.unlink(missing_ok=True)
    state = State(beside)
    try:
        return _Run(state, target, logs, unlisted, progress or (lambda _: None)).run(prune=prune, started=started)
    finally:
        state.close()


class _Run:
    """One run of collect, with its state open."""

    def __init__(
        self,
        state: State,
        target: Path,
        logs: Logs,
        unlisted: list[Skipped],
        progress: Callable[[Progress], None],
    ) -> None:
        self._state = state
        self._target = target
        self._logs = logs
        self._progress = progress
        self._report = CollectReport(out=str(target), skipped=unlisted)

    def run(self, *, prune: bool, started: float) -> CollectReport:
        report = self._report
        number_of_logs = len(self._logs)
        done, total = 0, sum(_size(log.path) for log in self._logs)
        for number, log in enumerate(self._logs):
            self._progress(Progress(log.path, number, number_of_logs, done, total))
            status = _stat(log.path)
            if status is None:
                report.skipped.append(Skipped(log.path, "it was deleted while logs were read"))
                continue
            self._one(log.source(), status)
            done += status.st_size
        report.logs_found = number_of_logs
        changed = self._note_gone(prune) or bool(report.logs_read or report.logs_read_on)
        self._progress(Progress("", number_of_logs, number_of_logs, done, total))
        self._write(changed)
        report.add_logs(self._state.db)
        report.state_begun_anew = self._state.began_anew
        report.seconds = time.monotonic() - started
        return report

    def _one(self, source: Source, status: os.stat_result) -> None:
        known = self._state.log(source.path)
        seen = (status.st_size, status.st_mtime_ns, status.st_ino)
        if known is not None and seen == (known.size, known.mtime_ns, known.inode):
            self._report.logs_unchanged += 1
            return
        grew = known is not None and _only_grew(source.path, status, known)
        with self._state.transaction():
            if grew and known is not None:
                self._report.logs_read_on += 1
                _read(self._state, source, status, known)
                self._report.bytes_read += status.st_size - known.offset
            else:
                self._report.logs_read += 1
                _read(self._state, source, status, None)
                self._report.bytes_read += status.st_size

    def _note_gone(self, prune: bool) -> bool:
        """Logs of earlier runs that this one did not find. Returns whether their rows were dropped."""
        db = self._state.db
        db.execute("CREATE TEMP TABLE found (path TEXT PRIMARY KEY) WITHOUT ROWID")
        db.executemany("INSERT INTO found VALUES (?)", ((log.path,) for log in self._logs))
        missing = [path for (path,) in db.execute("SELECT path FROM logs WHERE path NOT IN found")]
        with self._state.transaction():
            db.execute("UPDATE logs SET gone = 0 WHERE gone")
            for path in missing:
                if prune:
                    self._state.forget(Path(path))
                elif not Path(path).exists():
                    db.execute("UPDATE logs SET gone = 1 WHERE path = ?", (path,))
        self._report.logs_kept_from_before = 0 if prune else len(missing)
        return prune and bool(missing)

    def _write(self, changed: bool) -> None:
        report, state = self._report, self._state
        report.copies_dropped = decide(state.db)
        report.count_kept(state.db)
        if not changed and state.meta("output") == _signature(self._target):
            return
        # Beside it, with its ending, for the ending decides the compression.
        half = self._target.with_name(f".{os.getpid()}.{self._target.name}")
        try:
            with open_write(half) as stream:
                for line in _lines(in_order(state.db)):
                    stream.write(line + b"\n")
            half.replace(self._target)
        finally:
            half.unlink(missing_ok=True)
        report.written = True
        state.set_meta("output", _signature(self._target))


def _read(state: State, source: Source, status: os.stat_result, known: KnownLog | None) -> None:
    """Read a log, from the start or on from where it ended, into the state."""
    if known is None:
        log, report, saved = state.begin_log(source.path), LogReport(), None
        lines = LogLines(source.path, on_loss=report.add)
    else:
        log, report = known.id, LogReport.from_json(known.report)
        saved = orjson.loads(known.reader or b"null")
        lines = LogLines(source.path, offset=known.offset, line=known.line, on_loss=report.add)
    records = iter(lines)
    one, sniffed = (load_format(known.kind), []) if known is not None and known.kind else _sniff(records)
    columns: dict[str, Any] = {"kind": None, "settled": 0, "reader": None}
    if one is None:
        report.reason = _why_unknown(sniffed, report)
    else:
        shelf = SqliteShelf(state, log)
        shelf.cut(known.settled if known else 0)
        steps = Steps(shelf)
        reader = one.reader(source, steps, saved)
        reader.tally = report.tally
        for record in chain(sniffed, records):
            try:
                reader.feed(record)
            except (TypeError, ValueError, AttributeError, LookupError) as error:
                report.add(Loss(str(source.path), lines.line, f"a record of an unexpected shape: {error}"))
        columns = {"kind": one.kind, "settled": len(steps), "reader": None}
        if lines.complete and source.path.suffix == ".jsonl":
            columns["reader"] = orjson.dumps(reader.state())
        reader.finish()
        steps.shelve()
        state.set_lineage(log, list(reader.lineage()))
    mark = _mark(source.path, lines.offset) if columns["reader"] else None
    state.end_log(
        log,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
        offset=lines.offset,
        line=lines.line,
        mark=mark,
        report=report.to_json(),
        **columns,
    )


def _sniff(records: Iterator[dict[str, Any]]) -> tuple[LogFormat | None, list[dict[str, Any]]]:
    """Whose log begins with these records, and the records that it took to know."""
    taken = []
    for record in records:
        taken.append(record)
        for one in formats():
            if one.recognises(record):
                return one, taken
        if len(taken) == _SNIFFED_RECORDS:
            break
    return None, taken


def _why_unknown(sniffed: list[dict[str, Any]], report: LogReport) -> str:
    if any("timing_events" in record for record in sniffed):
        return "rows, and no log: load them as they are"
    if sniffed:
        return "no session log of a known agent"
    return "no whole record in it" if report.lost else "empty"


def _stat(path: str | Path) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except OSError:
        return None


def _size(path: str) -> int:
    status = _stat(path)
    return status.st_size if status else 0


def _mark(path: Path, offset: int) -> bytes | None:
    """What the bytes before offset look like: a log that was written anew has others."""
    try:
        with path.open("rb") as stream:
            head = stream.read(min(_MARKED_BYTES, offset))
            stream.seek(max(0, offset - _MARKED_BYTES))
            tail = stream.read(min(_MARKED_BYTES, offset))
    except OSError:
        return None
    return blake2b(head + tail, digest_size=16).digest()


def _only_grew(path: Path, status: os.stat_result, known: KnownLog) -> bool:
    if known.reader is None or known.mark is None or status.st_ino != known.inode or status.st_size <= known.size:
        return False
    return _mark(path, known.offset) == known.mark


def _signature(path: Path) -> str:
    status = _stat(path)
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}" if status else ""


def _lines(kept: Iterable[Kept]) -> Iterator[bytes]:
    """Bodies as they are, but for rounds that have to be numbered anew because others went to another session."""
    session, number, seen = "", 0, set[str]()
    for step in kept:
        if step.session != session:
            session, number, seen = step.session, 0, set()
        if step.round_index == number and step.trace_key not in seen:
            seen.add(step.trace_key)
            yield step.body
        else:
            row = orjson.loads(step.body)
            row["round_index"], again = number, 1
            while row["trace_key"] in seen:
                again += 1
                row["trace_key"] = f"{step.trace_key}~{again}"
            if again > 1:
                row["round_id"] = f"{row['round_id']}~{again}"
            seen.add(row["trace_key"])
            yield orjson.dumps(row)
        number += 1
