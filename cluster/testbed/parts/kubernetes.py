"""A real Kubernetes of one node: etcd, API server, controller manager, scheduler, and a kubelet on the bed's engine."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bed import carry, images
from bed.bridge import Bridge
from bed.daemon import Daemon, command_lines, within
from bed.engine import Engine
from bed.errors import TestbedError
from bed.mounts import parse, unmount_leftovers
from bed.part import Bed, Part
from bed.place import Place, disk_used_bytes
from bed.shell import run, tail

from parts._kubernetes_api import Api
from parts._kubernetes_build import Programs
from parts._kubernetes_commands import NODE, Commands, Ports, marker
from parts._kubernetes_keys import (
    ADMIN,
    CONTROLLER_MANAGER,
    SCHEDULER,
    Keys,
    write_named_after_content,
    write_private,
)

NAMESPACE = "rayroll"

_KUBELET = f"system:node:{NODE}"
_GROUPS: Mapping[str, Sequence[str]] = {
    ADMIN: ("system:masters",),
    CONTROLLER_MANAGER: (),  # what it and the scheduler may do is bound to their names by the API server itself
    SCHEDULER: (),
    _KUBELET: ("system:nodes",),
}
_DEADLINE_S = 120.0
_POD_LABEL = "io.kubernetes.pod.uid"
_REMOVED_AT_ONCE = 8
"""Containers: engine 20.10 was seen to deadlock when some hundreds died at the same moment."""


class Kubernetes(Part):
    """1.20, the one that Debian 12 has the source of; the last but three whose kubelet drives a Docker engine itself.

    `up` after a crash goes on with the same cluster; `down` ends it, and the next `up` makes an empty one.
    """

    name = "kubernetes"
    needs = ("docker",)
    packages = ("etcd-server", "openssl")

    def up(self, bed: Bed) -> None:
        place, engine = bed.place, Engine(bed.place)
        programs = Programs(place)
        programs.ensure(bed.steps)
        images.ensure(images.PAUSE, images.Kitchen(place, engine, carry.Carried({}, {})), bed.steps)
        self._forget_cluster_with_other_addresses(bed)
        for folder in ("", "conf", "kubelet", "machine/log"):
            (_state(place) / folder).mkdir(parents=True, exist_ok=True)
        commands = _commands(place, _choose_ports(place))
        commands.keys.make(_GROUPS, commands.server_names)
        api = _api(commands.server, commands.keys)
        write_private(_kubeconfig(place), commands.keys.kubeconfig(commands.server, ADMIN))

        def config(stem: str, text: str) -> Path:
            return write_named_after_content(_state(place) / "conf", stem, text)

        def kubeconfig(stem: str, user: str) -> Path:
            return config(stem, commands.keys.kubeconfig(commands.server, user))

        with bed.steps.step("kubernetes: etcd answers"):
            etcd = Path(shutil.which("etcd") or "etcd")
            health = f"http://127.0.0.1:{commands.ports.etcd}/health"
            _start(_etcd(place), commands.etcd(etcd), is_ready=lambda: _is_ok(health))
        with bed.steps.step("kubernetes: API answers"):
            command = commands.api_server(programs.path("kube-apiserver"))
            _start(_api_server(place), command, is_ready=lambda: api.answers("/readyz"))
        with bed.steps.step("kubernetes: controller manager answers"):
            command = commands.controller_manager(
                programs.path("kube-controller-manager"), kubeconfig("controller-manager", CONTROLLER_MANAGER)
            )
            port = commands.ports.controller_manager
            _start(_controller_manager(place), command, is_ready=_health_of(port, commands.keys))
        with bed.steps.step("kubernetes: scheduler answers"):
            command = commands.scheduler(programs.path("kube-scheduler"), kubeconfig("scheduler", SCHEDULER))
            _start(_scheduler(place), command, is_ready=_health_of(commands.ports.scheduler, commands.keys))
        with bed.steps.step("kubernetes: kubelet answers"):
            _share_mounts(_state(place) / "kubelet")
            command = commands.kubelet(
                programs.path("kubelet"),
                config("kubelet-config", commands.kubelet_config()),
                kubeconfig("kubelet", _KUBELET),
                docker=engine.socket,
                pause_image=images.PAUSE.image,
            )
            _start(_kubelet(place), command, is_ready=lambda: _kubelet_answers(place))
        with bed.steps.step("kubernetes: node is ready"):
            _wait(lambda: _takes_pods(api, place), "the node did not become ready", _kubelet(place))
        with bed.steps.step(f"kubernetes: namespace {NAMESPACE} takes pods"):
            named = {"metadata": {"name": NAMESPACE}}
            api.ensure("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", **named})
            _wait(lambda: _has_service_account(api), "the namespace got no service account", _controller_manager(place))

    def is_running(self, bed: Bed) -> bool:
        if (api := _known_api(bed.place)) is None:
            return False
        return api.answers("/readyz") and _is_ready(_node(api), bed.place) and _kubelet_answers(bed.place)

    def facts(self, bed: Bed) -> Mapping[str, object]:
        place, programs = bed.place, Programs(bed.place)
        daemons = (_etcd, _api_server, _controller_manager, _scheduler, _kubelet)
        on_disk = {
            "logs": ", ".join(str(daemon(place).log) for daemon in daemons),
            "disk_used_bytes": disk_used_bytes(_state(place)),
            "programs_bytes": disk_used_bytes(programs.folder),
            "source": programs.version,
        }
        api = _known_api(place)
        if api is None or (version := api.get("/version")) is None:
            return on_disk
        node = _node(api)
        info = node["status"]["nodeInfo"] if node else {}
        return {
            "kubeconfig": str(_kubeconfig(place)),
            "server": api.server,
            "namespace": NAMESPACE,
            "version": version["gitVersion"],
            "etcd": run(["etcd", "--version"]).split()[2],
            "node": f"{NODE} ({'ready' if _is_ready(node, place) else 'not ready'})",
            "kubelet": info.get("kubeletVersion"),
            "runtime": info.get("containerRuntimeVersion"),
            "pause_image": images.PAUSE.image,
            "pids": {daemon(place).name: daemon(place).pid() for daemon in daemons},
            **on_disk,
        }

    def down(self, bed: Bed) -> None:
        place, engine = bed.place, Engine(bed.place)
        _kubelet(place).stop()  # first: it would start again what is removed
        if engine.answers():
            _remove_pods(engine)
        for daemon in (_scheduler, _controller_manager, _api_server, _etcd):
            daemon(place).stop()
        unmount_leftovers(_state(place) / "kubelet")
        shutil.rmtree(_state(place), ignore_errors=True)
        _kubeconfig(place).unlink(missing_ok=True)

    def exports(self, bed: Bed) -> Mapping[str, str]:
        return {"RAYROLL_TESTBED_KUBECONFIG": str(_kubeconfig(bed.place))}

    def _forget_cluster_with_other_addresses(self, bed: Bed) -> None:
        address = str(Bridge(bed.place).address)
        before = bed.place.recorded("kubernetes-address")
        if before not in (None, address) and _state(bed.place).exists():
            bed.steps.note(f"kubernetes: a cluster at {before} is forgotten: the bridge is at {address} by now")
            self.down(bed)
        bed.place.record("kubernetes-address", address)


def _state(place: Place) -> Path:
    return place.state / "kubernetes"


def _kubeconfig(place: Place) -> Path:
    return place.run / "kubeconfig"


def _etcd(place: Place) -> Daemon:
    return Daemon("etcd", f"--data-dir={_state(place) / 'etcd'}", place.logs / "etcd.log")


def _api_server(place: Place) -> Daemon:
    return Daemon("kube-apiserver", marker(_state(place)), place.logs / "kube-apiserver.log")


def _controller_manager(place: Place) -> Daemon:
    return Daemon("kube-controller-manager", marker(_state(place)), place.logs / "kube-controller-manager.log")


def _scheduler(place: Place) -> Daemon:
    return Daemon("kube-scheduler", marker(_state(place)), place.logs / "kube-scheduler.log")


def _kubelet(place: Place) -> Daemon:
    return Daemon("kubelet", f"--root-dir={_state(place) / 'kubelet'}", place.logs / "kubelet.log")


def _choose_ports(place: Place) -> Ports:
    """Those that they listen at, and free ones for the daemons that do not run."""

    def port(name: str, daemon: Daemon) -> int:
        recorded = place.recorded(f"kubernetes-{name}")
        if recorded is not None and daemon.pid() is not None:
            return int(recorded)
        return place.loopback_port(f"kubernetes-{name}")

    return Ports(
        etcd=port("etcd", _etcd(place)),
        etcd_peer=port("etcd-peer", _etcd(place)),
        api=port("api", _api_server(place)),
        controller_manager=port("controller-manager", _controller_manager(place)),
        scheduler=port("scheduler", _scheduler(place)),
        kubelet=port("kubelet", _kubelet(place)),
        kubelet_health=port("kubelet-health", _kubelet(place)),
    )


def _commands(place: Place, ports: Ports) -> Commands:
    bridge = Bridge(place)
    # Of the bridge's range, which overlaps no route of this machine, the quarter that no container gets.
    services = next(list(bridge.range.subnets(prefixlen_diff=2))[1].subnets(new_prefix=24))
    return Commands(_state(place), Keys(_state(place) / "keys"), ports, bridge.address, services)


def _api(server: str, keys: Keys) -> Api:
    return Api(server, keys.authority, keys.token(ADMIN))


def _known_api(place: Place) -> Api | None:
    """That of the last `up`; None where there is no cluster."""
    keys, address = Keys(_state(place) / "keys"), place.recorded("kubernetes-address")
    port = place.recorded("kubernetes-api")
    if address is None or port is None or not os.access(keys.tokens, os.R_OK):  # only root may look into its folder
        return None
    return _api(f"https://{address}:{port}", keys)


def _start(daemon: Daemon, command: Sequence[str | Path], *, is_ready: Callable[[], bool]) -> None:
    """Start it unless it runs as it is to run: one with another port or file in its command line is replaced."""
    pid = daemon.pid()
    words = [str(word) for word in command]
    running = next((argv for other, argv in command_lines() if other == pid), None)
    if running is not None and words[-len(running) :] != running:  # the kubelet's begins with what starts it
        daemon.stop()
    daemon.start(command, is_ready=is_ready, deadline_s=_DEADLINE_S)


def _wait(holds: Callable[[], bool], otherwise: str, daemon: Daemon) -> None:
    if not within(_DEADLINE_S, holds):
        raise TestbedError(f"{otherwise} within {_DEADLINE_S:.0f} s\n{daemon.log}:\n{tail(daemon.log.read_text())}")


def _health_of(port: int, keys: Keys) -> Callable[[], bool]:
    api = Api(f"https://127.0.0.1:{port}", keys.authority, token="")
    return lambda: api.answers("/healthz")


def _kubelet_answers(place: Place) -> bool:
    port = place.recorded("kubernetes-kubelet-health")
    return port is not None and _is_ok(f"http://127.0.0.1:{port}/healthz")


def _is_ok(url: str) -> bool:
    """Whether a server on loopback answers 200. Never through a proxy."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2.0):
            return True
    except OSError:
        return False


def _node(api: Api) -> Any:
    return api.get(f"/api/v1/nodes/{NODE}")


def _is_ready(node: Any, place: Place) -> bool:
    """Whether the kubelet that runs now has said so: the API repeats for 40 s what one said that has died since."""
    pid = _kubelet(place).pid()
    started_s = None if pid is None else _started_s(pid)
    if node is None or started_s is None:
        return False
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp() > started_s
        for condition in node["status"].get("conditions", ())
    )


def _started_s(pid: int) -> float | None:
    """When a process began, in seconds since the epoch; None where it has ended."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return None
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(booted.split()[1]) + int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def _takes_pods(api: Api, place: Place) -> bool:
    """A node that has just become ready carries a taint until the controller manager has seen it."""
    node = _node(api)
    return _is_ready(node, place) and not node["spec"].get("taints")


def _has_service_account(api: Api) -> bool:
    """Without a token for it, a pod would be refused."""
    account = api.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
    return bool(account and account.get("secrets"))


def _share_mounts(folder: Path) -> None:
    """What the kubelet mounts in here, secrets above all, is to be seen outside of its mount namespace."""
    if all(mount.point != folder for mount in parse(Path("/proc/self/mountinfo").read_text())):
        run(["mount", "--bind", folder, folder])
    run(["mount", "--make-shared", folder])


def _remove_pods(engine: Engine) -> None:
    """The containers of our kubelet, and none else."""
    containers = engine.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={_POD_LABEL}").split()
    for first in range(0, len(containers), _REMOVED_AT_ONCE):
        engine.docker("rm", "--force", "--volumes", *containers[first : first + _REMOVED_AT_ONCE])


PART = Kubernetes()
