"""Keeps an engine's disk from filling up with images: those used longest ago go first, and only those we brought.

Every image that was pulled or built for a sandbox has a small file, whose time is its last use. Images of others are
never touched, and one that a container uses is refused by the engine and stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from pathlib import Path

from rayroll.errors import SubstrateError
from rayroll.substrates._engine import Engine

__all__ = ["ImageBudget"]

logger = logging.getLogger(__name__)


class ImageBudget:
    """The images of one engine that this node brought there."""

    def __init__(self, engine: Engine, folder: Path, budget_mib: int | None) -> None:
        self._engine = engine
        self._folder = folder / hashlib.sha256(engine.endpoint.url.encode()).hexdigest()[:16]
        self._budget_mib = budget_mib
        self._ahead: set[str] = set()
        """Brought before anybody needed them, and not used yet."""

    async def used(self, name: str, *, was_absent: bool) -> None:
        """An image is about to be used; one that was absent counts from now on, and may cost others their place."""
        self._ahead.discard(name)
        await self._keep(name, was_absent)

    async def brought(self, name: str) -> None:
        """An image that was absent is there, before anybody needed it."""
        self._ahead.add(name)
        await self._keep(name, is_new=True)

    async def has_room_ahead(self) -> bool:
        """One more may be brought that nobody needs yet: they take half of the budget at most, lest those that are
        needed next make room for those that are needed later."""
        if self._budget_mib is None:
            return True
        return sum([await self._size_bytes(name) for name in self._ahead]) < self._budget_mib << 19

    async def _keep(self, name: str, is_new: bool) -> None:
        if self._budget_mib is None:
            return
        await asyncio.to_thread(self._touch, name, is_new)
        if is_new:
            await self._make_room(keep=name)

    def _touch(self, name: str, is_new: bool) -> None:
        file = self._file(name)
        if is_new:
            self._folder.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
        elif file.exists():
            os.utime(file)

    async def _make_room(self, keep: str) -> None:
        assert self._budget_mib is not None
        sizes = {name: await self._size_bytes(name) for name in await asyncio.to_thread(self._names)}
        total_bytes = sum(sizes.values())
        # What somebody will need soon goes last.
        for name, size_bytes in sorted(sizes.items(), key=lambda item: item[0] in self._ahead):
            if total_bytes <= self._budget_mib << 20:
                return
            if name != keep and await self._remove(name):
                total_bytes -= size_bytes
                self._ahead.discard(name)
                logger.info("image removed to stay within the budget: %s (%d MiB)", name, size_bytes >> 20)

    def _file(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:32]

    def _names(self) -> list[str]:
        """Least recently used first."""
        files = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        return [file.read_text() for file in files]

    async def _size_bytes(self, name: str) -> int:
        """Size with all layers: shared ones count each time, so the budget is kept with room to spare."""
        try:
            return int((await self._engine.call(lambda api: api.inspect_image(name)))["Size"])
        except SubstrateError:
            return 0

    async def _remove(self, name: str) -> bool:
        try:
            await self._engine.call(lambda api: api.remove_image(name))
        except SubstrateError as error:
            logger.debug("image stays: %s", error)
            return False
        await asyncio.to_thread(self._file(name).unlink, missing_ok=True)
        return True
