"""A shell in a container: a program that the engine starts beside the runner, with or without a terminal of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates import Login, Shell
from rayroll.substrates._attach import BLOCK_HEAD, hijack
from rayroll.substrates._engine import Engine, is_status, translated

__all__ = ["DockerShell", "log_in"]

NEVER_TYPED = "ctrl-^,ctrl-@,ctrl-^"
"""The engine lets go of a terminal at a sequence of keys. At its own (ctrl-p,ctrl-q) it holds back every ctrl-p, with
which shells go through their history."""
KILLED = 137
LOOKS = 40
LOOK_EVERY_S = 0.05


class DockerShell(Shell):
    """See ``Shell``."""

    def __init__(
        self, engine: Engine, id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, has_terminal: bool
    ) -> None:
        self._engine, self._id, self._reader, self._writer = engine, id, reader, writer
        self._has_terminal = has_terminal

    async def read(self) -> tuple[int, bytes]:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self._has_terminal:
                return 1, await self._reader.read(64 << 10)
            stream, size = BLOCK_HEAD.unpack(await self._reader.readexactly(BLOCK_HEAD.size))
            return stream, await self._reader.readexactly(size)
        return 1, b""

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if data:
                self._writer.write(data)
                await self._writer.drain()
            elif self._writer.can_write_eof():  # TLS has no half of a stream to close
                self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        for _ in range(LOOKS):
            try:
                await self._engine.call(lambda api: api.exec_resize(self._id, height=rows, width=columns))
            except SubstrateError:  # it is not running yet, or not any more
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                return

    async def exit_code(self) -> int | None:
        def look(api: Any) -> tuple[bool, int | None]:
            facts = api.exec_inspect(self._id)
            return api.inspect_container(facts["ContainerID"])["State"]["Running"], facts["ExitCode"]

        code = None
        for _ in range(LOOKS):  # the stream ends a moment before the engine knows why
            try:
                is_up, code = await self._engine.call(look)
            except SubstrateError as error:
                if is_status(error, 404, 409):
                    return None
                raise
            if not is_up:
                return None
            if code not in (None, KILLED):  # what ends a container kills its processes first
                break
            await asyncio.sleep(LOOK_EVERY_S)
        return code

    async def close(self) -> None:
        self._writer.transport.abort()


async def log_in(engine: Engine, container_id: str, login: Login) -> DockerShell:
    """Start it. Raises SandboxLostError, SubstrateError."""
    has_terminal = login.terminal is not None
    try:
        made = await engine.call(
            lambda api: api.exec_create(
                container_id,
                login.command,
                stdin=True,
                tty=has_terminal,
                user=login.user or "",
                environment=dict(login.env),
                detach_keys=NEVER_TYPED,
            )
        )
        with translated(engine.endpoint):
            reader, writer = await hijack(
                engine.endpoint, f"/exec/{made['Id']}/start", {"Detach": False, "Tty": has_terminal}
            )
    except SubstrateError as error:
        if is_status(error, 404, 409):
            raise SandboxLostError("the container is gone", id=container_id[:12]) from error
        raise
    shell = DockerShell(engine, made["Id"], reader, writer, has_terminal=has_terminal)
    if login.terminal is not None:
        await shell.resize(*login.terminal)
    return shell
