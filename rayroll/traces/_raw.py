"""Agents' own logs on their way into a store: collected into rows that are gone when they have been loaded.

What ``collect`` does over and over is done once here, by ``collect`` itself, so that rows are the same either way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rayroll.traces.collect import CollectReport, Progress, collect
from rayroll.traces.discover import find_logs

__all__ = ["collected"]


@contextmanager
def collected(
    given: Iterable[Path], logs: Iterable[Path], progress: Callable[[Progress], None] | None
) -> Iterator[tuple[Path, CollectReport]]:
    """A file of the rows of ``logs``, and what was found; the report tells of nothing but them.

    Args:
        given: The files and folders that somebody named: which project and session a log is of depends on the folder.
        logs: Those below them that are agents' logs.
        progress: As of ``collect``.
    """
    wanted = set(map(str, logs))
    folders = [path for path in given if path.is_dir()]
    found = {str(source.path) for source in find_logs(folders, lambda _path, _reason: None)} & wanted
    # Of a home, only the agents' own folders are looked into: what lies elsewhere is named one by one.
    roots = [*(folders if found else ()), *(Path(log) for log in sorted(wanted - found))]
    with tempfile.TemporaryDirectory(prefix="rayroll-traces-") as folder:
        rows = Path(folder, "rows.jsonl")
        report = collect(roots, rows, progress=progress)
        # Rows and other programs' files lie in the same folders, and are told of by others.
        report.skipped = [one for one in report.skipped if one.path in wanted or Path(one.path).is_dir()]
        report.losses = [loss for loss in report.losses if loss.file in wanted]
        yield rows, report
