"""A substrate on a Ray cluster, ready for runs, and the synchronous door to it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import ray

from rayroll.errors import ClosedError, ConfigError, unknown_name
from rayroll.executor.board import Tally
from rayroll.executor.control import Control
from rayroll.executor.gate import Gate
from rayroll.executor.hosts import HostPlan, Hosts, Isolation
from rayroll.executor.keep import IdleKeeper
from rayroll.executor.messages import HostInfo, HostSetup, HostStats
from rayroll.executor.play import PlayConfig, Rules, Sample, is_trusted
from rayroll.executor.prometheus import Prometheus
from rayroll.executor.run import Run, RunLimits, numbered
from rayroll.policies import Policy
from rayroll.scheduler import Scheduler, SchedulerConfig, Snapshot, Spares
from rayroll.session import SessionConfig, spec_of
from rayroll.substrates import load
from rayroll.sync import portal
from rayroll.types import Rollout, Task

__all__ = ["Executor", "collect", "connect_to_ray"]

logger = logging.getLogger(__name__)

TELL_S = 1.0
"""How often the board is written."""
CLOSE_S = 5.0
"""Longest wait for hosts to free what they own; then they are ended, and leases do it. With ``CANCEL_S`` below 10 s."""


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
        hosts_per_node: int = 1,
        slots_per_node: int | None = None,
        node_labels: Mapping[str, str] | None = None,
        actor_options: Mapping[str, Any] | None = None,
        scheduler: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            substrate: Kind of substrate.
            substrate_config: Fields of its config.
            session: Fields of ``SessionConfig``.
            run_id: Label of every sandbox, and part of every rollout's id; random by default.
            isolation: ``node``: one Ray actor owns all sandboxes of a node. ``actor``: one for each rollout under way,
                for environments that block or crash; it costs 0.6 s and 95 MB each.
            hosts_per_node: Actors that share a node's sandboxes; more than one where one process is not enough.
            slots_per_node: Most rollouts of a node at the same time; None: as many as the runs want.
            node_labels: Names and values of Ray's labels that a node must have (``ray start --labels``). None: every
                node that has CPUs and can run the substrate gets hosts, also one that joins later.
            actor_options: More of Ray's options for each host actor, such as ``runtime_env``.
            scheduler: Fields of ``SchedulerConfig``.

        Raises:
            ConfigError: Unknown substrate, field or isolation, with the nearest known names.
        """
        if isolation not in get_args(Isolation):
            raise unknown_name("isolation", isolation, get_args(Isolation))
        _check_counts(hosts_per_node=(hosts_per_node, 1), slots_per_node=(slots_per_node, 1))
        kind = load(substrate)
        self._wants = kind(kind.config_type.parse(substrate_config or {}, where=f"substrate {substrate!r}"))
        """Never opened: it is asked which images tasks want."""
        self._session = SessionConfig.parse(session or {}, where="session")
        self.substrate = substrate
        self.run_id = run_id or secrets.token_hex(6)
        config = SchedulerConfig.parse(scheduler or {}, where="scheduler")
        if config.warm.most_per_host > self._session.max_idle:
            raise ConfigError(
                "hosts keep fewer idle sandboxes than are to be warm; set session's max_idle to as many",
                most_per_host=config.warm.most_per_host,
                max_idle=self._session.max_idle,
            )
        setup = HostSetup(
            substrate=substrate,
            run_id=self.run_id,
            owner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            substrate_config=dict(substrate_config or {}),
            session_config=dict(session or {}),
        )
        plan = HostPlan(
            setup, isolation, hosts_per_node, slots_per_node, dict(node_labels or {}), dict(actor_options or {})
        )
        self._keeper = IdleKeeper()
        self._control = Control(Scheduler(config), self._keeper)
        self._hosts = Hosts(plan, self._control.post, self._fail)
        self._keeper.open(self._hosts, self._control.post)
        self._tally, self._prometheus = Tally(self.run_id, substrate), Prometheus(substrate)
        self._telling: asyncio.Task[None] | None = None
        self._short: set[str] = set()
        """Hosts that were said to be short of something."""
        self._runs: set[Run] = set()
        self._kept_until_s: list[float] = []
        self._numbers = itertools.count(1)
        self._is_open = False

    async def __aenter__(self) -> Executor:
        connect_to_ray()
        await self._hosts.open()
        self._is_open = True
        self._telling = asyncio.get_running_loop().create_task(self._tell(), name="board")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def host(self) -> HostInfo:
        """What the first host says about itself."""
        return self._hosts.info

    @property
    def hosts(self) -> list[HostInfo]:
        """What every host that is up says about itself."""
        return self._hosts.up()

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
        state: Mapping[str, Any] | None = None,
        spares: Spares = "never",
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
            state: What ``Run.state_dict`` of that run said, instead.
            spares: When a second attempt runs against a late first one. ``start``: where its sandbox does not come up.
                ``group``: also where the others of its group have long finished, which prefers short rollouts.

        Raises:
            ConfigError: A count is impossible, or sandboxes are to be kept and this substrate cannot.
        """
        if not self._is_open:
            raise ClosedError("the executor is not open; use `async with Executor(...) as executor`")
        _check_counts(
            samples_per_task=(samples_per_task, 1),
            max_in_flight=(max_in_flight, 1),
            max_infra_retries=(max_infra_retries, 0),
        )
        config = config or PlayConfig()
        if config.keep != "never" and not load(self.substrate).can_keep():
            raise ConfigError(f"substrate {self.substrate!r} cannot keep sandboxes", keep=config.keep)
        if spares not in get_args(Spares):
            raise unknown_name("spares", spares, get_args(Spares))
        if state is not None:
            if state["run_id"] not in (self.run_id, None):
                raise ConfigError("the state is of another run", state=state["run_id"], run_id=self.run_id)
            finished = {*finished, *state["finished"]}
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
            for number, (task, sample_index) in enumerate(numbered(tasks, samples_per_task))
        ]
        samples = [sample for sample in samples if sample.rollout_id not in finished]
        trusted = is_trusted(policy)
        images = {task.id: self._wants.image_of(spec_of(task, trusted=trusted)) for task in tasks}
        self._tally.know(images)
        for task in tasks:
            self._keeper.know(task, images[task.id], trusted=trusted)
        rules = Rules(policy, config, self._session, Gate(), self._kept_until_s)
        limits = RunLimits(max_in_flight, max_infra_retries, spares)
        run = Run(
            str(next(self._numbers)),
            self.run_id,
            self._control,
            self._hosts,
            rules,
            samples,
            images,
            limits,
            finished,
            self._note,
        )
        self._runs.add(run)
        run.on_end(self._runs.discard)
        if (error := self._hosts.error) is not None:
            asyncio.get_running_loop().call_soon(run.fail, error)
        return run

    def snapshot(self) -> Snapshot:
        """How the scheduler sees things now."""
        return self._control.snapshot()

    async def _tell(self) -> None:
        """Say once a second how things stand."""
        while True:
            await asyncio.sleep(TELL_S)
            snapshot = self.snapshot()
            self._prometheus.show(snapshot)
            self._warn_of_short(snapshot)
            await self._hosts.hang_up(self._tally.board(snapshot))

    def _warn_of_short(self, snapshot: Snapshot) -> None:
        short = {name: host["short_of"] for name, host in snapshot.hosts.items() if host["short_of"]}
        for name in short.keys() - self._short:
            logger.warning("host %s starts nothing for now, it is short of %s", name, short[name])
        self._short = set(short)

    def _note(self, rollout: Rollout) -> None:
        self._tally.add(rollout)
        self._prometheus.add(rollout)

    def _fail(self, error: Exception) -> None:
        for run in self._runs:
            run.fail(error)

    async def close(self) -> None:
        """Cancel what runs and free everything, within 10 s. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait({self._telling})
        try:
            await asyncio.gather(self._keeper.close(), *(run.cancel() for run in self._runs))
        finally:
            await self._hosts.close(deadline_s=CLOSE_S)
        # With their host gone they end at once, if they have not yet.
        await asyncio.gather(*(run.cancel() for run in self._runs))
        self._control.close()


def _check_counts(**counts: tuple[int | None, int]) -> None:
    """Raises ConfigError for a count below its least."""
    for name, (value, least) in counts.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}", **{name: value})


def connect_to_ray() -> None:
    """Join the cluster of RAY_ADDRESS or of the job that this is, else start one on this machine; once."""
    if ray.is_initialized():
        return
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
