"""One rollout from open to close: asks the policy, sends its commands, grades, and writes the record."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import Field

from rayroll.config import Config
from rayroll.errors import CallerError, Failure, RayrollError
from rayroll.executor.hosts import Hosts
from rayroll.executor.link import CALL_S, HostLink
from rayroll.executor.messages import Close, Completion, Exec, Judge, Message, Open, Opened
from rayroll.policies import Policy
from rayroll.policies.random import RandomPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.session import SessionConfig, observation
from rayroll.timing import Recorder
from rayroll.types import Act, ExecResult, Grade, Rollout, Step, Task, Turn

__all__ = ["PlayConfig", "PolicyFailed", "Sample", "Stage", "play", "rollout_id"]

logger = logging.getLogger(__name__)

FINAL = {"ImageError"}
"""What the machine does wrong in the same way when it is asked again: its substrate has retried what may pass."""


class PlayConfig(Config):
    """The rules of a rollout."""

    max_steps: int = Field(default=100, ge=1)
    """Actions after which a rollout is truncated."""
    grade_on: Literal["submit", "end"] = "end"
    """``end`` grades also what a limit ended; ``submit`` gives that 0.0."""
    deadline_s: float | None = Field(default=None, gt=0.0)
    """Seconds from a started sandbox to the last command; the policy's time counts, and a policy that is still thinking
    then is cancelled. None: the task's ``agent_timeout_s``."""
    start_deadline_s: float = Field(default=900.0, gt=0.0)
    """Longest wait for a sandbox, its image's pull and build included."""
    exec_timeout_s: float | None = Field(default=None, gt=0.0)
    """Limit of a command whose act brings none; None: the session's (``SessionConfig.exec_timeout_s``)."""
    fingerprint: bool = False
    """Hash what each agent left, to prove that substrates did equal work; some ms a rollout, booked as ``grade``."""


class PolicyFailed(Exception):
    """A policy raised, or answered what is no act. Its cause is what the reader of the run gets."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What all rollouts of a run share."""

    hosts: Hosts
    policy: Policy
    config: PlayConfig
    session: SessionConfig
    max_infra_retries: int
    """Attempts the machine may spoil before a rollout is recorded as invalid."""


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
    def group_id(self) -> str | None:
        """Of the samples of one task, where there are several."""
        return self.task.id if self.grouped else None

    @property
    def rollout_id(self) -> str:
        """See ``rollout_id``."""
        return rollout_id(self.run_id, self.task.id, self.sample_index, self.namespace)


def rollout_id(run_id: str, task_id: str, sample_index: int, namespace: str = "") -> str:
    """Hash of run, task and sample: equal in a resumed run, so that it skips what is finished."""
    return hashlib.sha256(f"{run_id}\0{namespace}\0{task_id}\0{sample_index}".encode()).hexdigest()[:20]


async def play(sample: Sample, stage: Stage, *, asked_ns: int) -> Rollout:
    """Play one rollout, again from its beginning where the machine fails.

    Args:
        sample: What to play.
        stage: Where, by whom, and by which rules.
        asked_ns: When the rollout began to wait for its slot, by ``time.monotonic_ns``.

    Raises:
        PolicyFailed: The policy raised.
        RayrollError: With fault ``caller``: the calling program must change. With fault ``infra``: no host can be
            started any more. Either ends the run.
    """
    spoilt_s = 0.0
    for attempt in range(1, stage.max_infra_retries + 2):
        granted_ns = Recorder().now_ns()
        async with stage.hosts.lend() as link:
            rollout = await _Attempt(sample, stage, link, asked_ns, granted_ns).play()
        rollout = replace(rollout, attempts=attempt, infra_retry_s=spoilt_s)
        failure = rollout.failure
        if failure is None or failure.fault != "infra" or failure.error in FINAL or attempt > stage.max_infra_retries:
            return rollout
        logger.warning("rollout %s: attempt %d spoilt: %s", rollout.id, attempt, failure.reason)
        timing = rollout.timing
        spoilt_s += timing.wall_s - timing.policy_s - timing.phases.get("queue", 0.0)
        asked_ns = Recorder().now_ns()
    raise AssertionError("unreachable: the last attempt returns")


class _Attempt:
    """One try at one rollout."""

    def __init__(self, sample: Sample, stage: Stage, link: HostLink, asked_ns: int, granted_ns: int) -> None:
        self._sample, self._link, self._policy, self._config = sample, link, stage.policy, stage.config
        self._deadline_s = stage.config.deadline_s or sample.task.agent_timeout_s
        self._exec_timeout_s = stage.config.exec_timeout_s or stage.session.exec_timeout_s
        self._patience_s = CALL_S + stage.session.lease_s
        """Longest wait for a completion beyond what the work itself may take: its host may look for a lost runner for
        one lease before it says so."""
        # Not the rollout's id: what an earlier attempt left in the host must not be taken for this one's.
        self._session = secrets.token_hex(8)
        self._recorder = Recorder()
        self._recorder.add("queue", asked_ns, granted_ns)
        self._asked_ns = asked_ns
        self._covered_ns = granted_ns
        """Everything up to here has a phase: what the driver does between two calls belongs to the next or the last."""
        self._policy_ns = 0
        self._thinking: asyncio.Timeout | None = None
        self._steps: list[Step] = []
        self._opened: Opened | None = None
        self._opened_ns: int | None = None
        self._reset_s: float | None = None
        self._submitted = self._truncated = False

    async def play(self) -> Rollout:
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
        config = self._config
        act = await self._first_act()
        while act is not None and not act.submit:
            result = await self._exec(act)
            if len(self._steps) >= config.max_steps or self._left_s() <= 0:
                break
            self._cover("return")
            act = await self._act(result)
        self._submitted = act is not None and act.submit
        self._truncated = not self._submitted
        if self._truncated and config.grade_on == "submit":
            return Grade(0.0)
        # Grading may need a sandbox of its own, and an untouched one to find out why there is no verdict.
        work_s = 2 * (self._sample.task.grade_timeout_s + config.start_deadline_s)
        grade: Grade = await self._ask(Judge(self._session, config.fingerprint), work_s)
        return grade

    async def _first_act(self) -> Act | None:
        """The sandbox starts behind the first generation, which needs only the instruction.

        A start that fails cancels the generation, for nobody could use it, and a policy that fails cancels the start.
        """
        opening = asyncio.ensure_future(self._open())
        thinking = asyncio.ensure_future(self._act(None))
        try:
            await asyncio.wait({opening, thinking}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            opening.cancel()
            thinking.cancel()
            await asyncio.wait({opening, thinking})
        if not thinking.cancelled():
            thinking.result()  # the policy's error first: it ends the run
        opening.result()
        return thinking.result()

    async def _open(self) -> None:
        sample, start_ns = self._sample, self._covered_ns
        message = Open(
            session=self._session,
            task=await self._link.teach(sample.task),
            seed=sample.seed,
            group_id=sample.group_id,
            sample_index=sample.sample_index,
            deadline_s=self._deadline_s,
            trusted=isinstance(self._policy, ScriptedPolicy | RandomPolicy),
        )
        done = await self._link.call(message, deadline_s=self._config.start_deadline_s + self._patience_s)
        self._take_over(done, start_ns)
        if done.error is not None:
            raise done.error
        self._opened, self._opened_ns = done.value, self._covered_ns
        self._reset_s = (self._opened_ns - start_ns) / 1e9
        if self._thinking is not None:
            self._thinking.reschedule(asyncio.get_running_loop().time() + self._deadline_s)

    def _left_s(self) -> float:
        """Seconds to the deadline, which is infinitely far as long as there is no sandbox."""
        if self._opened_ns is None:
            return math.inf
        return self._deadline_s - (self._recorder.now_ns() - self._opened_ns) / 1e9

    async def _act(self, last: ExecResult | None) -> Act | None:
        """The policy's answer; None where the deadline passes first. Raises PolicyFailed."""
        sample, start_ns = self._sample, self._covered_ns
        turn = Turn(
            rollout_id=sample.rollout_id,
            task_id=sample.task.id,
            instruction=sample.task.instruction,
            index=len(self._steps),
            observation=sample.task.instruction if last is None else observation(last),
            exit_code=None if last is None else last.exit_code,
            group_id=sample.group_id,
            sample_index=sample.sample_index,
            seed=sample.seed,
        )
        left_s = self._left_s()
        limit = asyncio.timeout(left_s if left_s < math.inf else None)
        try:
            async with limit:
                self._thinking = limit
                return _checked(await self._policy.act(turn))
        except TimeoutError as error:
            if limit.expired():
                return None
            raise PolicyFailed from error
        except Exception as error:
            raise PolicyFailed from error
        finally:
            self._thinking = None
            self._covered_ns = self._recorder.now_ns()
            self._policy_ns = self._covered_ns - start_ns
            self._recorder.add("policy", start_ns, self._covered_ns)

    async def _exec(self, act: Act) -> ExecResult:
        timeout_s = self._exec_timeout_s if act.timeout_s is None else act.timeout_s
        start_ns, mark, policy_ns = self._covered_ns, self._recorder.mark(), self._policy_ns
        result: ExecResult = await self._ask(Exec(self._session, act.command, timeout_s), timeout_s)
        phases_s = self._recorder.phases_s(start_ns, self._covered_ns, since=mark)
        self._steps.append(
            Step(
                act=act,
                exit_code=result.exit_code,
                timed_out=result.timed_out,
                truncated=result.truncated,
                output_bytes=result.output_bytes,
                output_digest=hashlib.sha256(f"{result.exit_code}\0".encode() + result.raw).hexdigest(),
                timing=result.timing,
                phases_s={"policy": policy_ns / 1e9, **phases_s},
            )
        )
        return result

    def _cover(self, phase: str) -> None:
        """The time since what was covered last was this."""
        now_ns = self._recorder.now_ns()
        self._recorder.add(phase, self._covered_ns, now_ns)
        self._covered_ns = now_ns

    async def _ask(self, message: Message, work_s: float) -> Any:
        """Send a message whose work takes at most ``work_s``. Raises what the host answers, or HostLostError."""
        start_ns = self._covered_ns
        try:
            done = await self._link.call(message, deadline_s=work_s + self._patience_s)
        except RayrollError:
            self._cover("return")  # waited for in vain
            raise
        self._take_over(done, start_ns)
        if done.error is not None:
            raise done.error
        return done.value

    def _take_over(self, done: Completion, start_ns: int) -> None:
        self._covered_ns = self._recorder.now_ns()
        self._recorder.add_remote(
            start_ns,
            self._covered_ns,
            done.residence_ns,
            done.spans,
            same_clock=self._link.same_clock,
            arrived_ns=done.arrived_ns,
        )

    async def _close(self) -> None:
        """Free the sandbox. A host that is gone frees it by the lease."""
        try:
            await self._ask(Close(self._session), 0.0)
        except RayrollError as error:
            logger.info("rollout %s: close: %s", self._sample.rollout_id, error)

    def _record(self, grade: Grade | None, failure: Failure | None) -> Rollout:
        sample, opened = self._sample, self._opened
        reward = grade.reward if grade is not None else None
        return Rollout(
            id=sample.rollout_id,
            run_id=sample.run_id,
            task_id=sample.task.id,
            substrate=sample.substrate,
            reward=reward,
            valid=reward is not None,
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
            group_id=sample.group_id,
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


def _checked(act: Any) -> Act:
    """Raises CallerError for what is no act."""
    if not isinstance(act, Act):
        raise CallerError("a policy answers with an Act", answered=type(act).__name__)
    if not isinstance(act.command, str):
        raise CallerError("an act's command is a str", command=type(act.command).__name__)
    if act.timeout_s is not None and not (math.isfinite(act.timeout_s) and act.timeout_s > 0):
        raise CallerError("an act's timeout_s is a positive number of seconds", timeout_s=act.timeout_s)
    return act
