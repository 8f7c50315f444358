"""A task in a sandbox, as a trainer holds it: open, exec, read and write, grade. Every env and adapter sits on this."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import logging
import math
import secrets
import socket
import tarfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rayroll.config import Config
from rayroll.errors import (
    ClosedError,
    Failure,
    SandboxFileError,
    SandboxKilledError,
    SandboxLostError,
    TaskError,
)
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, Sandbox, SandboxSpec, Substrate, load
from rayroll.timing import Recorder
from rayroll.types import ExecResult, Grade, Rung, Task

__all__ = ["Client", "Session", "SessionConfig"]

logger = logging.getLogger(__name__)

MOST_COMMAND_BYTES = 8 << 20
"""A longer command is refused, as an observation: a policy may write one."""
VERIFIER_LOGS = "/logs/verifier"
TESTS = "/tests"
SOLUTION = "/solution"
_CACHES = {"__pycache__", ".pytest_cache", ".hypothesis", ".git"}


class SessionConfig(Config):
    """How sessions treat their sandboxes."""

    lease_s: float = 30.0
    """Silence of the host, in seconds, after which a sandbox kills everything and removes itself."""
    exec_timeout_s: float = 120.0
    """Limit of a command that brings none."""
    idle_timeout_s: float | None = None
    """Limit of a command's silence; None: none."""
    output_cap_bytes: int = 64 << 10
    """Most output of a command that is kept, half from its beginning and half from its end."""
    hello_timeout_s: float = 30.0
    """Longest wait for the runner's first word."""
    grade_in: Literal["same", "fresh"] = "same"
    """Where the grader runs. ``fresh``: in a new sandbox that receives the agent's working directory and nothing else,
    so that nothing else the agent did can reach it; costs one more start."""
    first_action: bool = False
    """Run one no-op right after the start, to measure the time to first action."""


class Client:
    """Opens sessions on one substrate, in this process.

    >>> async with Client("docker") as client:
    ...     async with client.open(task) as session:
    ...         result = await session.exec("ls -la")
    """

    def __init__(
        self,
        substrate: str | Substrate,
        *,
        substrate_config: Mapping[str, Any] | None = None,
        config: SessionConfig | None = None,
        run_id: str | None = None,
        owner: str | None = None,
    ) -> None:
        if isinstance(substrate, str):
            kind = load(substrate)
            where = f"substrate {substrate!r}"
            substrate = kind(kind.config_type.parse(substrate_config or {}, where=where))
        self.substrate = substrate
        self.config = config or SessionConfig()
        self.run_id = run_id or secrets.token_hex(6)
        self.owner = owner or f"{socket.gethostname()}-{secrets.token_hex(3)}"
        self._sessions: set[Session] = set()
        self._open = False

    async def __aenter__(self) -> Client:
        await self.substrate.open()
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def open(
        self,
        task: Task,
        *,
        group_id: str | None = None,
        sample_index: int = 0,
        seed: int | None = None,
        deadline_s: float = 3600.0,
    ) -> Session:
        """A session for a task. Returns at once; the sandbox is started when it is first used, or by ``boot``.

        Args:
            task: The problem.
            group_id: Names the group of samples of one task that this is one of (GRPO); becomes a label.
            sample_index: Its place in the group.
            seed: Becomes ``RAYROLL_SEED`` and ``PYTHONHASHSEED`` in the sandbox.
            deadline_s: Seconds from the first use; commands are cut to what is left, and none starts later.
        """
        if not self._open:
            raise ClosedError("the client is not open; use `async with Client(...) as client`")
        labels = {"task": task.id, "sample": str(sample_index)} | ({"group": group_id} if group_id else {})
        session = Session(self, task, seed=seed, deadline_s=deadline_s, labels=labels, forget=self._sessions.discard)
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        """Close every session and the substrate. Idempotent."""
        if not self._open:
            return
        self._open = False
        await asyncio.gather(*(session.close() for session in list(self._sessions)), return_exceptions=True)
        await self.substrate.close()


@dataclass(slots=True)
class _Live:
    """What a started session holds."""

    sandbox: Sandbox
    runner: RunnerClient


class Session:
    """One task in one sandbox. Async; commands may run at the same time. ``rayroll.sync`` has the blocking twin."""

    def __init__(
        self,
        client: Client,
        task: Task,
        *,
        seed: int | None,
        deadline_s: float,
        labels: Mapping[str, str],
        forget: Callable[[Session], None],
    ) -> None:
        self.task = task
        self.id = secrets.token_hex(6)
        self.recorder = Recorder()
        """Spans of everything this session did, by this process's monotonic clock."""
        self.cold_start_s: float | None = None
        """``create`` to the runner's accepted hello; pull, build and admission apart."""
        self.first_action_s: float | None = None
        self._client = client
        self._seed = seed
        self._deadline_s = deadline_s
        self._used_ns: int | None = None
        self._labels = labels
        self._forget = forget
        self._booting: asyncio.Task[_Live] | None = None
        self._closed = False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- starting ---

    def boot(self) -> None:
        """Begin to start the sandbox now, behind whatever the caller does next."""
        if self._closed:
            raise ClosedError("the session was closed", session=self.id)
        if self._booting is None:
            self._used_ns = self.recorder.now_ns()
            self._booting = asyncio.get_running_loop().create_task(self._boot(), name=f"boot {self.id}")

    async def booted(self) -> Sandbox:
        """The started sandbox. Raises what starting raised, each time it is asked."""
        return (await self._live()).sandbox

    @property
    def rung(self) -> Rung | None:
        """Where on the start ladder the sandbox began; None before it did."""
        live = self._live_nowait()
        return live.sandbox.rung if live else None

    async def _live(self) -> _Live:
        self.boot()
        assert self._booting is not None
        # Shielded: a caller that gives up must not leave the others without a sandbox.
        return await asyncio.shield(self._booting)

    def _live_nowait(self) -> _Live | None:
        task = self._booting
        return task.result() if task and task.done() and not task.cancelled() and task.exception() is None else None

    async def _boot(self) -> _Live:
        live = await self._start_sandbox(self._spec())
        if self._client.config.first_action:
            start_ns = self.recorder.now_ns()
            result = await live.runner.exec(":", carry=False)
            self.recorder.add_command(start_ns, start_ns + result.timing.round_trip_ns, result.timing, within="setup")
            assert self.cold_start_s is not None
            self.first_action_s = self.cold_start_s + (self.recorder.now_ns() - start_ns) / 1e9
        return live

    async def _start_sandbox(self, spec: SandboxSpec, *, within: str | None = None) -> _Live:
        config, recorder, substrate = self._client.config, self.recorder, self._client.substrate
        lease = Lease(self._client.run_id, self._client.owner, config.lease_s)
        start_ns = recorder.now_ns()
        sandbox = await substrate.create(spec, lease)
        created_ns = recorder.now_ns()
        try:
            runner = await RunnerClient.connect(
                sandbox.channel,
                lease_s=config.lease_s,
                hello_timeout_s=config.hello_timeout_s,
                reopen=(lambda: substrate.reopen(sandbox.ref)) if substrate.reattach else None,
            )
        except BaseException:
            await asyncio.shield(substrate.destroy(sandbox.ref))
            raise
        connected_ns = recorder.now_ns()
        if within is None:
            # What the substrate does not account for is the wait for its start permit.
            parts = [
                (phase, round(sandbox.phases_s.get(phase, 0.0) * 1e9)) for phase in ("pull", "build", "create", "boot")
            ]
            recorder.add_sequence(start_ns, created_ns, parts, before="queue")
            recorder.add("connect", created_ns, connected_ns)
            started_s = sandbox.phases_s.get("create", 0.0) + sandbox.phases_s.get("boot", 0.0)
            self.cold_start_s = started_s + (connected_ns - created_ns) / 1e9
        return _Live(sandbox, runner)

    def _spec(self) -> SandboxSpec:
        task = self.task
        env = dict(task.env)
        if self._seed is not None:
            env |= {"RAYROLL_SEED": str(self._seed), "PYTHONHASHSEED": str(self._seed % 2**32)}
        return SandboxSpec(
            image=task.image,
            environment=task.environment or None,
            workdir=task.workdir,
            env=env,
            cpus=task.cpus,
            memory_mib=task.memory_mib,
            disk_mib=task.disk_mib,
            network=task.agent_network,
            build_timeout_s=task.build_timeout_s,
            host_packages=task.host_packages,
            labels=self._labels,
        )

    # --- what an agent does ---

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command as the task's agent; directory and exported variables carry over to the next.

        What no shell could run (a NUL byte, a lone surrogate, more than 8 MiB) is answered like a command that failed,
        with exit code 126: a policy may write such things, and that is an observation.

        Raises:
            SandboxKilledError: The agent's doing ended the sandbox (fault ``policy``).
            SandboxLostError: The machine ended it (fault ``infra``).
        """
        refusal = _unrunnable(command)
        if refusal is not None:
            return ExecResult(output=f"rayroll: not run: {refusal}\n", exit_code=126, raw=refusal.encode())
        live = await self._live()
        config = self._client.config
        limit_s = config.exec_timeout_s if timeout_s is None else timeout_s
        left_s = self.remaining_s
        if left_s <= 0:
            return ExecResult(output="rayroll: not run: out of time\n", exit_code=124, timed_out=True, limit="total")
        start_ns = self.recorder.now_ns()
        async with self._attributed(live):
            result = await live.runner.exec(
                command,
                env=env,
                cwd=cwd,
                stdin=stdin,
                user=self.task.agent_user,
                timeout_s=min(limit_s, left_s),
                idle_timeout_s=config.idle_timeout_s if idle_timeout_s is None else idle_timeout_s,
                output_cap_bytes=config.output_cap_bytes,
            )
        timing = result.timing
        self.recorder.add_command(start_ns, start_ns + timing.round_trip_ns, timing, handled_ns=self.recorder.now_ns())
        return result

    @property
    def remaining_s(self) -> float:
        """Seconds until the session's deadline; the whole of it before the first use."""
        used_ns = 0 if self._used_ns is None else self.recorder.now_ns() - self._used_ns
        return self._deadline_s - used_ns / 1e9

    async def write(self, path: str | bytes, data: bytes, *, mode: int | None = None) -> None:
        """Write a file whole or not at all, owned by the agent's user. Raises SandboxFileError."""
        live = await self._live()
        async with self._attributed(live):
            with self.recorder.span("transport"):
                await live.runner.write_file(path, data, mode=mode, user=self.task.agent_user)

    async def read(self, path: str | bytes, *, max_bytes: int = 64 << 20) -> bytes:
        """Contents of a file; larger than ``max_bytes`` is an error, never a silent cut. Raises SandboxFileError."""
        live = await self._live()
        async with self._attributed(live):
            with self.recorder.span("transport"):
                return await live.runner.read_file(path, max_bytes=max_bytes)

    async def upload(self, path: str | bytes, tar: bytes) -> None:
        """Unpack an archive below a folder, owned by the agent's user. Raises SandboxFileError."""
        live = await self._live()
        async with self._attributed(live):
            with self.recorder.span("transport"):
                await live.runner.upload_tree(path, tar, user=self.task.agent_user)

    async def download(self, path: str | bytes, *, exclude: Iterable[bytes] = ()) -> bytes:
        """A folder as an archive. Raises SandboxFileError."""
        live = await self._live()
        async with self._attributed(live):
            with self.recorder.span("transport"):
                return await live.runner.download_tree(path, exclude=exclude)

    @contextlib.asynccontextmanager
    async def _attributed(self, live: _Live) -> AsyncIterator[None]:
        """A sandbox that ran out of memory was ended by what the agent started; any other loss is the machine's."""
        try:
            yield
        except SandboxLostError as error:
            cause = await self._client.substrate.cause_of_death(live.sandbox.ref)
            if "oom" in cause:
                raise SandboxKilledError("the sandbox ran out of memory", cause=cause, session=self.id) from error
            raise SandboxLostError(error.message, **{**error.facts, "cause": cause, "session": self.id}) from error

    # --- judging ---

    async def solve(self) -> ExecResult:
        """Apply the task's known fix: its author's proof that the task can be solved. Raises TaskError without one."""
        if self.task.solution is None:
            raise TaskError("the task has no known fix", task=self.task.id)
        live = await self._live()
        await live.runner.upload_tree(SOLUTION, self.task.solution.tar)
        result = await live.runner.exec(
            argv=[live.runner.greeting.shell, f"{SOLUTION}/solve.sh"],
            env=self.task.solution_env,
            cwd=self.task.workdir,
            user=self.task.agent_user,
            carry=False,
            timeout_s=self.task.agent_timeout_s,
        )
        await live.runner.remove(SOLUTION)
        return result

    async def grade(self, *, fingerprint: bool = False) -> Grade:
        """Judge what is there: the task's tests enter now, after everything the agent started has been killed.

        They run with the environment that the sandbox was born with, not the one the agent left, and what they write
        to ``/logs/verifier/reward.txt`` (a number) or ``reward.json`` is the verdict; a file that was there before them
        is removed first.

        Args:
            fingerprint: Also hash the working directory's files as the agent left them, into ``details["work"]``, to
                prove that two substrates did equal work.

        Returns:
            A grade. Tests that run out of time or do not fit on the disk count as failed (the agent can cause both);
            tests that leave no readable verdict give ``reward=None`` with a ``grader`` failure.

        Raises:
            SandboxKilledError, SandboxLostError: As in ``exec``.
        """
        live = await self._live()
        with self.recorder.span("grade"):
            async with self._attributed(live):
                await live.runner.kill_all()
                work = await self._fingerprint(live) if fingerprint else {}
                grade = await (
                    self._grade_fresh(live) if self._client.config.grade_in == "fresh" else self._grade_in(live)
                )
                return replace(grade, details={**grade.details, **work})

    async def _fingerprint(self, live: _Live) -> dict[str, str]:
        """Names and contents of the working directory's files; owners, times and caches are not the agent's work."""
        digest = hashlib.sha256()
        tree = await live.runner.download_tree(self.task.workdir)
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            for member in archive:
                if not member.isfile() or _CACHES & set(member.name.split("/")):
                    continue
                file = archive.extractfile(member)
                assert file is not None
                digest.update(member.name.encode(errors="surrogateescape") + b"\0" + file.read() + b"\0")
        return {"work": digest.hexdigest()}

    async def _grade_fresh(self, live: _Live) -> Grade:
        workdir = self.task.workdir
        work = await live.runner.download_tree(workdir)
        fresh = await self._start_sandbox(self._spec(), within="grade")
        try:
            await fresh.runner.remove(workdir)
            await fresh.runner.upload_tree(workdir, work, user=self.task.agent_user)
            return await self._grade_in(fresh)
        finally:
            await asyncio.shield(self._end(fresh))

    async def _grade_in(self, live: _Live) -> Grade:
        task, runner = self.task, live.runner
        if task.grade_network != task.agent_network:
            await self._client.substrate.set_network(live.sandbox.ref, task.grade_network)
        try:
            for path in (VERIFIER_LOGS, TESTS):
                await runner.remove(path)
            await runner.make_dir(VERIFIER_LOGS, mode=0o777)  # the grader's user may be any
            await runner.upload_tree(TESTS, task.tests.tar)
        except SandboxFileError as error:
            return Grade(0.0, str(error), Failure("policy", f"the tests do not fit in the sandbox: {error}", "no_room"))
        start_ns = self.recorder.now_ns()
        result = await runner.exec(
            argv=[runner.greeting.shell, f"{TESTS}/test.sh"],
            env={**runner.greeting.env, **task.tests_env},
            clean_env=True,
            carry=False,
            cwd=task.workdir,
            user=task.grade_user,
            timeout_s=task.grade_timeout_s,
            output_cap_bytes=self._client.config.output_cap_bytes,
        )
        self.recorder.add_command(start_ns, start_ns + result.timing.round_trip_ns, result.timing, within="grade")
        await runner.kill_all()  # nothing the tests left running may write the verdict now
        return await _verdict(runner, result)

    # --- the end ---

    async def close(self) -> None:
        """Destroy the sandbox. Idempotent; finished even when the caller is cancelled."""
        if self._closed:
            return
        self._closed = True
        self._forget(self)
        await asyncio.shield(asyncio.get_running_loop().create_task(self._close(), name=f"close {self.id}"))

    async def _close(self) -> None:
        if self._booting is None:
            return
        if not self._booting.done():
            self._booting.cancel()
        await asyncio.wait({self._booting})
        live = self._live_nowait()
        if live is not None:
            with self.recorder.span("teardown"):
                await self._end(live)

    async def _end(self, live: _Live) -> None:
        await live.runner.close(shutdown=True)
        await self._client.substrate.destroy(live.sandbox.ref)


def _unrunnable(command: str) -> str | None:
    try:
        data = command.encode()
    except UnicodeEncodeError:
        return "the command holds characters that are not Unicode text (lone surrogates)"
    if b"\0" in data:
        return "the command holds a NUL byte"
    if len(data) > MOST_COMMAND_BYTES:
        return f"the command is {len(data)} bytes long; {MOST_COMMAND_BYTES} is the most"
    return None


async def _verdict(runner: RunnerClient, result: ExecResult) -> Grade:
    details: dict[str, Any] = {"exit_code": result.exit_code, "timed_out": result.timed_out}
    if result.timed_out:
        return Grade(0.0, result.output, Failure("policy", "the tests ran out of time", "grade_timeout"), details)
    try:
        reward, more = await _read_reward(runner)
    except (SandboxFileError, ValueError) as error:
        reason = f"the tests left no readable verdict in {VERIFIER_LOGS}: {error}"
        return Grade(None, result.output, Failure("grader", reason, "no_verdict"), details)
    return Grade(reward, result.output, None, {**details, **more})


async def _read_reward(runner: RunnerClient) -> tuple[float, dict[str, Any]]:
    """Harbor's two forms: a number in ``reward.txt``, or an object of numbers in ``reward.json``.

    Raises:
        SandboxFileError: Neither is there.
        ValueError: What is there is no finite number.
    """
    try:
        reward = float((await runner.read_file(f"{VERIFIER_LOGS}/reward.txt", max_bytes=4096)).decode())
        more: dict[str, Any] = {}
    except SandboxFileError:
        values = json.loads(await runner.read_file(f"{VERIFIER_LOGS}/reward.json", max_bytes=1 << 20))
        if not isinstance(values, dict) or not values:
            raise ValueError("reward.json is no object of numbers") from None
        reward = float(values["reward"] if "reward" in values else next(iter(values.values())))
        more = {"rewards": values}
    if not math.isfinite(reward):
        raise ValueError(f"the reward {reward} is not finite")
    return reward, more
