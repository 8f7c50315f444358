"""What a run of collect found, read, kept and had to leave out, and why."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from rayroll.traces.lines import Loss
from rayroll.traces.steps import Tally

__all__ = ["CollectReport", "LogReport", "Skipped"]

_LOSSES_PER_LOG = 1000
"""Further ones of one log are only counted."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that gave nothing."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True)
class LogReport:
    """What one log lost, and what it held beside its rows; remembered with the log."""

    reason: str = ""
    """Why the whole log was skipped."""
    losses: list[Loss] = field(default_factory=list)
    lost: int = 0
    """Losses, whether listed or not; mended lines are none."""
    mended: int = 0
    tally: Tally = field(default_factory=Tally)

    def add(self, loss: Loss) -> None:
        self.lost += not loss.kept
        self.mended += loss.kept
        if len(self.losses) < _LOSSES_PER_LOG:
            self.losses.append(loss)

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: bytes) -> LogReport:
        value = orjson.loads(data)
        losses = [Loss(**loss) for loss in value["losses"]]
        return cls(value["reason"], losses, value["lost"], value["mended"], Tally(**value["tally"]))


@dataclass(slots=True)
class CollectReport:
    """Of all logs that the output speaks of, those of earlier runs included; ``logs_read`` and such: of this run."""

    out: str
    written: bool = False
    """False: nothing had changed, and the output was left as it was."""
    seconds: float = 0.0
    bytes_read: int = 0
    """Of files, as they lie on disk."""

    logs_found: int = 0
    logs_read: int = 0
    """From their start."""
    logs_read_on: int = 0
    """From where they ended in an earlier run."""
    logs_unchanged: int = 0
    logs_kept_from_before: int = 0
    """Known from earlier runs and not found by this one: gone, or below other roots. Their rows are in the output."""
    state_begun_anew: bool = False
    """The state beside the output was damaged or of another version: everything was read again."""

    rows: int = 0
    sessions: int = 0
    rows_by_provider: dict[str, int] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    """Rows by flag."""
    copies_dropped: int = 0
    """Steps that stood in a second log: resumed, forked or copied."""

    skipped: list[Skipped] = field(default_factory=list)
    """Files and folders that gave nothing."""
    losses: list[Loss] = field(default_factory=list)
    """By file and line; of one log, at most the first 1,000."""
    lost: int = 0
    mended: int = 0
    unknown_types: dict[str, int] = field(default_factory=dict)
    """Records passed over, by ``provider:type``."""
    orphan_results: int = 0
    duplicate_results: int = 0
    repeated_steps: int = 0
    synthetic: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def count_kept(self, db: sqlite3.Connection) -> None:
        """Count the steps that are written."""
        self.rows_by_provider = dict(db.execute("SELECT provider, count(*) FROM kept GROUP BY 1 ORDER BY 1"))
        self.rows = sum(self.rows_by_provider.values())
        self.sessions = db.execute("SELECT count(DISTINCT session) FROM kept").fetchone()[0]
        flags: Counter[str] = Counter()
        for names, count in db.execute("SELECT flags, count(*) FROM kept WHERE flags <> '' GROUP BY 1"):
            for name in names.split():
                flags[name] += count
        self.flags = dict(sorted(flags.items()))

    def add_logs(self, db: sqlite3.Connection) -> None:
        """Add what every known log lost and held, in the order of their paths."""
        unknown: Counter[str] = Counter()
        for path, kind, data in db.execute("SELECT path, kind, report FROM logs ORDER BY path"):
            log = LogReport.from_json(data)
            if log.reason:
                self.skipped.append(Skipped(path, log.reason))
            self.losses += log.losses
            self.lost += log.lost
            self.mended += log.mended
            for name, count in log.tally.unknown_types.items():
                unknown[f"{kind}:{name}"] += count
            self.orphan_results += log.tally.orphan_results
            self.duplicate_results += log.tally.duplicate_results
            self.repeated_steps += log.tally.repeated_steps
            self.synthetic += log.tally.synthetic
        self.unknown_types = dict(sorted(unknown.items()))
