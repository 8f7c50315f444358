"""What a load found, added to the store, and had to leave out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from rayroll.traces.lines import Loss

__all__ = ["LoadReport"]

_TOLD = 100


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load found."""

    rows: int = 0
    """Rows read: steps with a session."""
    added: int = 0
    """Rows that are new in the store."""
    repeated: int = 0
    """Rows whose ``trace_key`` was there already, in the store or earlier in the same load."""
    not_rows: int = 0
    """JSON values that are no row: without a session they belong to nothing."""
    without_times: int = 0
    """Added rows none of whose events has a time: counted, absent from every statistic of time."""
    clock_backwards: int = 0
    """Added tool calls whose result came before them: their wall time is unknown, their times are kept."""
    unfinished: int = 0
    """Added tool calls without a result's time."""
    lost_lines: int = 0
    """Lines that were lost, in whole or in part."""
    mended_lines: int = 0
    """Lines with bad text, which was replaced by U+FFFD."""
    skipped_files: int = 0
    """Files in folders that are no traces, or gave nothing."""
    lost: tuple[Loss, ...] = ()
    """The first hundred that were lost or skipped (line 0: the file as a whole)."""

    def __add__(self, other: LoadReport) -> LoadReport:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return LoadReport(**sums | {"lost": sums["lost"][:_TOLD]})

    @classmethod
    def of(cls, losses: Iterable[Loss]) -> LoadReport:
        """The report of nothing but losses."""
        lost = lines = mended = 0
        told: list[Loss] = []
        for loss in losses:
            mended += loss.kept
            if not loss.kept:
                lost += 1
                lines += loss.line > 0
                told += [loss] if len(told) < _TOLD else []
        return cls(lost_lines=lines, mended_lines=mended, skipped_files=lost - lines, lost=tuple(told))
