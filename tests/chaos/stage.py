"""A run whose rollouts stand still in every phase of a rollout at once, so that one fault meets them all.

Who is in which phase says the scheduler, the same that ``rayroll top`` shows.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import little

from rayroll import Act, Executor, Rollout, Task, Turn
from rayroll.executor import PlayConfig, Run
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.testing.disturbed import DISTURB

PHASES = ("start", "policy", "exec", "between", "grade", "close")
"""``policy`` is the first turn, with a sandbox that is up; ``between`` is one after a command."""
BYSTANDER = "bystander"
"""One more, which waits between two commands and is left alone."""
BEFORE = {"start": 1, "policy": 5, "close": 1}
THERE = {"start": 1, "policy": 3, "exec": 1, "grade": 1, "close": 1}
"""What attempts wait for: before those go on whose place does not last, and when all are in their places."""
LONG_S = 4.0
"""How long the command and the grader last that are to be met."""
CONFIG = PlayConfig(start_deadline_s=40.0, deadline_s=60.0, exec_timeout_s=20.0)
SOLVE = "echo 42 > answer.txt; sleep 600 > /dev/null 2>&1 &"
VICTIM = "CHAOS_VICTIM"
"""Variable in the sandboxes that a fault may pick: those that are there, but for the bystander's."""


class Stage:
    """Policy and tasks of such a run; a second attempt is not held up anywhere."""

    def __init__(self, folder: Path, *, samples: int = 1) -> None:
        """
        Args:
            folder: An empty one.
            samples: Rollouts in each phase.
        """
        self.samples = samples
        self.error: Exception | None = None
        """What the policy raises from then on."""
        self._file = folder / "go"
        self._all_but_two_are_there, self._go = asyncio.Event(), asyncio.Event()

    def tasks(self) -> list[Task]:
        """One for each phase, named after it, and the bystander's."""
        waits = {name: json.dumps({f"{name}_waits_for": str(self._file)}) for name in ("create", "destroy")}
        special: dict[str, dict[str, Any]] = {
            "start": {"env": {DISTURB: waits["create"]}},
            "close": {"env": {DISTURB: waits["destroy"]}},
            "grade": {"grader": f"sleep {LONG_S}\n{little.GRADER}"},
        }
        made = []
        for phase in (*PHASES, BYSTANDER):
            fields = special.get(phase, {})
            marks = {} if phase in ("close", BYSTANDER) else {VICTIM: phase}
            made.append(little.task(phase, **{**fields, "env": {**fields.get("env", {}), **marks}}))
        return made

    async def act(self, turn: Turn) -> Act:
        """See ``Policy``."""
        phase = phase_of(turn)
        if turn.attempt == 1 and turn.index == 0 and phase == "policy":
            await self._go.wait()
        if turn.index == 0:
            return Act(SOLVE)
        if turn.attempt == 1 and turn.index == 1:
            if phase in ("exec", "grade"):
                await self._all_but_two_are_there.wait()
            if phase in ("between", BYSTANDER):
                await self._go.wait()
            if phase in ("exec", "between", BYSTANDER):
                if self.error is not None:
                    raise self.error
                return Act(f"sleep {LONG_S}" if phase == "exec" else "true")
        return Act(submit=True)

    def submit(self, executor: Executor, *, before: Sequence[Task] = (), finished: Collection[str] = ()) -> Run:
        """Begin it. ``before``: more tasks, which are just solved; ``finished``: see ``Executor.submit``."""
        tasks = [*before, *self.tasks()]
        return executor.submit(tasks, self, samples_per_task=self.samples, config=CONFIG, finished=finished)

    async def is_set(self, executor: Executor) -> None:
        """Wait until everybody is in the right place."""
        await self._until(executor, BEFORE)
        self._all_but_two_are_there.set()
        await self._until(executor, THERE)

    async def _until(self, executor: Executor, stages: dict[str, int]) -> None:
        wanted = {stage: count * self.samples for stage, count in stages.items()}
        await little.until(lambda: executor.snapshot().stages == wanted)

    async def go_on(self) -> None:
        """Whoever waits goes on."""
        await asyncio.to_thread(self._file.touch)
        self._all_but_two_are_there.set()
        self._go.set()

    async def play(self, executor: Executor, fault: Callable[[], Awaitable[None]]) -> list[Rollout]:
        """Set it, do the fault, go on, and read all rollouts, each of which is told once."""
        run = self.submit(executor)
        try:
            await self.is_set(executor)
            await fault()
        finally:
            await self.go_on()
        rollouts = [rollout async for rollout in run.rollouts()]
        told = Counter(phase_of(rollout) for rollout in rollouts)
        assert told == dict.fromkeys((*PHASES, BYSTANDER), self.samples), "one is lost, or told twice"
        assert len({rollout.id for rollout in rollouts}) == len(rollouts)
        return rollouts


async def play_beside(executor: Executor, *, samples: int = 8) -> list[Rollout]:
    """Rollouts on another substrate while a fault lasts."""
    run = executor.submit([little.task("beside")], ScriptedPolicy(["echo 42 > answer.txt"]), samples_per_task=samples)
    return [rollout async for rollout in run.rollouts()]


def phase_of(told: Rollout | Turn) -> str:
    return told.task_id.partition("/")[2]


def of(rollouts: list[Rollout], phase: str) -> Rollout:
    """The first one that was held in a phase."""
    return next(rollout for rollout in rollouts if phase_of(rollout) == phase)


def all_are_right(rollouts: list[Rollout], *, attempts: int = 2) -> None:
    """Everybody has the reward that was earned, after so many attempts at the most."""
    for rollout in rollouts:
        assert (rollout.reward, rollout.failure) == (1.0, None), rollout
        assert rollout.attempts <= (1 if phase_of(rollout) == "close" else attempts), (
            "what was graded is not played again"
        )


def all_are_right_or_typed(rollouts: list[Rollout]) -> None:
    """Where the machine spoilt one, it has no reward."""
    spoilt = [rollout for rollout in rollouts if not rollout.valid]
    all_are_right([rollout for rollout in rollouts if rollout.valid])
    for rollout in spoilt:
        assert rollout.reward is None
        assert rollout.failure is not None and rollout.failure.fault == "infra"
        assert phase_of(rollout) != "close"
