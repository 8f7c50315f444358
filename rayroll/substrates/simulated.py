"""Sandboxes that are not there: latencies and failures drawn from a named profile, for the scheduler and for scale."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import field_validator

from rayroll.errors import ConfigError, SandboxLostError, SubstrateError, unknown_name
from rayroll.substrates import Channel, Lease, Probe, Sandbox, SandboxRef, SandboxSpec, Substrate, SubstrateConfig
from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._peer import Clock, Peer
from rayroll.substrates._profiles import PROFILES, Draw, Profile, Script

__all__ = ["PROFILES", "Draw", "Profile", "Script", "SimulatedConfig", "SimulatedSubstrate"]

CAUSES_KEPT = 10_000


class SimulatedConfig(SubstrateConfig):
    """What is simulated."""

    max_starting: int = 1_000_000
    """Sandboxes being created at the same time; a node that is not there has no start storm."""
    profile: str | Profile = "instant"
    """A built-in one by name (instant, docker-like, heavy-tail, flaky), or one of your own."""
    seed: int = 0
    """Equal seeds draw equal latencies and failures for the n-th sandbox."""

    @field_validator("profile")
    @classmethod
    def _known(cls, profile: str | Profile) -> str | Profile:
        if isinstance(profile, str) and profile not in PROFILES:
            raise ValueError(unknown_name("profile", profile, PROFILES).message)
        return profile


@dataclass(slots=True)
class _Entry:
    ref: SandboxRef
    peer: Peer


class SimulatedSubstrate(Substrate):
    """Sandboxes inside this process's memory."""

    kind: ClassVar[str] = "simulated"
    config_type: ClassVar[type[SubstrateConfig]] = SimulatedConfig

    def __init__(self, config: SimulatedConfig, *, clock: Clock | None = None) -> None:
        super().__init__(config)
        self.config: SimulatedConfig = config
        self._profile = PROFILES[config.profile] if isinstance(config.profile, str) else config.profile
        self._clock = clock
        self._starting = asyncio.Semaphore(config.max_starting)
        self._entries: dict[str, _Entry] = {}
        self._causes: dict[str, str] = {}
        self._images: set[str] = set()
        self._pulling: SingleFlight[None] = SingleFlight()
        self._count = 0

    async def probe(self) -> Probe:
        name = self.config.profile if isinstance(self.config.profile, str) else "custom"
        return Probe(True, facts={"profile": name, "seed": str(self.config.seed)})

    async def close(self) -> None:
        for entry in list(self._entries.values()):
            entry.peer.die("substrate closed")

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        clock = self._clock or asyncio.get_running_loop()
        number, self._count = self._count, self._count + 1
        peer = Peer(self._profile, f"{self.config.seed} {number}", clock, spec.workdir, spec.env, lease.duration_s)
        try:
            async with self._starting:
                phases_s, was_absent = await self._start(peer, clock, spec)
        except BaseException:
            peer.die("never started")
            raise
        ref = SandboxRef(self.kind, f"sim-{number}-{secrets.token_hex(4)}", lease.run_id, lease.owner)
        self._entries[ref.id] = _Entry(ref, peer)
        peer.on_death = lambda: self._bury(ref.id)
        return Sandbox(ref, peer.open(), "cold" if was_absent else "cached", phases_s)

    async def _start(self, peer: Peer, clock: Clock, spec: SandboxSpec) -> tuple[dict[str, float], bool]:
        image = _image(spec)
        was_absent = image not in self._images
        phases_s: dict[str, float] = {}
        if was_absent:
            start_s = clock.time()
            await self._pull(image, clock, peer.draw_s("pull"))
            phases_s["pull"] = clock.time() - start_s
        for phase in ("create", "boot"):
            start_s = clock.time()
            await _sleep(clock, peer.draw_s(phase))
            phases_s[phase] = clock.time() - start_s
            if phase == "create" and peer.fails_to_start():
                raise SubstrateError("the simulated node could not make a sandbox", profile=self.config.profile)
        return phases_s, was_absent and self._profile.pull.median_s > 0

    async def _pull(self, image: str, clock: Clock, took_s: float) -> None:
        await self._pulling(image, lambda: _sleep(clock, took_s))
        self._images.add(image)

    def image_of(self, spec: SandboxSpec) -> str | None:
        return _image(spec) if self._profile.pull.median_s > 0 else None

    async def images(self) -> frozenset[str]:
        return frozenset(self._images)

    async def fetch(self, spec: SandboxSpec) -> bool:
        if (image := _image(spec)) not in self._images:
            took_s = self._profile.pull.sample_s(random.Random(f"{self.config.seed} {image}"))
            await self._pull(image, self._clock or asyncio.get_running_loop(), took_s)
        return True

    def _bury(self, id: str) -> None:
        self._causes[id] = self._entries.pop(id).peer.cause
        while len(self._causes) > CAUSES_KEPT:
            del self._causes[next(iter(self._causes))]

    async def reopen(self, ref: SandboxRef) -> Channel:
        entry = self._entries.get(ref.id)
        if entry is None:
            raise SandboxLostError("the sandbox is gone", id=ref.id, cause=self._causes.get(ref.id, ""))
        return entry.peer.open()

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        def matches(ref: SandboxRef) -> bool:
            known = {"run": ref.run_id, "owner": ref.owner}
            return all(known.get(name) == value for name, value in labels.items())

        return [entry.ref for entry in self._entries.values() if matches(entry.ref)]

    async def destroy(self, ref: SandboxRef) -> None:
        entry = self._entries.get(ref.id)
        if entry is not None:
            entry.peer.die("destroyed")
            await _sleep(self._clock or asyncio.get_running_loop(), entry.peer.draw_s("destroy"))

    async def cause_of_death(self, ref: SandboxRef) -> str:
        return self._causes.get(ref.id, "")

    async def set_network(self, ref: SandboxRef, enabled: bool) -> None:
        if ref.id not in self._entries:
            raise ConfigError("no such sandbox", id=ref.id)


def _image(spec: SandboxSpec) -> str:
    return spec.image or (spec.environment.digest if spec.environment else "plain")


async def _sleep(clock: Clock, seconds: float) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    timer = clock.call_later(seconds, wake)
    try:
        await done
    finally:
        timer.cancel()
