"""A task in a sandbox, as a trainer holds it: open, exec, read and write, grade. Every env and adapter sits on this."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import Field

from rayroll import _grade as grading
from rayroll._live import Live, start
from rayroll.config import Config
from rayroll.errors import (
    CallerError,
    ClosedError,
    ConfigError,
    DiskFullError,
    Failure,
    InfraFailure,
    SandboxFileError,
    SandboxKilledError,
    SandboxLostError,
    TaskError,
)
from rayroll.substrates import Lease, Sandbox, SandboxSpec, Substrate, load
from rayroll.substrates._shield import finish
from rayroll.timing import Recorder
from rayroll.types import ExecResult, Grade, Rung, Task

__all__ = ["Client", "Session", "SessionConfig", "observation"]

logger = logging.getLogger(__name__)

MOST_COMMAND_BYTES = 8 << 20
"""A longer command is refused, as an observation: a policy may write one."""
SOLUTION = "/solution"
_AGENTS_DOING = {"arguments", "shell", "user"}
"""Why a runner could not start a command, where an agent can be why: it filled its environment, removed the shell."""
_KILLED_BY_ITS_AGENT = {
    "oom": "the sandbox ran out of memory",
    "exit 70": "the runner was kept from working by what ran beside it",  # its descriptors or its memory were taken
}
"""Causes of death that an agent brings about, in the words of ``Substrate.cause_of_death``."""
_LIMIT_NOTES = {"total": "ended by its time limit", "idle": "ended because it printed nothing for too long"}

T = TypeVar("T")


class SessionConfig(Config):
    """How sessions treat their sandboxes."""

    lease_s: float = Field(default=30.0, ge=1.0)
    """Silence of the host, in seconds, after which a sandbox kills everything and removes itself."""
    exec_timeout_s: float = Field(default=120.0, gt=0.0)
    """Limit of a command that brings none."""
    idle_timeout_s: float | None = Field(default=None, gt=0.0)
    """Limit of a command's silence; None: none."""
    output_cap_bytes: int = Field(default=64 << 10, ge=0, le=16 << 20)
    """Most output of a command that is kept, half from its beginning and half from its end."""
    hello_timeout_s: float = Field(default=30.0, gt=0.0)
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
        """Nothing is started yet.

        Args:
            substrate: Its kind, or an instance that is not open.
            substrate_config: Fields of its config, for a kind.
            config: How sessions treat their sandboxes.
            run_id: Label of every sandbox, by which ``rayroll gc`` finds them; random by default.
            owner: Label of this process; random by default.

        Raises:
            ConfigError: Unknown kind or field, with the nearest known names.
        """
        if isinstance(substrate, str):
            kind = load(substrate)
            where = f"substrate {substrate!r}"
            substrate = kind(kind.config_type.parse(substrate_config or {}, where=where))
        elif substrate_config is not None:
            raise ConfigError("substrate_config goes with the name of a substrate; an instance has its own")
        self.substrate = substrate
        self.config = config or SessionConfig()
        self.run_id = run_id or secrets.token_hex(6)
        self.owner = owner or f"{socket.gethostname()}-{secrets.token_hex(3)}"
        self._sessions: set[Session] = set()
        self._open = False
        self._closing: asyncio.Task[None] | None = None
        self._judged_untouched: set[str] = set()
        """Tasks whose tests were seen to give a verdict in an untouched sandbox."""

    async def __aenter__(self) -> Client:
        try:
            await self.substrate.open()
        except BaseException:
            await finish(self.substrate.close())
            raise
        self._open, self._closing = True, None
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
        deadline_s: float | None = None,
        trusted: bool = False,
    ) -> Session:
        """A session for a task. Returns at once; the sandbox is started when it is first used, or by ``boot``.

        Args:
            task: The problem.
            group_id: Names the group of samples of one task that this is one of (GRPO); becomes a label.
            sample_index: Its place in the group.
            seed: Becomes ``RAYROLL_SEED`` and ``PYTHONHASHSEED`` in the sandbox.
            deadline_s: Seconds from the moment the sandbox is up, so that a slow start costs the agent nothing;
                commands are cut to what is left, and none starts later. None: the task's ``agent_timeout_s``.
            trusted: Its commands come from rayroll's own scripted policies, not from a model. Only then may ``local``
                do without bubblewrap.

        Raises:
            ClosedError: The client is not open.
            ConfigError: The task's network differs between agent and grader, and this substrate cannot switch it.
        """
        if not self._open:
            raise ClosedError("the client is not open; use `async with Client(...) as client`")
        self._check_network(task)
        labels = {"task": task.id, "sample": str(sample_index)} | ({"group": group_id} if group_id else {})
        session = Session(
            self,
            task,
            seed=seed,
            deadline_s=task.agent_timeout_s if deadline_s is None else deadline_s,
            labels=labels,
            trusted=trusted,
            forget=self._sessions.discard,
        )
        self._sessions.add(session)
        return session

    def _check_network(self, task: Task) -> None:
        # Said here and not when a rollout of an hour is to be graded.
        can_switch = type(self.substrate).set_network is not Substrate.set_network
        if task.agent_network != task.grade_network and self.config.grade_in == "same" and not can_switch:
            raise ConfigError(
                f"substrate {self.substrate.kind!r} cannot switch the network of a running sandbox, and this task "
                "wants another for grading; set grade_in='fresh'",
                task=task.id,
            )

    async def close(self) -> None:
        """Close every session and the substrate, also when the caller is cancelled meanwhile. Idempotent.

        Raises:
            ExceptionGroup: Sandboxes could not be destroyed; their leases and the reaper see to them.
        """
        if self._closing is None:
            if not self._open:
                return
            self._open = False
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close client")
        await finish(_outcome(self._closing))

    async def _close(self) -> None:
        closed = await asyncio.gather(*(session.close() for session in list(self._sessions)), return_exceptions=True)
        await self.substrate.close()
        errors = [error for error in closed if isinstance(error, Exception)]
        if errors:
            raise ExceptionGroup(f"{len(errors)} sandboxes were not destroyed", errors)


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
        trusted: bool,
        forget: Callable[[Session], None],
    ) -> None:
        """For ``Client.open``."""
        self.task = task
        self.id = secrets.token_hex(6)
        self.recorder = Recorder()
        """Spans of everything this session did, by this process's monotonic clock."""
        self.cold_start_s: float | None = None
        """``create`` to the runner's accepted hello; pull, build and admission apart."""
        self.first_action_s: float | None = None
        """The same to the result of a first no-op; None unless ``SessionConfig.first_action`` asks for it."""
        self._client = client
        self._seed = seed
        self._deadline_s = deadline_s
        self._began_ns: int | None = None
        self._labels = labels
        self._trusted = trusted
        self._forget = forget
        self._booting: asyncio.Task[Live] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._is_graded = False
        self._judging = asyncio.Lock()
        self._grade: Grade | None = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            await self.close()
        except InfraFailure as error:
            if kind is None:
                raise
            logger.warning("session %s: %s", self.id, error)  # the body's own exception says more

    # --- starting ---

    def boot(self) -> None:
        """Begin to start the sandbox now, behind whatever the caller does next."""
        if self._closing is not None:
            raise ClosedError("the session was closed", session=self.id)
        if self._booting is None:
            self._booting = asyncio.get_running_loop().create_task(self._boot(), name=f"boot {self.id}")

    async def booted(self) -> Sandbox:
        """The started sandbox. Raises what starting raised, each time it is asked."""
        return (await self._live()).sandbox

    @property
    def rung(self) -> Rung | None:
        """Where on the start ladder the sandbox began; None before it did."""
        live = self._live_nowait()
        return live.sandbox.rung if live else None

    async def _live(self) -> Live:
        self.boot()
        assert self._booting is not None
        if (live := self._live_nowait()) is not None:
            return live
        try:
            # Shielded: a caller that gives up must not leave the others without a sandbox.
            return await asyncio.shield(self._booting)
        except asyncio.CancelledError:
            if self._closing is not None and not _is_cancelled():
                raise ClosedError("the session was closed while it started", session=self.id) from None
            raise

    def _live_nowait(self) -> Live | None:
        task = self._booting
        return task.result() if task and task.done() and not task.cancelled() and task.exception() is None else None

    async def _boot(self) -> Live:
        live = await self._start(self._spec())
        try:
            await self._prepare(live)
        except BaseException:
            await self._end_quietly(live)
            raise
        self.cold_start_s = live.cold_start_s
        self._began_ns = self.recorder.now_ns()
        return live

    async def _start(self, spec: SandboxSpec, *, is_for_grading: bool = False) -> Live:
        client = self._client
        return await start(
            client.substrate,
            spec,
            Lease(client.run_id, client.owner, client.config.lease_s),
            self.recorder,
            hello_timeout_s=client.config.hello_timeout_s,
            is_for_grading=is_for_grading,
        )

    async def _prepare(self, live: Live) -> None:
        """See that the task's shell and users are there, while it cannot be the agent who removed them."""
        if not live.born.shell:
            raise TaskError("the image has no shell (bash or sh)", task=self.task.id)
        for user in {self.task.agent_user, self.task.grade_user} - {None}:
            try:
                await self._no_op(live, user)
            except (CallerError, TaskError) as error:
                raise TaskError(f"commands cannot run as user {user!r}: {error.message}", task=self.task.id) from error
        if self._client.config.first_action:
            start_ns = self.recorder.now_ns()
            await self._no_op(live, self.task.agent_user)
            self.first_action_s = live.cold_start_s + (self.recorder.now_ns() - start_ns) / 1e9

    async def _no_op(self, live: Live, user: str | None) -> None:
        start_ns = self.recorder.now_ns()
        result = await live.runner.exec(":", user=user, carry=False)
        self.recorder.add_command(start_ns, start_ns + result.timing.round_trip_ns, result.timing, within="setup")

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
            trusted=self._trusted,
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

        What cannot be run is answered like a command that failed, with exit code 126, where a policy can be why: a NUL
        byte, a lone surrogate, more than 8 MiB, a shell that was deleted, an environment too large.

        Args:
            command: Text for the image's bash, else sh.
            timeout_s: Limit in seconds from its start, cut to what the deadline leaves; None: the configured one.
            idle_timeout_s: Limit in seconds for its silence; None: the configured one.
            env: Variables for this command alone.
            cwd: Directory for this command alone.
            stdin: What it can read; then, or at once, the end of file.

        Raises:
            SandboxKilledError: The agent's doing ended the sandbox (fault ``policy``).
            SandboxLostError: The machine ended it (fault ``infra``).
            SandboxFileError: There is no ``cwd``.
            CallerError: ``env`` is too large; or the session was graded or closed.
        """
        refusal = _unrunnable(command)
        if refusal is not None:
            return _not_run(refusal)
        live = await self._usable()
        config = self._client.config
        limit_s = config.exec_timeout_s if timeout_s is None else timeout_s
        left_s = self.remaining_s
        if left_s <= 0:
            return replace(_not_run("out of time"), exit_code=124, timed_out=True, limit="total")
        start_ns = self.recorder.now_ns()
        try:
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
        except (CallerError, TaskError) as error:
            if error.facts.get("code") not in _AGENTS_DOING or cwd is not None or env:
                raise
            self.recorder.add("transport", start_ns, self.recorder.now_ns())
            return _not_run(error.message)
        except BaseException:
            self.recorder.add("transport", start_ns, self.recorder.now_ns())
            raise
        timing = result.timing
        self.recorder.add_command(start_ns, start_ns + timing.round_trip_ns, timing, handled_ns=self.recorder.now_ns())
        return result

    @property
    def remaining_s(self) -> float:
        """Seconds until the session's deadline; the whole of it before the sandbox is up."""
        used_ns = 0 if self._began_ns is None else self.recorder.now_ns() - self._began_ns
        return self._deadline_s - used_ns / 1e9

    async def write(self, path: str | bytes, data: bytes, *, mode: int | None = None) -> None:
        """Write a file whole or not at all, owned by the agent's user. Raises SandboxFileError."""
        live = await self._usable()
        async with self._transfer(live):
            await live.runner.write_file(path, data, mode=mode, user=self.task.agent_user)

    async def read(self, path: str | bytes, *, max_bytes: int = 64 << 20) -> bytes:
        """Contents of a file; larger than ``max_bytes`` is an error, never a silent cut. Raises SandboxFileError."""
        live = await self._live()
        async with self._transfer(live):
            return await live.runner.read_file(path, max_bytes=max_bytes)

    async def upload(self, path: str | bytes, tar: bytes) -> None:
        """Unpack an archive below a folder, owned by the agent's user. Raises SandboxFileError."""
        live = await self._usable()
        async with self._transfer(live):
            await live.runner.upload_tree(path, tar, user=self.task.agent_user)

    async def download(self, path: str | bytes, *, exclude: Iterable[bytes] = ()) -> bytes:
        """A folder as an archive; ``exclude`` names prefixes relative to it. Raises SandboxFileError."""
        live = await self._live()
        async with self._transfer(live):
            return await live.runner.download_tree(path, exclude=exclude)

    async def _usable(self) -> Live:
        if self._is_graded:
            raise CallerError(
                "the session was graded: the task's tests are in its sandbox, so nothing more may run in it",
                session=self.id,
            )
        return await self._live()

    @contextlib.asynccontextmanager
    async def _transfer(self, live: Live) -> AsyncIterator[None]:
        async with self._attributed(live):
            with self.recorder.span("transport"):
                yield

    @contextlib.asynccontextmanager
    async def _attributed(self, live: Live) -> AsyncIterator[None]:
        """Out of memory, or a runner that gave up for what was done to it: its agent ended it. Any other loss is
        the machine's."""
        try:
            yield
        except SandboxLostError as error:
            if "session" in error.facts:
                raise  # of another sandbox, attributed where it was lost
            cause = await self._client.substrate.cause_of_death(live.sandbox.ref)
            how = _KILLED_BY_ITS_AGENT.get(cause.partition(":")[0])
            if how is not None:
                raise SandboxKilledError(how, cause=cause, session=self.id) from error
            raise SandboxLostError(error.message, **{**error.facts, "cause": cause, "session": self.id}) from error

    # --- judging ---

    async def solve(self) -> ExecResult:
        """Apply the task's known fix: its author's proof that the task can be solved.

        Raises:
            TaskError: It has none.
        """
        task = self.task
        if task.solution is None:
            raise TaskError("the task has no known fix", task=task.id)
        live = await self._usable()
        folder = live.path(SOLUTION)
        async with self._attributed(live):
            with self.recorder.span("setup"):
                await live.runner.upload_tree(folder, task.solution.tar)
                start_ns = self.recorder.now_ns()
                result = await live.runner.exec(
                    argv=[live.born.shell, f"{folder}/solve.sh"],
                    env=task.solution_env,
                    cwd=live.workdir(task),
                    user=task.agent_user,
                    carry=False,
                    timeout_s=task.agent_timeout_s,
                )
                end_ns = start_ns + result.timing.round_trip_ns
                self.recorder.add_command(start_ns, end_ns, result.timing, within="setup")
                await live.runner.remove(folder)
        return result

    async def grade(self, *, fingerprint: bool = False) -> Grade:
        """Judge what is there: the task's tests enter now, after everything the agent started has been killed.

        They run with the environment that the sandbox was born with, not the one the agent left, and what they write
        to ``/logs/verifier/reward.txt`` (a number) or ``reward.json`` is the verdict; a file that was there before them
        is removed first. The verdict is final: asked again, it is the same, and no command runs after it.

        Where they leave no verdict, run out of time or cannot be put into the sandbox, they are run in an untouched
        one as well. If they give a verdict there, what the agent did is why, and that is 0.0; if not, it is their own
        fault.

        Args:
            fingerprint: Also hash the working directory's files as the agent left them, into ``details["work"]``, to
                prove that two substrates did equal work.

        Returns:
            A grade; ``reward=None`` only with a ``grader`` failure.

        Raises:
            SandboxKilledError, SandboxLostError: As in ``exec``.
            SubstrateError: A second sandbox was needed and could not be made.
        """
        async with self._judging:
            if self._grade is None:
                live = await self._live()
                self._is_graded = True
                with self.recorder.span("grade"):
                    self._grade = await self._judge(live, fingerprint)
        return self._grade

    async def _judge(self, live: Live, with_fingerprint: bool) -> Grade:
        async with self._attributed(live):
            await live.runner.kill_all()
            work = await grading.fingerprint(live, self.task) if with_fingerprint else {}
            if self._client.config.grade_in == "same":
                if self.task.grade_network != self.task.agent_network:
                    await self._client.substrate.set_network(live.sandbox.ref, self.task.grade_network)
                grade = await self._run_tests(live)
        if self._client.config.grade_in == "fresh":
            grade = await self._in_fresh_sandbox(lambda fresh: self._judge_carried(live, fresh))
        if grading.is_doubtful(grade):
            grade = await self._settle(grade)
        return replace(grade, details={**grade.details, **work})

    async def _judge_carried(self, live: Live, fresh: Live) -> Grade:
        try:
            async with self._attributed(live):
                await grading.carry_over(live, fresh, self.task)
        except SandboxFileError as error:
            return Grade(0.0, "", Failure("policy", f"the work cannot be carried to the grader: {error}", "no_work"))
        return await self._run_tests(fresh)

    async def _settle(self, grade: Grade) -> Grade:
        """Whose fault is it that there is no verdict? Untouched tests tell."""
        assert grade.failure is not None
        reason, error = grade.failure.reason, grade.failure.error
        if error == "no_room" or self.task.id not in self._client._judged_untouched:
            control = await self._in_fresh_sandbox(self._run_tests)
            if control.failure is not None and control.failure.error == error == "no_room":
                raise DiskFullError("an untouched sandbox has no room for the tests either", reason=reason)
            if control.failure is not None:
                reason = f"{reason}; in an untouched sandbox: {control.failure.reason}"
                return replace(grade, failure=Failure("grader", reason, error))
            self._client._judged_untouched.add(self.task.id)
        reason = f"{reason}; in an untouched sandbox they give a verdict"
        return replace(grade, reward=0.0, failure=Failure("policy", reason, error))

    async def _in_fresh_sandbox(self, judge: Callable[[Live], Coroutine[Any, Any, Grade]]) -> Grade:
        spec = replace(self._spec(), network=self.task.grade_network)
        fresh = await self._start(spec, is_for_grading=True)
        try:
            async with self._attributed(fresh):
                return await judge(fresh)
        finally:
            await self._end_quietly(fresh)

    async def _run_tests(self, live: Live) -> Grade:
        cap_bytes = self._client.config.output_cap_bytes
        return await grading.run_tests(live, self.task, self.recorder, output_cap_bytes=cap_bytes)

    # --- the end ---

    async def close(self) -> None:
        """Destroy the sandbox. Idempotent; finished even when the caller is cancelled.

        Raises:
            SubstrateError: It could not be destroyed; its lease and the reaper see to it.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name=f"close {self.id}")
        await finish(_outcome(self._closing))

    async def _close(self) -> None:
        try:
            if self._booting is None:
                return
            self._booting.cancel()
            await asyncio.wait({self._booting})
            live = self._live_nowait()
            if live is not None:
                with self.recorder.span("teardown"):
                    await live.end()
        finally:
            self._forget(self)

    async def _end_quietly(self, live: Live) -> None:
        try:
            await live.end()
        except InfraFailure as error:
            logger.warning("a sandbox was not removed; its lease will do it: session=%s %s", self.id, error)


def observation(result: ExecResult) -> str:
    """What an agent is shown of a command: its output, and in brackets what it must know and no command printed."""
    notes = [note for note in (_LIMIT_NOTES.get(result.limit), result.notice) if note]
    if not notes:
        return result.output
    gap = "\n" if result.output and not result.output.endswith("\n") else ""
    return result.output + gap + "".join(f"[{note}]\n" for note in notes)


def _not_run(reason: str) -> ExecResult:
    output = f"rayroll: not run: {reason}\n"
    return ExecResult(output=output, exit_code=126, output_bytes=len(output.encode()), raw=output.encode())


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


def _is_cancelled() -> bool:
    """Somebody asked the running task itself to stop."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _outcome(task: asyncio.Task[T]) -> T:
    return await asyncio.shield(task)
