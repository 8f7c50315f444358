"""A sandbox with somebody to talk to: created, greeted, and destroyed at the end whatever happened in between."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rayroll.runner.client import RunnerClient
from rayroll.substrates import Channel, Lease, Sandbox, SandboxRef, SandboxSpec, Substrate
from rayroll.substrates._shield import finish
from rayroll.types import ExecResult

__all__ = ["Live", "open_sandbox"]

COMMAND_TIMEOUT_S = 30.0
"""For commands that should end at once: long enough for a busy machine, short enough to tell a hang."""


@dataclass(slots=True)
class Live:
    """A sandbox whose runner answers."""

    substrate: Substrate
    sandbox: Sandbox
    client: RunnerClient
    folder: str
    """A folder in the sandbox for the test's own files; ``path`` names files in it."""

    @property
    def ref(self) -> SandboxRef:
        """What names it to its substrate."""
        return self.sandbox.ref

    def path(self, name: str) -> str:
        """A file of the test's own."""
        return f"{self.folder}/{name}"

    async def make_folder(self) -> None:
        """Make ``folder``; the file ``.here`` in it keeps it."""
        await self.client.write_file(self.path(".here"), b"")

    async def sh(
        self, script: str | bytes, *, timeout_s: float | None = COMMAND_TIMEOUT_S, **options: Any
    ) -> ExecResult:
        """Run a script; keyword arguments are ``RunnerClient.exec``'s."""
        return await self.client.exec(script, timeout_s=timeout_s, **options)

    async def running(self, mark: str) -> int:
        """How many processes of the sandbox have ``mark``, a plain word, in their command line.

        It goes in by the environment, so that what looks for it does not find itself.
        """
        r = await self.sh(
            'printf %s "$MARK" | grep -l -f - /proc/[0-9]*/cmdline 2>/dev/null | wc -l',
            env={"MARK": mark},
            carry=False,
        )
        return int(r.output)


@asynccontextmanager
async def open_sandbox(
    substrate: Substrate,
    spec: SandboxSpec | None = None,
    *,
    run_id: str,
    owner: str = "test",
    lease_s: float = 30.0,
    wrap: Callable[[Channel], Channel] | None = None,
    reopen: Callable[[], Awaitable[Channel]] | None = None,
    **connect: Any,
) -> AsyncIterator[Live]:
    """Create a sandbox, say hello, and destroy it on the way out.

    Args:
        substrate: Open.
        spec: None: the substrate's plainest system.
        run_id: Label of the run; what is left over is found by it.
        owner: Label of the host.
        lease_s: How long it outlives the last word of this process.
        wrap: Put around every channel, to disturb it.
        reopen: Instead of ``substrate.reopen``; used only where the substrate can re-attach.
        connect: More arguments of ``RunnerClient.connect``.
    """
    around = wrap or (lambda channel: channel)
    sandbox = await substrate.create(spec or SandboxSpec(), Lease(run_id, owner, lease_s))

    async def again() -> Channel:
        return around(await (reopen() if reopen is not None else substrate.reopen(sandbox.ref)))

    try:
        client = await RunnerClient.connect(
            around(sandbox.channel), lease_s=lease_s, reopen=again if substrate.reattach else None, **connect
        )
        try:
            root = "" if sandbox.root == "/" else sandbox.root
            live = Live(substrate, sandbox, client, f"{root}/tmp/test-{secrets.token_hex(4)}")
            await live.make_folder()
            yield live
        finally:
            await client.close()
    finally:
        await finish(substrate.destroy(sandbox.ref))
