"""What a pod's status means: how far it is, what keeps it, whether that can change, and why it ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rayroll.errors import ImageError, SubstrateError
from rayroll.substrates import SandboxRef
from rayroll.substrates._pod import CONTAINER, KEPT, LEASE, OWNER, PATIENCE, RUN, STARTED

__all__ = [
    "address_of",
    "cause_of",
    "has_ended",
    "is_running",
    "is_scheduled",
    "pull_failure",
    "ref_of",
    "start_failure",
    "unschedulable",
]

Pod = Mapping[str, Any]

PULL_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
HOPELESS_PULLS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
HOPELESS_STARTS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff", "StartError"}
)
PATIENT = re.compile(r"\b429\b|toomanyrequests|too many requests|rate.?limit|i/o timeout|TLS handshake timeout", re.I)
"""What registries say that will work later. The kubelet asks again by itself, ever more seldom."""
OOM = 137


def is_scheduled(pod: Pod) -> bool:
    """It has a node."""
    return bool(pod["spec"].get("nodeName"))


def unschedulable(pod: Pod) -> str:
    """Why the scheduler finds no node, in its own words; "" when it has not said so."""
    for condition in _status(pod).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "no node")
    return ""


def is_running(pod: Pod) -> bool:
    """Its container runs, as far as the kubelet has said."""
    return "running" in _state(pod) and "deletionTimestamp" not in pod["metadata"]


def has_ended(pod: Pod) -> bool:
    """Its container has ended, or the whole pod has, perhaps without ever having had one."""
    return _status(pod).get("phase") in ("Succeeded", "Failed") or "terminated" in _state(pod)


def address_of(pod: Pod) -> str:
    """Its own address; "" when it has none yet."""
    return str(_status(pod).get("podIP") or "")


def cause_of(pod: Pod) -> str:
    """Why it ended: ``oom``, ``exit N``, or what the cluster did to it (``Evicted: ...``); "" when it has not."""
    status = _status(pod)
    if status.get("reason"):  # Evicted, DeadlineExceeded, NodeLost, Shutdown: the container's own end follows from it
        return ": ".join(filter(None, (str(status["reason"]), str(status.get("message") or ""))))
    ended = _state(pod).get("terminated")
    if ended is None:
        return "" if not has_ended(pod) else str(status.get("message") or status["phase"])
    # The engine also says so of a container in which something else was killed for memory: then its code is another.
    if ended.get("reason") == "OOMKilled" and ended.get("exitCode") == OOM:
        return "oom"
    return f"exit {ended.get('exitCode', '?')}"


def pull_failure(pod: Pod) -> tuple[ImageError, bool] | None:
    """The error of an image that does not come, and whether it may still come; None: nothing is known to be wrong."""
    for each in _all_containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in PULL_REASONS | HOPELESS_PULLS:
            error = ImageError(
                "the node cannot get the image", image=each.get("image"), reason=reason, said=message.strip()[:600]
            )
            return error, reason not in HOPELESS_PULLS and PATIENT.search(message) is not None
    return None


def start_failure(pod: Pod) -> SubstrateError | None:
    """The error of a container that cannot be started, whatever is waited for."""
    for each in _all_containers(pod):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in HOPELESS_STARTS:
            return _start_error(each, waiting)
        ended = (each.get("state") or {}).get("terminated") or {}
        if each["name"] != CONTAINER and ended.get("exitCode"):
            return _start_error(each, ended)
    if not has_ended(pod):
        return None
    ended = _state(pod).get("terminated") or {}
    said = str(ended.get("message") or ended.get("reason") or "")
    if "exec format error" in said:
        return ImageError("the image is made for another CPU than the node's", said=said[:600])
    return SubstrateError("the pod ended while it was started", cause=cause_of(pod), said=said[:600])


def _start_error(container: Mapping[str, Any], state: Mapping[str, Any]) -> SubstrateError:
    said = str(state.get("message") or "").strip()[:600]
    return SubstrateError(
        "a container of the pod cannot be started",
        container=container["name"],
        image=container.get("image"),
        reason=state.get("reason"),
        said=said,
    )


def ref_of(pod: Pod) -> SandboxRef:
    """What a listed pod is called."""
    metadata = pod["metadata"]
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    state = _word(pod)
    lease_s = float(labels.get(LEASE, 0))
    if state == "created":  # its host may be waiting for a node or for a large image, which is no leftover
        lease_s = max(lease_s, float(notes.get(PATIENCE, 0)))
    return SandboxRef(
        "kubernetes",
        metadata["name"],
        notes.get(RUN, labels[RUN]),
        notes.get(OWNER, labels.get(OWNER, "")),
        state,
        age_s=max(0.0, (datetime.now(UTC) - created).total_seconds()),
        lease_s=lease_s,
        kept_until_unix_s=float(notes.get(KEPT, 0)),
    )


def _word(pod: Pod) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "dead"
    if has_ended(pod):
        return "exited"
    # Its host may have heard from the runner before the kubelet has said that it runs.
    has_started = STARTED in (pod["metadata"].get("annotations") or {})
    return "running" if has_started or is_running(pod) else "created"


def _status(pod: Pod) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _state(pod: Pod) -> Mapping[str, Any]:
    """Of our container: one of ``waiting``, ``running``, ``terminated``, or nothing yet."""
    for each in _status(pod).get("containerStatuses") or ():
        if each["name"] == CONTAINER:
            return {word: facts for word, facts in (each.get("state") or {}).items() if facts is not None}
    return {}


def _all_containers(pod: Pod) -> list[Mapping[str, Any]]:
    status = _status(pod)
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
