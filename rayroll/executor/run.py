"""A run: many rollouts of one policy over many tasks, as many at once as there are slots, yielded as they finish."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

import ray

from rayroll.errors import ClosedError, ConfigError, Failure, unknown_name
from rayroll.executor.hosts import Isolation, make_hosts
from rayroll.executor.messages import HostInfo, HostSetup, HostStats
from rayroll.executor.play import PlayConfig, PolicyFailed, Sample, Stage, play
from rayroll.policies import Policy
from rayroll.session import SessionConfig
from rayroll.substrates import load
from rayroll.sync import portal
from rayroll.types import Rollout, Task, Timing

__all__ = ["Executor", "Run", "collect"]

logger = logging.getLogger(__name__)

CANCEL_S = 3.0
"""Longest wait for rollouts to free their sandboxes one by one; the host then frees them all at once."""
CLOSE_S = 5.0
"""Longest wait for the host to do so; then it is ended, and leases do it. Together this stays below 10 s."""
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
        isolation: Isolation = "node",
        actor_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            substrate: Kind of substrate.
            substrate_config: Fields of its config.
            session: Fields of ``SessionConfig``.
            run_id: Label of every sandbox, and part of every rollout's id; random by default.
            isolation: ``node``: one Ray actor owns all sandboxes of a node. ``actor``: one for each rollout under way,
                for environments that block or crash; it costs 0.6 s and 95 MB each.
            actor_options: Ray's options for the host actor, such as ``label_selector``.

        Raises:
            ConfigError: Unknown substrate, field or isolation, with the nearest known names.
        """
        if isolation not in get_args(Isolation):
            raise unknown_name("isolation", isolation, get_args(Isolation))
        load(substrate).config_type.parse(substrate_config or {}, where=f"substrate {substrate!r}")
        self._session = SessionConfig.parse(session or {}, where="session")
        self.substrate = substrate
        self.run_id = run_id or secrets.token_hex(6)
        setup = HostSetup(
            substrate=substrate,
            run_id=self.run_id,
            owner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            substrate_config=dict(substrate_config or {}),
            session_config=dict(session or {}),
        )
        self._hosts = make_hosts(isolation, setup, actor_options or {})
        self._runs: set[Run] = set()
        self._is_open = False

    async def __aenter__(self) -> Executor:
        _connect_to_ray()
        await self._hosts.open()
        self._is_open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def host(self) -> HostInfo:
        """What the first host says about itself."""
        return self._hosts.info

    async def stats(self) -> HostStats:
        """How the hosts are doing: sums, and the worst lag."""
        return await self._hosts.stats()

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
        stage = Stage(self._hosts, policy, config or PlayConfig(), self._session, max_infra_retries)
        run = Run(stage, samples, max_in_flight)
        self._runs.add(run)
        return run

    async def close(self) -> None:
        """Cancel what runs and free everything, within 10 s. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            await asyncio.gather(*(run.cancel() for run in self._runs))
        finally:
            await self._hosts.close(deadline_s=CLOSE_S)
        # With their host gone they end at once, if they have not yet.
        await asyncio.gather(*(run.cancel() for run in self._runs))


class Run:
    """Rollouts under way."""

    def __init__(self, stage: Stage, samples: Sequence[Sample], max_in_flight: int) -> None:
        """For ``Executor.submit``."""
        self.total = len(samples)
        """Rollouts this run will yield."""
        self.in_flight = 0
        """Rollouts that hold a slot and are being played."""
        self.set_aside: dict[str, Failure] = {}
        """Tasks whose own fault ended a rollout; their remaining rollouts are not played."""
        self._stage, self._samples, self._slots = stage, samples, max_in_flight
        self._finished: deque[Rollout] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._driving = asyncio.get_running_loop().create_task(self._drive(), name="run")
        self._driving.add_done_callback(self._on_end)

    async def rollouts(self) -> AsyncIterator[Rollout]:
        """Every rollout, as it finishes. To be read once, and fast enough: a reader that is slow holds the run back.

        Ends early where the run was cancelled, with what had finished.

        Raises:
            Exception: What a policy raised, or a bug; CallerError where the calling program must change; InfraFailure
                where no host can be started any more. All that had finished was yielded before.
        """
        while True:
            while self._finished:
                rollout = self._finished.popleft()
                self._room.set()
                yield rollout
            if self._driving.done():
                break
            self._news.clear()
            await self._news.wait()
        if not self._driving.cancelled():
            self._driving.result()

    async def groups(self) -> AsyncIterator[list[Rollout]]:
        """The rollouts of one task together, as soon as its last one has finished (GRPO); instead of ``rollouts``.

        Of a resumed run a group holds only what this run made.
        """
        missing = Counter(sample.task.id for sample in self._samples)
        groups: dict[str, list[Rollout]] = {}
        async for rollout in self.rollouts():
            groups.setdefault(rollout.task_id, []).append(rollout)
            missing[rollout.task_id] -= 1
            if not missing[rollout.task_id]:
                yield sorted(groups.pop(rollout.task_id), key=lambda r: r.sample_index)

    async def cancel(self) -> None:
        """Stop: what is under way is given up; its sandboxes are freed here, or by ``Executor.close``. Idempotent."""
        if not self._driving.done():
            self._driving.cancel()
            await asyncio.wait({self._driving}, timeout=CANCEL_S)

    def _on_end(self, driving: asyncio.Task[None]) -> None:
        if not driving.cancelled():
            driving.exception()  # seen, also where nobody reads
        self._news.set()

    async def _drive(self) -> None:
        free = asyncio.Semaphore(self._slots)
        try:
            async with asyncio.TaskGroup() as group:
                for sample in self._samples:
                    asked_ns = time.monotonic_ns()
                    await free.acquire()
                    group.create_task(self._one(sample, asked_ns, free), name=f"rollout {sample.rollout_id}")
        except ExceptionGroup as errors:
            first, *others = errors.exceptions
            for other in others:
                logger.error("besides the error that ended the run: %r", other)
            raise (first.__cause__ if isinstance(first, PolicyFailed) and first.__cause__ else first) from None

    async def _one(self, sample: Sample, asked_ns: int, free: asyncio.Semaphore) -> None:
        rollout = await self._played(sample, asked_ns)
        if rollout.failure is not None and rollout.failure.fault in ("task", "grader"):
            self.set_aside[sample.task.id] = rollout.failure
        self._finished.append(rollout)
        self._news.set()
        # The slot stays taken until there is room: without this a stopped reader would collect the whole run here.
        while len(self._finished) > self._slots:
            self._room.clear()
            await self._room.wait()
        free.release()

    async def _played(self, sample: Sample, asked_ns: int) -> Rollout:
        known = self.set_aside.get(sample.task.id)
        if known is not None:
            return _not_played(sample, known)
        self.in_flight += 1
        try:
            return await play(sample, self._stage, asked_ns=asked_ns)
        finally:
            self.in_flight -= 1


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
        group_id=sample.group_id,
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

    if _is_on_a_loop():  # a notebook
        return portal().run(work())
    return asyncio.run(work())


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
