"""A Kubernetes beside the first one: pods run in it, it survives kills, and `down` leaves the machine as it was."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bed.daemon import within
from parts._kubernetes_api import Api
from second_bed import CACHE, SecondBed, second_bed

PODS = "/api/v1/namespaces/rayroll/pods"
OF_THE_KERNEL = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys")
OUTSIDE = ("/var/log/pods", "/var/lib/kubelet", "/var/lib/dockershim", "/etc/cni/net.d", "/usr/libexec/kubernetes")

ASK = """\
import ssl, sys, urllib.request
given = "/var/run/secrets/kubernetes.io/serviceaccount/"
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + open(given + "token").read()})
trusted = ssl.create_default_context(cafile=given + "ca.crt")
print(urllib.request.urlopen(request, context=trusted).read().decode())
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (CACHE / "kubernetes" / "kubelet").exists(),
    reason="needs root and the compiled programs of a test bed (cluster/testbed/testbed up kubernetes)",
)


@pytest.fixture(scope="module")
def bed() -> Iterator[SecondBed]:
    with second_bed("images", "kubernetes") as bed:
        yield bed


@pytest.fixture
def api(bed: SecondBed) -> Api:
    bed("up", "kubernetes")
    return admin(bed)


def admin(bed: SecondBed) -> Api:
    """As a test would come by it: through the kubeconfig alone."""
    config = json.loads(Path(bed.facts("kubernetes")["kubeconfig"]).read_text())
    cluster = config["clusters"][0]["cluster"]
    authority = bed.folder / "authority.crt"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    return Api(cluster["server"], authority, config["users"][0]["user"]["token"])


def start(api: Api, image: str, *command: str) -> str:
    name = f"pod-{uuid4().hex[:8]}"
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    api.ensure(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    return name


def has_phase(api: Api, pod: str, *phases: str) -> bool:
    seen = api.get(f"{PODS}/{pod}")
    return seen is not None and seen["status"].get("phase") in phases


def ended(api: Api, pod: str) -> dict[str, Any]:
    assert within(60.0, lambda: has_phase(api, pod, "Succeeded", "Failed")), api.get(f"{PODS}/{pod}")
    state: dict[str, Any] = api.get(f"{PODS}/{pod}")["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def test_a_second_up_changes_nothing(bed: SecondBed, api: Api):
    before = bed.facts("kubernetes")["pids"]
    bed("up", "kubernetes")
    assert bed.facts("kubernetes")["pids"] == before and None not in before.values()


def test_the_exit_code_and_the_output_of_a_pod_arrive(api: Api):
    pod = start(api, "busybox:latest", "sh", "-c", "echo from inside; exit 7")
    assert ended(api, pod)["exitCode"] == 7
    assert api.read(f"{PODS}/{pod}/log") == b"from inside\n"


def test_the_stand_in_for_python_runs_to_completion(api: Api):
    pod = start(api, "python:3.11-slim", "python", "-c", "print(6 * 7)")
    assert ended(api, pod)["exitCode"] == 0
    assert api.read(f"{PODS}/{pod}/log") == b"42\n"


def test_a_pod_reaches_the_api_with_the_token_that_it_was_given(api: Api):
    pod = start(api, "python:3.11-slim", "python", "-c", ASK, f"{api.server}/version")
    assert ended(api, pod)["exitCode"] == 0
    assert json.loads(api.read(f"{PODS}/{pod}/log") or b"") == api.get("/version")


def test_a_service_account_may_only_do_what_was_granted_to_it(api: Api):
    account = api.get("/api/v1/namespaces/rayroll/serviceaccounts/default")
    secret = api.get(f"/api/v1/namespaces/rayroll/secrets/{account['secrets'][0]['name']}")
    pod = Api(api.server, api.authority, base64.b64decode(secret["data"]["token"]).decode())
    assert pod.get("/version") is not None
    assert pod.get(PODS) is None
    role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/rayroll"
    reader = {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "rayroll"}
    binding = role | {"kind": "RoleBinding", "metadata": {"name": "looks"}, "roleRef": reader, "subjects": [subject]}
    api.ensure(f"{rbac}/rolebindings", binding)
    assert within(10.0, lambda: pod.get(PODS) is not None)


@pytest.mark.parametrize(
    "killed",
    [
        ["kube-apiserver", "kubelet"],
        ["etcd"],
        ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"],
    ],
)
def test_up_recovers_from_killed_daemons_and_the_pods_live_on(bed: SecondBed, api: Api, killed: list[str]):
    lives_on = start(api, "busybox:latest", "sleep", "3600")
    assert within(60.0, lambda: has_phase(api, lives_on, "Running"))
    container = bed.docker("ps", "--quiet", "--filter", f"label=io.kubernetes.pod.name={lives_on}")
    pids = bed.facts("kubernetes")["pids"]
    for name in killed:
        os.kill(pids[name], signal.SIGKILL)
    bed("up", "kubernetes")
    assert ended(admin(bed), start(admin(bed), "busybox:latest", "true"))["exitCode"] == 0
    assert bed.docker("ps", "--quiet", "--filter", f"label=io.kubernetes.pod.name={lives_on}") == container


def test_down_ends_the_pods_and_leaves_the_engine_and_the_machine_alone(bed: SecondBed, api: Api):
    bed("down", "kubernetes")
    settings = [Path("/proc/sys", name).read_text() for name in OF_THE_KERNEL]
    outside = [names_in(folder) for folder in OUTSIDE]
    bed("up", "kubernetes")
    api = admin(bed)
    pod = start(api, "busybox:latest", "sleep", "3600")
    other = bed.docker("run", "--detach", "busybox", "sleep", "3600")
    assert within(60.0, lambda: has_phase(api, pod, "Running"))
    bed("down", "kubernetes")
    assert bed.docker("ps", "--all", "--quiet", "--no-trunc") == other
    assert [Path("/proc/sys", name).read_text() for name in OF_THE_KERNEL] == settings
    assert [names_in(folder) for folder in OUTSIDE] == outside
    assert not any("kube" in line or "etcd" in line for line in bed.processes() + bed.mounts())
    assert not (bed.folder / "run" / "kubeconfig").exists()
    bed.docker("rm", "--force", other)


def names_in(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*"))
