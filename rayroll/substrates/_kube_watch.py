"""What becomes of this host's pods: one watch for all of them, which comes back when the API does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from rayroll.errors import SubstrateError
from rayroll.substrates._attach import EngineAnswer, json_lines
from rayroll.substrates._kube import Cluster

__all__ = ["PodWatch", "list_pods"]

logger = logging.getLogger(__name__)

Pod = dict[str, Any]

PAGE = 500
WATCH_S = 45
"""Then it is begun again where it was: a proxy on the way may cut, or forget without a word, what is long silent."""
SILENCE_S = 15.0
"""Longer than asked for by this much: it is deaf."""
PAUSE_MOST_S = 2.0
GONE = 410


class PodWatch:
    """Knows the latest state of every pod that ``selector`` selects.

    Args:
        cluster: Where they are.
        selector: By labels, as the API takes it.
        on_change: Called with a pod's name and state when it has changed; None: it is gone.
    """

    def __init__(self, cluster: Cluster, selector: str, on_change: Callable[[str, Pod | None], None]) -> None:
        self._cluster = cluster
        self._selector = selector
        self._on_change = on_change
        self._pods: dict[str, Pod] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.create_task(self._watch(), name="rayroll pods")

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def get(self, name: str) -> Pod | None:
        """The latest known state; None: there is no such pod, as far as is known."""
        return self._pods.get(name)

    def put(self, pod: Pod) -> None:
        """What a call of our own has learnt."""
        self._take("MODIFIED", pod)

    def drop(self, name: str) -> None:
        """We have deleted it."""
        if self._pods.pop(name, None) is not None:
            self._tell(name, None)

    async def changed(self) -> None:
        """Until anything changes."""
        await self._changed.wait()

    async def _watch(self) -> None:
        version, pause_s = "", 0.05
        while True:
            try:
                if not version:
                    version = await self._relist()
                version = await self._follow(version)
                pause_s = 0.05
                continue
            except EngineAnswer as error:
                version = ""
                logger.debug("the watch of pods was refused: %s", error)
            except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, SubstrateError) as error:
                logger.debug("the watch of pods ended: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    async def _relist(self) -> str:
        pods, version = await list_pods(self._cluster, self._selector)
        found = {pod["metadata"]["name"] for pod in pods}
        for name in [name for name in self._pods if name not in found]:
            self.drop(name)
        for pod in pods:
            self._take("MODIFIED", pod)
        return version

    async def _follow(self, version: str) -> str:
        """Until the server ends it; where to go on. Raises EngineAnswer when that is too long ago."""
        query = {
            "watch": "true",
            "labelSelector": self._selector,
            "resourceVersion": version,
            "timeoutSeconds": WATCH_S,
            "allowWatchBookmarks": "true",
        }
        path = self._cluster.path("pods", query)
        endpoint = self._cluster.endpoint
        headers = {"Host": endpoint.host, "Accept": "application/json", **await self._cluster.headers()}
        async with (
            asyncio.timeout(WATCH_S + SILENCE_S),
            json_lines(endpoint, "GET", path, headers=headers) as events,
        ):
            async for event in events:
                pod = event["object"]
                if event["type"] == "ERROR":
                    raise EngineAnswer(int(pod.get("code") or GONE), str(pod.get("message")))
                version = pod["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._take(event["type"], pod)
        return version

    def _take(self, kind: str, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        if kind == "DELETED":
            if name in self._pods:
                self._on_change(name, pod)  # how it ended may be news
            self.drop(name)
            return
        known = self._pods.get(name)
        if known is not None and 0 < _version(pod) <= _version(known):
            return
        self._pods[name] = pod
        self._tell(name, pod)

    def _tell(self, name: str, pod: Pod | None) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._on_change(name, pod)


def _version(pod: Mapping[str, Any]) -> int:
    """Versions are opaque by contract, and numbers of one sequence in every API server there is."""
    with contextlib.suppress(ValueError):
        return int(pod["metadata"]["resourceVersion"])
    return 0


async def list_pods(cluster: Cluster, selector: str) -> tuple[list[Pod], str]:
    """Pods by labels, and the version of the list. Raises SubstrateError."""
    pods: list[Pod] = []
    token: str | None = ""
    while True:
        page = await cluster.call(functools.partial(_page, selector, token))
        pods += page.get("items") or []
        token = page["metadata"].get("continue")
        if not token:
            return pods, page["metadata"]["resourceVersion"]


def _page(selector: str, token: str | None, core: Any, namespace: str, options: dict[str, Any]) -> Any:
    more = {"_continue": token} if token else {}
    return core.list_namespaced_pod(namespace, label_selector=selector, limit=PAGE, **more, **options)
