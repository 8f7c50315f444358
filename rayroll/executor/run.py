"""A run: many rollouts of one policy over many tasks, as many at once as there are slots, yielded as they finish."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any

import ray

from rayroll.errors import ClosedError, ConfigError, Failure
from rayroll.executor.link import HostLink
from rayroll.executor.messages import HostInfo, HostSetup, HostStats
from rayroll.executor.play import PlayConfig, Sample, play
from rayroll.policies import Policy
from rayroll.types import Rollout, Task, Timing

__all__ = ["Executor", "Run", "collect"]

logger = logging.getLogger(__name__)

CANCEL_S = 3.0
"""Longest wait for rollouts to free their sandboxes one by one; the host then frees them all at once."""
NOBODY = Timing(0.0, 0.0, 0.0, 0.0, 0.0, {"other": 0.0})


class Executor:
    """A substrate on a Ray cluster, ready for runs.

    >>> async with Executor("docker") as executor:
    ...     run = executor.submit(tasks, policy, samples_per_task=4, max_in_flight=64)
    ...     async for rollout in run.rollouts():
    ...         learn(rollout)
    """

    def __init__(
        self,
        substrate: str,
        *,
        substrate_config: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            substrate: Kind of substrate.
            substrate_config: Fields of its config.
            session: Fields of ``SessionConfig``.
            run_id: Label of every sandbox, and part of every rollout's id; random by default.
            actor_options: Ray's options for the host actor, such as ``label_selector``.
        """
        self.substrate = substrate
        self.run_id = run_id or secrets.token_hex(6)
        setup = HostSetup(
            substrate=substrate,
            run_id=self.run_id,
            owner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            substrate_config=dict(substrate_config or {}),
            session_config=dict(session or {}),
        )
        self._link = HostLink(setup, **dict(actor_options or {}))
        self._runs: set[Run] = set()
        self._is_open = False

    async def __aenter__(self) -> Executor:
        _connect_to_ray()
        await self._link.start()
        self._is_open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def host(self) -> HostInfo:
        """What the started host says about itself."""
        return self._link.info

    async def stats(self) -> HostStats:
        """How the host is doing."""
        return await self._link.stats()

    def submit(
        self,
        tasks: Sequence[Task],
        policy: Policy,
        *,
        samples_per_task: int = 1,
        max_in_flight: int = 256,
        max_infra_retries: int = 1,
        config: PlayConfig | None = None,
        seed: int | None = None,
        labels: Mapping[str, str] | None = None,
        namespace: str = "",
        finished: Collection[str] = (),
    ) -> Run:
        """Begin a run. Rollouts start as slots are free and are read with ``run.rollouts()``.

        Args:
            tasks: In the order in which they start. A task named again gets the next sample indices.
            policy: Who acts.
            samples_per_task: Rollouts of each task.
            max_in_flight: Slots: most rollouts at the same time.
            max_infra_retries: Attempts the machine may spoil before a rollout is recorded as invalid.
            config: The rules of a rollout.
            seed: Rollout i gets ``seed + i``; None: no seeds.
            labels: For every rollout of this run, such as the sweep's cell.
            namespace: Part of every rollout's id, where one run plays the same samples more than once.
            finished: Ids of rollouts to skip: those of an earlier run of the same ``run_id``.

        Raises:
            ConfigError: A count is impossible.
        """
        if not self._is_open:
            raise ClosedError("the executor is not open; use `async with Executor(...) as executor`")
        for name, value, least in (
            ("samples_per_task", samples_per_task, 1),
            ("max_in_flight", max_in_flight, 1),
            ("max_infra_retries", max_infra_retries, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}", **{name: value})
        samples = [
            Sample(
                run_id=self.run_id,
                task=task,
                sample_index=sample_index,
                substrate=self.substrate,
                seed=None if seed is None else seed + number,
                labels=dict(labels or {}),
                namespace=namespace,
                grouped=samples_per_task > 1,
            )
            for number, (task, sample_index) in enumerate(_numbered(tasks, samples_per_task))
        ]
        samples = [sample for sample in samples if sample.rollout_id not in finished]
        run = Run(self._link, samples, policy, config or PlayConfig(), max_in_flight, max_infra_retries)
        self._runs.add(run)
        return run

    async def close(self) -> None:
        """Cancel what runs and free everything, within 10 s. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        for run in self._runs:
            await run.cancel()
        await self._link.close(deadline_s=6.0)


class Run:
    """Rollouts under way."""

    def __init__(
        self,
        link: HostLink,
        samples: Sequence[Sample],
        policy: Policy,
        config: PlayConfig,
        max_in_flight: int,
        max_infra_retries: int,
    ) -> None:
        self.total = len(samples)
        """Rollouts this run will yield."""
        self.in_flight = 0
        self.set_aside: dict[str, Failure] = {}
        """Tasks whose own fault ended a rollout; their remaining rollouts are not played."""
        self._link, self._samples, self._policy, self._config = link, samples, policy, config
        self._slots, self._retries = max_in_flight, max_infra_retries
        # A reader that is slow holds the run back: finished rollouts wait here, as many as there are slots.
        self._finished: asyncio.Queue[Rollout | BaseException | None] = asyncio.Queue(max_in_flight)
        self._driving = asyncio.get_running_loop().create_task(self._drive(), name="run")

    async def rollouts(self) -> AsyncIterator[Rollout]:
        """Every rollout, as it finishes. To be read once; what a policy or a bug raises ends it."""
        while (item := await self._finished.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    async def cancel(self) -> None:
        """Stop: what is under way is given up; its sandboxes are freed here, or by ``Executor.close``. Idempotent."""
        self._driving.cancel()
        await asyncio.wait({self._driving}, timeout=CANCEL_S)

    async def _drive(self) -> None:
        try:
            await self._link.add_tasks(list({s.task.id: s.task for s in self._samples}.values()))
            free = asyncio.Semaphore(self._slots)
            async with asyncio.TaskGroup() as group:
                for sample in self._samples:
                    asked_ns = time.monotonic_ns()
                    await free.acquire()
                    group.create_task(self._one(sample, asked_ns, free), name=f"rollout {sample.rollout_id}")
        except ExceptionGroup as errors:
            await self._finished.put(errors.exceptions[0])
        except Exception as error:
            await self._finished.put(error)
        else:
            await self._finished.put(None)

    async def _one(self, sample: Sample, asked_ns: int, free: asyncio.Semaphore) -> None:
        self.in_flight += 1
        try:
            known = self.set_aside.get(sample.task.id)
            if known is not None:
                rollout = _not_played(sample, known)
            else:
                rollout = await play(
                    sample, self._link, self._policy, self._config, asked_ns=asked_ns, retries=self._retries
                )
        finally:
            self.in_flight -= 1
            free.release()
        if rollout.failure is not None and rollout.failure.fault in ("task", "grader"):
            self.set_aside[sample.task.id] = rollout.failure
        await self._finished.put(rollout)


def _numbered(tasks: Sequence[Task], samples_per_task: int) -> Iterator[tuple[Task, int]]:
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
        sample_index=sample.sample_index,
        seed=sample.seed,
        labels=sample.labels,
    )


def _connect_to_ray() -> None:
    if ray.is_initialized():
        return
    # Under a submitted job or with RAY_ADDRESS set this joins that cluster; otherwise it starts one on this machine.
    joins = "RAY_ADDRESS" in os.environ
    ray.init(include_dashboard=None if joins else False, log_to_driver=False, logging_level=logging.ERROR)


def collect(
    tasks: Sequence[Task],
    policy: Policy,
    *,
    substrate: str = "local",
    executor: Mapping[str, Any] | None = None,
    **submit: Any,
) -> list[Rollout]:
    """The synchronous door: make all rollouts and return them, in the order they finished.

    Args:
        tasks: Problems.
        policy: Who acts.
        substrate: Where sandboxes come from.
        executor: More arguments of ``Executor``.
        submit: Arguments of ``Executor.submit``.
    """

    async def work() -> list[Rollout]:
        async with Executor(substrate, **dict(executor or {})) as ready:
            return [rollout async for rollout in ready.submit(tasks, policy, **submit).rollouts()]

    return asyncio.run(work())
