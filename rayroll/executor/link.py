"""The driver's end of one host: what is bound for it leaves together when the call before has returned."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from rayroll.errors import HostLostError, RayrollError
from rayroll.executor.host import NodeHost
from rayroll.executor.line import Line, connect
from rayroll.executor.messages import Completion, HostInfo, HostSetup, HostStats, Message
from rayroll.timing import clock_id
from rayroll.types import Task

__all__ = ["HOST_PREFIX", "NAMESPACE", "HostLink", "remote_call"]

logger = logging.getLogger(__name__)

NAMESPACE = "rayroll"
HOST_PREFIX = "host-"
"""Hosts are Ray actors of these names, which is how others find them."""
POLL_S = 5.0
"""Longest a host keeps a poll open with nothing to tell."""
CALL_S = 30.0
"""Longest wait for a host's answer beyond what the call itself may take."""
REASON_S = 5.0
"""After a broken connection, longest wait for Ray to say why."""
POLLS = 2
"""Polls under way: while one answer travels, the next completion finds the other poll already there."""


async def remote_call(ref: Any, *, deadline_s: float, what: str) -> Any:
    """Await a Ray reference as if the call were local: a deadline, cancellation that reaches the actor, our own errors.

    Raises:
        HostLostError: The actor is gone, or did not answer in time (a stopped process raises nothing by itself).
        RayrollError: What the method raised.
        RayTaskError: It raised something else, which is a bug.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await ref
    except RayTaskError as error:  # first: Ray derives it from what the method raised, a TimeoutError for one
        if isinstance(error.cause, RayrollError):
            raise error.cause from None
        if isinstance(error.cause, TaskCancelledError):
            raise HostLostError("the call was cancelled in the host", call=what) from None
        raise
    except TimeoutError:
        ray.cancel(ref)
        raise HostLostError("the host does not answer", call=what, deadline_s=deadline_s) from None
    except asyncio.CancelledError:
        ray.cancel(ref)  # Ray does not notice that its caller gave up
        raise
    except RayError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise HostLostError("the host is gone", call=what, reason=reason) from None


class _Taught(NamedTuple):
    """A task that a host knows, or is being told."""

    task: Task
    key: str
    telling: asyncio.Task[Any]


class HostLink:
    """Sends messages to one host in batches and hands its completions to whoever waits for them."""

    def __init__(
        self,
        setup: HostSetup,
        on_lost: Callable[[], None] = lambda: None,
        on_gone: Callable[[str], None] = lambda task: None,
        **options: Any,
    ) -> None:
        """Nothing is started yet.

        Args:
            setup: What the host needs to know.
            on_lost: Called once, when the host is lost, before anybody who waits for it hears of that.
            on_gone: Called with the id of a task of which the host has one idle sandbox less than it said.
            options: Ray's for the actor (labels, resources).
        """
        self._setup, self._on_lost, self._on_gone = setup, on_lost, on_gone
        # Ray notes every call for its dashboard, and of each 2.5 kB stay in the host.
        fixed = {"num_cpus": 0, "max_concurrency": 10_000, "enable_task_events": False}
        self._options: dict[str, Any] = {**fixed, **options}
        self._host: Any = None
        self._ids = itertools.count(1)
        self._outbox: list[tuple[int, Message]] = []
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._taught: dict[str, list[_Taught]] = {}
        self._sender: asyncio.Task[None] | None = None
        self._pollers: list[asyncio.Task[None]] = []
        self._lost: Exception | None = None
        self._is_lost = asyncio.Event()
        self._told: set[Callable[[], None]] = set()
        self._line: Line | None = None
        self.info: HostInfo
        self.same_clock = False
        """The host's clock is this process's: their readings may be subtracted."""

    @property
    def is_lost(self) -> bool:
        """The host is gone, or no longer to be relied on: every call raises."""
        return self._lost is not None

    def tell(self, on_lost: Callable[[], None]) -> None:
        """Call this once when the host is lost, as ``on_lost``; at once if it is."""
        if self._lost is not None:
            on_lost()
        else:
            self._told.add(on_lost)

    def forget(self, on_lost: Callable[[], None]) -> None:
        """Do not call this. Idempotent."""
        self._told.discard(on_lost)

    async def wait_until_lost(self) -> None:
        """Return when the host is gone."""
        await self._is_lost.wait()

    async def start(self, *, deadline_s: float = 300.0) -> HostInfo:
        """Create the actor and open its substrate.

        Args:
            deadline_s: Longest wait; the first start on a node may build the runner, which takes most of a minute.

        Raises:
            InfraFailure: The node cannot run the substrate, or the actor did not come up in time.
        """
        # A step must not run twice: no task retries. A restarted host would have forgotten its sessions: no restarts.
        actor = ray.remote(NodeHost).options(
            name=f"{HOST_PREFIX}{self._setup.owner}-{secrets.token_hex(3)}",
            namespace=NAMESPACE,
            max_restarts=0,
            max_task_retries=0,
            **self._options,
        )
        self._host = actor.remote(self._setup)
        try:
            self.info = await remote_call(self._host.start.remote(), deadline_s=deadline_s, what="start")
            self.same_clock = self.info.clock_id == await asyncio.to_thread(clock_id) != ""
            await self._open_line()
        except BaseException:
            self.abandon()
            raise
        # With a line, a poll brings nothing but the news that the host lives, or why it does not.
        loop = asyncio.get_running_loop()
        polls = POLLS if self._line is None else 1
        self._pollers = [loop.create_task(self._poll(), name="host poll") for _ in range(polls)]
        return self.info

    async def _open_line(self) -> None:
        """Connect to the host directly. Where that is not possible, everything goes through Ray."""
        if os.environ.get("RAY_USE_TLS", "").lower() in ("1", "true"):
            return  # whoever encrypts what Ray says does not want a plain connection beside it
        try:
            address = await remote_call(self._host.listen.remote(), deadline_s=CALL_S, what="listen")
            self._line = await connect(address)
        except (OSError, TimeoutError) as error:
            logger.info("no direct line to the host on %s, its messages go through Ray: %r", self.info.node, error)
        else:
            self._line.start(self._answered, self._line_ended)

    def _line_ended(self) -> None:
        # A host that died says so through Ray, with the reason, within a moment.
        lost = HostLostError("the connection to the host broke", node=self.info.node)
        asyncio.get_running_loop().call_later(REASON_S, self._fail, lost)

    async def teach(self, task: Task) -> str:
        """Make a task known to the host, once however many ask, and say what the host calls it.

        Two tasks of one id are two tasks: somebody may have changed one between two runs.
        """
        if self._lost is not None:
            raise self._lost
        versions = self._taught.setdefault(task.id, [])
        taught = next((t for t in versions if t.task is task or t.task == task), None)
        if taught is None:
            key = f"{task.id}#{len(versions)}" if versions else task.id
            call = remote_call(self._host.add_task.remote(key, task), deadline_s=CALL_S, what="add_task")
            taught = _Taught(task, key, asyncio.get_running_loop().create_task(call, name=f"teach {key}"))
            versions.append(taught)
        try:
            await asyncio.shield(taught.telling)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if self._lost is None or (this is not None and this.cancelling()):
                raise
            raise self._lost from None  # the link was given up, and not whoever asks
        except HostLostError as error:
            self._fail(error)  # nothing that needs this task could ever start here
            raise
        return taught.key

    async def call(self, message: Message, *, deadline_s: float | None = None) -> Completion:
        """Send one message and wait for its completion, whose ``error`` is not raised.

        Raises:
            HostLostError: The host is gone, or took longer than ``deadline_s``. What was asked may have been done.
        """
        if self._lost is not None:
            raise self._lost
        request_id = next(self._ids)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        if self._line is not None:
            self._line.send((request_id, message))
        else:
            self._outbox.append((request_id, message))
            if self._sender is None:
                self._sender = asyncio.get_running_loop().create_task(self._send(), name="host send")
        try:
            async with asyncio.timeout(deadline_s):
                return await answer
        except TimeoutError:
            raise HostLostError(
                "no completion in time", message=type(message).__name__, deadline_s=deadline_s
            ) from None
        finally:
            self._waiting.pop(request_id, None)

    async def stats(self) -> HostStats:
        """How the host is doing."""
        stats: HostStats = await remote_call(self._host.stats.remote(), deadline_s=CALL_S, what="stats")
        return stats

    async def hang_up(self, board: dict[str, Any]) -> None:
        """Hang this board at the host, where others can read it."""
        await remote_call(self._host.hang_up.remote(board), deadline_s=CALL_S, what="hang_up")

    async def close(self, *, deadline_s: float = 8.0) -> None:
        """Free everything the host owns, then end it. What does not answer is left to the leases. Idempotent."""
        host, self._host = self._host, None
        if host is None:
            return
        try:
            if self._lost is None:
                await remote_call(host.close.remote(), deadline_s=deadline_s, what="close")
        except (HostLostError, RayTaskError) as error:
            logger.warning("the host did not free its sandboxes, their leases will: %s", error)
        finally:
            self._host = host
            self.abandon()

    def abandon(self) -> None:
        """End the host without asking it; its sandboxes are left to their leases. Idempotent."""
        host, self._host = self._host, None
        if host is None:
            return
        if self._line is not None:
            self._line.close()
        self._fail(HostLostError("the host was closed"))
        telling = [taught.telling for versions in self._taught.values() for taught in versions]
        for task in (*self._pollers, *([self._sender] if self._sender else []), *telling):
            task.cancel()
        ray.kill(host)

    async def _send(self) -> None:
        try:
            while self._outbox:
                batch, self._outbox = self._outbox, []
                await remote_call(self._host.submit.remote(batch), deadline_s=CALL_S, what="submit")
        except Exception as error:  # whoever waits must hear of it, a bug included
            self._fail(error)
        finally:
            self._sender = None

    def _answered(self, completion: Completion) -> None:
        if not completion.request_id:
            self._on_gone(completion.value)
            return
        answer = self._waiting.get(completion.request_id)
        if answer is not None and not answer.done():
            answer.set_result(completion)

    async def _poll(self) -> None:
        try:
            while True:
                told: list[Completion] = await remote_call(
                    self._host.completions.remote(POLL_S), deadline_s=POLL_S + CALL_S, what="completions"
                )
                for completion in told:
                    self._answered(completion)
        except Exception as error:  # whoever waits must hear of it, a bug included
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._lost is None:
            self._lost = error
            self._is_lost.set()
            self._on_lost()
            told, self._told = self._told, set()
            for on_lost in told:
                on_lost()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
