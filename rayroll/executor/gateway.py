"""The door for trainers outside the sandboxes' cluster: each gets an executor here, and keeps its policy there.

A trainer that is gone takes its executor along, with every sandbox. Whoever knows the secret may do here whatever this
process may: what comes in is unpickled. Who speaks is proven once, by the secret; what is said is not encrypted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
from typing import Any

from rayroll import __version__
from rayroll.errors import CallerError, ConfigError, InfraFailure
from rayroll.executor.away import SILENCE_S, Acted, Answer, Ask, Finished, Over, Read, Turned, Withdrawn
from rayroll.executor.executor import Executor
from rayroll.executor.line import Line, LineAddress, Listener
from rayroll.executor.run import Run
from rayroll.types import Act, Turn

__all__ = ["Gateway"]

logger = logging.getLogger(__name__)


class Gateway:
    """Listens for trainers."""

    def __init__(self, secret: bytes) -> None:
        """It does not listen yet."""
        self._listener = Listener(self._accept, secret=secret, takes_many=True)
        self._trainers: set[_Trainer] = set()

    async def open(self, ip: str, port: int) -> LineAddress:
        """Begin to listen. Port 0: any that is free. Raises OSError where that is not possible."""
        return await self._listener.open(ip, port)

    async def close(self) -> None:
        """Send every trainer away, and free all that it had. Idempotent."""
        self._listener.close()
        await asyncio.gather(*(trainer.close() for trainer in list(self._trainers)))

    def _accept(self, line: Line) -> None:
        self._trainers.add(_Trainer(line, self._trainers.discard))


class _Trainer:
    """One connection, with its executor."""

    def __init__(self, line: Line, forget: Any) -> None:
        self._line, self._forget = line, forget
        self._executor: Executor | None = None
        self._runs: dict[int, _Lent] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        line.expect_life(SILENCE_S)
        line.start(self._take, self._on_lost)

    async def close(self) -> None:
        """End everything of it."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close trainer")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for work in self._working:
            work.cancel()
        if self._working:
            await asyncio.wait(set(self._working))
        self._line.close()
        if self._executor is not None:
            await self._executor.close()
        self._forget(self)

    def _on_lost(self) -> None:
        logger.info("a trainer is gone")
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close trainer")

    def _take(self, message: Any) -> None:
        match message:
            case Ask():
                self._work(self._answer(message))
            case Acted(run, number, act):
                if run in self._runs:
                    self._runs[run].policy.answered(number, act)
            case Read(run):
                if run in self._runs:
                    self._runs[run].room.release()

    def _work(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task

    async def _answer(self, ask: Ask) -> None:
        value, error = None, None
        try:
            value = await self._do(ask)
        except Exception as caught:
            error = _portable(caught)
        self._line.send(Answer(ask.id, value, error))

    async def _do(self, ask: Ask) -> Any:
        if ask.what == "open":
            return await self._open(**ask.arguments)
        if self._executor is None:
            raise CallerError("this connection has no executor yet")
        match ask.what:
            case "stats":
                return await self._executor.stats()
            case "snapshot":
                return self._executor.snapshot()
            case "submit":
                return self._submit(self._executor, ask.run, **ask.arguments)
        if ask.run not in self._runs:
            return None  # the run is over: nothing is left to steer
        run = self._runs[ask.run].run
        match ask.what:
            case "pause":
                return await run.pause(**ask.arguments)
            case "resume":
                return run.resume(**ask.arguments)
            case "cancel":
                return await run.cancel(**ask.arguments)
        raise CallerError("the gateway does not know how to do this", asked=ask.what)

    async def _open(self, version: str, substrate: str, options: dict[str, Any]) -> Any:
        if version != __version__:
            raise ConfigError("trainer and gateway must have the same rayroll", trainer=version, gateway=__version__)
        executor = Executor(substrate, **options)
        await executor.__aenter__()
        self._executor = executor
        return executor.run_id, executor.host

    def _submit(self, executor: Executor, number: int, shows_last: bool, max_in_flight: int, **arguments: Any) -> None:
        policy = (_Showing if shows_last else _Away)(number, self._line)
        run = executor.submit(policy=policy, max_in_flight=max_in_flight, **arguments)
        lent = self._runs[number] = _Lent(run, policy, max_in_flight)
        self._work(lent.forward(number, self._line)).add_done_callback(lambda _: self._runs.pop(number))


class _Lent:
    """A run, as far as the gateway goes."""

    def __init__(self, run: Run, policy: _Away, max_in_flight: int) -> None:
        self.run, self.policy = run, policy
        self.room = asyncio.Semaphore(max_in_flight)
        """A reader that is slow holds the run back, also from afar."""

    async def forward(self, number: int, line: Line) -> None:
        error = None
        try:
            async for task_id, rollout in self.run.items():
                await self.room.acquire()
                line.send(Finished(number, task_id, rollout))
        except Exception as caught:
            error = _portable(caught)
        line.send(Over(number, error))


class _Away:
    """A policy that is elsewhere."""

    def __init__(self, run: int, line: Line) -> None:
        self._run, self._line = run, line
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Act | None]] = {}

    async def act(self, turn: Turn) -> Act:
        """See ``Policy``."""
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._line.send(Turned(self._run, number, turn, is_last=False))
        try:
            act = await self._asked[number]
        except asyncio.CancelledError:
            self._line.send(Withdrawn(self._run, number))
            raise
        finally:
            del self._asked[number]
        if act is None:
            raise InfraFailure("the policy raised where it is")
        return act

    def answered(self, number: int, act: Act | None) -> None:
        """What it said; None: it raised."""
        asked = self._asked.get(number)
        if asked is not None and not asked.done():
            asked.set_result(act)


class _Showing(_Away):
    """One that wants to see the last turn."""

    def last(self, turn: Turn) -> None:
        """See ``Policy``."""
        self._line.send(Turned(self._run, 0, turn, is_last=True))


def _portable(error: Exception) -> Exception:
    """The error, or what can be said of one that cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return InfraFailure("an error in the gateway", error=repr(error))
    return error
