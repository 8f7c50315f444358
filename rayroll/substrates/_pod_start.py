"""From a manifest to a stream to the runner: the node found, the image there, the container up, or why not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Any

from rayroll.errors import StartTimeoutError, SubstrateError
from rayroll.substrates import _pod as pods
from rayroll.substrates import _pod_status as status
from rayroll.substrates._kube import Cluster, is_status
from rayroll.substrates._kube_ground import Ground
from rayroll.substrates._kube_watch import Pod, PodWatch
from rayroll.substrates._pod_stream import attach
from rayroll.substrates._stream import StreamChannel

__all__ = ["Start", "changed"]

LOOK_EVERY_S = 5.0
"""Whether the watch has missed something."""
EARLY_AFTER_S, EARLY_PAUSE_S, EARLY_PAUSE_MOST_S = 0.3, 0.05, 1.0
SETTLE_S = 0.01
PULLED_AFTER_S = 1.0
"""A start that was shorter pulled nothing worth asking for."""


class Start:
    """Of one pod.

    Args:
        cluster: Where.
        watch: Of the host's pods.
        ground: Of the namespace.
        config: The substrate's.
        name: The pod's.
    """

    def __init__(self, cluster: Cluster, watch: PodWatch, ground: Ground, config: Any, name: str) -> None:
        self._cluster, self._watch, self._ground = cluster, watch, ground
        self._config = config
        self._name = name

    async def run(
        self, manifest: dict[str, Any], calls: list[asyncio.Future[Any]], phases_s: dict[str, float]
    ) -> StreamChannel:
        """Make it and open a stream to its runner.

        Args:
            manifest: The pod's.
            calls: Gets what goes on in a thread when this is cancelled: undoing must wait for it.
            phases_s: Gets ``create``, ``boot`` and, where the node did not have the image, ``pull``. The wait for a
                node that there is none of is in none of them.

        Raises:
            SubstrateError: Typed, in the cluster's own words. The pod may be there.
        """
        start_s = time.monotonic()
        making = self._cluster.call(
            lambda core, namespace, options: core.create_namespaced_pod(namespace, manifest, **options)
        )
        calls.append(asyncio.ensure_future(making))
        self._watch.put(await asyncio.shield(calls[-1]))
        waited_s = await self._until_scheduled()
        scheduled_s = time.monotonic()
        phases_s["create"] = scheduled_s - start_s - waited_s
        channel = await self._open()
        phases_s["boot"] = time.monotonic() - scheduled_s
        if phases_s["boot"] > PULLED_AFTER_S and (pull_s := await self._ground.pull_s(self._name)):
            phases_s["pull"] = min(pull_s, phases_s["boot"])
            phases_s["boot"] -= phases_s["pull"]
        return channel

    async def _until_scheduled(self) -> float:
        """Until the pod has a node; seconds of that during which there was none to have."""
        start_s = time.monotonic()
        none_since_s: float | None = None
        while not status.is_scheduled(pod := self._pod()):
            now_s = time.monotonic()
            said = status.unschedulable(pod)
            if said and none_since_s is None:
                none_since_s = now_s
            if status.has_ended(pod):
                raise SubstrateError("the pod ended before it had a node", cause=status.cause_of(pod))
            patience_s = self._config.schedule_patience_s if said else self._config.create_timeout_s
            if now_s - start_s > patience_s:
                raise StartTimeoutError(
                    "the cluster has no node for the pod" if said else "the scheduler did not look at the pod",
                    said=said,
                    patience_s=patience_s,
                    fix="fewer sandboxes at once, a smaller request_share, or more nodes (schedule_patience_s)",
                )
            await changed(self._cluster, self._watch, self._name, start_s + patience_s - now_s)
        return 0.0 if none_since_s is None else time.monotonic() - none_since_s

    async def _until_running(self) -> Pod:
        """Until its container runs."""
        start_s = time.monotonic()
        limit_s = start_s + self._config.create_timeout_s
        failing: tuple[float, SubstrateError] | None = None
        while not status.is_running(pod := self._pod()):
            now_s = time.monotonic()
            if error := status.start_failure(pod):
                raise error
            if found := status.pull_failure(pod):
                # The kubelet's second word, that it backs off, says less than its first.
                failing = failing or (now_s + self._config.pull_grace_s, found[0])
                if found[1]:
                    failing = (start_s + self._config.pull_timeout_s, found[0])
                if now_s >= failing[0]:
                    raise failing[1]
                limit_s = max(limit_s, failing[0] + 1)
            elif now_s >= limit_s:
                is_pulling, said = await self._ground.news(self._name)
                limit_s = start_s + self._config.pull_timeout_s
                if not is_pulling or now_s >= limit_s:
                    raise StartTimeoutError(
                        "the image did not arrive in time" if is_pulling else "the pod was not started in time",
                        said=said,
                        waited_s=round(now_s - start_s, 1),
                    )
            await changed(
                self._cluster, self._watch, self._name, min(limit_s, failing[0] if failing else limit_s) - now_s
            )
        return pod

    def _pod(self) -> Pod:
        pod = self._watch.get(self._name)
        if pod is None:
            raise SubstrateError("somebody deleted the pod while it was started", pod=self._name)
        return pod

    async def _open(self) -> StreamChannel:
        """A stream as soon as there can be one: a kubelet says up to a second later that a container runs."""
        running = asyncio.create_task(self._until_running())
        early = asyncio.create_task(self._attach_early())
        channel: StreamChannel | None = None
        try:
            await asyncio.wait({running, early}, return_when=asyncio.FIRST_COMPLETED)
            if early.done():
                if not status.is_running(self._pod()):
                    await self._say_started()
                channel = early.result()
            else:
                channel = await self._ground.open(self._name, status.address_of(await running))
        finally:
            running.cancel()
            early.cancel()
            await asyncio.gather(running, early, return_exceptions=True)
            if not early.cancelled() and early.result() is not channel:
                early.result().abort()
        return channel

    async def _attach_early(self) -> StreamChannel:
        """Ask again and again whether there is a container to attach to; never raises."""
        if self._ground.by_address:
            await asyncio.Event().wait()
        pause_s = EARLY_PAUSE_S
        await asyncio.sleep(EARLY_AFTER_S)
        while True:
            with contextlib.suppress(SubstrateError):
                channel = await attach(self._cluster, self._name)
                lasts = False
                try:
                    await asyncio.sleep(SETTLE_S)
                    lasts = channel.is_open and not channel.status
                finally:
                    if not lasts:
                        channel.abort()
                if lasts:
                    return channel
            await asyncio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, EARLY_PAUSE_MOST_S)

    async def _say_started(self) -> None:
        """To whoever lists it before the kubelet has said so."""
        body = {"metadata": {"annotations": {pods.STARTED: "yes"}}}
        self._watch.put(
            await self._cluster.call(
                lambda core, namespace, options: core.patch_namespaced_pod(self._name, namespace, body, **options)
            )
        )


async def changed(cluster: Cluster, watch: PodWatch, name: str, most_s: float) -> None:
    """Until something may have changed; should the watch have missed it, the API is asked now and then."""
    try:
        async with asyncio.timeout(min(max(most_s, 0.05), LOOK_EVERY_S)):
            await watch.changed()
    except TimeoutError:
        try:
            watch.put(await cluster.call(functools.partial(_read, name)))
        except SubstrateError as error:
            if is_status(error, 404):
                watch.drop(name)


def _read(name: str, core: Any, namespace: str, options: dict[str, Any]) -> Any:
    return core.read_namespaced_pod(name, namespace, **options)
