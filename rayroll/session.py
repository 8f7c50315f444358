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
from rayroll._live import Live, Ticket, adopt, start
from rayroll.errors import (
    CallerError,
    ClosedError,
    ConfigError,
    DiskFullError,
    Failure,
    InfraFailure,
    RayrollError,
    SandboxFileError,
    SandboxKilledError,
    SandboxLostError,
    TaskError,
)
from rayroll.pool import Pool, PoolConfig, Reset, shape_of
from rayroll.substrates import Lease, Sandbox, SandboxSpec, Substrate, load
from rayroll.substrates._shield import finish
from rayroll.timing import Recorder
from rayroll.types import ExecResult, Grade, Kept, Rung, Task

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
_ROUNDS_WITHOUT_ROOM = 3
_LIMIT_NOTES = {"total": "ended by its time limit", "idle": "ended because it printed nothing for too long"}

T = TypeVar("T")


class SessionConfig(PoolConfig):
    """How sessions treat their sandboxes."""

    reset: Reset = "fresh"
    """What becomes of a sandbox when its session closes. ``fresh``: it is destroyed. ``recycle``: it is made clean and
    kept for the next session of its shape, unless it cannot be proven equal to what it was before its first command.
    ``restore``: its substrate takes it back to a saved state. See docs/resets.md."""

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
        self._lease = Lease(self.run_id, self.owner, self.config.lease_s)
        self.pool = self._new_pool()
        """The idle sandboxes of this process."""
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
        if self._closing is not None:
            self.pool = self._new_pool()
        self._open, self._closing = True, None
        return self

    def _new_pool(self) -> Pool:
        config = self.config
        return Pool(self.substrate, self._lease, config, reset=config.reset, hello_timeout_s=config.hello_timeout_s)

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
            group_id: Names the group of samples of one task that this is one of (GRPO).
            sample_index: Its place in the group.
            seed: Becomes ``RAYROLL_SEED`` and ``PYTHONHASHSEED`` of every command and of the grader.
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
        session = Session(
            self,
            task,
            seed=seed,
            deadline_s=task.agent_timeout_s if deadline_s is None else deadline_s,
            group_id=group_id,
            sample_index=sample_index,
            trusted=trusted,
            forget=self._sessions.discard,
        )
        self._sessions.add(session)
        return session

    async def take_over(
        self,
        task: Task,
        ticket: Ticket,
        *,
        left_s: float,
        under_way: int | None = None,
        group_id: str | None = None,
        sample_index: int = 0,
        seed: int | None = None,
        trusted: bool = False,
    ) -> Session:
        """Go on with a session of another process, which has died, in its own sandbox.

        Directory, variables and processes are as they were. What was under way there goes on: ``exec`` with its number
        returns its result.

        Args:
            task: As there.
            ticket: What that session said (``Session.ticket``).
            left_s: Seconds to its deadline.
            under_way: Number of the command that was asked for there and not answered.
            group_id: As there.
            sample_index: As there.
            seed: As there.
            trusted: As there.

        Raises:
            SandboxLostError: The sandbox is gone: its lease ran out, or its runner has ended.
            SubstrateError, ProtocolError: It cannot be reached.
            ClosedError: This client is not open.
        """
        session = self.open(
            task, group_id=group_id, sample_index=sample_index, seed=seed, deadline_s=left_s, trusted=trusted
        )
        session._begin(
            adopt(
                self.substrate,
                ticket,
                self._lease,
                under_way=under_way,
                hello_timeout_s=self.config.hello_timeout_s,
            )
        )
        try:
            await session.booted()
        except BaseException:
            await session.close()
            raise
        return session

    async def warm(self, task: Task, *, trusted: bool = False) -> bool:
        """Start one more sandbox for sessions of this task; it is kept until one wants it, or for ``max_idle_s``.

        Cancelled, it leaves nothing behind.

        Args:
            task: As for ``open``.
            trusted: As for ``open``: a sandbox that was started for the one kind is not given to the other.

        Returns:
            Whether there is one more; False: the pool is full of this very shape.

        Raises:
            SubstrateError, TaskError: It could not be made.
            ClosedError: The client is not open, or was closed meanwhile.
        """
        if not self._open:
            raise ClosedError("the client is not open; use `async with Client(...) as client`")
        return await self.pool.warm(task, spec_of(task, trusted=trusted))

    async def cool(self, task: Task | None = None, *, trusted: bool = False, most: int | None = None) -> int:
        """Destroy idle sandboxes, those first that have been idle for longest.

        Args:
            task: Of this task's shape; None: of any.
            trusted: As for ``warm``.
            most: So many at most; None: all.

        Returns:
            How many there were to destroy.

        Raises:
            ExceptionGroup: Some could not be destroyed; their leases and the reaper see to them.
        """
        return await self.pool.cool(self.shape(task, trusted=trusted) if task else None, most=most)

    def shape(self, task: Task, *, trusted: bool = False) -> str:
        """What two sessions must have in common to share a sandbox, as a hash."""
        return shape_of(task, spec_of(task, trusted=trusted))

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
        self.pool.refuse()  # a reset would be for nobody
        closed = await asyncio.gather(
            *(session.close() for session in list(self._sessions)), self.pool.close(), return_exceptions=True
        )
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
        group_id: str | None,
        sample_index: int,
        trusted: bool,
        forget: Callable[[Session], None],
    ) -> None:
        """For ``Client.open``."""
        self.task = task
        self.group_id = group_id
        self.sample_index = sample_index
        self.id = secrets.token_hex(6)
        self.recorder = Recorder()
        """Spans of everything this session did, by this process's monotonic clock."""
        self.cold_start_s: float | None = None
        """``create`` to the runner's accepted hello, pull, build and admission apart; of an idle one, its hand-out."""
        self.first_action_s: float | None = None
        """The same to the result of a first no-op; None unless ``SessionConfig.first_action`` asks for it."""
        self.is_recycled = False
        """Its sandbox was made clean, and waits for another session of its shape; said when it is closed."""
        self.kept: Kept | None = None
        """Where its sandbox is, after ``keep``."""
        self._client = client
        self._seeds = _seeds(seed)
        self._deadline_s = deadline_s
        self._began_ns: int | None = None
        self._spec = spec_of(task, trusted=trusted)
        self._under_way = 0
        """Calls that may still send something to the sandbox."""
        self._network_was_switched = False
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
        self._check_open()
        if self._booting is None:
            self._begin(self._boot())

    def _begin(self, getting: Coroutine[Any, Any, Live]) -> None:
        self._booting = asyncio.get_running_loop().create_task(self._up(getting), name=f"boot {self.id}")

    async def _up(self, getting: Coroutine[Any, Any, Live]) -> Live:
        live = await getting
        self._began_ns = self.recorder.now_ns()
        return live

    def ticket(self) -> Ticket | None:
        """What another process must know to go on with this session (``Client.take_over``) if this one dies.

        None: it cannot: the substrate has no way to do that, or there is no sandbox yet. It holds the key to the
        sandbox's runner, so it is for no log.
        """
        live = self._live_nowait()
        return None if live is None else live.ticket()

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
            live = await asyncio.shield(self._booting)
        except asyncio.CancelledError:
            if self._closing is not None and not _is_cancelled():
                raise ClosedError("the session was closed while it started", session=self.id) from None
            raise
        self._check_open()  # closed between the end of the start and now
        return live

    def _check_open(self) -> None:
        """A sandbox that was given back may be another session's."""
        if self._closing is not None:
            raise ClosedError("the session was closed", session=self.id)

    def _live_nowait(self) -> Live | None:
        task = self._booting
        return task.result() if task and task.done() and not task.cancelled() and task.exception() is None else None

    async def _boot(self) -> Live:
        live, self.cold_start_s = await self._client.pool.acquire(self.task, self._spec, self.recorder)
        if self._client.config.first_action:
            start_ns = self.recorder.now_ns()
            try:
                await live.no_op(self.task.agent_user, self.recorder)
            except BaseException:
                await self._end_quietly(live)
                raise
            self.first_action_s = self.cold_start_s + (self.recorder.now_ns() - start_ns) / 1e9
        return live

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
        number: int | None = None,
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
            number: Names it for a session that goes on after this one (``Client.take_over``), so that it is not run
                twice: ``NUMBERED_FROM`` to 2^32 - 1, each once.

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
                    env={**self._seeds, **(env or {})},
                    cwd=cwd,
                    stdin=stdin,
                    user=self.task.agent_user,
                    timeout_s=min(limit_s, left_s),
                    idle_timeout_s=config.idle_timeout_s if idle_timeout_s is None else idle_timeout_s,
                    output_cap_bytes=config.output_cap_bytes,
                    number=number,
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
        self._check_open()
        self._under_way += 1
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
        finally:
            self._under_way -= 1

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
                    env={**self._seeds, **task.solution_env},
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
            if self._client.config.grade_in == "same" and self.task.grade_network != self.task.agent_network:
                self._network_was_switched = True
                await self._client.substrate.set_network(live.sandbox.ref, self.task.grade_network)
        grade = await self._judge_once(live)
        if grading.is_doubtful(grade):
            grade = await self._settle(grade, live)
        return replace(grade, details={**grade.details, **work})

    async def _judge_once(self, live: Live) -> Grade:
        if self._client.config.grade_in == "fresh":
            return await self._in_fresh_sandbox(lambda fresh: self._judge_carried(live, fresh))
        async with self._attributed(live):
            return await self._run_tests(live)

    async def _judge_carried(self, live: Live, fresh: Live) -> Grade:
        try:
            async with self._attributed(live):
                await grading.carry_over(live, fresh, self.task)
        except SandboxFileError as error:
            return Grade(0.0, "", Failure("policy", f"the work cannot be carried to the grader: {error}", "no_work"))
        return await self._run_tests(fresh)

    async def _settle(self, grade: Grade, live: Live) -> Grade:
        """Whose fault is it that there is no verdict? Untouched tests tell.

        Where there was no room, several rounds of both do: neighbours on the node give space back and take it.
        """
        for _ in range(_ROUNDS_WITHOUT_ROOM):
            assert grade.failure is not None
            failure = grade.failure
            if failure.error == "no_room" or self.task.id not in self._client._judged_untouched:
                control = (await self._in_fresh_sandbox(self._run_tests)).failure
                if control is not None and control.error == "no_room":
                    raise DiskFullError("an untouched sandbox has no room for the tests either", reason=failure.reason)
                if control is not None:
                    reason = f"{failure.reason}; in an untouched sandbox: {control.reason}"
                    return replace(grade, failure=Failure("grader", reason, failure.error))
                self._client._judged_untouched.add(self.task.id)
            if failure.error != "no_room":
                break
            grade = await self._judge_once(live)
            if not grading.is_doubtful(grade):
                return grade
        assert grade.failure is not None
        reason = f"{grade.failure.reason}; in an untouched sandbox they give a verdict"
        return replace(grade, reward=0.0, failure=Failure("policy", reason, grade.failure.error))

    async def _in_fresh_sandbox(self, judge: Callable[[Live], Coroutine[Any, Any, Grade]]) -> Grade:
        client = self._client
        fresh = await start(
            client.substrate,
            replace(self._spec, network=self.task.grade_network),
            Lease(client.run_id, client.owner, client.config.lease_s),
            self.recorder,
            hello_timeout_s=client.config.hello_timeout_s,
            is_for_grading=True,
        )
        try:
            async with self._attributed(fresh):
                return await judge(fresh)
        finally:
            await self._end_quietly(fresh)

    async def _run_tests(self, live: Live) -> Grade:
        cap_bytes = self._client.config.output_cap_bytes
        return await grading.run_tests(live, self.task, self.recorder, seeds=self._seeds, output_cap_bytes=cap_bytes)

    # --- the end ---

    async def close(self) -> None:
        """Give the sandbox back: destroyed, or with another ``reset`` made clean for the next session of its shape.

        Returns when that is done: a reset takes less than the destruction whose place it takes, and what a caller
        measures as closed is closed. Idempotent; finished even when the caller is cancelled.

        Raises:
            SubstrateError: It could not be destroyed; its lease and the reaper see to it.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name=f"close {self.id}")
        await finish(_outcome(self._closing))

    async def keep(self, for_s: float) -> Kept | None:
        """Close, but leave the sandbox and what runs in it as they are, for somebody to look into (``rayroll shell``).

        It outlives this process, and removes itself after so many seconds.

        Returns:
            How to get in; None: there was no sandbox, or it could not be kept (the log says why) and was destroyed.

        Raises:
            ConfigError: This substrate cannot keep sandboxes; the session is as it was.
        """
        if not self._client.substrate.can_keep():
            raise ConfigError(f"substrate {self._client.substrate.kind!r} cannot keep a sandbox")
        if self._closing is None:
            name = f"keep the sandbox of {self.id}"
            self._closing = asyncio.get_running_loop().create_task(self._close(for_s), name=name)
        await finish(_outcome(self._closing))
        return self.kept

    async def _close(self, keep_s: float | None = None) -> None:
        try:
            if self._booting is None:
                return
            self._booting.cancel()
            await asyncio.wait({self._booting})
            live = self._live_nowait()
            if live is not None and keep_s is not None:
                with self.recorder.span("teardown"):
                    await self._keep(live, keep_s)
            elif live is not None:
                # Something under way could still send a command, to whoever has the sandbox by then.
                busy = "in use" if self._under_way or self._judging.locked() else ""
                quarantine = busy or ("network" if self._network_was_switched else "")
                self.is_recycled = await self._client.pool.give_back(
                    live, self.task, self._spec, self.recorder, quarantine=quarantine
                )
        finally:
            self._forget(self)

    async def _keep(self, live: Live, for_s: float) -> None:
        try:
            self.kept = await live.keep(for_s, self.task)
        except RayrollError as error:
            logger.warning("a sandbox could not be kept: session=%s %s", self.id, error)
            await live.end()

    async def _end_quietly(self, live: Live) -> None:
        try:
            await live.end()
        except InfraFailure as error:
            logger.warning("a sandbox was not removed; its lease will do it: session=%s %s", self.id, error)


def spec_of(task: Task, *, trusted: bool = False) -> SandboxSpec:
    """What a task's sandboxes are born with; nothing of it belongs to one rollout."""
    return SandboxSpec(
        image=task.image,
        environment=task.environment or None,
        workdir=task.workdir,
        env=dict(task.env),
        cpus=task.cpus,
        memory_mib=task.memory_mib,
        disk_mib=task.disk_mib,
        network=task.agent_network,
        build_timeout_s=task.build_timeout_s,
        host_packages=task.host_packages,
        labels={"task": task.id},
        trusted=trusted,
    )


def _seeds(seed: int | None) -> dict[str, str]:
    return {} if seed is None else {"RAYROLL_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32)}


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
