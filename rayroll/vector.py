"""Many environments as one: each row is a rollout of the executor, whose policy is whoever calls ``step`` or ``send``.

So a training loop gets what every run has: placement on many nodes, limited starts, retries of starts, deadlines, and
the timing split of each episode. ``step`` keeps Gymnasium's lockstep; ``send`` and ``recv`` hand rows back in the order
in which they finish, as EnvPool does.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rayroll._episode import MOST_OBSERVATION, TaskChoice, command_info, failure_info, spaces
from rayroll.errors import CallerError, ClosedError, ConfigError, unknown_name
from rayroll.executor import Executor, PlayConfig, Run
from rayroll.executor.remote import RemoteExecutor, RemoteRun, connect
from rayroll.session import SessionConfig
from rayroll.sync import portal
from rayroll.types import Act, Rollout, Task, Turn

__all__ = ["RolloutVectorEnv", "StepBatch", "make_vec"]

Infos = dict[str, Any]


class StepBatch(NamedTuple):
    """Rows that have finished a step, in the order in which they did. B rows; ``infos`` has the shape of all envs."""

    observations: tuple[str, ...]
    """Length B."""
    rewards: npt.NDArray[np.float64]
    """``(B,)``; NaN where the machine failed."""
    terminations: npt.NDArray[np.bool_]
    """``(B,)``."""
    truncations: npt.NDArray[np.bool_]
    """``(B,)``."""
    infos: Infos
    """As of ``step``: arrays of length ``num_envs`` with masks, filled for these rows."""
    env_ids: npt.NDArray[np.intp]
    """``(B,)``: which env each row is."""


class _Row(NamedTuple):
    """What one env has to say after a reset or a step."""

    env: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Infos


class _Seat:
    """One env. Its methods and its coroutines run on the executor's loop; ``rows`` leads to the caller's thread."""

    def __init__(
        self, number: int, rows: queue.SimpleQueue[_Row | BaseException], submit: str, episode_info: bool
    ) -> None:
        self._number, self._rows, self._submit, self._episode_info = number, rows, submit, episode_info
        self._acts: asyncio.Queue[Act] = asyncio.Queue()
        self._first: Act | None = None
        """The answer to the first turn, kept until the sandbox is up: a start that fails is made again behind it."""
        self._seen = ""
        self._info: Infos = {}
        self._reward = 0.0
        self._length = 0
        self._began_s = 0.0
        self._playing: asyncio.Task[None] | None = None
        self.transcript = ""

    async def play(self, executor: Executor | RemoteExecutor, task: Task, options: Mapping[str, Any]) -> None:
        """Begin an episode; one that is under way is given up."""
        await self.give_up()
        self._acts, self._first = asyncio.Queue(), None
        self._seen, self._info, self._length, self._began_s = "", {}, 0, time.monotonic()
        self.transcript = task.instruction
        run = executor.submit([task], self, **options)
        self._playing = asyncio.get_running_loop().create_task(self._until_over(run), name=f"env {self._number}")

    async def give_up(self) -> None:
        """End the episode, and free its sandbox."""
        playing, self._playing = self._playing, None
        if playing is not None and not playing.done():
            playing.cancel()
            await asyncio.wait({playing})

    def give(self, action: str) -> None:
        """What the caller wants done next."""
        self._length += 1
        is_submit = action.strip() == self._submit
        self._acts.put_nowait(Act(submit=True) if is_submit else Act(action))
        if not is_submit:
            self.transcript += f"\n$ {action}\n"

    # as a policy

    async def act(self, turn: Turn) -> Act:
        """See ``Policy``."""
        if turn.index == 0:
            if self._first is None:
                self._first = await self._acts.get()
            return self._first
        self._look(turn)
        self._rows.put(_Row(self._number, self._seen, 0.0, False, False, self._info))
        self._seen, self._info = "", {}
        return await self._acts.get()

    def last(self, turn: Turn) -> None:
        """See ``Policy``."""
        self._look(turn)

    def _look(self, turn: Turn) -> None:
        assert turn.result is not None
        self._seen, self._info = turn.observation, command_info(turn.result) | {"valid": True}
        self.transcript += turn.observation

    async def _until_over(self, run: Run | RemoteRun) -> None:
        try:
            async for rollout in run.rollouts():
                self._rows.put(self._ending(rollout))
        except asyncio.CancelledError:
            await run.cancel()
            raise
        except Exception as error:
            self._rows.put(error)

    def _ending(self, rollout: Rollout) -> _Row:
        reward = float("nan") if rollout.reward is None else rollout.reward
        info = self._info | {"valid": rollout.valid, "rollout": rollout}
        if self._episode_info:
            info["episode"] = {"r": reward, "l": self._length, "t": round(time.monotonic() - self._began_s, 6)}
        if rollout.failure is not None:
            info["failure"] = failure_info(rollout.failure)
        if rollout.grade is not None and rollout.grade.report:
            info["grade_report"] = rollout.grade.report
        # Ended by the policy or by what it did: terminated. By a limit or by the machine: truncated.
        is_truncated = rollout.truncated or not rollout.valid
        return _Row(self._number, self._seen, reward, not is_truncated, is_truncated, info)


class RolloutVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], Any]):
    """``num_envs`` environments in step, or each at its own pace.

    Rows are as those of ``CodingEnv``: actions are shell commands, or ``submit``; observations are what they print;
    with equal seeds row ``i`` plays the tasks of a ``CodingEnv`` with seed ``seed + i``. At the end of an episode
    ``infos["episode"]`` has its return ``r``, length ``l`` and seconds ``t``, and ``infos["rollout"]`` the whole record
    with its timing split.

    ``infos["valid"]`` is there in every step. Where the machine fails, the row has reward NaN, ``truncated`` True and
    ``infos["valid"]`` False: leave it out of the loss; ``infos["failure"]`` says what happened. A start that fails is
    made again before anybody hears of it.
    """

    def __init__(
        self,
        num_envs: int = 1,
        pack: str | None = None,
        substrate: str = "local",
        *,
        tasks: Sequence[Task] | None = None,
        max_steps: int = 50,
        grade_on: Literal["submit", "end"] = "end",
        submit: str = "submit",
        deadline_s: float | None = None,
        substrate_config: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
        executor: Mapping[str, Any] | None = None,
        address: str | None = None,
        max_infra_retries: int = 1,
        episode_info: bool = True,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        """Connect to Ray and start the hosts; the first sandboxes start with the first ``reset``.

        Args:
            num_envs: Rows.
            pack: See ``CodingEnv``, as for everything that is not said here.
            substrate: Where sandboxes come from.
            tasks: Problems to choose from, instead of a pack.
            max_steps: Actions after which an episode is truncated.
            grade_on: ``end`` grades also at a limit; ``submit`` only what was submitted (else reward 0.0).
            submit: The action that ends an episode.
            deadline_s: Seconds from a started sandbox to the last command; None: the task's ``agent_timeout_s``.
            substrate_config: Fields of the substrate's config.
            session: Fields of ``SessionConfig``.
            executor: More arguments of ``Executor``, such as ``node_labels``.
            address: Of a gateway, to have the sandboxes in another cluster (``rayroll.connect``); None: in this one.
            max_infra_retries: How often a failed start is made again.
            episode_info: Say ``infos["episode"]``; False below Gymnasium's ``RecordEpisodeStatistics``, which does so.
            autoreset_mode: ``NextStep``, ``SameStep`` or ``Disabled``, as Gymnasium defines them.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigError: Something does not exist or cannot be, with the nearest known names.
            InfraFailure: No host can be started, with what would fix it.
        """
        if num_envs < 1:
            raise ConfigError("num_envs must be at least 1", num_envs=num_envs)
        if max_steps < 1:
            raise ConfigError("max_steps must be at least 1", max_steps=max_steps)
        if grade_on not in ("submit", "end"):
            raise unknown_name("grade_on", str(grade_on), ["submit", "end"])
        if render_mode not in (None, "ansi"):
            raise unknown_name("render_mode", str(render_mode), ["ansi"])
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            raise unknown_name("autoreset_mode", str(autoreset_mode), [m.value for m in AutoresetMode]) from None
        self._choice = TaskChoice(pack, tasks)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["ansi"], "autoreset_mode": self.autoreset_mode}
        config = SessionConfig.parse(session or {}, where="session")
        self.single_action_space, self.single_observation_space = spaces(config)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._options = {
            "config": PlayConfig(max_steps=max_steps, grade_on=grade_on, deadline_s=deadline_s, retry="start"),
            "max_infra_retries": max_infra_retries,
        }
        self._rows: queue.SimpleQueue[_Row | BaseException] = queue.SimpleQueue()
        self._seats = [_Seat(number, self._rows, submit, episode_info) for number in range(num_envs)]
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._episodes = [0] * num_envs
        self._is_over = np.ones(num_envs, dtype=np.bool_)
        """Rows that have to be reset before they can step."""
        self._is_out = np.zeros(num_envs, dtype=np.bool_)
        """Rows that were sent an action and were not received."""
        more = {"substrate_config": substrate_config, "session": session, **dict(executor or {})}
        self._executor: Executor | RemoteExecutor
        self._executor = Executor(substrate, **more) if address is None else connect(address, substrate, **more)
        self._portal = portal()
        self._portal.run(self._executor.__aenter__())

    def __enter__(self) -> RolloutVectorEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- Gymnasium's lockstep ---

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], Infos]:
        """A fresh sandbox with a task for every row, or for those of ``options={"reset_mask": ...}``.

        Args:
            seed: Row ``i`` gets ``seed + i``; or one for each row.
            options: ``{"task": id}`` pins the task; ``reset_mask``: ``(num_envs,)`` of bool.

        Returns:
            Instructions, length ``num_envs``: of a row that was not reset, "". ``infos`` with ``task``.
        """
        options = dict(options or {})
        mask = _checked_mask(options.pop("reset_mask", None), self.num_envs)
        seeds = _seeds(seed, self.num_envs)
        if self.closed:
            raise ClosedError("the environment was closed")
        rows = self._begin({int(env): seeds[env] for env in np.flatnonzero(mask)}, options)
        self._forget_answers(mask)
        observations = [""] * self.num_envs
        for row in rows:
            observations[row.env] = row.observation
        return tuple(observations), self._infos(rows)

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]:
        """One action for every row; returns when all have answered.

        Args:
            actions: Length ``num_envs``. That of a row whose episode is over is ignored with ``NextStep``.
        """
        self.send(actions, np.arange(self.num_envs))
        batch = self.recv(min_batch=self.num_envs)
        order = np.argsort(batch.env_ids)
        return (
            tuple(batch.observations[i] for i in order),
            batch.rewards[order],
            batch.terminations[order],
            batch.truncations[order],
            batch.infos,
        )

    # --- each at its own pace ---

    def send(self, actions: Sequence[str], env_ids: Sequence[int] | npt.NDArray[np.intp]) -> None:
        """Give actions to these rows, and return at once.

        Args:
            actions: Length B.
            env_ids: Length B; each has been received since it was sent to.

        Raises:
            CallerError: An action is no ``str``, a row is still at work, or its episode is over and autoreset is off.
        """
        if self.closed:
            raise ClosedError("the environment was closed")
        if len(actions) != len(env_ids):
            raise CallerError("give an action for each env", actions=len(actions), env_ids=len(env_ids))
        envs = [int(env) for env in env_ids]
        for env, action in zip(envs, actions, strict=True):
            self._check(env, action)
        if len(set(envs)) != len(envs):
            raise CallerError("an env is named twice", env_ids=envs)
        self._is_out[envs] = True
        stepping = [
            (self._seats[env], action) for env, action in zip(envs, actions, strict=True) if not self._is_over[env]
        ]
        resetting = [env for env in envs if self._is_over[env]]
        if stepping:
            self._portal.loop.call_soon_threadsafe(_give, stepping)
        for row in self._begin(dict.fromkeys(resetting), {}):
            self._rows.put(row)

    def recv(self, *, min_batch: int = 1, max_batch: int | None = None, timeout_s: float | None = None) -> StepBatch:
        """Rows that have answered, in the order in which they did.

        Args:
            min_batch: Wait until there are so many; cut to those that are at work.
            max_batch: Most to return; None: all that there are.
            timeout_s: Longest wait; then what there is, which may be nothing. None: no limit.

        Raises:
            CallerError: No row is at work.
            InfraFailure: No host can be started any more.
        """
        at_work = int(self._is_out.sum())
        if not at_work:
            raise CallerError("no env is at work; send actions first")
        least = min(min_batch, at_work)
        most = at_work if max_batch is None else min(max_batch, at_work)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        rows: list[_Row] = []
        while len(rows) < most:
            try:
                if len(rows) >= least:
                    row = self._rows.get_nowait()
                else:
                    row = self._rows.get(timeout=None if until_s is None else max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(row, BaseException):
                raise row
            rows.append(row)
        return self._batch(rows)

    def render(self) -> tuple[str, ...] | None:
        """Each episode so far as a terminal would show it; None without ``render_mode="ansi"``."""
        return tuple(seat.transcript for seat in self._seats) if self.render_mode == "ansi" else None

    def close_extras(self, **kwargs: Any) -> None:
        """Free every sandbox, and end the hosts."""
        self._portal.run(self._end())

    # --- how it works ---

    def _begin(self, seeds: Mapping[int, int | None], options: dict[str, Any]) -> list[_Row]:
        """Begin an episode in each of these envs; its first observation is there at once, its sandbox soon."""
        rows, plays = [], []
        for env, seed in seeds.items():
            rng = self._rngs[env]
            if rng is None or seed is not None:
                rng = self._rngs[env] = seeding.np_random(seed)[0]
            task = self._choice.choose(rng, options)
            submit = {"seed": int(rng.integers(2**31)), "namespace": f"{env}/{self._episodes[env]}", **self._options}
            self._episodes[env] += 1
            self._is_over[env] = False
            plays.append(self._seats[env].play(self._executor, task, submit))
            rows.append(_Row(env, task.instruction[:MOST_OBSERVATION], 0.0, False, False, {"task": task.id}))
        self._portal.run(_all(plays))
        return rows

    def _forget_answers(self, mask: npt.NDArray[np.bool_]) -> None:
        """Rows that were reset while they were at work have nothing to say any more."""
        if not bool((self._is_out & mask).any()):
            return
        self._is_out &= ~mask
        kept = []
        while not self._rows.empty():
            row = self._rows.get_nowait()
            if isinstance(row, BaseException) or not mask[row.env]:
                kept.append(row)
        for row in kept:
            self._rows.put(row)

    def _check(self, env: int, action: Any) -> None:
        if not isinstance(action, str):
            raise CallerError("an action is a str, a shell command", type=type(action).__name__)
        if not 0 <= env < self.num_envs:
            raise CallerError("no such env", env_id=env, num_envs=self.num_envs)
        if self._is_out[env]:
            raise CallerError("the env is still at work; receive its answer first", env_id=env)
        if self._rngs[env] is None:
            raise gym.error.ResetNeeded("call reset() before step()")
        if self._is_over[env] and self.autoreset_mode is not AutoresetMode.NEXT_STEP:
            raise gym.error.ResetNeeded(f"the episode of env {env} is over; call reset(options={{'reset_mask': ...}})")

    def _batch(self, rows: list[_Row]) -> StepBatch:
        over = [row.env for row in rows if row.terminated or row.truncated]
        self._is_out[[row.env for row in rows]] = False
        self._is_over[over] = True
        observations = {row.env: row.observation for row in rows}
        infos = self._infos(rows)
        if over and self.autoreset_mode is AutoresetMode.SAME_STEP:
            next_rows = {row.env: row for row in self._begin(dict.fromkeys(over), {})}
            infos = self._infos([next_rows.get(row.env, row) for row in rows])
            for row in rows:
                if row.env in next_rows:
                    observations[row.env] = next_rows[row.env].observation
                    self._add_info(infos, {"final_obs": row.observation, "final_info": row.info}, row.env)
                    if "episode" in row.info:
                        self._add_info(infos, {"episode": row.info["episode"]}, row.env)
        return StepBatch(
            tuple(observations[row.env] for row in rows),
            np.array([row.reward for row in rows], dtype=np.float64),
            np.array([row.terminated for row in rows], dtype=np.bool_),
            np.array([row.truncated for row in rows], dtype=np.bool_),
            infos,
            np.array([row.env for row in rows], dtype=np.intp),
        )

    def _infos(self, rows: Sequence[_Row]) -> Infos:
        infos: Infos = {}
        for row in rows:
            infos = self._add_info(infos, row.info, row.env)
        return infos

    async def _end(self) -> None:
        try:
            await asyncio.gather(*(seat.give_up() for seat in self._seats))
        finally:
            await self._executor.close()


def make_vec(env: str = "rayroll/Tasks-v0", num_envs: int = 1, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """``gymnasium.make_vec`` for this package's ids.

    Args:
        env: A Gymnasium id (``rayroll/Tasks-v0``, ``rayroll/RepoFix-v0`` ...).
        num_envs: Rows.
        kwargs: See ``RolloutVectorEnv``.
    """
    return gym.make_vec(env, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)


def _give(actions: Sequence[tuple[_Seat, str]]) -> None:
    for seat, action in actions:
        seat.give(action)


async def _all(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
    await asyncio.gather(*work)


def _seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    if seed is None or isinstance(seed, int | np.integer):
        return [None if seed is None else int(seed) + env for env in range(num_envs)]
    if len(seed) != num_envs:
        raise ConfigError("give one seed, or one for each env", seeds=len(seed), num_envs=num_envs)
    return list(seed)


def _checked_mask(mask: Any, num_envs: int) -> npt.NDArray[np.bool_]:
    """Raises ConfigError for what Gymnasium says a ``reset_mask`` must not be."""
    if mask is None:
        return np.ones(num_envs, dtype=np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise ConfigError("reset_mask must be an array of bool with an entry for each env, one of them True")
    return mask
