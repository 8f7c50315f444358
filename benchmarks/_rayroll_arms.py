"""rayroll's own paths: a client in this process, and the whole way through Ray."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from _arms import Arm, Burst, Echo, Load, Skipped, async_burst, next_echo

from rayroll.executor import Executor, PlayConfig, Run
from rayroll.session import Client, Session
from rayroll.types import Act, FileTree, Task, Turn

__all__ = ["RayrollArm", "RunnerArm", "floor_in"]

DAY_S = 86_400.0
TASK = Task("bench/echo", "", environment=FileTree.from_files({}), tests=FileTree.from_files({}), memory_mib=256)
"""So little that 32 machines of it fit on a node."""
RUNNER = "/.rayroll/runner"
"""Where substrates put it."""
NOT_FOUND = 127


class RunnerArm(Arm):
    """A client in this process, its sandboxes' runners at the other end of open streams; no Ray."""

    def __init__(self, substrate: str, envs: int, config: Mapping[str, Any] | None = None) -> None:
        self.substrate = substrate
        self.name = f"runner-{substrate}"
        self.facts: dict[str, str] = {}
        """Versions and capabilities of the substrate, and what its sandboxes say of themselves."""
        self._client = Client(substrate, substrate_config=config or {})
        self._envs = envs
        self._sessions: list[Session] = []
        self._steps: list[Callable[[str], Awaitable[str]]] = []

    async def open(self) -> None:
        probe = await self._client.substrate.probe()
        if not probe.ok:
            raise Skipped(probe.reason + (f"; fix: {probe.fix}" if probe.fix else ""))
        self.facts = dict(probe.facts)
        await self._client.__aenter__()
        self._sessions = [self._client.open(TASK, sample_index=i, deadline_s=DAY_S) for i in range(self._envs)]
        sandboxes = await asyncio.gather(*(session.booted() for session in self._sessions))
        self.facts |= {**sandboxes[0].facts, **sandboxes[0].labels}
        self._steps = [functools.partial(_step, session) for session in self._sessions]

    async def burst(self, load: Load) -> Burst:
        return await async_burst(load, self._steps)

    async def close(self) -> None:
        await self._client.close()

    async def sandbox_ids(self) -> list[str]:
        """The substrate's own names of the sandboxes, for baselines that use the very same ones."""
        return [(await session.booted()).ref.id for session in self._sessions]

    async def floor_s(self, n: int) -> list[float] | None:
        """``[p50, p95]`` of fork and exec of the same shell in the same sandbox, without anything around them.

        None: its runner is in another place.
        """
        result = await self._sessions[0].exec(f"{RUNNER} bench --n {n}")
        if result.exit_code == NOT_FOUND:
            return None
        assert result.exit_code == 0, f"runner bench: exit code {result.exit_code}: {result.output}"
        return floor_in(result.output)


def floor_in(output: str) -> list[float]:
    """``[p50, p95]`` in seconds of what ``runner bench`` printed."""
    line = json.loads(output)
    return [line["p50_ns"] / 1e9, line["p95_ns"] / 1e9]


async def _step(session: Session, script: str) -> str:
    return (await session.exec(script)).output


class RayrollArm(Arm):
    """Driver, Ray, host, sandbox and back, through the public door: rollouts of a policy.

    A step lasts from the policy's answer to its next turn, so that everything a rollout does between is in it.
    """

    def __init__(self, substrate: str, envs: int, config: Mapping[str, Any] | None = None) -> None:
        self.name = f"rayroll-{substrate}"
        self._executor = Executor(substrate, substrate_config=config or {})
        self._policy = _Bursts(envs)
        self._envs = envs
        self._run: Run | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._executor.__aenter__()
        self._run = self._executor.submit(
            [TASK],
            self._policy,
            samples_per_task=self._envs,
            max_in_flight=self._envs,
            config=PlayConfig(max_steps=10**9, deadline_s=DAY_S),
        )
        self._reader = asyncio.create_task(_no_rollout_ends(self._run))
        # The first command waits for its sandbox.
        await self.burst(Load(steps=1, output_bytes=0, budget_s=DAY_S))

    async def burst(self, load: Load) -> Burst:
        assert self._reader is not None
        burst = asyncio.ensure_future(self._policy.burst(load))
        await asyncio.wait({burst, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        if not burst.done():
            burst.cancel()
            self._reader.result()
        return await burst

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
        await self._executor.close()


async def _no_rollout_ends(run: Run) -> None:
    """Rollouts here have no end; one that ends has failed."""
    async for rollout in run.rollouts():
        raise RuntimeError(f"a rollout ended: {rollout.failure}")


class _Bursts:
    """A policy that echoes while a burst lasts, and otherwise thinks."""

    def __init__(self, envs: int) -> None:
        self._envs = envs
        self._load = Load(0, 0, 0.0)
        self._begin = [asyncio.Event() for _ in range(envs)]
        self._left = [0] * envs
        self._echoes: list[Echo | None] = [None] * envs
        self._sent_s = [0.0] * envs
        self._start_s = 0.0
        self._burst = Burst()
        self._idle = asyncio.Semaphore(0)

    async def burst(self, load: Load) -> Burst:
        """Let every rollout take its steps, and wait for the last."""
        self._load, self._left, self._burst = load, [load.steps] * self._envs, Burst()
        self._start_s = time.perf_counter()
        for begin in self._begin:
            begin.set()
        for _ in range(self._envs):
            await self._idle.acquire()
        self._burst.wall_s = time.perf_counter() - self._start_s
        return self._burst

    async def act(self, turn: Turn) -> Act:
        now_s = time.perf_counter()
        env = turn.sample_index
        echo = self._echoes[env]
        if echo is not None:
            echo.check(turn.observation)
            self._burst.checked += 1
            self._burst.latencies_s.append(now_s - self._sent_s[env])
            self._left[env] -= 1
            if not self._left[env] or now_s - self._start_s > self._load.budget_s:
                self._begin[env].clear()
                self._echoes[env] = None
                self._idle.release()
        if self._echoes[env] is None:
            await self._begin[env].wait()
        self._echoes[env] = echo = next_echo(self._load.output_bytes)
        act = Act(echo.script)
        self._sent_s[env] = time.perf_counter()
        return act
