"""Live progress for whoever watches: how far, how fast, how long still, and where the time goes. On stderr only."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rayroll.metrics import Distribution
from rayroll.metrics.actions import overhead_s
from rayroll.metrics.shares import in_slot_s
from rayroll.sinks import Sink
from rayroll.types import Rollout

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["ConsoleSink", "Progress"]

# Most cells shown at once; the ones touched last, since a sweep may have more than a screen has lines.
_CELLS_SHOWN = 12


class ConsoleSink(Sink):
    """A live display on a terminal; elsewhere (a file, ``ray job logs``) one plain line every ``line_s`` seconds."""

    kind: ClassVar[str] = "console"

    def __init__(
        self,
        *,
        total: int | None = None,
        done: int = 0,
        cell_totals: Mapping[str, int] | None = None,
        title: str = "rollouts",
        console: Console | None = None,
        line_s: float = 10.0,
        results: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shows nothing yet.

        Args:
            total: Rollouts of the whole run; None: not known.
            done: Rollouts that an earlier part of a resumed run finished.
            cell_totals: Rollouts of each sweep cell by ``labels["cell"]``.
            title: Stands in front.
            console: Where to; None: stderr, so that stdout keeps the result.
            line_s: Least seconds between two plain lines.
            results: Where the rollouts are written, for the command that opens a kept one.
            clock: Monotonic seconds.
        """
        from rich.console import Console as RichConsole

        self.progress = Progress(total=total, done=done, cell_totals=dict(cell_totals or {}), title=title)
        self._console = console or RichConsole(stderr=True)
        self._clock = clock
        self._line_s = line_s
        self._results = results
        self._lock = threading.Lock()
        self._live: object | None = None
        self._last_line_s = float("-inf")
        self._closed = False

    def open(self) -> None:
        """Start the clock, and the display on a terminal."""
        from rich.live import Live

        self.progress.start(self._clock())
        if self._console.is_terminal:
            # stdout is left alone: it belongs to the run's last JSON line.
            live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4, redirect_stdout=False)
            live.start()
            self._live = live

    def add(self, rollout: Rollout) -> None:
        """Count one rollout; one that was kept is told at once, with the way in."""
        with self._lock:
            self.progress.add(rollout, self._clock())
        if rollout.kept is not None:
            self._console.print(_way_in(rollout, self._results), markup=False, highlight=False, soft_wrap=True)
        self._line_if_due()

    def gauges(self, values: Mapping[str, float]) -> None:
        """Take over how many rollouts are in flight and waiting."""
        with self._lock:
            self.progress.gauges.update(values)
        self._line_if_due()

    def close(self, exit_code: int = 0) -> None:
        """Leave the last state on the screen. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._live is not None:
            self._live.stop()  # type: ignore[attr-defined]
        else:
            self._line()

    def _render(self) -> RenderableType:
        with self._lock:
            return self.progress.render(self._clock())

    def _line_if_due(self) -> None:
        if self._live is None and self._clock() - self._last_line_s >= self._line_s:
            self._line()

    def _line(self) -> None:
        self._last_line_s = self._clock()
        with self._lock:
            line = self.progress.line(self._last_line_s)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@dataclass
class _CellProgress:
    """Running figures of one sweep cell."""

    done: int = 0
    rewards: list[float] = field(default_factory=list)
    wall_s: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    overhead_s: deque[float] = field(default_factory=lambda: deque(maxlen=2000))
    touched: int = 0


@dataclass
class Progress:
    """How far a run is: finished rollouts in, lines and tables out. Time is an argument."""

    total: int | None = None
    done: int = 0
    """Finished, those of an earlier part of the run included."""
    cell_totals: dict[str, int] = field(default_factory=dict)
    title: str = "rollouts"
    gauges: dict[str, float] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    cells: dict[str, _CellProgress] = field(default_factory=dict)
    _started_s: float = 0.0
    _new: int = 0
    _recent: deque[tuple[float, float, float, float]] = field(default_factory=lambda: deque(maxlen=500))
    """Finish time and env, infra and policy seconds of the latest rollouts."""

    def start(self, now_s: float) -> None:
        """The run begins."""
        self._started_s = now_s

    def add(self, rollout: Rollout, now_s: float) -> None:
        """One more is finished."""
        self.done += 1
        self._new += 1
        timing = rollout.timing
        # The wait for a slot is no infrastructure at work: it says how many rollouts were asked for at once.
        infra_s = timing.infra_s - timing.phases.get("queue", 0.0)
        self._recent.append((now_s, timing.env_s, infra_s, timing.policy_s))
        if rollout.failure is not None:
            self.failures[rollout.failure.fault] += 1
        cell = self.cells.setdefault(rollout.labels.get("cell", rollout.substrate), _CellProgress())
        cell.done += 1
        cell.touched = self._new
        cell.wall_s.append(in_slot_s(rollout))
        cell.overhead_s.extend(overhead_s(step) for step in rollout.steps)
        if rollout.reward is not None:
            cell.rewards.append(rollout.reward)

    def rate_per_s(self, now_s: float) -> float | None:
        """Rollouts a second over the latest ones; None before there are two."""
        if self._new < 2:
            return None
        first_s = self._started_s if self._new <= len(self._recent) else self._recent[0][0]
        return len(self._recent) / (now_s - first_s) if now_s > first_s else None

    def eta_s(self, now_s: float) -> float | None:
        """Seconds until all are done at the present rate; None while unknown."""
        rate = self.rate_per_s(now_s)
        return (self.total - self.done) / rate if rate and self.total is not None else None

    def shares(self) -> dict[str, float]:
        """Shares of env, infra and policy in the latest rollouts' time; empty before there is any."""
        sums = [sum(row[i] for row in self._recent) for i in (1, 2, 3)]
        return dict(zip(("env", "infra", "policy"), (s / sum(sums) for s in sums), strict=True)) if sum(sums) else {}

    def line(self, now_s: float) -> str:
        """All of it in one line of plain text."""
        parts = [f"{self.title}: {self.done}{'' if self.total is None else f'/{self.total}'}"]
        rate = self.rate_per_s(now_s)
        if rate:
            parts.append(f"{rate * 60:.1f}/min")
        eta_s = self.eta_s(now_s)
        if eta_s:
            parts.append(f"{_clock_time(eta_s)} left")
        if "sched/in_flight" in self.gauges:
            parts.append(f"{self.gauges['sched/in_flight']:.0f} in flight")
        parts.extend(f"{kind} {share:.0%}" for kind, share in self.shares().items())
        if self.failures:
            parts.append("failed: " + ", ".join(f"{count} {fault}" for fault, count in sorted(self.failures.items())))
        return " | ".join(parts)

    def render(self, now_s: float) -> RenderableType:
        """The live display."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        head = Table.grid(padding=(0, 1), expand=False)
        count = f"{self.done}" if self.total is None else f"{self.done}/{self.total}"
        facts = []
        rate, eta_s = self.rate_per_s(now_s), self.eta_s(now_s)
        if rate:
            facts.append(f"{rate * 60:.1f}/min")
        if eta_s:
            facts.append(f"{_clock_time(eta_s)} left")
        for name in ("in_flight", "queue_depth"):
            if f"sched/{name}" in self.gauges:
                facts.append(f"{self.gauges[f'sched/{name}']:.0f} {name.replace('_', ' ')}")
        bar = ProgressBar(total=self.total, completed=self.done, width=32, pulse=self.total is None)
        head.add_row(Text(self.title, style="bold"), bar, count, Text(" · ".join(facts), style="dim"))

        split = Text("  ")
        for (kind, share), style in zip(self.shares().items(), ("blue", "red", "green"), strict=False):
            split.append(f"{kind} {share:.0%}   ", style=style)
        for fault, failed in sorted(self.failures.items()):
            split.append(f"{failed} failed ({fault})   ", style="bold red" if fault == "infra" else "yellow")
        return Group(head, split, self._cell_table())

    def _cell_table(self) -> RenderableType:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("cell")
        for column in ("done", "reward", "rollout p50", "overhead p50 / p95"):
            table.add_column(column, justify="right")
        latest = sorted(self.cells, key=lambda name: -self.cells[name].touched)[:_CELLS_SHOWN]
        for name in sorted(latest):
            cell = self.cells[name]
            total = f"/{self.cell_totals[name]}" if name in self.cell_totals else ""
            reward = f"{sum(cell.rewards) / len(cell.rewards):.2f}" if cell.rewards else "–"
            wall = f"{Distribution(cell.wall_s).quantile(0.5):.2f} s"
            overhead = Distribution.of(cell.overhead_s)
            costs = " / ".join(f"{overhead.quantile(q) * 1e3:.1f}" for q in (0.5, 0.95)) + " ms" if overhead else "–"
            table.add_row(name, f"{cell.done}{total}", reward, wall, costs)
        if len(self.cells) > _CELLS_SHOWN:
            table.add_row(f"and {len(self.cells) - _CELLS_SHOWN} more", style="dim")
        return table


def _way_in(rollout: Rollout, results: Path | None) -> str:
    failure, reward = rollout.failure, rollout.reward
    why = f"{failure.fault}: {failure.reason}" if failure is not None else f"reward {reward}"
    # Without --results all that runs made by themselves is looked through.
    named = "" if results is None or results.parent == Path("results").absolute() else f" --results {results}"
    return f"kept {rollout.task_id} ({why}): rayroll shell {rollout.id}{named}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
