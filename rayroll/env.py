"""A task as a Gymnasium environment: actions are shell commands, observations are what they print."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym

from rayroll._episode import MOST_OBSERVATION, TaskChoice, command_info, failure_info, spaces
from rayroll.errors import (
    CallerError,
    ConfigError,
    GraderError,
    InfraFailure,
    RayrollError,
    SandboxKilledError,
    unknown_name,
)
from rayroll.session import SessionConfig, observation
from rayroll.sync import SyncClient, SyncSession
from rayroll.types import Task

__all__ = ["CodingEnv"]

logger = logging.getLogger(__name__)


class CodingEnv(gym.Env[str, str]):
    """One task after another, each in a fresh sandbox.

    An action is any text: a shell command, run as the task's agent, or exactly ``submit`` (blanks around it do not
    count), which ends the episode and grades it. The first observation is the task's instruction, every other one the
    command's output, its head and tail where it was long, with a line in brackets where a limit ended it. ``info`` has
    the facts: ``exit_code``, ``timed_out``, ``truncated_bytes``, ``timing_s``, and after grading ``grade_report``.

    The reward is 0.0 until the episode ends; then it is the grade. ``terminated``: submitted, or the agent ended its
    own sandbox (reward 0.0, ``info["failure"]``). ``truncated``: ``max_steps`` or the session's deadline.

    Raises:
        InfraFailure: From ``reset`` and ``step``: the machine failed, not the agent. Call ``reset`` again; never count
            the episode.
        GraderError: The task's tests gave no verdict; leave the task out.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - Gymnasium declares it on the instance

    def __init__(
        self,
        pack: str | None = None,
        substrate: str = "local",
        *,
        tasks: list[Task] | None = None,
        max_steps: int = 50,
        grade_on: Literal["submit", "end"] = "end",
        submit: str = "submit",
        deadline_s: float | None = None,
        substrate_config: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            pack: Name or folder of a pack (``rayroll doctor`` lists the names); or give ``tasks``.
            substrate: Where sandboxes come from.
            tasks: Problems to choose from, instead of a pack.
            max_steps: Actions after which the episode is truncated. Not Gymnasium's ``max_episode_steps``, whose
                outer wrapper would end it without a grade.
            grade_on: ``end`` grades also at a limit; ``submit`` only what was submitted (else reward 0.0).
            submit: The action that ends the episode.
            deadline_s: Seconds from ``reset`` to the last command; None: the task's ``agent_timeout_s``.
            substrate_config: Fields of the substrate's config.
            session: Fields of ``SessionConfig``.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigError: Unknown pack, substrate or field, with the nearest known names; an empty pack.
        """
        self._choice = TaskChoice(pack, tasks)
        if max_steps < 1:
            raise ConfigError("max_steps must be at least 1", max_steps=max_steps)
        if grade_on not in ("submit", "end"):
            raise unknown_name("grade_on", str(grade_on), ["submit", "end"])
        if render_mode not in (None, "ansi"):
            raise unknown_name("render_mode", str(render_mode), ["ansi"])
        config = SessionConfig.parse(session or {}, where="session")
        self._client = SyncClient(substrate, substrate_config=substrate_config, config=config)
        self._session: SyncSession | None = None
        self._max_steps, self._grade_on, self._submit, self._deadline_s = max_steps, grade_on, submit, deadline_s
        self._transcript = ""
        self.render_mode = render_mode
        self.action_space, self.observation_space = spaces(config)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """A fresh sandbox with a task.

        Args:
            seed: Fixes the choice of tasks from here on, and the random seeds set in the sandbox.
            options: ``{"task": id}`` pins the task.

        Returns:
            The task's instruction, and ``info`` with ``task`` and how the sandbox started.
        """
        super().reset(seed=seed)
        task = self._choice.choose(self.np_random, options or {})
        _refuse_outer_time_limit()
        self._end_session()
        self._client.start()
        started_s = time.monotonic()
        sandbox_seed = int(self.np_random.integers(2**31))
        session = self._client.open(task, seed=sandbox_seed, deadline_s=self._deadline_s)
        self._session = session
        try:
            session.boot()
        except BaseException:
            self._end_session(quietly=True)
            raise
        self._steps = 0
        self._transcript = task.instruction
        info: dict[str, Any] = {"task": task.id, "reset_s": time.monotonic() - started_s}
        if session.rung is not None:
            info["rung"] = session.rung
        return task.instruction[:MOST_OBSERVATION], info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run a command, or submit.

        Returns:
            Output, reward, terminated, truncated, info. After either flag: call ``reset``.

        Raises:
            CallerError: The action is no ``str``.
            gymnasium.error.ResetNeeded: No episode is under way.
        """
        if not isinstance(action, str):
            raise CallerError("an action is a str, a shell command", type=type(action).__name__)
        if self._session is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        self._steps += 1
        submitted = action.strip() == self._submit
        try:
            seen, info = ("", {}) if submitted else self._run(self._session, action)
            out_of_time = self._session.remaining_s <= 0
            truncated = not submitted and (self._steps >= self._max_steps or out_of_time)
            reward = 0.0
            if submitted or (truncated and self._grade_on == "end"):
                reward, graded = self._grade(self._session)
                info |= graded
        except SandboxKilledError as error:
            seen, info, reward = f"rayroll: {error.message}\n", {"failure": failure_info(error.failure())}, 0.0
            submitted, truncated = True, False
        except RayrollError:
            self._end_session(quietly=True)  # nothing that follows could be trusted
            raise
        if submitted or truncated:
            self._end_session(quietly=True)
        return seen, reward, submitted, truncated, info

    def render(self) -> str | None:
        """The episode so far as a terminal would show it; None without ``render_mode="ansi"``."""
        return self._transcript if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Destroy the sandbox and let go of the substrate. Idempotent."""
        self._end_session()
        self._client.close()

    def _run(self, session: SyncSession, action: str) -> tuple[str, dict[str, Any]]:
        result = session.exec(action)
        seen = observation(result)
        self._transcript += f"\n$ {action}\n{seen}"
        return seen, command_info(result)

    def _grade(self, session: SyncSession) -> tuple[float, dict[str, Any]]:
        grade = session.grade()
        if grade.reward is None:
            reason = grade.failure.reason if grade.failure else "the tests gave no verdict"
            raise GraderError(reason, task=session.task.id)
        info: dict[str, Any] = {"grade_report": grade.report}
        if grade.failure is not None:
            info["failure"] = failure_info(grade.failure)
        return grade.reward, info

    def _end_session(self, *, quietly: bool = False) -> None:
        """``quietly``: the episode's result or error says more than a sandbox that could not be removed at once."""
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.close()
        except InfraFailure as error:
            if not quietly:
                raise
            logger.warning("a sandbox was not removed; its lease will do it: %s", error)


def _refuse_outer_time_limit() -> None:
    """Raises ConfigError below a ``gymnasium.wrappers.TimeLimit``, as ``gym.make(max_episode_steps=...)`` puts one."""
    # Gymnasium tells an environment nothing of what is wrapped around it; only the call that comes through does.
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), gym.wrappers.TimeLimit):
            raise ConfigError("max_episode_steps would truncate without a grade; use max_steps")
        frame = frame.f_back
