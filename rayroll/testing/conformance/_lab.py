"""Where checks are made: one substrate, a shared sandbox that is put back in order, fresh ones for what destroys."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import secrets
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayroll.errors import ConfigError, RayrollError, SandboxLostError, SubstrateError
from rayroll.substrates import Channel, SandboxSpec, Substrate
from rayroll.testing.conformance._program import program
from rayroll.testing.conformance._registry import Capability, Check
from rayroll.testing.sandboxes import Live, open_sandbox

__all__ = ["Lab"]

OTHER_USER = "1000"
"""Whom commands become, where the runner is root."""


class Lab:
    """What a check gets. Opened and closed by whoever runs checks; not for use outside of one event loop.

    Args:
        substrate: Open.
        spec: What every sandbox is like; checks change single fields of it.
        many: How many sandboxes are "many": as many as the machine holds at once without strain.
    """

    def __init__(self, substrate: Substrate, spec: SandboxSpec, *, many: int) -> None:
        self.substrate = substrate
        self.spec = spec
        self.many = many
        self.run_id = f"conformance-{secrets.token_hex(6)}"
        """Label of every sandbox of this lab, unless a check says otherwise."""
        self._early: dict[str, asyncio.Task[None]] = {}
        self._found: dict[Capability, str] = {}
        self._shared = contextlib.AsyncExitStack()
        self._box: Live | None = None
        self._baseline = ""

    # life

    async def open(self, checks: Sequence[Check] = ()) -> None:
        """Start the shared sandbox and the checks that begin early."""
        await self._renew()
        for check in checks:
            if check.begins_early and not await self.missing(check):
                self._early[check.name] = asyncio.create_task(_as_coroutine(check.function(self)), name=check.name)

    async def run(self, check: Check) -> None:
        """Run a check, or await it where it was begun early. Raises what it raises."""
        early = self._early.pop(check.name, None)
        await (early if early is not None else check.function(self))

    async def close(self) -> None:
        """Destroy what is left. Idempotent."""
        for task in self._early.values():
            task.cancel()
        await asyncio.gather(*self._early.values(), return_exceptions=True)
        await self._shared.aclose()
        self._box = None

    # sandboxes

    @property
    def box(self) -> Live:
        """The shared sandbox: no process in it, an empty folder, nothing carried from the check before."""
        assert self._box is not None, "the lab is not open"
        return self._box

    async def prepare(self) -> None:
        """Put the shared sandbox in order before a check, or replace it where that cannot be done."""
        if self._box is None or not await self._is_as_new(self._box):
            await self._renew()

    async def _renew(self) -> None:
        self._box = None
        stale, self._shared = self._shared, contextlib.AsyncExitStack()
        try:
            await stale.aclose()
        finally:
            self._box = await self._shared.enter_async_context(self.fresh())
            self._baseline = await self._carried(self._box)

    async def _is_as_new(self, box: Live) -> bool:
        try:
            await box.client.kill_all()
            await box.client.remove(box.folder)
            await box.make_folder()
            if (changed := await self._carried(box)) != self._baseline:
                await box.sh(_back(changed, self._baseline))
                return await self._carried(box) == self._baseline
            return True
        except RayrollError:
            return False

    async def _carried(self, box: Live) -> str:
        """The directory, and the exported variables as lines a shell reads: what one command leaves to the next."""
        return (await box.sh("pwd; export -p")).output

    @contextlib.asynccontextmanager
    async def fresh(
        self,
        *,
        lease_s: float = 30.0,
        run_id: str | None = None,
        owner: str = "conformance",
        wrap: Callable[[Channel], Channel] | None = None,
        reopen: Callable[[], Awaitable[Channel]] | None = None,
        **spec: Any,
    ) -> AsyncIterator[Live]:
        """A sandbox of its own, destroyed at the end.

        Args:
            lease_s: See ``Lease.duration_s``.
            run_id: None: the lab's.
            owner: Label of the host.
            wrap: Put around every channel to its runner, to disturb it.
            reopen: Instead of the substrate's.
            spec: Fields of the SandboxSpec to change.
        """
        async with open_sandbox(
            self.substrate,
            replace(self.spec, **spec),
            run_id=run_id or self.run_id,
            owner=owner,
            lease_s=lease_s,
            wrap=wrap,
            reopen=reopen,
        ) as live:
            yield live

    async def intruder(self, live: Live) -> str:
        """Put the attacking program into a sandbox; its path there."""
        path = live.path("intruder")
        content = await asyncio.to_thread(program, live.client.greeting.machine)
        await live.client.write_file(path, content, mode=0o755)
        return path

    # capabilities

    async def missing(self, check: Check) -> str:
        """Why a check does not apply here; "" when it does."""
        for capability in check.needs:
            if reason := await self.lacks(capability):
                return reason
        for capability in check.without:
            if not await self.lacks(capability):
                return f"it is about sandboxes without this: {capability}"
        for tool in check.tools:
            if (await self.box.sh('command -v "$TOOL"', env={"TOOL": tool}, carry=False)).exit_code != 0:
                return f"the sandbox has no {tool}"
        return ""

    async def lacks(self, capability: Capability) -> str:
        """Why a capability is not there, found out once by trying; "" when it is."""
        if capability not in self._found:
            self._found[capability] = await self._try(capability)
        return self._found[capability]

    async def _try(self, capability: Capability) -> str:
        greeting = self.box.client.greeting
        match capability:
            case Capability.REATTACH:
                return "" if self.substrate.reattach else "the substrate cannot open a broken stream again"
            case Capability.ADOPT:
                return "" if self.substrate.can_adopt else "its sandboxes end with the process that made them"
            case Capability.PAUSE:
                return "" if _overrides(self.substrate, "pause") else "the substrate cannot pause a sandbox"
            case Capability.SNAPSHOT:
                return "" if _overrides(self.substrate, "snapshot") else "the substrate cannot save a sandbox"
            case Capability.OWN_PIDS:
                return "" if greeting.is_init else f"the runner is process {greeting.pid}, not PID 1 of a namespace"
            case Capability.OWN_KERNEL:
                ours = await asyncio.to_thread(_boot_id)
                theirs = await self.box.client.read_file("/proc/sys/kernel/random/boot_id")
                return "" if theirs != ours else "the sandbox shares this node's kernel"
            case Capability.USERS:
                return await self._try_users()
            case Capability.INTRUDER:
                return await self._try_intruder()
            case Capability.PID_LIMIT:
                return await self._try_pid_limit()
            case Capability.MEMORY_LIMIT:
                return await self._try_memory_limit()
            case Capability.NETWORK:
                return await self._try_network()

    async def _try_users(self) -> str:
        uid = self.box.client.greeting.uid
        if uid != 0:
            return f"the runner is user {uid}, and only root can become another"
        await self.box.sh("true", user=OTHER_USER, carry=False)
        return ""

    async def _try_intruder(self) -> str:
        try:
            path = await self.intruder(self.box)
        except ConfigError as error:
            return error.message
        r = await self.box.sh(f"{path} here", carry=False)
        return "" if r.output == "here\n" else f"it does not run: {r.output.strip()}"

    async def _try_pid_limit(self) -> str:
        if reason := await self.lacks(Capability.INTRUDER):
            return reason
        # 128 sleeping processes hurt nobody, should no limit hold them.
        async with self.fresh(pids=64) as live:
            r = await live.sh(f"{await self.intruder(live)} forks 128")
        return "" if r.exit_code != 0 or int(r.output) < 128 else "a limit of 64 processes let 128 run"

    async def _try_memory_limit(self) -> str:
        if reason := await self.lacks(Capability.INTRUDER):
            return reason
        async with self.fresh(memory_mib=96) as live:
            intruder = await self.intruder(live)
            try:
                r = await live.sh(f"{intruder} eat 256")
            except SandboxLostError:
                return ""
        return "" if "ate" not in r.output else "a limit of 96 MiB let a process use 256"

    async def _try_network(self) -> str:
        if reason := await self.lacks(Capability.INTRUDER):
            return reason
        try:
            async with self.fresh(network=True) as live:
                reached = await self.ways_out(live)
        except (ConfigError, SubstrateError) as error:
            return f"a sandbox with a network cannot be made: {error}"
        return "" if reached else "asked for a network, the sandbox reaches nothing of this node"

    async def ways_out(self, live: Live) -> list[str]:
        """Which addresses of this node a program in the sandbox can connect to."""
        intruder = await self.intruder(live)
        with socket.create_server(("0.0.0.0", 0), backlog=64) as server:
            port = server.getsockname()[1]
            addresses = await asyncio.to_thread(_own_addresses)
            dials = "; ".join(f"{intruder} dial {address} {port}" for address in addresses)
            r = await live.sh(f"{dials}; true", carry=False)
        return [line.removeprefix("reached ") for line in r.output.splitlines() if line.startswith("reached ")]


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def _back(changed: str, baseline: str) -> str:
    """A script that undoes what a check carried: everything unset, then the old values and the old directory."""
    names = " ".join(re.findall(r"^(?:declare -\w+|export) (\w+)", changed, re.MULTILINE))
    folder, _, exports = baseline.partition("\n")
    return f"unset -v {names} 2>/dev/null\n{exports}\ncd {shlex.quote(folder)}"


def _boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes()


def _own_addresses() -> list[str]:
    """IPv4 addresses of this node's interfaces, from the kernel's local routing table; loopback among them."""
    addresses = {"127.0.0.1"}
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if "/32 host LOCAL" in line:
            addresses.add(before.rpartition("|-- ")[2].strip())
    return sorted(addresses)


def _overrides(substrate: Substrate, method: str) -> bool:
    return getattr(type(substrate), method) is not getattr(Substrate, method)
