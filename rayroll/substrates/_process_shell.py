"""A shell that is a process of this node: for what is entered by a command (nsenter, kubectl, ssh)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import shutil
import signal
import struct
import termios
from collections.abc import Callable, Sequence

from rayroll.errors import ConfigError
from rayroll.substrates import Shell

__all__ = ["ProcessShell", "program", "start_shell"]


KILLED = 128 + signal.SIGKILL
LOOKS = 20
LOOK_EVERY_S = 0.05


class ProcessShell(Shell):
    """See ``Shell``."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int, lives: Callable[[], bool]) -> None:
        self._process, self._terminal, self._lives = process, terminal, lives
        self._outputs: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(1)
        self._pumping = asyncio.get_running_loop().create_task(self._pump_all(), name="shell output")

    async def read(self) -> tuple[int, bytes]:
        return await self._outputs.get()

    async def write(self, data: bytes) -> None:
        if self._terminal >= 0:
            if data:
                await asyncio.to_thread(_write_all, self._terminal, data)
            return
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(ConnectionError):
            if data:
                stdin.write(data)
                await stdin.drain()
            else:
                stdin.close()

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal >= 0:
            _resize(self._terminal, rows, columns)

    async def exit_code(self) -> int | None:
        code = await self._process.wait()
        if code in (-signal.SIGKILL, KILLED):
            for _ in range(LOOKS):  # what ends a sandbox ends its processes first
                if not await asyncio.to_thread(self._lives):
                    return None
                await asyncio.sleep(LOOK_EVERY_S)
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._pumping.cancel()
        await asyncio.wait({self._pumping})
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    async def _pump_all(self) -> None:
        await asyncio.gather(*([self._pump_terminal()] if self._terminal >= 0 else [self._pump(1), self._pump(2)]))
        await self._outputs.put((1, b""))

    async def _pump(self, number: int) -> None:
        stream = self._process.stdout if number == 1 else self._process.stderr
        assert stream is not None
        while data := await stream.read(64 << 10):
            await self._outputs.put((number, data))

    async def _pump_terminal(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        os.set_blocking(self._terminal, False)
        loop.add_reader(self._terminal, ready.set)
        try:
            while True:
                await ready.wait()
                ready.clear()
                try:
                    data = os.read(self._terminal, 64 << 10)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: nobody has the other end any more
                    return
                await self._outputs.put((1, data))
        finally:
            loop.remove_reader(self._terminal)


async def start_shell(argv: Sequence[str], terminal: tuple[int, int] | None, lives: Callable[[], bool]) -> ProcessShell:
    """Start a command, with a terminal of its own where a size is given: never this process's, which what runs in a
    sandbox could type into (TIOCSTI). Its environment is empty.

    Args:
        argv: The command.
        terminal: Rows and columns; None: no terminal.
        lives: Whether the sandbox does. May block.

    Raises:
        ConfigError: There is no such program here.
    """
    argv = [await asyncio.to_thread(program, argv[0]), *argv[1:]]
    if terminal is None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/", start_new_session=True
        )
        return ProcessShell(process, -1, lives)
    setsid = await asyncio.to_thread(program, "setsid")
    ours, theirs = os.openpty()
    _resize(ours, *terminal)
    try:
        # `setsid --ctty` makes it the controlling terminal, so that Ctrl-C becomes a signal.
        process = await asyncio.create_subprocess_exec(
            *(setsid, "--ctty", *argv), stdin=theirs, stdout=theirs, stderr=theirs, env={}, cwd="/"
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return ProcessShell(process, ours, lives)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def program(name: str) -> str:
    """Where a program of this node is. Raises ConfigError."""
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is not installed here", fix="install util-linux")
    return path


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)
        except OSError:
            return
