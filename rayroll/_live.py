"""A sandbox that answers: made by its substrate, greeted by its runner, and given back whatever happens in between."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rayroll.errors import InfraFailure
from rayroll.runner.client import Greeting, RunnerClient
from rayroll.substrates import Channel, Lease, Sandbox, SandboxSpec, Substrate
from rayroll.substrates._shield import finish
from rayroll.timing import Recorder
from rayroll.types import Task

__all__ = ["Live", "start"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Live:
    """A started sandbox and the open line to its runner."""

    substrate: Substrate
    sandbox: Sandbox
    runner: RunnerClient
    born: Greeting
    """The runner's first words, before any command: the environment, directory and shell that a grader may trust.
    After a re-attachment ``runner.greeting`` tells what commands have made of them."""
    cold_start_s: float
    """``create`` to the runner's accepted hello; pull, build and admission apart."""

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

    async def end(self) -> None:
        """Destroy the sandbox, however often the caller is cancelled meanwhile. Raises SubstrateError."""
        await finish(self._end())

    async def _end(self) -> None:
        await self.runner.close(shutdown=True)
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
        runner = await RunnerClient.connect(
            sandbox.channel,
            lease_s=lease.duration_s,
            hello_timeout_s=hello_timeout_s,
            reopen=_reopener(substrate, sandbox) if substrate.reattach else None,
        )
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
    return Live(substrate, sandbox, runner, runner.greeting, started_s + (connected_ns - created_ns) / 1e9)


def _reopener(substrate: Substrate, sandbox: Sandbox) -> Callable[[], Awaitable[Channel]]:
    return lambda: substrate.reopen(sandbox.ref)


async def _destroy_quietly(substrate: Substrate, sandbox: Sandbox) -> None:
    """For when something else has gone wrong already, which is what the caller should hear."""
    try:
        await finish(substrate.destroy(sandbox.ref))
    except InfraFailure as error:
        logger.warning("sandbox %s was not removed; its lease will do it: %s", sandbox.ref.id, error)
