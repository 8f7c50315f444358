"""What people write by hand on a hosted sandbox: the SDK's own command call per action. No rayroll in here."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from _arms import Arm, Burst, Load, Skipped, async_burst

if TYPE_CHECKING:
    from opensandbox import Sandbox

__all__ = ["OpenSandboxSdk"]


class OpenSandboxSdk(Arm):
    """``sandbox.commands.run``, which streams its output as events over HTTP; in sandboxes that are somebody else's."""

    name = "opensandbox-sdk"

    def __init__(self, sandboxes: list[str]) -> None:
        self._ids = sandboxes
        self._sandboxes: list[Sandbox] = []

    async def open(self) -> None:
        try:
            from opensandbox import Sandbox
        except ImportError:
            raise Skipped("the SDK is missing; pip install opensandbox") from None
        for id in self._ids:
            self._sandboxes.append(await Sandbox.connect(id))

    async def burst(self, load: Load) -> Burst:
        return await async_burst(load, [functools.partial(_step, sandbox) for sandbox in self._sandboxes])

    async def close(self) -> None:
        for sandbox in self._sandboxes:
            await sandbox.close()


async def _step(sandbox: Sandbox, script: str) -> str:
    done = await sandbox.commands.run(script)
    assert done.exit_code == 0, done
    # One line was printed. A long one comes in pieces, between which the call puts ends of lines, but for the last.
    return done.text.replace("\n", "") + "\n"
