"""A sandbox that answers: made by its substrate, greeted by its runner, and given back whatever happens in between."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from rayroll.errors import InfraFailure
from rayroll.runner.client import Greeting, Resume, RunnerClient, Tree
from rayroll.substrates import Channel, Lease, Sandbox, SandboxRef, SandboxSpec, Substrate
from rayroll.substrates._shield import finish
from rayroll.timing import Recorder
from rayroll.types import Kept, Rung, Task

__all__ = ["Live", "Ticket", "adopt", "reconnect", "start"]

logger = logging.getLogger(__name__)

LEASE_SPREAD = 2.0
"""A runner is given a lease between the one asked for and this many times that. Those of a dead host would otherwise
all end within a quarter of a lease, more at once than a Docker engine can take (see ``docker.MOST_REMOVALS``). The
reaper begins after one lease and removes most of them one by one."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What another process must know to take a sandbox over when the one that holds it has died."""

    ref: SandboxRef
    resume: Resume
    born: Greeting
    rung: Rung
    system: Literal["image", "host"]
    cold_start_s: float
    baseline: Tree | None
    uses: int


@dataclass(slots=True, eq=False)
class Live:
    """A started sandbox and the open line to its runner, for one session at a time."""

    substrate: Substrate
    sandbox: Sandbox
    runner: RunnerClient
    born: Greeting
    """The runner's first words, before any command: the environment, directory and shell that a grader may trust.
    After a re-attachment ``runner.greeting`` tells what commands have made of them."""
    cold_start_s: float
    """``create`` to the runner's accepted hello; pull, build and admission apart."""
    baseline: Tree | None = None
    """What a recycled one has to be equal to; None: it is not recycled."""
    uses: int = 0
    """Sessions that it was given to."""

    @property
    def is_isolated(self) -> bool:
        """False: a plain process that shares the node's paths."""
        return self.sandbox.root == "/"

    def path(self, path: str) -> str:
        """An absolute path of the task as this sandbox's runner calls it."""
        return path if self.is_isolated else self.sandbox.root + path

    def workdir(self, task: Task) -> str:
        """Where the task's commands start, as the runner calls it."""
        return self.path(task.workdir) if task.workdir != "/" else self.born.cwd

    async def no_op(self, user: str | None, recorder: Recorder) -> None:
        """Run nothing as that user, as part of the setup. Raises CallerError, TaskError where it cannot be run."""
        start_ns = recorder.now_ns()
        result = await self.runner.exec(":", user=user, carry=False)
        recorder.add_command(start_ns, start_ns + result.timing.round_trip_ns, result.timing, within="setup")

    def ticket(self) -> Ticket | None:
        """For whoever takes it over; None: its substrate has no way to do that."""
        if not self.substrate.can_adopt or not self.is_isolated:
            return None
        sandbox = self.sandbox
        resume = self.runner.resume()
        return Ticket(
            sandbox.ref, resume, self.born, sandbox.rung, sandbox.system, self.cold_start_s, self.baseline, self.uses
        )

    async def end(self) -> None:
        """Destroy the sandbox, however often the caller is cancelled meanwhile. Raises SubstrateError."""
        await finish(self._end())

    async def keep(self, for_s: float, task: Task) -> Kept:
        """Leave it to itself for so many seconds, with all that runs in it, and let go of it.

        Raises:
            ConfigError: Its substrate cannot.
            InfraFailure: It is gone, or could not be kept; the caller ends it.
        """
        until_unix_s = time.time() + for_s
        ref = self.sandbox.ref
        place = await self.substrate.keep(ref, until_unix_s)  # first: from here on nobody takes it for a leftover
        await self.runner.leave(for_s)
        return Kept(
            substrate=ref.kind,
            sandbox=ref.id,
            node=socket.gethostname(),
            until_unix_s=until_unix_s,
            shell=self.born.shell,
            workdir=self.workdir(task),
            user=task.agent_user,
            place=place,
        )

    async def _end(self) -> None:
        # The runner is not told to end: then its sandbox would, however many the substrate is removing already.
        await self.runner.close()
        await self.substrate.destroy(self.sandbox.ref)


async def start(
    substrate: Substrate,
    spec: SandboxSpec,
    lease: Lease,
    recorder: Recorder,
    *,
    hello_timeout_s: float,
    is_for_grading: bool = False,
) -> Live:
    """Make a sandbox and say hello.

    Args:
        substrate: Open.
        spec: What it must be like.
        lease: Who it belongs to.
        recorder: Gets the phases of the start; of one for grading nothing, as ``grade`` covers it.
        hello_timeout_s: Longest wait for the runner's answer.
        is_for_grading: See ``recorder``.

    Raises:
        SubstrateError, TaskError: It could not be made; nothing is left of it, also when cancelled.
    """
    start_ns = recorder.now_ns()
    sandbox = await substrate.create(spec, lease)
    created_ns = recorder.now_ns()
    try:
        runner = await _connect(substrate, sandbox, lease.duration_s, hello_timeout_s)
    except BaseException:
        await _destroy_quietly(substrate, sandbox)
        raise
    connected_ns = recorder.now_ns()
    if not is_for_grading:
        parts = [
            (phase, round(sandbox.phases_s.get(phase, 0.0) * 1e9)) for phase in ("pull", "build", "create", "boot")
        ]
        # What the substrate does not account for is the wait for its start permit.
        recorder.add_sequence(start_ns, created_ns, parts, before="queue")
        recorder.add("connect", created_ns, connected_ns)
    started_s = sandbox.phases_s.get("create", 0.0) + sandbox.phases_s.get("boot", 0.0)
    cold_start_s = started_s + (connected_ns - created_ns) / 1e9
    return Live(substrate, sandbox, runner, runner.greeting, cold_start_s)


async def adopt(
    substrate: Substrate, ticket: Ticket, lease: Lease, *, under_way: int | None, hello_timeout_s: float
) -> Live:
    """Take over a sandbox whose host has died, with whatever runs in it.

    Args:
        substrate: Open, on the node that the sandbox is on.
        ticket: From the host before.
        lease: Who it belongs to from now on.
        under_way: Number of the command that was asked for and not answered (see ``Resume``).
        hello_timeout_s: Longest wait for the runner's answer.

    Raises:
        SandboxLostError: It is gone, or it is another one.
        SubstrateError, ProtocolError: It cannot be reached.
    """
    channel = await substrate.adopt(ticket.ref, lease)
    sandbox = Sandbox(ticket.ref, channel, ticket.rung, {}, ticket.system)
    resume = replace(ticket.resume, under_way=under_way)
    try:
        runner = await _connect(substrate, sandbox, lease.duration_s, hello_timeout_s, resume)
    except BaseException:
        await _destroy_quietly(substrate, sandbox)
        raise
    return Live(substrate, sandbox, runner, ticket.born, ticket.cold_start_s, ticket.baseline, ticket.uses)


async def reconnect(live: Live, channel: Channel, hello_timeout_s: float) -> None:
    """Speak to the runner of a sandbox that its substrate has restored: it has never heard of us.

    Raises:
        StartTimeoutError, ProtocolError: It does not answer, or not as it should.
    """
    await live.runner.close()
    live.sandbox.channel = channel
    live.runner = await _connect(live.substrate, live.sandbox, live.sandbox.ref.lease_s, hello_timeout_s)
    live.born = live.runner.greeting


async def _connect(
    substrate: Substrate, sandbox: Sandbox, lease_s: float, hello_timeout_s: float, resume: Resume | None = None
) -> RunnerClient:
    return await RunnerClient.connect(
        sandbox.channel,
        lease_s=lease_s * random.uniform(1.0, LEASE_SPREAD),
        hello_timeout_s=hello_timeout_s,
        reopen=_reopener(substrate, sandbox) if substrate.reattach else None,
        resume=resume,
    )


def _reopener(substrate: Substrate, sandbox: Sandbox) -> Callable[[], Awaitable[Channel]]:
    return lambda: substrate.reopen(sandbox.ref)


async def _destroy_quietly(substrate: Substrate, sandbox: Sandbox) -> None:
    """For when something else has gone wrong already, which is what the caller should hear."""
    try:
        await finish(substrate.destroy(sandbox.ref))
    except InfraFailure as error:
        logger.warning("sandbox %s was not removed; its lease will do it: %s", sandbox.ref.id, error)
