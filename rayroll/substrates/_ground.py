"""What a local sandbox stands on: its image's files where an engine answers, else the node's own system."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from rayroll.errors import ConfigError, EngineDownError, ImageError, SubstrateError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates import _pytools as pytools
from rayroll.substrates._cache import Held, Store, can_reach
from rayroll.substrates._endpoint import Endpoint
from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._rootfs import Exporter, Rootfs, image_system
from rayroll.substrates._system import System, host_system, with_python

__all__ = ["Ground", "Site"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class Site:
    """What one sandbox was given. Release it when the sandbox is gone."""

    lease: Lease
    cover_engine: Callable[[Endpoint], Awaitable[None]]
    """Has the reaper look after this lease's containers there: exporting takes one, for as long as it lasts."""
    phases_s: dict[str, float] = field(default_factory=dict)
    taking: list[asyncio.Future[Held]] = field(default_factory=list)
    was_absent: bool = False
    """Its root filesystem had to be fetched."""

    def dup_locks(self) -> tuple[int, ...]:
        """For the sandbox's own process, which may outlive this one (see ``Held.dup``)."""
        return tuple(future.result().dup() for future in self.taking)

    async def release(self) -> None:
        """Let the cache evict what was held. Idempotent."""
        if self.taking:
            await asyncio.wait(self.taking)  # a thread may still be taking what a cancelled create had asked for
        for future in self.taking:
            if not future.cancelled() and future.exception() is None:
                future.result().release()
        self.taking.clear()


class Ground:
    """Chooses and prepares. One per substrate."""

    def __init__(
        self,
        rootfs: Literal["auto", "image", "host"],
        store: Store,
        exporter: Exporter,
        threads: Executor,
        sandbox_uid: int,
    ) -> None:
        self._rootfs = rootfs
        self._store = store
        self._exporter = exporter
        self._threads = threads
        self._uid = sandbox_uid
        self._building: SingleFlight[None] = SingleFlight()

    async def prepare(self, spec: SandboxSpec, site: Site, *, isolated: bool) -> System:
        """The system for a spec, with what it needs from the cache made and held by ``site``.

        Raises:
            ConfigError: The task needs its root filesystem, and the configuration or the missing isolation forbids it.
            EngineDownError, ImageError, TaskError: The image cannot be had, and the task has no ``host_packages``.
        """
        if self._wants_image(spec, isolated):
            try:
                return await self._on_image(spec, site)
            except (EngineDownError, ImageError, ConfigError) as error:
                if self._rootfs != "auto" or spec.host_packages is None:
                    raise
                logger.warning("no image for a local sandbox, it stands on the node's own system: %s", error)
        return await self._on_host(spec, site, isolated)

    async def close(self) -> None:
        """Let the engine go."""
        await self._exporter.close()

    def _wants_image(self, spec: SandboxSpec, isolated: bool) -> bool:
        if spec.image is None and not spec.environment:
            return False
        if self._rootfs == "host":
            if spec.host_packages is None:
                raise ConfigError(
                    "the task declares no host_packages, so it needs its own root filesystem; set rootfs='image', or "
                    "run it on docker"
                )
            return False
        if isolated:
            return True
        if spec.host_packages is None or self._rootfs == "image":
            raise SubstrateError("a task's own root filesystem needs bubblewrap", fix="apt-get install bubblewrap")
        return False

    async def _on_image(self, spec: SandboxSpec, site: Site) -> System:
        rootfs, tree = await self.tree(spec, site)
        return await self._in_thread(image_system, rootfs, tree, spec)

    async def tree(self, spec: SandboxSpec, site: Site) -> tuple[Rootfs, Path]:
        """The files of a spec's image, exported once per node and held by ``site``.

        Raises:
            EngineDownError, ImageError, TaskError: The image cannot be had.
        """
        rootfs, site.was_absent = await self._exporter.resolve(spec, site.phases_s)
        if self._exporter.endpoint is not None:
            await site.cover_engine(self._exporter.endpoint)
        loop = asyncio.get_running_loop()
        owner = self._uid if os.geteuid() == 0 else None

        def export(folder: Path) -> None:
            # The store builds in a thread; the exporter's connection lives on the loop.
            asyncio.run_coroutine_threadsafe(self._exporter.export(rootfs, folder, owner, site.lease), loop).result()
            site.was_absent = True

        start_s = time.monotonic()
        tree = await self.hold(site, rootfs.entry, export)
        site.phases_s["pull"] = site.phases_s.get("pull", 0.0) + time.monotonic() - start_s
        return rootfs, tree

    async def _on_host(self, spec: SandboxSpec, site: Site, isolated: bool) -> System:
        system = await self._in_thread(functools.partial(host_system, spec, reader_uid=self._uid))
        if spec.host_packages is None:
            return system
        if not isolated:
            return replace(system, env={**system.env, "PATH": f"{Path(sys.executable).parent}:{system.env['PATH']}"})
        start_s = time.monotonic()
        build = functools.partial(pytools.build, requirements=spec.host_packages)
        environment = await self.hold(site, pytools.name_of(spec.host_packages), build)
        prefix = pytools.PREFIX
        if not await self._in_thread(can_reach, prefix, self._uid):
            prefix = await self.hold(site, pytools.name_of(("prefix",)), pytools.copy_prefix)
        site.phases_s["build"] = time.monotonic() - start_s
        return with_python(system, environment, prefix)

    async def hold(self, site: Site, name: str, build: Callable[[Path], None]) -> Path:
        """An entry of the store, made by ``build(empty folder)`` in a thread if need be, and held by ``site``."""

        async def make() -> None:
            (await self._in_thread(self._store.hold, name, build)).release()

        # One thread builds and the others wait here, or they would all sit in the file lock and nothing else could run.
        await self._building(name, make)
        site.taking.append(asyncio.ensure_future(self._in_thread(self._store.hold, name, build)))
        return (await asyncio.shield(site.taking[-1])).path

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
