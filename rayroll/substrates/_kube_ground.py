"""What all sandboxes of a namespace stand on: the runner in a ConfigMap, a NetworkPolicy, our rights, the way in."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rayroll.errors import SubstrateError
from rayroll.runner.build import runner_path
from rayroll.substrates import _pod as pods
from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._kube import Cluster, is_status, library
from rayroll.substrates._pod_address import connect
from rayroll.substrates._pod_stream import attach
from rayroll.substrates._stream import StreamChannel

__all__ = ["Ground", "pull_seconds"]

logger = logging.getLogger(__name__)

EVENT_PATIENCE_S = 1.0
"""A kubelet says that it has an image before the container is made, and events may come late."""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
RIGHTS = (
    ("create", "pods", ""),
    ("get", "pods", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("patch", "pods", ""),
    ("delete", "pods", ""),
    ("get", "pods", "attach"),
    ("create", "pods", "attach"),
)


class Ground:
    """Of one cluster and namespace; everything is made at most once per process.

    Args:
        cluster: Where.
        config: The substrate's.
    """

    def __init__(self, cluster: Cluster, config: Any) -> None:
        self._cluster = cluster
        self._config = config
        self._making: SingleFlight[str] = SingleFlight()
        self._runners: dict[str, str] = {}
        self._has_policy = False
        self.by_address = config.carrier == "address" or (config.carrier == "auto" and cluster.is_inside)
        """New runners listen at their pods' addresses."""

    @property
    def carrier(self) -> str:
        """How runners are spoken to."""
        return "address" if self.by_address else "attach"

    # rights

    async def lacking_rights(self) -> list[str]:
        """What this user may not do, as ``verb resource``."""
        rights = list(RIGHTS)
        if self._config.runner_image is None:
            rights += [("get", "configmaps", ""), ("create", "configmaps", "")]
        if self._config.network == "policy":
            rights += [("get", "networkpolicies", "")]
        rules = (await self._cluster.call(_rules)).get("status") or {}
        doubtful = [right for right in rights if not _is_among(right, rules.get("resourceRules") or ())]
        # The list may be incomplete, as where somebody else than the API server decides: each is asked for.
        granted = await asyncio.gather(*(self._cluster.call(functools.partial(_may, right)) for right in doubtful))
        return [
            f"{verb} {resource}{'/' if part else ''}{part}"
            for (verb, resource, part), said in zip(doubtful, granted, strict=True)
            if not (said.get("status") or {}).get("allowed")
        ]

    # what pods need to be there

    async def runner_config_map(self, arch: str) -> str | None:
        """The ConfigMap that holds the runner for this CPU; None: pods bring it by an init container.

        Its files are read-only in a pod, so no agent can change what it is spoken to through; it needs neither a shell
        nor a tool in the image; and a create is one call instead of two and an exec.
        """
        if self._config.runner_image is not None:
            return None
        if arch not in self._runners:
            self._runners[arch] = await self._making(arch, functools.partial(self._make_config_map, arch))
        return self._runners[arch]

    def forget_runner(self) -> None:
        """Look again whether it is there."""
        self._runners.clear()

    async def _make_config_map(self, arch: str) -> str:
        path = await asyncio.to_thread(runner_path, MACHINES[arch])
        name = "rayroll-" + path.name.replace("_", "-")  # its name says by which sources it is
        content = base64.b64encode(await asyncio.to_thread(path.read_bytes)).decode()
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "immutable": True,  # kubelets need not watch it
            "binaryData": {"runner": content},
        }
        await self._ensure(
            lambda core, namespace, options: core.read_namespaced_config_map(name, namespace, **options),
            lambda core, namespace, options: core.create_namespaced_config_map(namespace, body, **options),
        )
        return name

    async def ensure_policy(self) -> None:
        """The NetworkPolicy for pods without a network. Raises SubstrateError: neither there nor ours to make."""
        if not self._has_policy:
            await self._making("policy", self._make_policy)
            self._has_policy = True

    async def _make_policy(self) -> str:
        def api(core: Any) -> Any:
            return library().NetworkingV1Api(core.api_client)

        body = pods.network_policy(self._config.port)
        await self._ensure(
            lambda core, namespace, options: api(core).read_namespaced_network_policy(
                pods.POLICY, namespace, **options
            ),
            lambda core, namespace, options: api(core).create_namespaced_network_policy(namespace, body, **options),
        )
        return pods.POLICY

    async def _ensure(self, read: Callable[..., Any], create: Callable[..., Any]) -> None:
        try:
            await self._cluster.call(read)
        except SubstrateError as error:
            if not is_status(error, 404):
                raise
        else:
            return
        try:
            await self._cluster.call(create)
        except SubstrateError as error:
            if not is_status(error, 409):  # another host was quicker
                raise

    # what only events tell

    async def news(self, pod: str) -> tuple[bool, str]:
        """Whether a pod's image is being pulled, and the last thing that was said about the pod."""
        try:
            events = await self._events(pod)
        except SubstrateError as error:
            return False, f"events cannot be read: {error.message}"
        reasons = [event.get("reason") for event in events]
        said = "; ".join(f"{event.get('reason')}: {event.get('message')}" for event in events[-2:])
        return "Pulling" in reasons and "Pulled" not in reasons and "Failed" not in reasons, said[-600:]

    async def pull_s(self, pod: str) -> float:
        """Seconds for which its node pulled the pod's images, one after the other; 0: it had them, or nobody says."""
        deadline_s = time.monotonic() + EVENT_PATIENCE_S
        with contextlib.suppress(SubstrateError):
            while True:
                said = [str(e.get("message")) for e in await self._events(pod) if e.get("reason") == "Pulled"]
                if said or time.monotonic() > deadline_s:
                    return sum(map(pull_seconds, said))
                await asyncio.sleep(0.1)
        return 0.0

    async def _events(self, pod: str) -> list[dict[str, Any]]:
        """Oldest first."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={pod}"
        found = await self._cluster.call(
            lambda core, namespace, options: core.list_namespaced_event(namespace, field_selector=selector, **options)
        )
        return sorted(found.get("items") or (), key=lambda event: str(event.get("lastTimestamp") or ""))

    # the way in

    async def open(self, pod: str, address: str, *, is_first: bool = True) -> StreamChannel:
        """A stream to a pod's runner.

        Args:
            pod: Its name.
            address: Its own.
            is_first: Nobody has spoken to the runner yet.

        Raises:
            SubstrateError: It cannot be opened.
        """
        if self.by_address:
            introduce = functools.partial(attach, self._cluster, pod) if is_first else None
            channel = await connect(address, self._config.port, introduce)
            if channel is not None:
                return channel
            if self._config.carrier == "address":
                raise SubstrateError(
                    "the runner cannot be reached at its pod's address",
                    address=address,
                    port=self._config.port,
                    fix="carrier='attach', or let this host reach pods",
                )
            logger.warning("pods cannot be reached at their addresses, so by attach: address=%s", address)
            self.by_address = False
        return await attach(self._cluster, pod)


def _rules(core: Any, namespace: str, options: dict[str, Any]) -> Any:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    return library().AuthorizationV1Api(core.api_client).create_self_subject_rules_review(review, **options)


def _is_among(right: tuple[str, str, str], rules: Iterable[Mapping[str, Any]]) -> bool:
    verb, resource, part = right
    name = f"{resource}/{part}" if part else resource
    return any(
        {verb, "*"} & set(rule.get("verbs") or ())
        and {_group(resource), "*"} & set(rule.get("apiGroups") or ())
        and {name, "*"} & set(rule.get("resources") or ())
        and not rule.get("resourceNames")
        for rule in rules
    )


def _group(resource: str) -> str:
    return "networking.k8s.io" if resource == "networkpolicies" else ""


def _may(right: tuple[str, str, str], core: Any, namespace: str, options: dict[str, Any]) -> Any:
    verb, resource, part = right
    wanted = {
        "namespace": namespace,
        "verb": verb,
        "group": _group(resource),
        "resource": resource,
        "subresource": part,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    return library().AuthorizationV1Api(core.api_client).create_self_subject_access_review(review, **options)


def pull_seconds(message: str) -> float:
    """Of what a kubelet says once it has an image: ``Successfully pulled image "debian" in 1m2.5s``.

    0: it had it before, or does not say how long, as none before 1.20 does.
    """
    _, _, duration = message.partition('" in ')
    words = re.match(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?", duration)
    assert words is not None, "every part may be missing"
    return sum(float(found) * unit for found, unit in zip(words.groups(), (3600, 60, 1, 0.001), strict=True) if found)
