"""The idle sandboxes of one process: started ahead of need, or used and made clean again, and each given out once.

Two sessions may have the same sandbox, one after the other, where their *shape* is equal: task, users and everything a
sandbox is born with. What belongs to one rollout (its seed, its sample) is given to each command, not to the sandbox.

A used sandbox comes back only by a reset whose digest equals the baseline's, taken before its first command. Anything
else (something changed that cannot be undone, a lost runner, a call still under way) is *quarantine*: it is destroyed
at once and the reason is counted. How many to keep is for others to decide; the pool sets bounds.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from rayroll._live import Live, reconnect, start
from rayroll.config import Config
from rayroll.errors import (
    CallerError,
    ClosedError,
    ConfigError,
    InfraFailure,
    RayrollError,
    SandboxLostError,
    TaskError,
)
from rayroll.substrates import Lease, SandboxSpec, Substrate
from rayroll.substrates._shield import finish
from rayroll.timing import Recorder
from rayroll.types import Task

__all__ = ["Pool", "PoolConfig", "PoolStats", "Reset", "shape_of"]

logger = logging.getLogger(__name__)

Reset = Literal["fresh", "recycle", "restore"]

PING_S = 2.0
"""Longest wait for a sign of life at hand-out; a start takes less than what is lost by waiting longer."""
RESET_S = 10.0
"""Longest reset: a million files to remove are slower than a new sandbox."""
KEPT_PLACES = ("/etc", "/root", "/home")
"""Besides the working directory: where the runner keeps copies of files, so that changed ones can be made again."""
KEPT_SHARE = 8
"""Copies take at most this part of a sandbox's memory, whose memory they are; see ``MOST_KEPT_BYTES``."""
MOST_KEPT_BYTES = 32 << 20


class PoolConfig(Config):
    """Bounds of what one process keeps."""

    max_idle: int = Field(default=8, ge=0)
    """Most idle sandboxes; beyond it the one that has been idle for longest goes."""
    max_idle_s: float = Field(default=300.0, gt=0.0)
    """Longest time that a sandbox is idle, in seconds."""
    max_reuses: int = Field(default=50, ge=0)
    """How often one sandbox is given to another rollout after its first; then it is destroyed."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool holds, and what it has done since it was opened."""

    idle: int
    hits: int
    """Sandboxes handed out that were there."""
    misses: int
    """Sandboxes asked for that had to be started."""
    dead_at_hand_out: int
    """Idle sandboxes found dead when they were wanted; each is a miss, or another one's hit."""
    recycled: int
    """Used sandboxes that were clean again."""
    quarantined: int
    reasons: Mapping[str, int]
    """Why, each with its count: ``dirty``, ``lost``, ``slow``, ``in use``, ``network``, ``memory``."""

    @property
    def hit_rate(self) -> float | None:
        """Share of hits; None before the first hand-out."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass(slots=True, eq=False)
class _Idle:
    live: Live
    shape: str
    since_s: float


class Pool:
    """See the module. One event loop's; not thread-safe."""

    def __init__(
        self, substrate: Substrate, lease: Lease, config: PoolConfig, *, reset: Reset, hello_timeout_s: float
    ) -> None:
        """Nothing is started.

        Raises:
            ConfigError: ``restore`` on a substrate that cannot.
        """
        if reset == "restore" and type(substrate).restore is Substrate.restore:
            raise ConfigError(
                f"substrate {substrate.kind!r} cannot restore a sandbox by itself; set reset to 'recycle' or 'fresh'"
            )
        self.config = config
        self.reset = reset
        self._substrate = substrate
        self._lease = lease
        self._hello_timeout_s = hello_timeout_s
        self._idle: list[_Idle] = []
        """Idle for longest first."""
        self._starting: set[asyncio.Task[Live]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.on_gone: Callable[[str], None] = lambda shape: None
        """Called with the shape of each idle sandbox that is no more without having been handed out or asked to go."""
        self._hits = self._misses = self._dead = self._recycled = 0
        self._reasons: Counter[str] = Counter()

    @property
    def stats(self) -> PoolStats:
        """The state of things."""
        return PoolStats(
            idle=len(self._idle),
            hits=self._hits,
            misses=self._misses,
            dead_at_hand_out=self._dead,
            recycled=self._recycled,
            quarantined=self._reasons.total(),
            reasons=dict(self._reasons),
        )

    # --- handing out ---

    async def acquire(self, task: Task, spec: SandboxSpec, recorder: Recorder) -> tuple[Live, float]:
        """A clean sandbox of this shape, idle or new, and the seconds that it took (pull, build and admission apart).

        Raises:
            SubstrateError, TaskError: A new one was needed and could not be made; nothing is left of it.
        """
        start_ns = recorder.now_ns()
        shape = shape_of(task, spec)
        while (idle := self._take(shape)) is not None:
            if await self._is_alive(idle):
                self._hits += 1
                idle.live.sandbox.rung = "recycled" if idle.live.uses else "warm"
                idle.live.uses += 1
                end_ns = recorder.now_ns()
                recorder.add("connect", start_ns, end_ns)
                return idle.live, (end_ns - start_ns) / 1e9
        self._misses += 1
        live = await self._born(task, spec, recorder)
        live.uses = 1
        return live, live.cold_start_s

    def _take(self, shape: str) -> _Idle | None:
        """The one that was used last: its memory is the most likely to be there still."""
        for idle in reversed(self._idle):
            if idle.shape == shape:
                self._idle.remove(idle)
                return idle
        return None

    async def _is_alive(self, idle: _Idle) -> bool:
        live = idle.live
        try:
            async with asyncio.timeout(PING_S):
                await live.runner.ping()
        except (TimeoutError, RayrollError) as error:
            self._dead += 1
            logger.warning("an idle sandbox was dead when it was wanted: id=%s %r", live.sandbox.ref.id, error)
            self._end_soon(live)
            self.on_gone(idle.shape)
            return False
        except BaseException:
            self._end_soon(live)
            raise
        return True

    # --- starting ---

    async def warm(self, task: Task, spec: SandboxSpec) -> bool:
        """Start one more sandbox of this shape and keep it; where the pool is full, in place of one of another shape.

        Cancelled, it leaves nothing behind.

        Returns:
            Whether there is one more; False: the pool is full of this very shape.

        Raises:
            SubstrateError, TaskError: It could not be made.
            ClosedError: The pool was closed meanwhile.
        """
        shape = shape_of(task, spec)
        if self._is_closed:
            raise ClosedError("the pool of sandboxes is closed")
        if len(self._idle) + len(self._starting) >= self.config.max_idle:
            other = next((idle for idle in self._idle if idle.shape != shape), None)
            if other is None:
                return False
            self._evict(other)
        starting = asyncio.get_running_loop().create_task(self._born(task, spec, Recorder()), name="warm a sandbox")
        self._starting.add(starting)
        try:
            live = await starting
        except asyncio.CancelledError:
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                self._end_soon(starting.result())
            if self._is_closed and not _is_cancelled():
                raise ClosedError("the pool of sandboxes was closed") from None
            raise
        finally:
            self._starting.discard(starting)
        if self._is_closed:
            await live.end()
            raise ClosedError("the pool of sandboxes was closed")
        self._keep(live, shape)
        return True

    async def _born(self, task: Task, spec: SandboxSpec, recorder: Recorder) -> Live:
        """A new sandbox, its shell and users seen to work, its baseline taken: before any command of an agent."""
        live = await start(
            self._substrate, spec, self._lease, recorder, hello_timeout_s=self._hello_timeout_s, is_for_grading=False
        )
        try:
            await _prepare(live, task, recorder)
            if self.reset == "recycle" and live.is_isolated:
                with recorder.span("setup"):
                    live.baseline = await live.runner.baseline(
                        [live.workdir(task), *KEPT_PLACES] if live.workdir(task) != "/" else KEPT_PLACES,
                        most_bytes=min(MOST_KEPT_BYTES, (spec.memory_mib << 20) // KEPT_SHARE),
                    )
        except BaseException:
            await _end_quietly(live)
            raise
        return live

    # --- taking back ---

    async def give_back(
        self, live: Live, task: Task, spec: SandboxSpec, recorder: Recorder, *, quarantine: str = ""
    ) -> bool:
        """Make a used sandbox clean and keep it, or destroy it. Finished also when the caller is cancelled.

        Args:
            live: What ``acquire`` gave.
            task: As for ``acquire``.
            spec: As for ``acquire``.
            recorder: Gets ``reset`` and ``teardown``.
            quarantine: Why it must not be used again, whatever a reset would say.

        Returns:
            Whether it is kept.

        Raises:
            SubstrateError: It could not be destroyed; its lease and the reaper see to it.
        """
        if await self._is_clean(live, recorder, quarantine) and not self._is_closed:
            self._keep(live, shape_of(task, spec))
            return True
        with recorder.span("teardown"):
            await live.end()
        return False

    async def _is_clean(self, live: Live, recorder: Recorder, quarantine: str) -> bool:
        if self.reset == "fresh" or self._is_closed or not self.config.max_idle or live.uses > self.config.max_reuses:
            return False
        with recorder.span("reset"):
            reason, what = quarantine, ""
            if not reason:
                reason, what = await self._reset(live)
        if reason:
            self._reasons[reason] += 1
            logger.warning("a sandbox is not used again: reason=%s id=%s %s", reason, live.sandbox.ref.id, what)
            return False
        self._recycled += 1
        return True

    async def _reset(self, live: Live) -> tuple[str, str]:
        """Why it is not clean, in a word and in detail; two empty strings: it is."""
        try:
            async with asyncio.timeout(RESET_S):
                if await self._substrate.killed_for_memory(live.sandbox.ref):
                    return "memory", "something was killed for want of it, and a later end would be put down to that"
                if self.reset == "restore":
                    await reconnect(live, await self._substrate.restore(live.sandbox.ref), self._hello_timeout_s)
                    return "", ""
                if live.baseline is None:
                    return "dirty", "without isolation nothing can be known to be clean"
                found = await live.runner.reset()
        except TimeoutError:
            return "slow", f"the reset took more than {RESET_S:g} s"
        except SandboxLostError as error:
            return "lost", str(error)
        except RayrollError as error:
            return "dirty", str(error)
        if found.digest != live.baseline.digest:
            return "dirty", f"its digest is {found.digest[:12]} and was {live.baseline.digest[:12]}"
        return "", ""

    def _keep(self, live: Live, shape: str) -> None:
        self._idle.append(_Idle(live, shape, asyncio.get_running_loop().time()))
        while len(self._idle) > self.config.max_idle:
            self._evict(self._idle[0])
        self._watch_time()

    # --- letting go ---

    async def cool(self, shape: str | None = None, *, most: int | None = None) -> int:
        """Destroy idle sandboxes, those first that have been idle for longest.

        Args:
            shape: Of this shape; None: of any.
            most: So many at most; None: all.

        Returns:
            How many.

        Raises:
            ExceptionGroup: Some could not be destroyed.
        """
        chosen = [idle for idle in self._idle if shape in (None, idle.shape)][:most]
        for idle in chosen:
            self._idle.remove(idle)
        _raise_all(await asyncio.gather(*(idle.live.end() for idle in chosen), return_exceptions=True))
        return len(chosen)

    def _evict(self, idle: _Idle) -> None:
        self._idle.remove(idle)
        self._end_soon(idle.live)
        self.on_gone(idle.shape)

    def _end_soon(self, live: Live) -> None:
        ending = asyncio.get_running_loop().create_task(_end_quietly(live), name="end an idle sandbox")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _watch_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._idle and not self._is_closed:
            at_s = self._idle[0].since_s + self.config.max_idle_s
            self._timer = asyncio.get_running_loop().call_at(at_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for idle in [idle for idle in self._idle if now_s - idle.since_s >= self.config.max_idle_s]:
            self._evict(idle)
        self._watch_time()

    def refuse(self) -> None:
        """From now on nothing is kept: what is given back is destroyed."""
        self._is_closed = True
        self._watch_time()

    async def close(self) -> None:
        """Destroy what is idle or on its way up, and wait for it. Idempotent.

        Raises:
            ExceptionGroup: Some could not be destroyed.
        """
        self.refuse()
        for starting in self._starting:
            starting.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        try:
            await self.cool()
        finally:
            while self._ending:
                await asyncio.wait(self._ending)


def shape_of(task: Task, spec: SandboxSpec) -> str:
    """What two sessions must have in common to share a sandbox, as a hash."""
    system = (
        spec.environment.digest if spec.environment else "",
        sorted(spec.env.items()),
        sorted(spec.labels.items()),
    )
    plain = replace(spec, environment=None, env={}, labels={})
    users = (task.agent_user, task.grade_user)
    return hashlib.sha256(repr((task.id, users, system, plain)).encode()).hexdigest()[:16]


async def _prepare(live: Live, task: Task, recorder: Recorder) -> None:
    """See that the task's shell and users are there, while it cannot be the agent who removed them."""
    if not live.born.shell:
        raise TaskError("the image has no shell (bash or sh)", task=task.id)
    for user in {task.agent_user, task.grade_user} - {None}:
        try:
            await live.no_op(user, recorder)
        except (CallerError, TaskError) as error:
            raise TaskError(f"commands cannot run as user {user!r}: {error.message}", task=task.id) from error


async def _end_quietly(live: Live) -> None:
    try:
        await finish(live.end())
    except InfraFailure as error:
        logger.warning("a sandbox was not removed; its lease will do it: id=%s %s", live.sandbox.ref.id, error)


def _raise_all(results: Sequence[BaseException | None]) -> None:
    errors = [result for result in results if isinstance(result, Exception)]
    if errors:
        raise ExceptionGroup(f"{len(errors)} idle sandboxes were not destroyed", errors)


def _is_cancelled() -> bool:
    """Somebody asked the running task itself to stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
