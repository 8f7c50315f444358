"""A session has its pace: whose last calls took longer than the model thought, the next one likely does too.

How a call's time stood among what the model thought possible is a normal score, 0 in the middle. A session's scores go
together: one part is the session's own, one its program's in that session, one the very command's; the rest is noise.
These are nested normal effects, whose posterior is exact and costs the same however long the session is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Pace", "Shares"]


@dataclass(frozen=True, slots=True)
class Shares:
    """How much of a score's variance, which is 1, is whose; what is left is noise."""

    session: float = 0.0
    program: float = 0.0
    command: float = 0.0

    @property
    def noise(self) -> float:
        """Never nothing: two runs of a command differ."""
        return max(1.0 - self.session - self.program - self.command, 0.02)


@dataclass(slots=True)
class _Group:
    """Evidence from below: precision, and precision times mean."""

    precision: float = 0.0
    weighted: float = 0.0


@dataclass(slots=True)
class Pace:
    """A session's scores so far."""

    whole: _Group = field(default_factory=_Group)
    programs: dict[str, _Group] = field(default_factory=dict)
    commands: dict[str, list[float]] = field(default_factory=dict)
    """Of each command, how often it ran and the sum of its scores."""

    def add(self, program: str, command: str, score: float, shares: Shares) -> None:
        """A call ended."""
        group = self.programs.setdefault(program, _Group())
        before, before_up = self._told(command, shares), _up(group, shares.program)
        tally = self.commands.setdefault(command, [0.0, 0.0])
        tally[0] += 1
        tally[1] += score
        _exchange(group, before, self._told(command, shares))
        _exchange(self.whole, before_up, _up(group, shares.program))

    def next(self, program: str, command: str, shares: Shares) -> tuple[float, float]:
        """Mean and standard deviation of the next call's score; (0, 1) where nothing is known."""
        if not self.commands:
            return 0.0, 1.0
        group = self.programs.get(program) or _Group()
        own = self._told(command, shares)
        # Down the tree: what all others say of the session, then of the program in it, then this command's own runs.
        mean, variance = _posterior(0.0, shares.session, _without(self.whole, _up(group, shares.program)))
        mean, variance = _posterior(mean, variance + shares.program, _without(group, own))
        variance += shares.command
        count, total = self.commands.get(command, (0.0, 0.0))
        if count:
            mean, variance = _posterior(mean, variance, _Group(count / shares.noise, total / shares.noise))
        return mean, (variance + shares.noise) ** 0.5

    def _told(self, command: str, shares: Shares) -> _Group:
        """What a command's runs say of the effects above it."""
        count, total = self.commands.get(command, (0.0, 0.0))
        if not count:
            return _Group()
        precision = 1 / (shares.command + shares.noise / count)
        return _Group(precision, precision * total / count)


def _up(group: _Group, variance: float) -> _Group:
    """What a program's commands say of the session."""
    if group.precision <= 0:
        return _Group()
    precision = 1 / (variance + 1 / group.precision)
    return _Group(precision, precision * group.weighted / group.precision)


def _exchange(group: _Group, old: _Group, new: _Group) -> None:
    group.precision += new.precision - old.precision
    group.weighted += new.weighted - old.weighted


def _without(group: _Group, part: _Group) -> _Group:
    return _Group(max(group.precision - part.precision, 0.0), group.weighted - part.weighted)


def _posterior(mean: float, variance: float, evidence: _Group) -> tuple[float, float]:
    if variance <= 0:
        return mean, 0.0
    precision = 1 / variance + evidence.precision
    return (mean / variance + evidence.weighted) / precision, 1 / precision
