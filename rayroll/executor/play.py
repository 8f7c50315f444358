"""One attempt at a rollout, from open to close: asks the policy, sends its commands, grades, and writes the record."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from rayroll.config import Config
from rayroll.errors import CallerError, Failure, HostLostError, RayrollError, StartTimeoutError
from rayroll.executor.gate import Gate
from rayroll.executor.grip import Grip
from rayroll.executor.hosts import Loan
from rayroll.executor.link import CALL_S
from rayroll.executor.messages import Close, Completion, Exec, Judge, Open, Opened
from rayroll.policies import Policy
from rayroll.policies.random import RandomPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.runner.client import NUMBERED_FROM
from rayroll.scheduler import End, Stage, StopReason
from rayroll.session import SessionConfig, observation
from rayroll.timing import Recorder
from rayroll.types import Act, ExecResult, Grade, Kept, Rollout, Rung, Step, Task, Turn

__all__ = ["Attempt", "Keep", "PlayConfig", "PolicyFailed", "Rules", "Sample", "is_trusted", "rollout_id"]

logger = logging.getLogger(__name__)

Keep = Literal["never", "on-failure", "always"]

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
    policy_timeout_s: float | None = Field(default=None, gt=0.0)
    """Longest wait for one answer of the policy; then the rollout is truncated, as at its deadline. None: as long as
    that leaves."""
    exec_timeout_s: float | None = Field(default=None, gt=0.0)
    """Limit of a command whose act brings none; None: the session's (``SessionConfig.exec_timeout_s``)."""
    retry: Literal["any", "start"] = "any"
    """What is tried again where the machine fails: a rollout in whatever state, or only its start. ``start`` is for
    policies that cannot begin again, such as a loop that has learned from the first steps already."""
    keep: Keep = "never"
    """Whose sandbox is left to itself at the end, for ``rayroll shell``, instead of destroyed; the record says where it
    is (``Rollout.kept``). ``on-failure``: of a rollout with a failure, or with a reward of 0 or less."""
    keep_for_s: float = Field(default=3600.0, ge=1.0)
    """How long it is kept; then it removes itself."""
    keep_most: int = Field(default=8, ge=1)
    """Most that an executor keeps at the same time, over all its runs: the first so many, for later failures are often
    the same again. Each holds its memory and disk, but no slot."""
    fingerprint: bool = False
    """Hash what each agent left, to prove that substrates did equal work; some ms a rollout, booked as ``grade``."""


class PolicyFailed(Exception):
    """A policy raised, or answered what is no act. Its cause is what the reader of the run gets."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What all rollouts of a run share."""

    policy: Policy
    config: PlayConfig
    session: SessionConfig
    gate: Gate
    """Closed while the run is paused."""
    kept_until_s: list[float] = field(default_factory=list)
    """When the time of each sandbox that the executor kept is over, by ``time.monotonic``."""


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


def is_trusted(policy: Policy) -> bool:
    """Its commands are rayroll's own, not a model's."""
    return isinstance(policy, ScriptedPolicy | RandomPolicy)


class Attempt:
    """One try at one rollout."""

    def __init__(
        self,
        sample: Sample,
        rules: Rules,
        loan: Loan,
        *,
        host: str,
        number: int,
        boots_first: bool,
        asked_ns: int,
        granted_ns: int,
        on_started: Callable[[float, Rung], None],
        on_reached: Callable[[Stage, float | None, float | None], None],
    ) -> None:
        """Nothing is begun yet.

        Args:
            sample: What to play.
            rules: By whom, and by which rules.
            loan: On which host.
            host: The executor's name for it.
            number: From 1.
            boots_first: Ask the policy only when the sandbox is up: another attempt at this rollout has asked already.
            asked_ns: When the attempt began to wait for its place, by ``time.monotonic_ns``.
            granted_ns: When it got it.
            on_started: Told how long the start took, in seconds, and its rung.
            on_reached: Told what is waited for from now on, how many seconds that may take, and how many are left until
                the last action where that has become known.
        """
        self._sample, self._policy, self._config = sample, rules.policy, rules.config
        self._grip = Grip(loan, sample.task, lease_s=rules.session.lease_s, left_s=self._left_s)
        self._gate, self._on_started, self._on_reached = rules.gate, on_started, on_reached
        self._kept_until_s = rules.kept_until_s
        self._host, self._number, self._boots_first = host, number, boots_first
        self._deadline_s = rules.config.deadline_s or sample.task.agent_timeout_s
        self._exec_timeout_s = rules.config.exec_timeout_s or rules.session.exec_timeout_s
        self._patience_s = CALL_S + rules.session.lease_s
        """Longest wait for a completion beyond what the work itself may take: its host may look for a lost runner for
        one lease before it says so."""
        # Not the rollout's id: what an earlier attempt left in the host must not be taken for this one's.
        self._session = secrets.token_hex(8)
        self._first_number = NUMBERED_FROM + secrets.randbits(30)
        """Of a command: a sandbox may have been another rollout's before."""
        self._recorder = Recorder()
        self._recorder.add("queue", asked_ns, granted_ns)
        self._asked_ns, self._granted_ns = asked_ns, granted_ns
        self._covered_ns = granted_ns
        """Everything up to here has a phase: what the driver does between two calls belongs to the next or the last."""
        self._policy_ns = 0
        self._limits: dict[str, asyncio.Timeout] = {}
        """What is waited for, each of which may expire."""
        self._playing: asyncio.Task[Any] | None = None
        self._stopped: StopReason | None = None
        self._version: int | None = None
        """Of the policy that was asked last."""
        self._steps: list[Step] = []
        self._opened: Opened | None = None
        self._opened_ns: int | None = None
        self._reset_s: float | None = None
        self._submitted = self._truncated = False
        self._kept: Kept | None = None
        self.end: End = "stopped"
        """How it ended."""
        self.is_recycled = False
        """Its sandbox was made clean and waits for another rollout."""
        self.retry_after_s: float | None = None
        """How long the provider asked to be left alone, where a failure said so."""

    @property
    def spent_s(self) -> float:
        """Seconds since it got its place, the policy's apart: what an attempt costs that does not count."""
        policy_ns = sum(end_ns - start_ns for phase, start_ns, end_ns in self._recorder.spans if phase == "policy")
        return (self._recorder.now_ns() - self._granted_ns - policy_ns) / 1e9

    async def play(self) -> Rollout:
        """Play it to its end, whatever that is; the sandbox is freed when this returns.

        Raises:
            PolicyFailed: The policy raised.
            RayrollError: With fault ``caller``: the calling program must change.
        """
        self._playing = asyncio.current_task()
        grade, failure = None, None
        try:
            grade = await self._episode()
            failure = grade.failure
            self.end = "done"
        except RayrollError as error:
            if error.fault == "caller":
                raise
            failure = error.failure()
            self.retry_after_s = error.facts.get("retry_after_s")
            is_in_vain = failure.error in FINAL or (self._config.retry == "start" and self._opened is not None)
            self.end = "spoilt" if error.fault == "infra" and not is_in_vain else "done"
            if error.fault == "policy":
                grade = Grade(0.0, failure=failure)
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
            assert self._playing is not None
            self._playing.uncancel()
            self._truncated = True
            if self._stopped == "stuck":
                failure, self.end = HostLostError("it did not heed its deadline").failure(), "spoilt"
            else:
                failure = Failure("caller", f"the rollout was {self._stopped}", self._stopped)
        finally:
            self._playing = None
            await self._close(keep=self._shall_keep(grade, failure))
        return self._record(grade, failure)

    def expire(self, stage: str) -> None:
        """What is waited for has taken too long."""
        limit = self._limits.get("policy" if stage == "rollout" else stage)
        if limit is not None:
            limit.reschedule(asyncio.get_running_loop().time())

    def stop(self, reason: StopReason) -> None:
        """End it without a verdict. What is done when it closes already is left to end by itself."""
        self._stopped = reason
        if self._playing is not None:
            self._playing.cancel()

    @contextlib.asynccontextmanager
    async def _limit(self, stage: Stage, within_s: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Wait for something that may expire, which raises TimeoutError here."""
        async with asyncio.timeout(None) as limit:
            self._limits[stage] = limit
            try:
                if stage != "policy" or self._opened is not None:
                    self._on_reached(stage, within_s, None)
                yield limit
            finally:
                del self._limits[stage]

    async def _episode(self) -> Grade:
        config = self._config
        act = await self._first_act()
        while act is not None and not act.submit:
            result = await self._exec(act)
            if len(self._steps) >= config.max_steps or self._left_s() <= 0:
                self._show_last(result)
                break
            self._cover("return")
            act = await self._act(result)
        self._submitted = act is not None and act.submit
        self._truncated = not self._submitted
        if self._truncated and config.grade_on == "submit":
            return Grade(0.0)
        # Grading may need a sandbox of its own, and an untouched one to find out why there is no verdict.
        work_s = 2 * (self._sample.task.grade_timeout_s + config.start_deadline_s)
        grade: Grade = await self._ask("grade", Judge(self._session, config.fingerprint), work_s)
        return grade

    async def _first_act(self) -> Act | None:
        """The sandbox starts behind the first generation, which needs only the instruction.

        A start that fails cancels the generation, for nobody could use it, and a policy that fails cancels the start.
        """
        if self._boots_first:
            await self._open()
            return await self._act(None)
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
        sample, start_ns, config = self._sample, self._covered_ns, self._config
        try:
            async with self._limit("start", config.start_deadline_s + self._patience_s):
                message = Open(
                    session=self._session,
                    task=await self._grip.link.teach(sample.task),
                    seed=sample.seed,
                    group_id=sample.group_id,
                    sample_index=sample.sample_index,
                    deadline_s=self._deadline_s,
                    trusted=is_trusted(self._policy),
                )
                done = await self._grip.link.call(message)
        except TimeoutError:
            raise StartTimeoutError("no sandbox in time", start_deadline_s=config.start_deadline_s) from None
        self._take_over(done, start_ns)
        if done.error is not None:
            raise done.error
        self._opened, self._opened_ns = done.value, self._covered_ns
        self._grip.hold(message, done.value.ticket)
        self._reset_s = (self._opened_ns - start_ns) / 1e9
        self._on_started(done.value.cold_start_s, done.value.rung)
        self._on_reached("policy", config.policy_timeout_s, self._deadline_s)

    def _left_s(self) -> float:
        """Seconds to the deadline, which is infinitely far as long as there is no sandbox."""
        if self._opened_ns is None:
            return math.inf
        return self._deadline_s - (self._recorder.now_ns() - self._opened_ns) / 1e9

    async def _act(self, last: ExecResult | None) -> Act | None:
        """The policy's answer; None where a deadline passes first. Raises PolicyFailed."""
        start_ns = self._covered_ns
        try:
            while True:
                try:
                    async with self._limit("policy", self._config.policy_timeout_s) as limit:
                        await self._gate.enter(limit)
                        try:
                            self._version = self._gate.policy_version
                            return await self._answer(self._turn(last))
                        finally:
                            self._gate.leave(limit)
                except TimeoutError:
                    if not self._gate.has_sent_out(limit):
                        return None
        finally:
            self._covered_ns = self._recorder.now_ns()
            self._policy_ns = self._covered_ns - start_ns
            self._recorder.add("policy", start_ns, self._covered_ns)

    def _turn(self, last: ExecResult | None) -> Turn:
        sample = self._sample
        return Turn(
            rollout_id=sample.rollout_id,
            task_id=sample.task.id,
            instruction=sample.task.instruction,
            index=len(self._steps),
            observation=sample.task.instruction if last is None else observation(last),
            exit_code=None if last is None else last.exit_code,
            group_id=sample.group_id,
            sample_index=sample.sample_index,
            seed=sample.seed,
            policy_version=self._version,
            attempt=self._number,
            result=last,
        )

    def _show_last(self, result: ExecResult) -> None:
        show = getattr(self._policy, "last", None)
        if show is not None:
            try:
                show(self._turn(result))
            except Exception as error:
                raise PolicyFailed from error

    async def _answer(self, turn: Turn) -> Act:
        try:
            return _checked(await self._policy.act(turn))
        except Exception as error:  # a TimeoutError of its own, too
            raise PolicyFailed from error

    async def _exec(self, act: Act) -> ExecResult:
        timeout_s = self._exec_timeout_s if act.timeout_s is None else act.timeout_s
        start_ns, mark, policy_ns = self._covered_ns, self._recorder.mark(), self._policy_ns
        result: ExecResult = await self._ask(
            "exec", Exec(self._session, act.command, timeout_s, self._first_number + len(self._steps)), timeout_s
        )
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
                policy_version=self._version if act.policy_version is None else act.policy_version,
            )
        )
        return result

    def _cover(self, phase: str) -> None:
        """The time since what was covered last was this."""
        now_ns = self._recorder.now_ns()
        self._recorder.add(phase, self._covered_ns, now_ns)
        self._covered_ns = now_ns

    async def _ask(self, stage: Stage, message: Exec | Judge, work_s: float) -> Any:
        """Send a message whose work takes at most ``work_s``. Raises what the host answers, or HostLostError."""
        start_ns, within_s = self._covered_ns, work_s + self._patience_s
        try:
            async with self._limit(stage, within_s):
                done = await self._grip.call(message)
        except TimeoutError:
            self._cover("return")  # waited for in vain
            raise HostLostError("no completion in time", waited_for=stage, deadline_s=within_s) from None
        except RayrollError:
            self._cover("return")
            raise
        self._take_over(done, start_ns)
        if done.error is not None:
            raise done.error
        return done.value

    def _take_over(self, done: Completion, start_ns: int) -> None:
        self._covered_ns = self._recorder.now_ns()
        if isinstance(done.value, ExecResult) and done.value.timing.busy_ns > done.residence_ns:
            # Begun in a host that died: its runner measured all of it, this host saw its end. The rest is transport.
            self._recorder.add_command(start_ns, self._covered_ns, done.value.timing)
            return
        self._recorder.add_remote(
            start_ns,
            self._covered_ns,
            done.residence_ns,
            done.spans,
            same_clock=self._grip.link.same_clock,
            arrived_ns=done.arrived_ns,
        )

    def _shall_keep(self, grade: Grade | None, failure: Failure | None) -> bool:
        """Not where the run itself ends or gave the rollout up: nobody will ask why."""
        is_over = grade is not None or failure is not None
        if self._config.keep == "never" or self._stopped is not None or not is_over:
            return False
        has_failed = failure is not None or grade is None or grade.reward is None or grade.reward <= 0
        now_s = time.monotonic()
        self._kept_until_s[:] = [until_s for until_s in self._kept_until_s if until_s > now_s]
        return (has_failed or self._config.keep == "always") and len(self._kept_until_s) < self._config.keep_most

    async def _close(self, *, keep: bool) -> None:
        """Free the sandbox, or keep it. A host that is gone frees it by the lease."""
        self._on_reached("close", None, None)
        start_ns = self._covered_ns
        keep_s = self._config.keep_for_s if keep else None
        until_s = time.monotonic() + (keep_s or 0.0)
        if keep:  # one place less from now on, and not only when it is done
            self._kept_until_s.append(until_s)
        try:
            done = await self._grip.call(Close(self._session, keep_s), deadline_s=self._patience_s)
            self._kept = done.value if isinstance(done.value, Kept) else None
        except RayrollError as error:
            self._cover("return")
            logger.info("rollout %s: close: %s", self._sample.rollout_id, error)
            return
        finally:
            self._grip.let_go()
            if self._kept is None and until_s in self._kept_until_s:
                self._kept_until_s.remove(until_s)
        self._take_over(done, start_ns)
        self.is_recycled = done.value is True
        if done.error is not None:
            logger.info("rollout %s: close: %s", self._sample.rollout_id, done.error)

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
            node=self._grip.link.info.node,
            host=self._host,
            moves=self._grip.moves,
            labels={**sample.labels, **opened.labels} if opened else sample.labels,
            kept=self._kept,
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
