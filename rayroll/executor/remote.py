"""The trainer's side of a gateway: an executor in another cluster, its policy and its reader here.

The trainer needs no Ray, or has a cluster of its own: a process can be the driver of one only.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayroll import __version__
from rayroll.errors import CallerError, ClosedError, ConfigError, Failure, HostLostError
from rayroll.executor.away import PORT, SILENCE_S, Acted, Answer, Ask, Finished, Over, Read, Turned, Withdrawn
from rayroll.executor.gate import PauseMode
from rayroll.executor.line import Line, LineAddress
from rayroll.executor.line import connect as open_line
from rayroll.executor.messages import HostInfo, HostStats
from rayroll.executor.play import PlayConfig, rollout_id
from rayroll.executor.reading import Reading
from rayroll.executor.run import numbered
from rayroll.policies import Policy
from rayroll.scheduler import Snapshot, Spares
from rayroll.types import Act, Rollout, Task

__all__ = ["RemoteExecutor", "RemoteRun", "connect", "secret_file"]

SECRET_FILE = Path("~/.config/rayroll/secret")


def connect(
    address: str, substrate: str, *, secret: str | None = None, run_id: str | None = None, **options: Any
) -> RemoteExecutor:
    """An executor in another cluster, where ``rayroll serve`` runs.

    >>> async with rayroll.connect("sandboxes.example:7433", "docker") as executor:
    ...     run = executor.submit(tasks, policy, samples_per_task=8)
    ...     async for group in run.groups():
    ...         learn(group)

    The policy stays in this process. When the connection breaks, everything there is freed and reading raises
    ``HostLostError``; ``state_dict`` and ``run_id`` let another run go on from there.

    Args:
        address: ``HOST:PORT`` of the gateway; the port may be left out (7433).
        substrate: As for ``Executor``, as all options.
        secret: What ``rayroll serve`` was started with. None: RAYROLL_SECRET, else the file that it wrote
            (RAYROLL_SECRET_FILE, else ~/.config/rayroll/secret).
        run_id: As for ``Executor``.
        options: More arguments of ``Executor``.

    Raises:
        ConfigError: The address is none. When it is entered: there is no secret, or an option is wrong.
        HostLostError: When it is entered: nobody listens there, or knows another secret.
    """
    return RemoteExecutor(_parsed(address), secret, substrate, {"run_id": run_id, **options})


def secret_file() -> Path:
    """Where the secret is that gateways and trainers of this user share."""
    return Path(os.environ.get("RAYROLL_SECRET_FILE") or SECRET_FILE).expanduser()


def _found(given: str | None) -> bytes:
    secret = given or os.environ.get("RAYROLL_SECRET")
    file = secret_file()
    if not secret and file.exists():
        secret = file.read_text().strip()
    if not secret:
        raise ConfigError(
            "no secret for the gateway; set RAYROLL_SECRET, or copy the file that `rayroll serve` wrote", file=str(file)
        )
    return secret.encode()


def _parsed(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(PORT)
    if not host or not port.isdigit():
        raise ConfigError("a gateway's address is HOST:PORT", address=address)
    return host.strip("[]"), int(port)


class RemoteExecutor:
    """As ``Executor``, in another cluster. See ``connect``."""

    def __init__(
        self, address: tuple[str, int], secret: str | None, substrate: str, options: Mapping[str, Any]
    ) -> None:
        """Nothing is started yet; use ``connect``."""
        self.substrate = substrate
        self.run_id: str
        self.host: HostInfo
        """What the first host says about itself."""
        self._address, self._secret, self._options = address, secret, options
        self._ids, self._numbers = itertools.count(1), itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._runs: dict[int, RemoteRun] = {}
        self._line: Line | None = None
        self._is_open = False

    async def __aenter__(self) -> RemoteExecutor:
        secret = await asyncio.to_thread(_found, self._secret)
        try:
            self._line = await open_line(LineAddress(*self._address, secret))
        except (OSError, TimeoutError) as error:
            raise HostLostError(
                "no gateway there, or another secret; does `rayroll serve` run?", address=self._where, reason=str(error)
            ) from error
        self._line.expect_life(SILENCE_S)
        self._line.start(self._take, self._on_lost)
        try:
            arguments = {"version": __version__, "substrate": self.substrate, "options": dict(self._options)}
            self.run_id, self.host = await self._ask("open", 0, arguments)
        except BaseException:
            self._line.close()
            raise
        self._is_open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def stats(self) -> HostStats:
        """See ``Executor``."""
        stats: HostStats = await self._ask("stats")
        return stats

    async def snapshot(self) -> Snapshot:
        """See ``Executor``."""
        snapshot: Snapshot = await self._ask("snapshot")
        return snapshot

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
    ) -> RemoteRun:
        """As ``Executor.submit``; what is wrong with an argument is raised to whoever reads."""
        if not self._is_open:
            raise ClosedError("the executor is not open; use `async with rayroll.connect(...) as executor`")
        known = {*finished, *(state["finished"] if state is not None else ())}
        made = [
            task.id
            for task, index in numbered(tasks, samples_per_task)
            if rollout_id(self.run_id, task.id, index, namespace) not in known
        ]
        number = next(self._numbers)
        run = self._runs[number] = RemoteRun(number, self, policy, made, known)
        run.ask(
            "submit",
            shows_last=hasattr(policy, "last"),
            tasks=list(tasks),
            samples_per_task=samples_per_task,
            max_in_flight=max_in_flight,
            max_infra_retries=max_infra_retries,
            config=config,
            seed=seed,
            labels=labels,
            namespace=namespace,
            finished=tuple(finished),
            state=state,
            spares=spares,
        ).add_done_callback(run.on_submitted)
        return run

    async def close(self) -> None:
        """Let go: the gateway cancels what runs and frees everything. Idempotent."""
        self._is_open = False
        if self._line is not None:
            self._line.close()
        self._lose(ClosedError("the executor was closed"))

    # --- for its runs ---

    async def _ask(self, what: str, run: int = 0, arguments: Mapping[str, Any] | None = None) -> Any:
        if self._line is None or not self._line.is_up:
            raise ClosedError("the connection to the gateway is closed")
        id = next(self._ids)
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        self._line.send(Ask(id, what, run, arguments or {}))
        try:
            return await answer
        finally:
            del self._waiting[id]

    def _send(self, message: Acted | Read) -> None:
        assert self._line is not None
        self._line.send(message)

    def _take(self, message: Any) -> None:
        if isinstance(message, Answer):
            answer = self._waiting.get(message.id)
            if answer is not None and not answer.done():
                if message.error is not None:
                    answer.set_exception(message.error)
                else:
                    answer.set_result(message.value)
        elif message.run in self._runs:
            self._runs[message.run].take(message)

    def _on_lost(self) -> None:
        self._lose(HostLostError("the connection to the gateway broke", address=self._where))

    @property
    def _where(self) -> str:
        return ":".join(map(str, self._address))

    def _lose(self, error: Exception) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        for run in list(self._runs.values()):
            run.end(error)


class RemoteRun(Reading):
    """As ``Run``, in another cluster."""

    def __init__(
        self, number: int, executor: RemoteExecutor, policy: Policy, tasks: Sequence[str], finished: Collection[str]
    ) -> None:
        """For ``RemoteExecutor.submit``."""
        super().__init__(executor.run_id, tasks, finished, lambda: executor._send(Read(number)))
        self.set_aside: dict[str, Failure] = {}
        """Tasks whose own fault ended a rollout."""
        self._number, self._executor, self._policy = number, executor, policy
        self._thinking: dict[int, asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[Any]] = set()
        self._policy_error: Exception | None = None

    async def pause(self, mode: PauseMode = "drain") -> None:
        """See ``Run``."""
        await self.ask("pause", mode=mode)

    def resume(self, policy_version: int | None = None) -> None:
        """See ``Run``."""
        self.ask("resume", policy_version=policy_version)

    async def cancel(self, group_id: str | None = None, *, keep_partial: bool = False) -> None:
        """See ``Run``."""
        await self.ask("cancel", group_id=group_id, keep_partial=keep_partial)

    # --- for its executor ---

    def ask(self, what: str, **arguments: Any) -> asyncio.Task[Any]:
        """Have something done there; in the order in which it was asked for."""
        asking = asyncio.get_running_loop().create_task(self._executor._ask(what, self._number, arguments))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        return asking

    def on_submitted(self, submitting: asyncio.Task[Any]) -> None:
        """A run that could not begin is over."""
        if not submitting.cancelled() and (error := submitting.exception()) is not None:
            self.end(error)

    def take(self, message: Any) -> None:
        """What the gateway says of this run."""
        match message:
            case Turned(_, _, turn, True):
                try:
                    self._policy.last(turn)  # type: ignore[attr-defined]
                except Exception as error:
                    self._give_up(error)
            case Turned(_, number, turn, False):
                self._thinking[number] = asyncio.get_running_loop().create_task(self._think(number, turn))
            case Withdrawn(_, number):
                if number in self._thinking:
                    self._thinking[number].cancel()
            case Finished(_, task_id, rollout):
                self._note(rollout)
                self._put(task_id, rollout)
            case Over(_, error):
                self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes."""
        self._executor._runs.pop(self._number, None)
        for thinking in self._thinking.values():
            thinking.cancel()
        if not self._has_ended:
            self._close(self._policy_error or error)

    async def _think(self, number: int, turn: Any) -> None:
        act: Act | None = None
        try:
            act = await self._policy.act(turn)
            if not isinstance(act, Act):
                raise CallerError("a policy answers with an Act", answered=type(act).__name__)
        except Exception as error:
            act = None
            self._policy_error = self._policy_error or error
        finally:
            del self._thinking[number]
        self._executor._send(Acted(self._number, number, act))

    def _give_up(self, error: Exception) -> None:
        self._policy_error = self._policy_error or error
        self.ask("cancel")
        self.end(error)

    def _note(self, rollout: Rollout | None) -> None:
        if rollout is not None and rollout.failure is not None and rollout.failure.fault in ("task", "grader"):
            self.set_aside[rollout.task_id] = rollout.failure
