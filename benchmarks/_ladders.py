"""How a start on each rung of the ladder is brought about: one entry for each substrate that needs more than asking.

What works everywhere needs no entry: a sandbox that is asked for, one that was started ahead of need, one that was used
and made clean. An entry says what a substrate must be told, which further rungs it has, and how a node gets there.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _arms import Skipped

from rayroll import Client, Task
from rayroll.pool import Reset
from rayroll.substrates import SandboxRef
from rayroll.substrates._leftovers import remove_tree
from rayroll.substrates.ec2 import Ec2Substrate
from rayroll.types import Rung

__all__ = ["LADDERS", "USUAL", "Claim", "Ladder", "Place", "Way"]

REGISTRY = "RAYROLL_TESTBED_REGISTRY"
GONE_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the starts of one way happen."""

    client: Client
    task: Task
    cache: Path
    """The substrate's cache, where the way has one of its own."""


async def _nothing(place: Place) -> None:
    """The node is as it has to be."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to a started sandbox."""

    rung: Rung
    name: str = ""
    """Tells two ways on one rung apart."""
    before: Callable[[Place], Awaitable[None]] = _nothing
    """Brings the node to this rung; not measured."""
    after: Callable[[Place], Awaitable[None]] = _nothing
    """At the very end."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the substrate's config."""
    reset: Reset = "fresh"
    image: Callable[[str], str | None] = str
    """The image to start instead of the one that others start; None: the substrate's plainest. Raises Skipped."""
    has_own_cache: bool = False
    is_slow: bool = False
    """Takes part in some rounds only."""


@dataclass(frozen=True, slots=True)
class Claim:
    """How many times longer one way takes than another of the same substrate, at least."""

    slow: str
    fast: str
    times: float


async def _warm(place: Place) -> None:
    assert await place.client.warm(place.task)


async def _recycled(place: Place) -> None:
    if place.client.pool.stats.idle:
        return  # what the start before gave back
    async with place.client.open(place.task) as session:
        await session.exec("echo used > /tmp/used")
    if not session.is_recycled:
        raise Skipped(f"a used sandbox cannot be made clean: {', '.join(place.client.pool.stats.reasons)}")


def _from_registry(image: str) -> str:
    registry = os.environ.get(REGISTRY)
    if registry is None:
        raise Skipped(f"there is no registry to pull from; set {REGISTRY}, as the test bed does")
    return f"{registry}/{image}"


async def _without_image(place: Place) -> None:
    """Neither in the node's engine nor in the cache."""
    assert place.task.image is not None
    await asyncio.to_thread(_forget, place.task.image)
    for entry in await asyncio.to_thread(lambda: [*place.cache.glob("local/*")]):
        await asyncio.to_thread(remove_tree, entry)


def _forget(image: str) -> None:
    """Remove an image and its layers from the engine; whoever used it last may hold it for a moment."""
    import docker

    api: Any = docker.from_env().api
    deadline_s = time.monotonic() + GONE_PATIENCE_S
    try:
        while True:
            try:
                id = api.inspect_image(image)["Id"]
                for ended in api.containers(all=True, filters={"ancestor": id, "status": "exited"}):
                    api.remove_container(ended)  # a kubelet would keep it for a minute
                api.remove_image(image)
            except docker.errors.ImageNotFound:
                return
            except docker.errors.APIError as error:
                if time.monotonic() > deadline_s:
                    raise Skipped(f"{image} cannot be removed from the engine: {error.explanation}") from error
                time.sleep(0.1)
            else:
                assert id not in {found["Id"] for found in api.images(all=True)}, f"{image} has another name as well"
                return
    finally:
        api.close()


async def _stocked(place: Place) -> None:
    """A machine that has booted once lies in the pool, and off."""
    substrate = place.client.substrate
    assert isinstance(substrate, Ec2Substrate)
    (machine,) = await substrate.stock(1)
    async with asyncio.timeout(GONE_PATIENCE_S):
        while not await substrate.cause_of_death(SandboxRef("ec2", machine, "", "")):  # noqa: ASYNC110 - EC2's to tell
            await asyncio.sleep(0.1)


WARM = Way("warm", before=_warm)
RECYCLED = Way("recycled", before=_recycled, reset="recycle")
USUAL = (Way("cached"), WARM, RECYCLED)
PULLED = Way("cold", before=_without_image, after=_without_image, image=_from_registry, is_slow=True)
"""The node's engine pulls."""
STOPPED = Way("warm", "stopped", before=_stocked, config={"stopped_pool": "cold-start"})
"""A cloud's machine that is only switched on."""
EXPORTED = Way(
    "cold", before=_without_image, after=_without_image, image=_from_registry, has_own_cache=True, is_slow=True
)
"""The node's engine pulls, and what a sandbox stands on is made of that."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """A substrate's ways, the one that others are compared with first."""

    ways: tuple[Way, ...] = USUAL
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the substrate's config, in all of its ways."""
    claims: tuple[Claim, ...] = ()


LADDERS: Mapping[str, Ladder] = {
    "local": Ladder((*USUAL, EXPORTED)),
    "docker": Ladder((*USUAL, PULLED)),
    "qemu": Ladder(
        (Way("cached", "boot", config={"snapshot": False}), Way("snapshot", "saved"), WARM, RECYCLED, EXPORTED),
        claims=(Claim("boot", "saved", 10.0),),
    ),
    # A policy that denies the network needs an image of the server's own.
    "opensandbox": Ladder((*USUAL, PULLED), config={"network": "open"}),
    "kubernetes": Ladder((*USUAL, PULLED)),
    # Its images are AMIs.
    "ec2": Ladder(tuple(replace(way, image=lambda _: None) for way in (*USUAL, STOPPED))),
}
