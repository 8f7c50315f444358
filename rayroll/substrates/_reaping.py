"""The host's end of its reaper: started before the first sandbox, told what to look after."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rayroll.substrates import Lease
from rayroll.substrates._endpoint import Endpoint

__all__ = ["Reaper", "Watches", "reaper"]

logger = logging.getLogger(__name__)

# Stands in for the packages' own __init__, which would bring pydantic and 50 MB along.
BOOT = """
import sys, types
here = sys.argv[1]
for name, folder in (("rayroll", here + "/.."), ("rayroll.substrates", here)):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from rayroll.substrates._reaper import main
main()
"""


class Reaper:
    """One per host process. Thread-safe; calls block for at most the start of a Python."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe = -1
        self._started_by = 0
        self._watches: dict[str, dict[object, dict[str, Any]]] = {}
        self.pid = 0
        """The reaper's process; 0 before it was needed."""

    def watch(self, key: str, holder: object, order: Mapping[str, Any]) -> None:
        """Look after what ``order`` says (see _reaper.py), until every holder forgets it.

        Raises:
            OSError: It could not be started.
        """
        with self._lock:
            self._watches.setdefault(key, {})[holder] = {**order, "watch": key}
            self._tell(self._order(key))

    def forget(self, key: str, holder: object) -> None:
        """Nothing of that is left, as far as this holder goes."""
        with self._lock:
            holders = self._watches.get(key, {})
            holders.pop(holder, None)
            if not holders:
                self._watches.pop(key, None)
                self._tell({"forget": key})

    def look(self, at_unix_s: float) -> None:
        """Something that was kept ends then: see whether it leaves anything, also while this process lives."""
        with self._lock:
            self._tell({"look": at_unix_s})

    def close(self) -> None:
        """End the reaper's watch: what it still looks after is swept one lease from now. Idempotent."""
        with self._lock:
            if self._pipe >= 0:
                os.close(self._pipe)
                self._pipe, self._started_by = -1, 0

    def _order(self, key: str) -> dict[str, Any]:
        orders = list(self._watches[key].values())
        return {**orders[-1], "lease_s": max(order["lease_s"] for order in orders)}

    def _tell(self, order: Mapping[str, Any]) -> None:
        if self._started_by == os.getpid():  # a forked child must not speak to its parent's reaper
            try:
                os.write(self._pipe, json.dumps(order).encode() + b"\n")
                return
            except BrokenPipeError:
                logger.warning("the reaper is gone, starting another: pid=%d", self.pid)
                os.close(self._pipe)
        self._start()
        lines = [json.dumps(self._order(key)).encode() + b"\n" for key in self._watches]
        os.write(self._pipe, b"".join(lines))

    def _start(self) -> None:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT, str(Path(__file__).parent), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
            start_new_session=True,
        )
        assert child.stdin is not None and child.stdout is not None
        with child.stdout:
            said = child.stdout.readline()
        child.wait()  # it has left a child of its own behind, which nobody takes for ours
        self._pipe = os.dup(child.stdin.fileno())
        os.set_inheritable(self._pipe, False)
        child.stdin.close()
        self._started_by = os.getpid()
        self.pid = int(said)


@functools.cache
def reaper() -> Reaper:
    """This process's reaper."""
    return Reaper()


class Watches:
    """What one substrate has asked its reaper to look after."""

    def __init__(self) -> None:
        self._orders: dict[str, dict[str, Any]] = {}
        self._asking = asyncio.Lock()

    async def cover_folder(self, base: Path, lease: Lease) -> None:
        """Have this lease's local sandboxes looked after from now on; returns at once when they are already.

        Raises:
            OSError: The reaper could not be started.
        """
        await self._cover(f"local {base}", {"sweep": "local", "base": str(base)}, lease)

    async def cover_engine(self, endpoint: Endpoint, lease: Lease) -> None:
        """The same for what carries this lease's labels on an engine."""
        order = {
            "sweep": "docker",
            "url": endpoint.url,
            "tls_folder": str(endpoint.tls_folder) if endpoint.tls_folder else None,
            "tls_verify": endpoint.tls_verify,
        }
        await self._cover(f"docker {endpoint.url}", order, lease)

    async def cover_server(
        self, url: str, headers: Mapping[str, str], metadata: Mapping[str, str], lease: Lease
    ) -> None:
        """The same for what an OpenSandbox server has with this metadata."""
        order = {
            "sweep": "opensandbox",
            "url": url,
            "tls_folder": None,
            "headers": dict(headers),
            "metadata": dict(metadata),
        }
        await self._cover(f"opensandbox {url}", order, lease)

    async def cover_cluster(
        self, credentials: Mapping[str, Any], namespace: str, label: Callable[[str], str], lease: Lease
    ) -> None:
        """The same for pods; told again when the credentials have changed."""
        wanted = f"rayroll.run={label(lease.run_id)},rayroll.owner={label(lease.owner)}"
        order = {"sweep": "kubernetes", "namespace": namespace, "selector": wanted, **credentials}
        await self._cover(f"kubernetes {credentials['url']} {namespace}", order, lease)

    async def cover_ec2(self, url: str, region: str, credentials: Mapping[str, str | None], lease: Lease) -> None:
        """The same for instances with this lease's tags; told again when the credentials have changed."""
        order = {"sweep": "ec2", "url": url, "tls_folder": None, "region": region, "credentials": dict(credentials)}
        await self._cover(f"ec2 {url}", order, lease)

    async def _cover(self, place: str, order: Mapping[str, Any], lease: Lease) -> None:
        key = f"{place} {lease.run_id} {lease.owner}"
        async with self._asking:
            known = self._orders.get(key, {"lease_s": -1.0})
            order = {**order, "run": lease.run_id, "owner": lease.owner}
            order["lease_s"] = max(lease.duration_s, known["lease_s"])
            if order != known:
                await asyncio.to_thread(reaper().watch, key, self, order)
                self._orders[key] = order

    async def look(self, at_unix_s: float) -> None:
        """See ``Reaper.look``."""
        await asyncio.to_thread(reaper().look, at_unix_s)

    async def lift(self) -> None:
        """Nothing is left of anything."""
        keys = list(self._orders)
        self._orders.clear()
        for key in keys:
            await asyncio.to_thread(reaper().forget, key, self)
