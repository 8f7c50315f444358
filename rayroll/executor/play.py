"""One rollout from open to close: asks the policy, sends its commands, grades, and writes the record."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rayroll.config import Config
from rayroll.errors import Failure, RayrollError
from rayroll.executor.link import CALL_S, HostLink
from rayroll.executor.messages import Close, Completion, Exec, Judge, Message, Open, Opened
from rayroll.policies import Policy
from rayroll.timing import Recorder, clock_id
from rayroll.types import Act, ExecResult, Grade, Rollout, Step, Task, Turn

__all__ = ["PlayConfig", "Sample", "play", "rollout_id"]

logger = logging.getLogger(__name__)


class PlayConfig(Config):
    """The rules of a rollout."""

    max_steps: int = 100
    """Actions after which a rollout is truncated."""
    grade_on: Literal["submit", "end"] = "end"
    """``end`` grades also what a limit ended; ``submit`` gives that 0.0."""
    deadline_s: float = 3600.0
    """Seconds from open to the last command; the policy's time counts."""
    start_deadline_s: float = 900.0
    """Longest wait for a sandbox, its image's pull and build included."""
    exec_timeout_s: float = 120.0
    """Limit of a command whose act brings none."""
    fingerprint: bool = False
    """Hash what each agent left, to prove that substrates did equal work; some ms a rollout, booked as ``grade``."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout to be made."""

    run_id: str
    task: Task
    sample_index: int
    substrate: str
    seed: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    """Tells apart rollouts of one task and sample in one run, such as those of a sweep's cells."""
    grouped: bool = False

    @property
    def rollout_id(self) -> str:
        """See ``rollout_id``."""
        return rollout_id(self.run_id, self.task.id, self.sample_index, self.namespace)


def rollout_id(run_id: str, task_id: str, sample_index: int, namespace: str = "") -> str:
    """Hash of run, task and sample: equal in a resumed run, so that it skips what is finished."""
    return hashlib.sha256(f"{run_id}\0{namespace}\0{task_id}\0{sample_index}".encode()).hexdigest()[:20]


async def play(
    sample: Sample, link: HostLink, policy: Policy, config: PlayConfig, *, asked_ns: int, retries: int
) -> Rollout:
    """Play one rollout, again from its beginning where the machine fails.

    Args:
        sample: What to play.
        link: The host that gets the sandbox.
        policy: Who acts.
        config: The rules.
        asked_ns: When the rollout began to wait for its slot, by ``time.monotonic_ns``.
        retries: How many attempts the machine may spoil before the rollout is recorded as invalid.

    Raises:
        RayrollError: With fault ``caller``: the calling program must change.
    """
    spoilt_s = 0.0
    for attempt in range(1, retries + 2):
        rollout = await _Attempt(sample, link, policy, config, asked_ns).play()
        rollout = replace(rollout, attempts=attempt, infra_retry_s=spoilt_s)
        if rollout.failure is None or rollout.failure.fault != "infra" or attempt > retries:
            return rollout
        logger.warning("rollout %s: attempt %d spoilt: %s", rollout.id, attempt, rollout.failure.reason)
        spoilt_s += rollout.timing.wall_s - rollout.timing.policy_s
        asked_ns = Recorder().now_ns()
    raise AssertionError("unreachable: the last attempt returns")


class _Attempt:
    """One try at one rollout."""

    def __init__(self, sample: Sample, link: HostLink, policy: Policy, config: PlayConfig, asked_ns: int) -> None:
        self._sample, self._link, self._policy, self._config = sample, link, policy, config
        self._id = sample.rollout_id
        self._recorder = Recorder()
        self._asked_ns = asked_ns
        self._covered_ns = asked_ns
        """Everything up to here has a phase: what the driver does between two calls belongs to the next or the last."""
        self._policy_ns = 0
        self._same_clock = link.info.clock_id == clock_id() != ""
        self._steps: list[Step] = []
        self._opened: Opened | None = None
        self._reset_s: float | None = None
        self._submitted = self._truncated = False

    async def play(self) -> Rollout:
        self._cover("queue")
        grade, failure = None, None
        try:
            grade = await self._episode()
            failure = grade.failure
        except RayrollError as error:
            if error.fault == "caller":
                raise
            failure = error.failure()
            if error.fault == "policy":
                grade = Grade(0.0, failure=failure)
        finally:
            await self._close()
        return self._record(grade, failure)

    async def _episode(self) -> Grade:
        sample, config = self._sample, self._config
        act = await self._first_act()
        while not act.submit:
            result = await self._exec(act)
            if len(self._steps) >= config.max_steps or self._elapsed_s() >= config.deadline_s:
                self._truncated = True
                break
            act = await self._act(result)
        self._submitted = act.submit
        if not self._submitted and config.grade_on == "submit":
            return Grade(0.0)
        deadline_s = sample.task.grade_timeout_s + config.start_deadline_s
        grade: Grade = await self._ask(Judge(self._id, config.fingerprint), deadline_s)
        return grade

    async def _first_act(self) -> Act:
        """The sandbox starts behind the first generation, which needs only the instruction."""
        opening = asyncio.get_running_loop().create_task(self._open(), name=f"open {self._id}")
        try:
            act = await self._act(None)
            await opening
            return act
        finally:
            opening.cancel()
            await asyncio.wait({opening})

    async def _open(self) -> None:
        sample = self._sample
        group_id = sample.task.id if sample.grouped else None
        message = Open(self._id, sample.task.id, sample.seed, group_id, sample.sample_index, self._config.deadline_s)
        start_ns = self._recorder.now_ns()
        self._opened = await self._ask(message, self._config.start_deadline_s)
        self._reset_s = (self._recorder.now_ns() - start_ns) / 1e9

    async def _act(self, last: ExecResult | None) -> Act:
        sample = self._sample
        turn = Turn(
            rollout_id=self._id,
            task_id=sample.task.id,
            instruction=sample.task.instruction,
            index=len(self._steps),
            observation=sample.task.instruction if last is None else last.output,
            exit_code=None if last is None else last.exit_code,
            group_id=sample.task.id if sample.grouped else None,
            sample_index=sample.sample_index,
            seed=sample.seed,
        )
        self._cover("return")
        asked_ns = self._covered_ns
        try:
            return await self._policy.act(turn)
        finally:
            self._cover("policy")
            self._policy_ns = self._covered_ns - asked_ns

    async def _exec(self, act: Act) -> ExecResult:
        timeout_s = self._config.exec_timeout_s if act.timeout_s is None else act.timeout_s
        start_ns, mark, policy_ns = self._covered_ns, self._recorder.mark(), self._policy_ns
        result: ExecResult = await self._ask(Exec(self._id, act.command, timeout_s), timeout_s + CALL_S)
        phases_s = self._recorder.phases_s(start_ns, self._covered_ns, since=mark)
        self._step(act, result, {"policy": policy_ns / 1e9, **phases_s})
        return result

    def _cover(self, phase: str) -> None:
        """The time since what was covered last was this."""
        now_ns = self._recorder.now_ns()
        self._recorder.add(phase, self._covered_ns, now_ns)
        self._covered_ns = now_ns

    async def _ask(self, message: Message, deadline_s: float) -> Any:
        start_ns = self._covered_ns
        done = await self._link.call(message, deadline_s=deadline_s)
        self._take_over(done, start_ns)
        self._covered_ns = self._recorder.now_ns()
        if done.error is not None:
            raise done.error
        return done.value

    def _take_over(self, done: Completion, start_ns: int) -> None:
        self._recorder.add_remote(
            start_ns,
            self._recorder.now_ns(),
            done.residence_ns,
            done.spans,
            same_clock=self._same_clock,
            arrived_ns=done.arrived_ns,
        )

    def _step(self, act: Act, result: ExecResult, phases_s: Mapping[str, float]) -> None:
        digest = hashlib.sha256(f"{result.exit_code}\0".encode() + result.raw).hexdigest()
        self._steps.append(
            Step(
                act=act,
                exit_code=result.exit_code,
                timed_out=result.timed_out,
                truncated=result.truncated,
                output_bytes=result.output_bytes,
                output_digest=digest,
                timing=result.timing,
                phases_s=phases_s,
            )
        )

    def _elapsed_s(self) -> float:
        return (self._recorder.now_ns() - self._asked_ns) / 1e9

    async def _close(self) -> None:
        """Free the sandbox. A host that is gone frees it by the lease."""
        try:
            await self._ask(Close(self._id), CALL_S)
        except RayrollError as error:
            logger.info("rollout %s: close: %s", self._id, error)

    def _record(self, grade: Grade | None, failure: Failure | None) -> Rollout:
        sample, opened = self._sample, self._opened
        scored = grade is not None and grade.reward is not None
        return Rollout(
            id=self._id,
            run_id=sample.run_id,
            task_id=sample.task.id,
            substrate=sample.substrate,
            reward=grade.reward if grade is not None else None,
            valid=scored,
            timing=self._recorder.split(self._asked_ns, self._recorder.now_ns()),
            steps=tuple(self._steps),
            grade=grade,
            failure=failure,
            submitted=self._submitted,
            truncated=self._truncated,
            rung=opened.rung if opened else "cached",
            cold_start_s=opened.cold_start_s if opened else None,
            first_action_s=opened.first_action_s if opened else None,
            reset_s=self._reset_s,
            group_id=sample.task.id if sample.grouped else None,
            sample_index=sample.sample_index,
            seed=sample.seed,
            work_digest=self._work_digest(grade),
            node=self._link.info.node,
            labels={**sample.labels, "system": opened.system} if opened else sample.labels,
        )

    def _work_digest(self, grade: Grade | None) -> str:
        """Exit codes, the files that were left, and the verdict: equal work gives equal digests on every substrate."""
        if grade is None or "work" not in grade.details:
            return ""
        codes = ",".join(str(step.exit_code) for step in self._steps)
        return hashlib.sha256(f"{codes}\0{grade.details['work']}\0{grade.reward}".encode()).hexdigest()
