"""Where a rollout's time went: spans of one clock, and the sweep that gives every instant to exactly one phase.

Two readings are only ever subtracted when they come from one clock. What another clock measured (the runner's in the
sandbox, a host's on another machine) arrives as durations and is laid inside a window of this clock. Integers of
nanoseconds until the very end, so that the phases of a rollout add up to its wall time exactly. See docs/timing.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rayroll.errors import unknown_name
from rayroll.types import CommandTiming, Timing

__all__ = ["PHASES", "TIMELINE", "Phase", "Recorder", "Span", "clock_id", "split_ns", "timing_of"]

Kind = Literal["env", "infra", "policy"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A named share of a rollout's time, and who pays for it."""

    name: str
    kind: Kind
    meaning: str
    contains: Literal["", "infra"] = ""
    """``infra``: an envelope, whose own time is what the infra phases and the ``_run`` inside it leave over."""


_BY_PRIORITY = (
    # The task's own work first: it has to be done whatever else goes on beside it.
    Phase("run", "env", "an action's command, exec to the exit of its main process"),
    Phase("grade_run", "env", "the grader's commands, exec to exit"),
    Phase("setup_run", "env", "the task's setup commands, exec to exit"),
    # Then generation, so that a boot behind the first generation costs what it costs the rollout: nothing.
    Phase("policy", "policy", "waiting for the policy's action"),
    # Then infrastructure, the more specific the earlier.
    Phase("spawn", "infra", "queued in the runner, and fork to exec"),
    Phase("drain", "infra", "exit to reply: kill grace, killing what is left, last output"),
    Phase("transport", "infra", "host to runner and back: the round trip minus the runner's busy time"),
    Phase("host", "infra", "last byte of a reply to handled, in the host"),
    Phase("dispatch", "infra", "the driver's call to its arrival in the host"),
    Phase("return", "infra", "the host's answer to its arrival in the driver"),
    Phase("connect", "infra", "started sandbox to the runner's accepted hello"),
    Phase("boot", "infra", "created to started, as the substrate tells it"),
    Phase("create", "infra", "asking the substrate for the sandbox"),
    Phase("build", "infra", "building the root filesystem"),
    Phase("pull", "infra", "fetching the image"),
    Phase("setup", "infra", "preparing the task in the sandbox, apart from its commands' run", contains="infra"),
    Phase("grade", "infra", "grading, apart from the grader's commands' run", contains="infra"),
    Phase("reset", "infra", "making a used sandbox clean again", contains="infra"),
    Phase("teardown", "infra", "destroying the sandbox", contains="infra"),
    Phase("queue", "infra", "waiting for a slot"),
    Phase("other", "infra", "what no span covers: the only remainder"),
)

PHASES: Mapping[str, Phase] = {phase.name: phase for phase in _BY_PRIORITY}
"""Every phase by name, highest priority first: an instant that several phases claim belongs to the first of them."""

TIMELINE: tuple[str, ...] = (
    *("queue", "pull", "build", "create", "boot", "connect", "setup", "setup_run"),
    *("policy", "dispatch", "transport", "spawn", "run", "drain", "host", "return"),
    *("grade", "grade_run", "reset", "teardown", "other"),
)
"""Every phase in the order a rollout goes through them, for tables and pictures."""

_NAMES = tuple(PHASES)
_RANK = {name: rank for rank, name in enumerate(_NAMES)}
_OTHER = _RANK["other"]
_INFRA_MASK = sum(1 << _RANK[p.name] for p in _BY_PRIORITY if p.kind == "infra")
# What an envelope may lie under without being hidden by it: infra of any name, and its own commands.
_CONTAINED_MASK = {
    rank: _INFRA_MASK | (1 << _RANK[f"{name}_run"] if f"{name}_run" in _RANK else 0)
    for name, rank in _RANK.items()
    if PHASES[name].contains
}


class Span(NamedTuple):
    """One phase from one reading of a clock to another."""

    phase: str
    start_ns: int
    end_ns: int


class Recorder:
    """Collects the spans of one rollout. Not thread-safe: it belongs to one event loop."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = clock
        # Plain tuples of plain values: the garbage collector lets go of those, and a large run keeps millions.
        self._spans: list[tuple[str, int, int]] = []

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans, in the order they were added."""
        return tuple(map(Span._make, self._spans))

    def mark(self) -> int:
        """A place in the recording, for ``phases_s(since=...)`` and ``spans_since``."""
        return len(self._spans)

    def spans_since(self, mark: int) -> tuple[Span, ...]:
        """Spans added after ``mark``."""
        return tuple(map(Span._make, self._spans[mark:]))

    def take(self) -> list[tuple[str, int, int]]:
        """All spans, each a ``(phase, start_ns, end_ns)``, and forget them: what a host sends with one reply."""
        taken, self._spans = self._spans, []
        return taken

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        """Record what happens inside, also when it raises."""
        _known(phase)
        start_ns = self.now_ns()
        try:
            yield
        finally:
            self.add(phase, start_ns, self.now_ns())

    def add(self, phase: str, start_ns: int, end_ns: int) -> None:
        """Record a phase between two readings of this recorder's clock; an empty one is left out."""
        _known(phase)
        assert start_ns <= end_ns, f"{phase} ends {start_ns - end_ns} ns before it starts: two clocks?"
        if start_ns < end_ns:
            self._spans.append((phase, start_ns, end_ns))

    def add_sequence(
        self,
        start_ns: int,
        end_ns: int,
        parts: Sequence[tuple[str, int]],
        *,
        before: str | None = None,
        after: str | None = None,
    ) -> None:
        """Lay durations that another clock measured inside a window of this clock, in order.

        Args:
            start_ns: Start of the window, by this recorder's clock.
            end_ns: End of the window, by this recorder's clock.
            parts: Phase and nanoseconds by the other clock. Where they exceed the window (the other clock runs
                fast) they are scaled to fill it.
            before: Phase of the rest of the window in front of the parts.
            after: Phase of the rest behind them. With both, each gets half of the rest; with one, all of it; with
                none, the parts start the window and its end is left to other spans.
        """
        window_ns = max(0, end_ns - start_ns)
        total_ns = sum(ns for _, ns in parts)
        rest_ns = max(0, window_ns - total_ns)
        lead_ns = 0 if before is None else rest_ns if after is None else rest_ns // 2
        if before is not None:
            self.add(before, start_ns, start_ns + lead_ns)
        at_ns, done_ns = start_ns + lead_ns, 0
        for phase, ns in parts:
            done_ns += ns
            fitted_ns = done_ns if total_ns <= window_ns else done_ns * window_ns // total_ns
            until_ns = start_ns + lead_ns + fitted_ns
            self.add(phase, at_ns, until_ns)
            at_ns = until_ns
        if after is not None:
            self.add(after, at_ns, max(at_ns, end_ns))

    def add_command(
        self,
        start_ns: int,
        end_ns: int,
        timing: CommandTiming,
        *,
        handled_ns: int | None = None,
        within: Literal["setup", "grade"] | None = None,
    ) -> None:
        """Record one command as its host saw it.

        Args:
            start_ns: The request was handed to the channel.
            end_ns: The last byte of the reply arrived.
            timing: Durations by the runner's clock. What they leave of the window is ``transport``, half on each side.
            handled_ns: The reply was handled; since ``end_ns`` that was ``host``. None: at once.
            within: The command belongs to setup or grading: its run becomes ``setup_run`` or ``grade_run``, and all
                that infrastructure adds to it counts as ``setup`` or ``grade``.
        """
        around = within or "transport"
        self.add_sequence(
            start_ns,
            end_ns,
            [
                (within or "spawn", timing.queued_ns + timing.spawn_ns),
                (f"{within}_run" if within else "run", timing.run_ns),
                (within or "drain", timing.drain_ns),
            ],
            before=around,
            after=around,
        )
        if handled_ns is not None:
            self.add(within or "host", end_ns, handled_ns)

    def add_remote(
        self,
        start_ns: int,
        end_ns: int,
        residence_ns: int,
        spans: Iterable[tuple[str, int, int]],
        *,
        same_clock: bool,
        arrived_ns: int | None = None,
    ) -> None:
        """Take over what another process measured during one call to it; the way there and back is infrastructure.

        Args:
            start_ns: The call was made, by this clock.
            end_ns: Its answer arrived, by this clock.
            residence_ns: Arrival to answer, by the other process's clock.
            spans: By the other process's clock. They may begin before the call (a boot behind a generation).
            same_clock: The other clock is this one (equal ``clock_id()``): spans stand as they are and ``dispatch`` and
                ``return`` are exact. Otherwise each is half of what residence leaves of the call, and the spans
                are shifted to fit.
            arrived_ns: Arrival by the other process's clock. None: the first span began on arrival.
        """
        spans = tuple(spans)
        if arrived_ns is None:
            arrived_ns = min((began_ns for _, began_ns, _ in spans), default=start_ns)
        if same_clock:
            there_ns = min(max(arrived_ns, start_ns), end_ns)
            shift_ns = 0
        else:
            there_ns = start_ns + max(0, end_ns - start_ns - residence_ns) // 2
            shift_ns = there_ns - arrived_ns
        back_ns = min(there_ns + residence_ns, end_ns)
        self.add("dispatch", start_ns, there_ns)
        for phase, began_ns, ended_ns in spans:
            self.add(phase, began_ns + shift_ns, ended_ns + shift_ns)
        self.add("return", back_ns, end_ns)

    def split(self, start_ns: int, end_ns: int) -> Timing:
        """Give every instant of the window to one phase; what no span covers is ``other``."""
        return timing_of(*split_ns(self._spans, start_ns, end_ns))

    def phases_s(self, start_ns: int, end_ns: int, *, since: int = 0) -> dict[str, float]:
        """Exclusive seconds per phase in a window, for ``Step.phases_s``.

        Args:
            start_ns: Usually the moment the policy was asked.
            end_ns: The moment its action's result was there.
            since: A ``mark()``: spans added before it are not looked at, which keeps long rollouts linear.
        """
        phases_ns, _ = split_ns(self._spans[since:], start_ns, end_ns)
        return {name: phases_ns[name] / 1e9 for name in TIMELINE if phases_ns.get(name)}


def split_ns(spans: Iterable[tuple[str, int, int]], start_ns: int, end_ns: int) -> tuple[dict[str, int], int]:
    """Sweep the window once and give every instant to the highest phase that claims it.

    Args:
        spans: In any order; parts outside the window are cut off.
        start_ns: Start of the window.
        end_ns: End of the window, not before its start.

    Returns:
        Exclusive nanoseconds per phase that has any (they add up to ``end_ns - start_ns``), and the hidden
        nanoseconds: work that went on behind another phase, or beside a span of its own phase. An envelope is hidden
        neither by the infrastructure inside it nor by its own commands.
    """
    assert start_ns <= end_ns, "the window ends before it starts: two clocks?"
    edges: list[tuple[int, int, int]] = []
    for phase, from_ns, until_ns in spans:
        from_ns, until_ns = max(from_ns, start_ns), min(until_ns, end_ns)
        if from_ns < until_ns:
            rank = _RANK[phase]
            edges.append((from_ns, 1, rank))
            edges.append((until_ns, -1, rank))
    edges.sort()

    totals = [0] * len(_NAMES)
    open_spans = [0] * len(_NAMES)
    open_mask, hidden_ns, at_ns = 0, 0, start_ns
    for edge_ns, change, rank in edges:
        if edge_ns > at_ns:
            # The lowest set bit is the highest priority.
            winner = (open_mask & -open_mask).bit_length() - 1 if open_mask else _OTHER
            totals[winner] += edge_ns - at_ns
            hidden_ns += (edge_ns - at_ns) * _behind(open_spans, open_mask, winner)
            at_ns = edge_ns
        open_spans[rank] += change
        open_mask = open_mask | 1 << rank if open_spans[rank] else open_mask & ~(1 << rank)
    totals[_OTHER] += end_ns - at_ns
    return {name: ns for name, ns in zip(_NAMES, totals, strict=True) if ns}, hidden_ns


def _behind(open_spans: Sequence[int], open_mask: int, winner: int) -> int:
    """How many spans go on behind the winner at this instant."""
    if not open_mask:
        return 0
    # Copies of an envelope are one envelope: its commands bring their own pieces of it.
    behind = 0 if winner in _CONTAINED_MASK else open_spans[winner] - 1
    rest = open_mask & ~(1 << winner)
    while rest:
        rank = (rest & -rest).bit_length() - 1
        rest &= rest - 1
        contained = _CONTAINED_MASK.get(rank)
        if contained is None:
            behind += open_spans[rank]
        elif not contained >> winner & 1:
            behind += 1
    return behind


def timing_of(phases_ns: Mapping[str, int], hidden_ns: int) -> Timing:
    """The split as seconds, grouped by who pays; phases in the order of a rollout, ``other`` always among them."""
    kinds_ns: dict[Kind, int] = {"env": 0, "infra": 0, "policy": 0}
    for name, ns in phases_ns.items():
        kinds_ns[PHASES[name].kind] += ns
    return Timing(
        wall_s=sum(phases_ns.values()) / 1e9,
        env_s=kinds_ns["env"] / 1e9,
        infra_s=kinds_ns["infra"] / 1e9,
        policy_s=kinds_ns["policy"] / 1e9,
        hidden_s=hidden_ns / 1e9,
        phases={n: phases_ns.get(n, 0) / 1e9 for n in TIMELINE if phases_ns.get(n) or n == "other"},
    )


def clock_id() -> str:
    """Names this machine's monotonic clock: processes with the same non-empty id may subtract each other's readings.

    Linux counts CLOCK_MONOTONIC from boot for all processes of a machine, except in another time namespace. "" where
    the system does not say (then nobody shares a clock).
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot_id}/{Path('/proc/self/ns/time').readlink()}"
    except OSError:  # Linux before 5.6 has no time namespaces
        return boot_id


def _known(phase: str) -> None:
    if phase not in _RANK:
        raise unknown_name("phase", phase, PHASES)
