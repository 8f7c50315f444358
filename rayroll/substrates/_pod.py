"""What a pod of ours is asked to be: the manifest, with the user's own template underneath."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayroll.errors import ConfigError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates._hosted import encoded

__all__ = [
    "CONTAINER",
    "FOLDER",
    "HOST",
    "KEPT",
    "LEASE",
    "NETWORK",
    "OWNER",
    "PATIENCE",
    "RUN",
    "RUNNER",
    "STARTED",
    "label",
    "load_template",
    "merged",
    "network_policy",
    "pod_manifest",
]

CONTAINER = "sandbox"
FOLDER = "/.rayroll"
RUNNER = f"{FOLDER}/runner"
VOLUME = "rayroll"
IMAGES_RUNNER = "/rayroll/runner"
"""Where an image of ours (``runner_image``) has it."""
RUN, OWNER, LEASE, HOST, NETWORK = (
    "rayroll.run",
    "rayroll.owner",
    "rayroll.lease",
    "rayroll.host",
    "rayroll.network",
)
KEPT, PATIENCE, STARTED = "rayroll.kept-until", "rayroll.patience", "rayroll.started"
"""Annotations, like the full texts of the labels."""
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""As for a container of ``docker``. A user other than root has none of them, for there is no way to get one."""
POLICY = "rayroll-no-network"
NOTICE_S = 8.0
"""By how much the first hello may come later than the lease: a busy kubelet took 3 s to say that a container ran."""

OWNED_BY_POD = frozenset(
    {
        *("restartPolicy", "automountServiceAccountToken", "enableServiceLinks", "activeDeadlineSeconds"),
        *("terminationGracePeriodSeconds", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"),
    }
)
OWNED_BY_CONTAINER = frozenset({"image", "command", "args", "stdin", "stdinOnce", "tty", "workingDir"})
OWNED_BY_SECURITY = frozenset({"privileged", "allowPrivilegeEscalation", "capabilities"})
OWNED_BY_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


def label(text: str) -> str:
    """A label's value for any text: itself where Kubernetes takes it. Same text, same value."""
    try:
        return encoded(text)
    except ConfigError:
        return f"sha256.{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def pod_manifest(
    name: str,
    spec: SandboxSpec,
    lease: Lease,
    *,
    image: str,
    host: str,
    arch: str,
    config: Any,
    runner_config_map: str | None,
    port: int | None,
) -> dict[str, Any]:
    """The pod of one sandbox.

    Args:
        name: Its own.
        spec: What was asked for.
        lease: Who it belongs to.
        image: What its container is made of.
        host: Of the substrate object that makes it, for its watch.
        arch: As nodes are labelled: ``amd64``, ``arm64``.
        config: The substrate's.
        runner_config_map: Which one holds the runner; None: an init container of ``config.runner_image`` brings it.
        port: Where the runner listens, too; None: nowhere.
    """
    limits = {
        "cpu": f"{max(1, round(spec.cpus * 1000))}m",
        "memory": f"{spec.memory_mib}Mi",
        "ephemeral-storage": f"{spec.disk_mib}Mi",
    }
    requests = {
        "cpu": f"{max(1, round(spec.cpus * 1000 * config.request_share))}m",
        "memory": f"{max(1, round(spec.memory_mib * config.request_share))}Mi",
        "ephemeral-storage": "0",  # a limit alone would be taken for a request
    }
    security = {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": list(ROOT_CAPABILITIES)},
    }
    command = [RUNNER, "serve", "--lease-ms", str(round((lease.duration_s + NOTICE_S) * 1000))]
    command += ["--rlimit", f"fsize={spec.disk_mib << 20}", "--rlimit", "core=0"]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": config.image_pull_policy,
        "command": command + (["--port", str(port)] if port is not None else []),
        "env": [{"name": key, "value": _literal(value)} for key, value in spec.env.items()],
        "stdin": True,
        "stdinOnce": False,
        "resources": {"limits": limits, "requests": requests},
        "securityContext": security,
        "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER, "readOnly": True}],
    }
    if spec.workdir != "/":
        container["workingDir"] = spec.workdir
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "activeDeadlineSeconds": max(1, round(config.lifetime_s)),
        "terminationGracePeriodSeconds": 0,
        "hostname": "sandbox",
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": {"kubernetes.io/arch": arch, **config.node_selector},
        "tolerations": [dict(each) for each in config.tolerations],
        "imagePullSecrets": [{"name": each} for each in config.image_pull_secrets],
        "containers": [container],
        "volumes": [{"name": VOLUME, **_runner_volume(runner_config_map)}],
    }
    if config.runtime_class is not None:
        pod["runtimeClassName"] = config.runtime_class
    if runner_config_map is None:
        pod["initContainers"] = [_bringing(config, security, limits)]
    texts = {RUN: lease.run_id, OWNER: lease.owner}
    metadata = {
        "name": name,
        "labels": {
            **{key: label(text) for key, text in texts.items()},
            LEASE: f"{lease.duration_s:g}",
            HOST: host,
            NETWORK: "open" if spec.network else "none",
        },
        "annotations": {
            **{key if "." in key else f"rayroll.{key}": text for key, text in spec.labels.items()},
            **texts,
            PATIENCE: f"{config.schedule_patience_s + config.create_timeout_s + config.pull_timeout_s:g}",
        },
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _literal(value: str) -> str:
    """``$(NAME)`` would be filled in, and ``$$`` stands for one ``$``."""
    return value.replace("$", "$$")


def _runner_volume(config_map: str | None) -> dict[str, Any]:
    if config_map is None:
        return {"emptyDir": {}}
    return {"configMap": {"name": config_map, "defaultMode": 0o755}}


def _bringing(config: Any, security: Mapping[str, Any], limits: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": "runner",
        "image": config.runner_image,
        "imagePullPolicy": config.image_pull_policy,
        "command": ["cp", IMAGES_RUNNER, RUNNER],
        "resources": {"limits": dict(limits), "requests": {"cpu": "1m", "memory": "1Mi", "ephemeral-storage": "0"}},
        "securityContext": dict(security),
        "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER}],
    }


def network_policy(port: int) -> dict[str, Any]:
    """For pods that asked for no network: nothing goes out, and what comes in reaches the runner only."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "podSelector": {"matchLabels": {NETWORK: "none"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port}]}],
            "egress": [],
        },
    }


# the user's template


def load_template(path: str | Path) -> dict[str, Any]:
    """Read and check a pod template. Blocks.

    Raises:
        ConfigError: It cannot be read, or sets what is ours.
    """
    yaml: Any = importlib.import_module("yaml")  # comes with the client

    try:
        found = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError("the pod template cannot be read", pod_template=str(path), reason=str(error)) from error
    if not isinstance(found, dict) or not set(found) <= {"apiVersion", "kind", "metadata", "spec"}:
        raise ConfigError("a pod template has metadata and spec, as a Pod has", pod_template=str(path))
    if found.get("kind", "Pod") != "Pod":
        raise ConfigError("a pod template is a Pod", pod_template=str(path), kind=found["kind"])
    if taken := sorted(_taken(found)):
        raise ConfigError(f"the pod template sets what is rayroll's: {', '.join(taken)}", pod_template=str(path))
    return {part: found.get(part) or {} for part in ("metadata", "spec")}


def _taken(template: Mapping[str, Any]) -> Iterator[str]:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    yield from (f"metadata.{name}" for name in ("name", "generateName", "namespace") if name in metadata)
    for part in ("labels", "annotations"):
        yield from (f"metadata.{part}.{name}" for name in metadata.get(part) or {} if name.startswith("rayroll."))
    yield from (f"spec.{name}" for name in OWNED_BY_POD & set(spec))
    yield from (f"spec.volumes {VOLUME}" for volume in spec.get("volumes") or () if volume.get("name") == VOLUME)
    for kind in ("containers", "initContainers"):
        for each in spec.get(kind) or ():
            where = f"spec.{kind} {each.get('name')}"
            security = each.get("securityContext") or {}
            if security.get("privileged"):
                yield f"{where} privileged"
            if kind != "containers" or each.get("name") != CONTAINER:
                continue
            yield from (f"{where} {name}" for name in OWNED_BY_CONTAINER & set(each))
            yield from (f"{where} securityContext.{name}" for name in OWNED_BY_SECURITY & set(security))
            for part in ("limits", "requests"):
                amounts = (each.get("resources") or {}).get(part) or {}
                yield from (f"{where} resources.{part}.{name}" for name in OWNED_BY_RESOURCES & set(amounts))


def merged(template: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Ours on top of theirs: mappings by key, lists of named things by name, other lists one after the other."""
    result = dict(template)
    for key, value in own.items():
        theirs = result.get(key)
        if isinstance(value, Mapping) and isinstance(theirs, Mapping):
            result[key] = merged(theirs, value)
        elif isinstance(value, Sequence) and isinstance(theirs, Sequence) and not isinstance(value, str):
            result[key] = _joined(theirs, value)
        else:
            result[key] = value
    return result


def _joined(theirs: Sequence[Any], ours: Sequence[Any]) -> list[Any]:
    if not all(isinstance(each, Mapping) and "name" in each for each in (*theirs, *ours)):
        return [*theirs, *ours]
    found = {each["name"]: each for each in theirs}
    for each in ours:
        found[each["name"]] = merged(found.get(each["name"], {}), each)
    return list(found.values())
