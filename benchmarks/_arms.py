"""An arm is one way to run a command in a sandbox; all run distinct echoes and check what comes back."""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

__all__ = ["Arm", "Burst", "Echo", "Load", "Skipped", "WrongOutput", "async_burst", "next_echo", "thread_burst"]


class WrongOutput(Exception):
    """A command printed something else than it had to: no number of that run means anything."""


class Skipped(Exception):
    """This machine cannot run an arm; the message says why, and what would fix it."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A command nobody has run before, and what it prints."""

    script: str
    expected: str

    def difference(self, output: str) -> str:
        """What was printed instead, in words; empty: nothing was."""
        if output == self.expected:
            return ""
        return f"{self.script!r} printed {len(output)} characters: {output[:80]!r}"

    def check(self, output: str) -> None:
        """Raise WrongOutput unless that is what was printed."""
        if difference := self.difference(output):
            raise WrongOutput(difference)


_numbers = itertools.count(1_000_000)


def next_echo(output_bytes: int) -> Echo:
    """A distinct number, alone on its line, or padded with zeros to ``output_bytes``: both are builtins of every shell,
    so that a shell held open forks nothing for them."""
    number = next(_numbers)
    if not output_bytes:
        return Echo(f"echo {number}", f"{number}\n")
    return Echo(f"printf '%0{output_bytes - 1}d\\n' {number}", f"{number:0{output_bytes - 1}d}\n")


@dataclass(slots=True)
class Burst:
    """What an arm did in its turn."""

    wall_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    checked: int = 0
    """Outputs that were compared with what had to be printed."""
    wrong: list[str] = field(default_factory=list)
    """Those that differed, of an arm that is not ours to mend; ours raise WrongOutput."""


@dataclass(frozen=True, slots=True)
class Load:
    """What an arm does in its turn: so many steps one after the other in each environment, all at the same time."""

    steps: int
    output_bytes: int
    budget_s: float
    """No step begins later than this: what takes 20 times longer need not be asked as often."""


class Arm(ABC):
    """Sandboxes, and one way to run commands in them. Entering starts them, leaving frees them."""

    name: str

    async def __aenter__(self) -> Arm:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def open(self) -> None:
        """Start what the arm needs. Raises Skipped where this machine cannot."""

    @abstractmethod
    async def burst(self, load: Load) -> Burst:
        """Run steps in every environment. Raises WrongOutput."""

    def arms(self) -> list[Arm]:
        """What takes turns: itself, or several ways to use what it has started."""
        return [self]

    @abstractmethod
    async def close(self) -> None:
        """Free everything. Idempotent; also called after a failed ``open``."""


async def async_burst(load: Load, steps: list[Callable[[str], Awaitable[str]]]) -> Burst:
    """One coroutine per environment; ``steps[i]`` runs a script in environment i and returns its output."""
    burst = Burst()
    start_s = time.perf_counter()

    async def play(step: Callable[[str], Awaitable[str]]) -> None:
        for _ in range(load.steps):
            echo = next_echo(load.output_bytes)
            sent_s = time.perf_counter()
            output = await step(echo.script)
            done_s = time.perf_counter()
            echo.check(output)
            burst.checked += 1
            burst.latencies_s.append(done_s - sent_s)
            if done_s - start_s > load.budget_s:
                break

    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(play(step))
    burst.wall_s = time.perf_counter() - start_s
    return burst


async def thread_burst(load: Load, pool: ThreadPoolExecutor, steps: list[Callable[[str], str]]) -> Burst:
    """One thread per environment, as blocking programs do it. The pool has a thread for each.

    None of ours does: wrong outputs are counted.
    """
    start_s = time.perf_counter()

    def play(step: Callable[[str], str]) -> Burst:
        mine = Burst()
        for _ in range(load.steps):
            echo = next_echo(load.output_bytes)
            sent_s = time.perf_counter()
            output = step(echo.script)
            done_s = time.perf_counter()
            mine.checked += 1
            if difference := echo.difference(output):
                mine.wrong.append(difference)
            mine.latencies_s.append(done_s - sent_s)
            if done_s - start_s > load.budget_s:
                break
        return mine

    loop = asyncio.get_running_loop()
    parts = await asyncio.gather(*(loop.run_in_executor(pool, play, step) for step in steps))
    wall_s = time.perf_counter() - start_s
    latencies_s = [latency_s for part in parts for latency_s in part.latencies_s]
    wrong = [each for part in parts for each in part.wrong]
    return Burst(wall_s, latencies_s, sum(part.checked for part in parts), wrong)
