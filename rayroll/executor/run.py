"""A run: many rollouts of one policy over many tasks, as many at once as there are slots, yielded as they finish."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rayroll.errors import CallerError, Failure, InfraFailure
from rayroll.executor.control import Control
from rayroll.executor.gate import PauseMode
from rayroll.executor.hosts import Hosts
from rayroll.executor.play import Attempt, PolicyFailed, Rules, Sample
from rayroll.executor.reading import Reading
from rayroll.scheduler import (
    Asked,
    AttemptId,
    Cancelled,
    Cooled,
    End,
    Ended,
    Needs,
    Paused,
    Reached,
    Resumed,
    RunOpened,
    Spares,
    Started,
    StopReason,
    Taken,
)
from rayroll.types import Rollout, Rung, Task, Timing

__all__ = ["Run", "RunLimits", "numbered"]

logger = logging.getLogger(__name__)

CANCEL_S = 3.0
"""Longest wait for rollouts to free their sandboxes one by one; the host then frees them all at once."""
NOBODY = Timing(0.0, 0.0, 0.0, 0.0, 0.0, {"other": 0.0})


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What bounds a run."""

    max_in_flight: int
    max_infra_retries: int
    spares: Spares


@dataclass(slots=True, eq=False)
class _Trial:
    """An attempt as its run sees it."""

    sample: Sample
    asked_ns: int
    task: asyncio.Task[None] | None = None
    attempt: Attempt | None = None
    """None as long as it waits for its host."""
    rollout: Rollout | None = None
    """Its record, once it has ended."""
    is_stopped_early: bool = False
    is_warm: bool = False
    """The scheduler counts on an idle sandbox for it."""

    def wasted_s(self) -> float:
        """What it cost, where it does not count."""
        if self.rollout is not None:
            timing = self.rollout.timing
            return timing.wall_s - timing.policy_s - timing.phases.get("queue", 0.0)
        return self.attempt.spent_s if self.attempt is not None else 0.0


class Run(Reading):
    """Rollouts under way."""

    def __init__(
        self,
        name: str,
        run_id: str,
        control: Control,
        hosts: Hosts,
        rules: Rules,
        samples: Sequence[Sample],
        images: Mapping[str, str | None],
        limits: RunLimits,
        finished: Collection[str],
        on_rollout: Callable[[Rollout], None],
    ) -> None:
        """For ``Executor.submit``."""
        super().__init__(run_id, [sample.task.id for sample in samples], finished, lambda: control.post(Taken(name)))
        self.in_flight = 0
        """Rollouts that hold a slot and are being played."""
        self.set_aside: dict[str, Failure] = {}
        """Tasks whose own fault ended a rollout; their remaining rollouts are not played."""
        self._name, self._control, self._hosts, self._rules, self._limits = name, control, hosts, rules, limits
        self._images = images
        """What each task's sandboxes stand on, by the task's id."""
        self._samples = {f"{name}/{sample.rollout_id}": sample for sample in samples}
        self._trials: dict[AttemptId, _Trial] = {}
        self._trials_of: dict[str, list[_Trial]] = {}
        self._partial: dict[str, bool] = {}
        """Cancelled rollouts, and whether what they have is kept."""
        self._on_rollout = on_rollout
        self._settled = 0
        self._line_ns = time.monotonic_ns()
        """When the first in line became the first: from then on it waits for a slot, and not for its turn."""
        self._all_settled = asyncio.Event()
        self._is_over = False
        self._group: asyncio.TaskGroup
        self._driving = asyncio.get_running_loop().create_task(self._drive(), name=f"run {name}")
        self._driving.add_done_callback(self._on_end)

    # --- what its reader does ---

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Ask the policy nothing more, and return when it works on nothing; sandboxes stay, commands under way go on.

        Args:
            mode: ``drain`` waits for answers that the policy is working on; ``abort_turn`` cancels them, and the same
                turns are asked again after ``resume``.
        """
        self._control.post(Paused(self._name))
        await self._rules.gate.close(mode)

    def resume(self, policy_version: int | None = None) -> None:
        """Go on, with the version that turns carry from now on; None: the one they carried."""
        self._rules.gate.open(policy_version)
        self._control.post(Resumed(self._name))

    async def cancel(self, group_id: str | None = None, *, keep_partial: bool = False) -> None:
        """Stop. Idempotent.

        Args:
            group_id: Only this group's rollouts; None: the whole run, whose sandboxes are freed here or by
                ``Executor.close``.
            keep_partial: Rollouts that are under way are still yielded, as far as they got: ``reward=None``,
                ``valid=False``, ``truncated=True``, the failure says ``cancelled``. Otherwise they are given up.

        Raises:
            CallerError: The run has no such group.
        """
        if group_id is not None or keep_partial:
            rollouts = [
                rollout
                for rollout, sample in self._samples.items()
                if group_id in (None, sample.group_id or sample.task.id)
            ]
            if not rollouts:
                raise CallerError("the run has no such group", group_id=group_id)
            for rollout in rollouts:
                self._partial.setdefault(rollout, keep_partial)
            self._control.post(Cancelled(tuple(rollouts)))
        elif not self._driving.done():
            self._end()
            self._driving.cancel()
            await asyncio.wait({self._driving}, timeout=CANCEL_S)

    def on_end(self, forget: Callable[[Run], None]) -> None:
        """Call this when the run is over."""
        self._driving.add_done_callback(lambda _: forget(self))

    # --- what the scheduler asks for ---

    def begin(self, attempt: AttemptId, host: str, *, is_warm: bool) -> None:
        """See ``Player``."""
        now_ns = time.monotonic_ns()
        others = self._trials_of.setdefault(attempt.rollout, [])
        asked_ns = now_ns
        if not others:
            asked_ns, self._line_ns = self._line_ns, now_ns
        elif (last := others[-1].rollout) is not None:
            asked_ns = others[-1].asked_ns + round(last.timing.wall_s * 1e9)
        trial = _Trial(self._samples[attempt.rollout], asked_ns, is_warm=is_warm)
        is_spare = any(other.rollout is None for other in others)
        others.append(trial)
        self._trials[attempt] = trial
        trial.task = self._group.create_task(
            self._play(attempt, host, trial, is_spare, now_ns), name=f"rollout {attempt.rollout}"
        )

    def expire(self, attempt: AttemptId, stage: str) -> None:
        """See ``Player``."""
        trial = self._trials.get(attempt)
        if trial is not None and trial.attempt is not None:
            trial.attempt.expire(stage)

    def stop(self, attempt: AttemptId, reason: StopReason) -> None:
        """See ``Player``."""
        trial = self._trials.get(attempt)
        if trial is None or self._is_over:  # whoever ends the run cancels them all
            return
        if trial.attempt is not None:
            trial.attempt.stop(reason)
        elif trial.task is not None:
            trial.is_stopped_early = True
            trial.task.cancel()

    def settle(self, rollout: str, attempt: AttemptId | None, reason: str) -> None:
        """See ``Player``."""
        sample, trials = self._samples[rollout], self._trials_of.pop(rollout, [])
        counts = None if attempt is None else trials[attempt.number - 1]
        record = counts.rollout if counts is not None else None
        if record is None and rollout not in self._partial:
            reason = reason or "the attempt did not end in time and was given up"
            record = _not_played(sample, Failure("infra", reason, "HostLostError"))
        if record is not None and len(trials) > 1:
            wasted_s = sum(trial.wasted_s() for trial in trials if trial is not counts)
            record = replace(record, attempts=len(trials), infra_retry_s=wasted_s)
        if record is not None and record.failure is not None:
            if record.failure.fault in ("task", "grader"):
                self.set_aside[sample.task.id] = record.failure
            if record.failure.error == "cancelled" and not self._partial.get(rollout):
                record = None
        if record is not None:
            self._on_rollout(record)
        self._put(sample.task.id, record)
        self._settled += 1
        if self._settled == self.total:
            self._all_settled.set()

    # --- how it works ---

    def fail(self, error: Exception) -> None:
        """End the run, as nothing can go on."""

        async def raise_it() -> None:
            raise error

        if not self._is_over:
            self._end()
            self._group.create_task(raise_it())

    def _end(self) -> None:
        self._is_over = True
        self._control.close_run(self._name)

    def _on_end(self, driving: asyncio.Task[None]) -> None:
        self._close(None if driving.cancelled() else driving.exception())

    async def _drive(self) -> None:
        opened = RunOpened(self._name, self._limits.max_in_flight, self._limits.max_infra_retries, self._limits.spares)
        try:
            async with asyncio.TaskGroup() as self._group:
                self._control.open_run(opened, self)
                self._control.ask([self._asked(rollout, sample) for rollout, sample in self._samples.items()])
                if self.total:
                    await self._all_settled.wait()
                # Attempts that were overtaken may still be closing.
        except ExceptionGroup as errors:
            first, *others = errors.exceptions
            for other in others:
                logger.error("besides the error that ended the run: %r", other)
            raise (first.__cause__ if isinstance(first, PolicyFailed) and first.__cause__ else first) from None
        finally:
            self._end()

    def _asked(self, rollout: str, sample: Sample) -> Asked:
        task = sample.task
        needs = Needs(task.id, self._images[task.id], memory_mib=task.memory_mib, disk_mib=task.disk_mib)
        return Asked(rollout, self._name, needs, sample.group_id)

    async def _play(self, id: AttemptId, host: str, trial: _Trial, is_spare: bool, granted_ns: int) -> None:
        end: End = "stopped"
        retry_after_s, is_warm = None, False
        try:
            known = self.set_aside.get(trial.sample.task.id)
            if known is not None:
                trial.rollout, end = _not_played(trial.sample, known), "done"
                return
            async with self._hosts.lend(host) as loan:
                trial.attempt = Attempt(
                    trial.sample,
                    self._rules,
                    loan,
                    host=host,
                    number=id.number,
                    boots_first=is_spare,
                    asked_ns=trial.asked_ns,
                    granted_ns=granted_ns,
                    on_started=lambda took_s, rung: self._on_started(id, host, took_s, rung),
                    on_reached=lambda stage, within_s, left_s: self._control.post(Reached(id, stage, within_s, left_s)),
                )
                self.in_flight += 1
                try:
                    trial.rollout = await trial.attempt.play()
                finally:
                    self.in_flight -= 1
            end, retry_after_s = trial.attempt.end, trial.attempt.retry_after_s
            is_warm = trial.attempt.is_recycled
        except InfraFailure as error:  # there is no host to be lent
            trial.rollout, end = _not_played(trial.sample, error.failure()), "spoilt"
        except asyncio.CancelledError:
            if not trial.is_stopped_early:
                raise
        except Exception:
            self._end()
            raise
        finally:
            self._control.post(Ended(id, end, retry_after_s, is_warm))
            del self._trials[id]

    def _on_started(self, id: AttemptId, host: str, took_s: float, rung: Rung) -> None:
        was_idle = rung in ("warm", "recycled")
        self._control.post(Started(id, took_s, was_idle))
        trial = self._trials[id]
        if was_idle and not trial.is_warm:  # nobody knew of it when the attempt began; now it is taken
            self._control.post(Cooled(host, trial.sample.task.id))


def numbered(tasks: Sequence[Task], samples_per_task: int) -> Iterator[tuple[Task, int]]:
    made: Counter[str] = Counter()
    for task in tasks:
        for _ in range(samples_per_task):
            yield task, made[task.id]
            made[task.id] += 1


def _not_played(sample: Sample, failure: Failure) -> Rollout:
    return Rollout(
        id=sample.rollout_id,
        run_id=sample.run_id,
        task_id=sample.task.id,
        substrate=sample.substrate,
        reward=None,
        valid=False,
        timing=NOBODY,
        failure=failure,
        attempts=0,
        group_id=sample.group_id,
        sample_index=sample.sample_index,
        seed=sample.seed,
        labels=sample.labels,
    )
