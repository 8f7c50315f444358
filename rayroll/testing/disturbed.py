"""A substrate around another that is slow, refuses or goes dumb where a test says so; everything else is the real one.

It takes what it does from its config, so that a host in another process can be told as well. To give it to hosts by
name, register it as an entry point (``disturbed = rayroll.testing.disturbed:Disturbed`` in ``rayroll.substrates``).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rayroll.errors import SubstrateError
from rayroll.substrates import (
    Channel,
    Lease,
    Login,
    Probe,
    Receiver,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Shell,
    Substrate,
    SubstrateConfig,
    load,
)
from rayroll.substrates._shield import finish

__all__ = ["DISTURB", "Disturbed", "DisturbedConfig"]

DISTURB = "RAYROLL_DISTURB"
"""Variable of a task's environment with fields of the config, in JSON, for its sandboxes alone."""


class DisturbedConfig(SubstrateConfig):
    """What goes wrong, and around what."""

    inner: str = "local"
    """Kind of the real substrate."""
    inner_config: Mapping[str, Any] = Field(default_factory=dict)
    before_create_s: float = 0.0
    """Wait before the real ``create`` begins, as for a start permit: the substrate does not account for it."""
    create_s: float = 0.0
    """Work added to ``create``, which the substrate does account for."""
    destroy_s: float = 0.0
    """Work added after the real ``destroy``; before it, it would overlap with a runner that ends by itself."""
    there_s: float = 0.0
    """Delay on the way to the runner of each message that holds ``mark``."""
    back_s: float = 0.0
    """Delay on the way back of what follows such a message."""
    mark: str = ""
    create_waits_for: Path | None = None
    """A file without which ``create`` does not return, although the real sandbox is there."""
    destroy_waits_for: Path | None = None
    """The same for ``destroy``, although the real sandbox is gone."""
    creates_that_fail: int = 0
    """So many first creates raise, after the real sandbox was made; it is destroyed again, as the contract asks."""
    destroys_that_fail: int = 0
    """So many first destroys raise and destroy nothing."""
    is_dumb: bool = False
    """Nothing of what a runner says arrives."""
    gate: Path | None = None
    """A file without which this node cannot run the substrate."""
    cause: str | None = None
    """What is said about every sandbox's death; None: the truth."""
    ledger: Path | None = None
    """File that gets a line for every real sandbox: ``create ID`` and ``destroy ID``."""


class Disturbed(Substrate):
    """The real substrate, with what its config says in between."""

    kind: ClassVar[str] = "disturbed"
    config_type: ClassVar[type[SubstrateConfig]] = DisturbedConfig

    def __init__(self, config: DisturbedConfig) -> None:
        super().__init__(config)
        self.config: DisturbedConfig = config
        inner = load(config.inner)
        self.inner = inner(inner.config_type.parse(config.inner_config, where=f"substrate {config.inner!r}"))
        self.created: list[SandboxRef] = []
        """Every real sandbox, in order."""
        self._own: dict[str, DisturbedConfig] = {}
        self._creates_left = config.creates_that_fail
        self._destroys_left = config.destroys_that_fail

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def probe(self) -> Probe:
        if self.config.gate is not None and not self.config.gate.exists():
            return Probe(False, "the gate is closed")
        return await self.inner.probe()

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        own = self.config.model_copy(update=json.loads(spec.env.get(DISTURB, "{}")))
        await asyncio.sleep(own.before_create_s)
        start_s = time.monotonic()
        await asyncio.sleep(own.create_s)
        added_s = time.monotonic() - start_s
        sandbox = await self.inner.create(spec, lease)
        self._own[sandbox.ref.id] = own
        self._note("create", sandbox.ref)
        try:
            await _appears(own.create_waits_for)
        except BaseException:
            await finish(self.inner.destroy(sandbox.ref))
            raise
        if self._creates_left:
            self._creates_left -= 1
            await self.inner.destroy(sandbox.ref)
            raise SubstrateError("this create was told to fail", id=sandbox.ref.id)
        sandbox.phases_s["create"] = sandbox.phases_s.get("create", 0.0) + added_s
        sandbox.channel = self._around(sandbox.channel, own)
        return sandbox

    async def reopen(self, ref: SandboxRef) -> Channel:
        return self._around(await self.inner.reopen(ref), self._own.get(ref.id, self.config))

    def _around(self, channel: Channel, own: DisturbedConfig) -> Channel:
        return DisturbedChannel(channel, own) if own.is_dumb or own.there_s or own.back_s else channel

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        return await self.inner.list(labels)

    async def destroy(self, ref: SandboxRef) -> None:
        if self._destroys_left:
            self._destroys_left -= 1
            raise SubstrateError("this destroy was told to fail", id=ref.id)
        await self.inner.destroy(ref)
        own = self._own.pop(ref.id, self.config)
        await asyncio.sleep(own.destroy_s)
        await _appears(own.destroy_waits_for)
        self._note("destroy", ref)

    async def cause_of_death(self, ref: SandboxRef) -> str:
        if self.config.cause is not None:
            return self.config.cause
        return await self.inner.cause_of_death(ref)

    async def killed_for_memory(self, ref: SandboxRef) -> bool:
        return await self.inner.killed_for_memory(ref)

    async def set_network(self, ref: SandboxRef, enabled: bool) -> None:
        await self.inner.set_network(ref, enabled)

    @property
    def can_adopt(self) -> bool:
        return self.inner.can_adopt

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        return self._around(await self.inner.adopt(ref, lease), self._own.get(ref.id, self.config))

    async def keep(self, ref: SandboxRef, until_unix_s: float) -> Mapping[str, str]:
        return await self.inner.keep(ref, until_unix_s)

    async def shell(self, ref: SandboxRef, login: Login) -> Shell:
        return await self.inner.shell(ref, login)

    def _note(self, word: str, ref: SandboxRef) -> None:
        if word == "create":
            self.created.append(ref)
        if self.config.ledger is not None:
            with self.config.ledger.open("a") as file:
                file.write(f"{word} {ref.id}\n")


async def _appears(path: Path | None) -> None:
    while path is not None and not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)


class DisturbedChannel(Channel):
    """Hands bytes on late, in order, or not at all."""

    def __init__(self, inner: Channel, config: DisturbedConfig) -> None:
        self._inner, self._config = inner, config
        self._mark = config.mark.encode()
        self._receiver: Receiver | None = None
        self._there, self._back = _Pipe(), _Pipe()
        self._is_marked = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._inner.start(self)

    def write(self, data: bytes) -> None:
        marked = bool(self._mark) and self._mark in data
        self._is_marked |= marked
        self._there.pass_on(self._config.there_s if marked else 0.0, lambda: self._inner.write(data))

    def data_received(self, data: bytes) -> None:
        """From the real channel."""
        assert self._receiver is not None
        if self._config.is_dumb:
            return
        delay_s, self._is_marked = (self._config.back_s, False) if self._is_marked else (0.0, False)
        receiver = self._receiver
        self._back.pass_on(delay_s, lambda: receiver.data_received(data))

    def connection_lost(self, error: Exception | None) -> None:
        """From the real channel."""
        assert self._receiver is not None
        receiver = self._receiver
        self._back.pass_on(0.0, lambda: receiver.connection_lost(error))

    def close(self) -> None:
        self._inner.close()


class _Pipe:
    """One direction: nothing overtakes what is late."""

    def __init__(self) -> None:
        self._clear_at_s = 0.0
        self._under_way = 0

    def pass_on(self, delay_s: float, deliver: Callable[[], None]) -> None:
        if not delay_s and not self._under_way:
            deliver()
            return
        loop = asyncio.get_running_loop()
        self._clear_at_s = max(loop.time() + delay_s, self._clear_at_s)
        self._under_way += 1
        loop.call_at(self._clear_at_s, self._arrive, deliver)

    def _arrive(self, deliver: Callable[[], None]) -> None:
        self._under_way -= 1
        deliver()
