"""Why containers ended: one stream of events per engine, because after AutoRemove nothing else knows.

Inspecting a removed container says 404; only the event stream had shown ``oom`` and ``die 137``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from rayroll.substrates._attach import EngineAnswer, json_lines
from rayroll.substrates._endpoint import Endpoint

__all__ = ["Events"]

logger = logging.getLogger(__name__)

KEPT = 4096
"""Containers whose end is remembered."""
RECONNECT_MOST_S = 5.0
OOM_TO_DEATH_S = 5.0


class Events:
    """Listens for as long as it is open; comes back when the engine does."""

    def __init__(self, endpoint: Endpoint, on_death: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._on_death = on_death
        self._causes: dict[str, str] = {}
        self._short_of_memory: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_connected = asyncio.Event()

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.ensure_future(self._listen())

    async def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def cause(self, container_id: str, patience_s: float) -> str:
        """``oom`` or ``exit N``; "" when the container has not ended within that time, as far as is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while container_id not in self._causes:
                    self._changed.clear()
                    await self._changed.wait()
        return self._causes.get(container_id, "")

    async def _listen(self) -> None:
        since_s = time.time()
        pause_s = 0.1
        while True:
            filters = {"type": ["container"], "label": ["rayroll.run"], "event": ["oom", "die"]}
            path = f"/events?since={since_s:.9f}&filters={quote(json.dumps(filters))}"
            try:
                async with json_lines(self._endpoint, "GET", path) as events:
                    self.is_connected.set()
                    pause_s = 0.1
                    async for event in events:
                        since_s = event["timeNano"] / 1e9
                        self._take(event)
            except (OSError, EngineAnswer, ValueError, asyncio.IncompleteReadError) as error:
                logger.debug("the engine's event stream ended: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RECONNECT_MOST_S)

    def _take(self, event: dict[str, Any]) -> None:
        container_id, at_s = event["Actor"]["ID"], event["timeNano"] / 1e9
        if event["Action"] == "oom":
            self._short_of_memory[container_id] = at_s
        elif container_id not in self._causes:
            code = event["Actor"]["Attributes"].get("exitCode", "?")
            # A command that runs out of memory is an oom, too, and its sandbox lives on: only the last one counts.
            was_oom = code == "137" and at_s - self._short_of_memory.get(container_id, 0.0) < OOM_TO_DEATH_S
            self._causes[container_id] = "oom" if was_oom else f"exit {code}"
            self._on_death(container_id)
        _forget_oldest(self._short_of_memory)
        _forget_oldest(self._causes)
        self._changed.set()


def _forget_oldest(known: dict[str, Any]) -> None:
    while len(known) > KEPT:
        del known[next(iter(known))]
