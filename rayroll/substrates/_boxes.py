"""The sandboxes of one host that have a folder on this node: looked after here, found by any process by that folder.

What is on record of each is in there (see ``_leftovers``), so that a later host, the reaper and ``rayroll gc`` know it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates import Channel, Lease, SandboxRef
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._box import Box
from rayroll.substrates._ground import Site
from rayroll.substrates._leftovers import Remains
from rayroll.substrates._reaping import Watches
from rayroll.substrates._shield import finish

__all__ = ["Boxes"]

CAUSES_KEPT = 1000
DEATH_NOTICE_S = 1.0

B = TypeVar("B", bound=Box)


class Boxes(Generic[B]):
    """Those of one substrate.

    Args:
        kind: The substrate's.
        base: Folder of all of them.
        watches: Told of what this host has.
        make: One of this substrate's, from what is on record and where it is to stand.
    """

    def __init__(self, kind: str, base: Path, watches: Watches, make: Callable[[Remains, Site], B]) -> None:
        self.base = base
        self._kind = kind
        self._watches = watches
        self._make = make
        self._host_started_at = leftovers.started_at(os.getpid()) or 0
        self._boxes: dict[str, B] = {}
        self._causes: dict[str, str] = {}

    def new(self, lease: Lease, *, isolated: bool = True) -> B:
        """One that is to be made; nothing of it is there yet."""
        name = secrets.token_hex(8)
        remains = Remains(
            id=name,
            run_id=lease.run_id,
            owner=lease.owner,
            lease_s=lease.duration_s,
            created_unix_s=time.time(),
            host_pid=os.getpid(),
            host_started_at=self._host_started_at,
            isolated=isolated,
            folder=str(self.base / name),
        )
        return self._look_after(remains, lease)

    def _look_after(self, remains: Remains, lease: Lease) -> B:
        site = Site(lease, functools.partial(self._watches.cover_engine, lease=lease))
        box = self._boxes[remains.id] = self._make(remains, site)
        box.on_end = functools.partial(self._forget, remains.id)
        return box

    def _forget(self, name: str, cause: str) -> None:
        self._boxes.pop(name, None)
        self._causes[name] = cause
        while len(self._causes) > CAUSES_KEPT:
            del self._causes[next(iter(self._causes))]

    def get(self, ref: SandboxRef) -> B:
        """One of this host. Raises SandboxLostError when it is gone, or another's."""
        try:
            return self._boxes[ref.id]
        except KeyError:
            cause = self._causes.get(ref.id, "")
            raise SandboxLostError("the sandbox is gone", id=ref.id, cause=cause) from None

    def recorded(self, ref: SandboxRef) -> Remains:
        """What is on record of anybody's. Blocks. Raises SandboxLostError when it is gone."""
        for remains in leftovers.find(self.base, {"run": ref.run_id}):
            if remains.id == ref.id:
                return remains
        raise SandboxLostError("the sandbox is gone", id=ref.id)

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        """See ``Substrate.adopt``."""
        await self._watches.cover_folder(self.base, lease)
        remains = await asyncio.to_thread(self.recorded, ref)
        if not remains.isolated:
            raise SubstrateError("a plain process cannot be taken over", id=ref.id)
        owned = replace(
            remains,
            owner=lease.owner,
            lease_s=lease.duration_s,
            host_pid=os.getpid(),
            host_started_at=self._host_started_at,
        )
        box = self._look_after(owned, lease)
        try:
            return await box.take_over()
        except BaseException:
            await finish(box.clean("not taken over"))
            raise

    def listed(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        """See ``Substrate.list``. Blocks."""
        now_unix_s = time.time()
        return [
            SandboxRef(
                self._kind,
                remains.id,
                remains.run_id,
                remains.owner,
                remains.state,
                now_unix_s - remains.created_unix_s,
                remains.lease_s,
                remains.kept_until_unix_s,
            )
            for remains in leftovers.find(self.base, labels)
        ]

    async def destroy(self, ref: SandboxRef) -> None:
        """See ``Substrate.destroy``."""
        box = self._boxes.get(ref.id)
        await finish(box.clean("destroyed") if box is not None else asyncio.to_thread(self._remove, ref.id))

    def _remove(self, name: str) -> None:
        """One of another process."""
        for remains in leftovers.find(self.base, {}):
            if remains.id == name:
                try:
                    leftovers.remove(remains)
                except OSError as error:
                    raise SubstrateError("a sandbox could not be removed", id=name, reason=str(error)) from error

    async def cause_of_death(self, ref: SandboxRef) -> str:
        """See ``Substrate.cause_of_death``."""
        box = self._boxes.get(ref.id)
        if box is not None:
            # Its stream may end before its process is seen to have.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEATH_NOTICE_S):
                    await box.ended.wait()
        return self._causes.get(ref.id, "")

    async def close(self) -> None:
        """Clean up after those that have ended, and leave the others to their leases."""
        ending = [box.clean("closed") for box in self._boxes.values() if box.has_ended]
        await asyncio.gather(*ending, return_exceptions=True)
        if not self._boxes:
            await self._watches.lift()
        for box in self._boxes.values():
            process = box.abandon()
            if process is not None and box.remains.kept_until_unix_s:
                process.kill()  # bubblewrap, without which a runner that was left to itself lives on
                await asyncio.to_thread(process.wait)
            elif process is not None:
                _abandoned.append(process)
        self._boxes.clear()


_abandoned: list[subprocess.Popen[bytes]] = []
"""Processes of closed substrates: collected, they would warn that they still run."""
