"""What hosted sandboxes have in common: how our runner starts in a machine that only a provider's API leads to.

A provider offers calls (create, upload, start a process, renew, delete) and streams to a process. What it does not
offer is a sandbox that ends by itself when its host is silent, nor labels that hold any text. Both are made here, so
that one more provider is one more file.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rayroll.errors import ConfigError
from rayroll.substrates import Lease, SandboxSpec

__all__ = ["FOLDER", "RUNNER", "Lifetimes", "decoded", "encoded", "first_command", "runner_command"]

logger = logging.getLogger(__name__)

FOLDER = "/.rayroll"
RUNNER = f"{FOLDER}/runner"
_PLAIN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_BASE32 = "b32."
_LONGEST_LABEL = 63


def encoded(text: str) -> str:
    """A label's value as providers take it: 63 of ``[A-Za-z0-9_.-]``, as Kubernetes has it. Same text, same value.

    Raises:
        ConfigError: It does not fit.
    """
    if not text or (_PLAIN.fullmatch(text) and not text.startswith(_BASE32)):
        return text
    value = _BASE32 + base64.b32encode(text.encode()).decode().rstrip("=").lower()
    if len(value) > _LONGEST_LABEL:
        raise ConfigError("a label is too long for the provider", label=text, most_bytes=36)
    return value


def decoded(value: str) -> str:
    """The text behind ``encoded``."""
    if not value.startswith(_BASE32):
        return value
    digits = value.removeprefix(_BASE32).upper()
    return base64.b32decode(digits + "=" * (-len(digits) % 8)).decode()


def first_command(name: str, patience_s: float) -> list[str]:
    """The sandbox's own first process: it ends when the runner has, or when none was started in time.

    The runner holds a FIFO open that this process reads, so the kernel says when it has ended.

    Args:
        name: The sandbox's own: one that was started from saved files brings the FIFO of another.
        patience_s: Longest wait for the runner.
    """
    end = f"{FOLDER}/end-{name}"
    script = (
        f"mkdir -p {FOLDER} && mkfifo -m 600 {end} || exit 70\n"
        # Without anybody to write, the open below waits for ever: so somebody does, for a moment.
        f"(sleep {patience_s:.0f}; : 9<>{end}) &\n"
        f"while read -r _; do :; done <{end}\n"  # whatever is written into it says nothing
        "exit 0\n"
    )
    return ["sh", "-c", script]


def runner_command(name: str, spec: SandboxSpec, lease: Lease) -> str:
    """The shell text that becomes the runner, on the streams it was given.

    A provider may start the text again where its process has ended; a second runner would know nothing of the first.
    """
    folder = shlex.quote(spec.workdir)
    end = f"{FOLDER}/end-{name}"
    workdir = "" if spec.workdir == "/" else f"mkdir -p {folder} && cd {folder} && "
    return (
        f"set -C; : >{FOLDER}/started-{name} || exit 75; set +C; {workdir}"
        f"until [ -p {end} ]; do sleep 0.02; done; exec 9>{end} && "
        f"exec {RUNNER} serve --lease-ms {round(lease.duration_s * 1000)} --rlimit fsize={spec.disk_mib << 20}"
    )


@dataclass(slots=True)
class _Life:
    every_s: float
    due_s: float
    lasts_s: float


class Lifetimes:
    """Keeps the provider's own clock from ending sandboxes that are in use, however long a policy thinks.

    Renewed is what has an open stream; what has none runs out, so that nothing is left of a host that was killed.

    Args:
        renew: Give a sandbox so many more seconds from now. Returns False when there is no such sandbox any more.
    """

    def __init__(self, renew: Callable[[str, float], Awaitable[bool]]) -> None:
        self._renew = renew
        self._lives: dict[str, _Life] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def hold(self, id: str, lasts_s: float) -> None:
        """From now on renewed every third of its lifetime."""
        self._lives[id] = _Life(lasts_s / 3, time.monotonic() + lasts_s / 3, lasts_s)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="rayroll lifetimes")

    def drop(self, id: str) -> None:
        """No longer. Idempotent."""
        self._lives.pop(id, None)

    async def close(self) -> None:
        """Let all of them run out. Idempotent."""
        self._lives.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            now_s = time.monotonic()
            due = {id: life for id, life in self._lives.items() if life.due_s <= now_s}
            for life in due.values():
                life.due_s = now_s + life.every_s
            await asyncio.gather(*(self._renew_one(id, life) for id, life in due.items()))
            next_s = min((life.due_s for life in self._lives.values()), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if next_s is None else max(0.0, next_s - time.monotonic())):
                    await self._changed.wait()

    async def _renew_one(self, id: str, life: _Life) -> None:
        try:
            if not await self._renew(id, life.lasts_s):
                self.drop(id)
        except Exception as error:  # tried again a third later; two may fail
            logger.warning("a sandbox's lifetime was not renewed: id=%s: %s", id, error)
