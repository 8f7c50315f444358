"""A sandbox as a pod: the runner is PID 1 of its container, and an attach stream, or its own address, leads to it."""

from __future__ import annotations

import asyncio
import functools
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rayroll.errors import (
    ClosedError,
    ConfigError,
    EngineDownError,
    SandboxLostError,
    SubstrateError,
)
from rayroll.substrates import (
    Channel,
    Lease,
    Login,
    Probe,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Shell,
    Substrate,
    SubstrateConfig,
)
from rayroll.substrates import _pod as pods
from rayroll.substrates import _pod_status as status
from rayroll.substrates._kube import Cluster, is_status, load_library
from rayroll.substrates._kube_ground import Ground
from rayroll.substrates._kube_watch import Pod, PodWatch, list_pods
from rayroll.substrates._pod_start import Start, changed
from rayroll.substrates._published import Publisher
from rayroll.substrates._reaping import Watches
from rayroll.substrates._shield import Chores, finish
from rayroll.substrates._stream import StreamChannel

__all__ = ["KubernetesConfig", "KubernetesSubstrate"]

ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}
GONE_PATIENCE_S = 20.0
GRACE_S = 1
"""What the container of a pod that another made has between TERM and KILL; with none the API forgets it at once."""
KILL_S = 0.5
UNDO_PATIENCE_S = 5.0
"""How long whoever called a create that failed waits until nothing is left of it."""
UNDONE_BY_S = 120.0
DEATH_NOTICE_S = 3.0
"""A kubelet looks at its containers once a second."""
HANG_UP_S = 1.0
CAUSES_KEPT = 4096


class KubernetesConfig(SubstrateConfig):
    """Which cluster, and how pods are made."""

    kubeconfig: str | None = None
    """Path; None: KUBECONFIG, else ``~/.kube/config``, else the service account of the pod that the host runs in."""
    context: str | None = None
    """Of the kubeconfig; None: its current one."""
    namespace: str | None = None
    """For the pods; None: the context's, or the host's own."""
    plain_image: str = "debian:bookworm-slim"
    """For specs without an image."""
    registry: str | None = None
    """Where images of Dockerfiles are pushed to and nodes pull them from, such as ``registry.example:5000/team``; "":
    nowhere, for the nodes run on the very engine that builds them. None: tasks with a Dockerfile are refused."""
    build_engine: str | None = None
    """The Docker engine that builds them; None: DOCKER_HOST, else the usual."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """Of the kubelet."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets of the namespace with which nodes log in to registries."""
    pull_timeout_s: float = 900.0
    """Longest wait for an image that is on its way, or whose registry asks for patience (429)."""
    pull_grace_s: float = 3.0
    """How long any other failed pull is given to come right by itself."""
    schedule_patience_s: float = 300.0
    """Longest wait for a node while the scheduler finds none: an autoscaler takes minutes."""
    request_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """What is requested of a node, as a share of the sandbox's limits of CPU and memory. Below 1 nodes hold more
    sandboxes than could all be busy."""
    lifetime_s: float = Field(default=86400.0, ge=1.0)
    """``activeDeadlineSeconds``: the cluster ends a pod then, whatever has become of its host."""
    node_selector: Mapping[str, str] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Taints of nodes that are put up with, as in a pod's spec."""
    runtime_class: str | None = None
    """A RuntimeClass of the cluster, such as one of gVisor or Kata; None: its default."""
    arch: Literal["amd64", "arm64"] | None = None
    """CPU of the nodes; None: this host's."""
    pod_template: str | None = None
    """Path of a YAML file: a Pod's ``metadata`` and ``spec`` that ours are laid over; the sandbox's container is called
    ``sandbox``. What rayroll depends on is refused there."""
    runner_image: str | None = None
    """An image with the runner at ``/rayroll/runner``, and ``cp``: an init container of it brings the runner. None: a
    ConfigMap of the namespace does, made once."""
    carrier: Literal["auto", "address", "attach"] = "auto"
    """How the runner is spoken to. ``address``: at the pod's own, TCP, where only who knows its key is heard.
    ``attach``: through the API server and the kubelet. ``auto``: by address from inside the cluster, if that works."""
    port: int = Field(default=7295, ge=1, le=65535)
    """Of the runner, for the carrier ``address``."""
    network: Literal["policy", "open"] = "policy"
    """How ``network=False`` is kept. ``policy``: by a NetworkPolicy of the namespace, made if it is not there; it holds
    where the cluster's network enforces policies, which no API tells. ``open``: not at all; facts say so."""
    control_threads: int = Field(default=16, ge=1)
    """Calls to the API at the same time."""
    call_timeout_s: float = 30.0
    """Longest wait for an answer of the API."""


class KubernetesSubstrate(Substrate):
    """Sandboxes as pods."""

    kind: ClassVar[str] = "kubernetes"
    config_type: ClassVar[type[SubstrateConfig]] = KubernetesConfig

    def __init__(self, config: KubernetesConfig) -> None:
        super().__init__(config)
        self.config: KubernetesConfig = config
        self._host = secrets.token_hex(8)
        """Label of the pods of this object, by which its watch finds them."""
        self._starting = asyncio.Semaphore(config.max_starting)
        self._parts: tuple[Cluster, PodWatch, Ground] | None = None
        self._template: dict[str, Any] = {}
        self._channels: dict[str, StreamChannel] = {}
        self._reopening: dict[str, asyncio.Lock] = {}
        self._causes: dict[str, str] = {}
        self._alive: set[str] = set()
        self._chores = Chores("a pod was not removed, the reaper or `rayroll gc` will do it")
        self._watches = Watches()
        self._published = Publisher(self.kind, config.registry, config.build_engine)

    # life of the substrate

    async def open(self) -> None:
        if self.config.pod_template is not None:
            self._template = await asyncio.to_thread(pods.load_template, self.config.pod_template)
        cluster = await self._connect()
        watch = PodWatch(cluster, f"{pods.HOST}={self._host}", self._on_change)
        watch.start()
        self._parts = cluster, watch, Ground(cluster, self.config)

    async def _connect(self) -> Cluster:
        config = self.config
        return await Cluster.connect(
            config.kubeconfig,
            config.context,
            config.namespace,
            threads=config.control_threads,
            timeout_s=config.call_timeout_s,
        )

    def _opened(self) -> tuple[Cluster, PodWatch, Ground]:
        if self._parts is None:
            raise ClosedError("the kubernetes substrate is not open")
        return self._parts

    async def close(self) -> None:
        if self._parts is None:
            return
        await self._chores.wait(UNDO_PATIENCE_S)
        if not self._chores and not self._alive:
            await self._watches.lift()
        (cluster, watch, _), self._parts = self._parts, None
        await self._published.close()
        await watch.close()
        for channel in self._channels.values():
            channel.abort()
        self._channels.clear()
        await cluster.close()

    async def probe(self) -> Probe:
        try:
            await asyncio.to_thread(load_library)  # which says nothing about the cluster, however long it takes
            async with asyncio.timeout(9.0):
                cluster = await self._connect()
                try:
                    lacking = await Ground(cluster, self.config).lacking_rights()
                finally:
                    await cluster.close()
        except TimeoutError:
            return Probe(False, "the Kubernetes API does not answer", "kubectl cluster-info")
        except (SubstrateError, ConfigError) as error:
            facts = {key: str(value) for key, value in error.facts.items()}
            return Probe(False, error.message, facts.get("fix", ""), facts)
        if lacking:
            reason = f"this user may not {', '.join(lacking)} in namespace {cluster.namespace}"
            return Probe(False, reason, "bind the Role in docs/substrates/kubernetes.md to it", cluster.facts)
        return Probe(True, facts=cluster.facts)

    # life of a sandbox

    def image_of(self, spec: SandboxSpec) -> str | None:
        return None  # nodes pull: what is on this one says nothing

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        cluster, watch, ground = self._opened()
        phases_s: dict[str, float] = {}
        image, was_absent = await self._published.ensure(spec, self.config.plain_image, phases_s)
        arch = self.config.arch or ARCHES.get(platform.machine(), platform.machine())
        config_map = await ground.runner_config_map(arch)
        if not spec.network and self.config.network == "policy":
            await ground.ensure_policy()
        await self._watches.cover_cluster(
            await asyncio.to_thread(cluster.credentials), cluster.namespace, pods.label, lease
        )
        name = f"rayroll-{secrets.token_hex(8)}"
        own = pods.pod_manifest(
            name,
            spec,
            lease,
            image=image,
            host=self._host,
            arch=arch,
            config=self.config,
            runner_config_map=config_map,
            port=self.config.port if ground.by_address else None,
        )
        calls: list[asyncio.Future[Any]] = []
        async with self._starting:
            try:
                channel = await Start(cluster, watch, ground, self.config, name).run(
                    pods.merged(self._template, own), calls, phases_s
                )
            except BaseException as error:
                await self._undo(name, calls)
                if isinstance(error, SubstrateError) and config_map is not None and config_map in str(error):
                    ground.forget_runner()  # somebody has deleted it: the next create makes it again
                raise
        self._channels[name] = channel
        self._alive.add(name)
        return Sandbox(
            SandboxRef(self.kind, name, lease.run_id, lease.owner, lease_s=lease.duration_s),
            channel,
            "cold" if was_absent or "pull" in phases_s else "cached",
            phases_s,
            facts={**cluster.facts, "image": image, "network": self.config.network, "carrier": ground.carrier},
            labels={"carrier": ground.carrier, **({"network": "open"} if self.config.network == "open" else {})},
        )

    async def _undo(self, name: str, calls: list[asyncio.Future[Any]]) -> None:
        """Remove what a failed or cancelled create may have made: the API may have made it although the call failed.

        One that does not answer does not hold up the caller for longer than UNDO_PATIENCE_S; the rest is done behind
        its back.
        """

        async def undo() -> None:
            if calls:
                await asyncio.wait(calls)
            for call in calls:
                call.cancelled() or call.exception()  # mark as seen
            await self._remove(name, patience_s=UNDONE_BY_S)

        await self._chores.run(undo(), UNDO_PATIENCE_S)

    async def reopen(self, ref: SandboxRef) -> Channel:
        _, watch, ground = self._opened()
        async with self._reopening.setdefault(ref.id, asyncio.Lock()):
            old = self._channels.get(ref.id)
            if old is not None:
                old.close()
                await old.wait_until_closed()  # or what it still has under way would be mixed into the new one's bytes
            pod = watch.get(ref.id) or await self._look(ref.id)
            try:
                self._require_alive(ref.id, pod)
                channel = await ground.open(ref.id, status.address_of(pod or {}), is_first=False)
            except SubstrateError:
                self._require_alive(ref.id, await self._look(ref.id))
                raise
            self._channels[ref.id] = channel
            return channel

    def _require_alive(self, name: str, pod: Pod | None) -> None:
        if pod is None or status.has_ended(pod) or "deletionTimestamp" in pod["metadata"]:
            raise SandboxLostError("the pod is gone", id=name, cause=self._causes.get(name, ""))

    async def _look(self, name: str) -> Pod | None:
        """A pod as it is now; None: there is none."""
        cluster, watch, _ = self._opened()
        try:
            pod: Pod = await cluster.call(functools.partial(_read, name))
        except SubstrateError as error:
            if is_status(error, 404):
                watch.drop(name)
                return None
            raise
        if pod["metadata"].get("labels", {}).get(pods.HOST) == self._host:
            watch.put(pod)
        return pod

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        cluster, watch, _ = self._opened()
        await self._watches.cover_cluster(
            await asyncio.to_thread(cluster.credentials), cluster.namespace, pods.label, lease
        )
        labels = {pods.OWNER: pods.label(lease.owner), pods.HOST: self._host}
        body = {"metadata": {"labels": labels, "annotations": {pods.OWNER: lease.owner}}}
        watch.put(await self._patched(ref.id, body))
        channel = await self.reopen(ref)
        self._alive.add(ref.id)
        return channel

    async def _patched(self, name: str, body: dict[str, Any]) -> Pod:
        cluster, _, _ = self._opened()
        try:
            pod: Pod = await finish(
                cluster.call(
                    lambda core, namespace, options: core.patch_namespaced_pod(name, namespace, body, **options)
                )
            )
        except SubstrateError as error:
            if is_status(error, 404):
                raise SandboxLostError("the pod is gone", id=name) from error
            raise
        return pod

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        cluster, _, _ = self._opened()
        wanted = [pods.RUN]
        wanted += [f"{key if '.' in key else f'rayroll.{key}'}={pods.label(value)}" for key, value in labels.items()]
        found, _ = await list_pods(cluster, ",".join(wanted))
        return [status.ref_of(pod) for pod in found]

    async def destroy(self, ref: SandboxRef) -> None:
        channel = self._channels.pop(ref.id, None)
        if channel is not None:
            channel.abort()
        await finish(self._remove(ref.id) if ref.id in self._alive else self._remove_anothers(ref.id))
        self._alive.discard(ref.id)
        self._reopening.pop(ref.id, None)

    async def _remove_anothers(self, name: str) -> None:
        """The same for a pod that somebody may still speak to: when this returns, nothing runs in it any more."""
        if await self._look(name) is None:
            return
        # A kubelet takes a pod whose container it has not yet seen for one without any, and says that it is gone.
        await self._until(name, lambda pod: pods.STARTED not in _notes(pod) or status.is_running(pod))
        killed_by_s = time.monotonic() + GRACE_S + KILL_S
        await self._remove(name, grace_s=GRACE_S)
        await self._until(name, lambda _: False)
        await self._remove(name)
        # On a busy node it may say so of one that it has seen, too, and its container runs on until the grace is over.
        await asyncio.sleep(killed_by_s - time.monotonic())

    async def _until(self, name: str, holds: Callable[[Pod], bool]) -> None:
        """Wait for something of a pod, or its end; a while, for a silent node is what its runner's lease is for."""
        deadline_s = time.monotonic() + GONE_PATIENCE_S
        while time.monotonic() < deadline_s:
            pod = await self._look(name)
            if pod is None or status.has_ended(pod) or holds(pod):
                return
            await asyncio.sleep(0.1)

    async def _remove(self, name: str, *, grace_s: int = 0, patience_s: float = GONE_PATIENCE_S) -> None:
        """Delete a pod in whatever state; with a grace it would stay for 15 s on Kubernetes 1.20."""
        cluster, watch, _ = self._opened()
        deadline_s = time.monotonic() + patience_s
        pause_s = 0.1
        while True:
            try:
                await cluster.call(
                    lambda core, namespace, options: core.delete_namespaced_pod(
                        name, namespace, grace_period_seconds=grace_s, **options
                    )
                )
                break
            except SubstrateError as error:
                if is_status(error, 404):
                    break
                passes = isinstance(error, EngineDownError) or is_status(error, 409, 429, 500, 503, 504)
                if not passes or time.monotonic() > deadline_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        if not grace_s:
            watch.drop(name)

    async def cause_of_death(self, ref: SandboxRef) -> str:
        if ref.id not in self._causes and (await self._look(ref.id)) is not None:
            cluster, watch, _ = self._opened()
            deadline_s = time.monotonic() + DEATH_NOTICE_S
            while ref.id not in self._causes and watch.get(ref.id) and (left_s := deadline_s - time.monotonic()) > 0:
                await changed(cluster, watch, ref.id, left_s)
        cause = self._causes.get(ref.id, "")
        words = getattr(self._channels.get(ref.id), "stderr", b"").decode(errors="replace").strip()
        return f"{cause}: {words}" if cause and words else cause

    async def set_network(self, ref: SandboxRef, enabled: bool) -> None:
        _, _, ground = self._opened()
        if self.config.network == "open" and not enabled:
            raise ConfigError("the network of pods is left open (network='open')", id=ref.id)
        if not enabled:
            await ground.ensure_policy()
        await self._patched(ref.id, {"metadata": {"labels": {pods.NETWORK: "open" if enabled else "none"}}})

    async def keep(self, ref: SandboxRef, until_unix_s: float) -> Mapping[str, str]:
        cluster, _, _ = self._opened()
        await self._patched(ref.id, {"metadata": {"annotations": {pods.KEPT: f"{until_unix_s:.0f}"}}})
        named = {"kubeconfig": self.config.kubeconfig, "context": self.config.context}
        return {"namespace": cluster.namespace, **{key: value for key, value in named.items() if value is not None}}

    async def shell(self, ref: SandboxRef, login: Login) -> Shell:
        from rayroll.substrates._pod_stream import log_in

        cluster, _, _ = self._opened()
        return await log_in(cluster, ref.id, login)

    # what the watch tells

    def _on_change(self, name: str, pod: Pod | None) -> None:
        if pod is not None and not (status.has_ended(pod) or "deletionTimestamp" in pod["metadata"]):
            return
        if pod is not None and (cause := status.cause_of(pod)):
            self._causes.setdefault(name, cause)
            while len(self._causes) > CAUSES_KEPT:
                del self._causes[next(iter(self._causes))]
        if name not in self._alive:
            return
        self._alive.discard(name)
        asyncio.get_running_loop().call_later(HANG_UP_S, self._hang_up, name)
        if pod is not None:  # it has ended by itself, and why is written down: nothing of it is of use any more
            self._chores.start(self._remove(name))

    def _hang_up(self, name: str) -> None:
        """Close the stream of a dead pod: it may neither end nor say anything."""
        channel = self._channels.get(name)
        if channel is not None:
            channel.abort()


def _read(name: str, core: Any, namespace: str, options: dict[str, Any]) -> Any:
    return core.read_namespaced_pod(name, namespace, **options)


def _notes(pod: Pod) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}
