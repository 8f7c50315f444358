"""Joins the terminal of whoever sits here with a shell elsewhere: every key goes there, Ctrl-C as well."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator

from rayroll.substrates import Shell

__all__ = ["has_terminal", "join", "size"]

ENDING = (signal.SIGTERM, signal.SIGHUP)


def has_terminal() -> bool:
    """Somebody sits here, and nothing is redirected."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def size() -> tuple[int, int]:
    """Rows and columns, of the terminal itself: LINES and COLUMNS say what it had when somebody's parent started."""
    found = os.get_terminal_size(0)
    return found.lines, found.columns


async def join(shell: Shell, *, with_terminal: bool) -> int | None:
    """Pass everything on until the shell ends.

    Returns:
        Its exit code; None: its sandbox ended with it.

    Raises:
        CancelledError: This program was told to end (SIGTERM, SIGHUP); the terminal is as it was.
    """
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    _read_in_thread(typed)
    helpers = [asyncio.create_task(_type(shell, typed), name="typing")]
    with _raw() if with_terminal else contextlib.nullcontext():
        if with_terminal:
            helpers.append(asyncio.create_task(_follow_size(shell), name="terminal size"))
        try:
            while True:
                number, data = await shell.read()
                if not data:
                    break
                await asyncio.to_thread(_write_all, number, data)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)
    return await shell.exit_code()


def _read_in_thread(typed: asyncio.Queue[bytes]) -> None:
    """A file cannot be waited for by a loop, and a read that waits cannot be called off: a thread that nobody joins."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = b"?"
        while data:
            try:
                data = os.read(0, 64 << 10)
            except OSError:  # the terminal is gone
                data = b""
            with contextlib.suppress(RuntimeError):  # the loop is over
                asyncio.run_coroutine_threadsafe(typed.put(data), loop).result()

    threading.Thread(target=read, name="stdin", daemon=True).start()


async def _type(shell: Shell, typed: asyncio.Queue[bytes]) -> None:
    data = b"?"
    while data:
        data = await typed.get()
        await shell.write(data)


async def _follow_size(shell: Shell) -> None:
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            await shell.resize(*size())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Every key is handed on, until whoever waits here goes on, or is cancelled because this program is to end."""
    loop, waiting = asyncio.get_running_loop(), asyncio.current_task()
    assert waiting is not None
    before = termios.tcgetattr(0)
    for number in ENDING:
        loop.add_signal_handler(number, waiting.cancel)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is meant for the shell
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number in ENDING:
            loop.remove_signal_handler(number)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
