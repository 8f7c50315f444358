"""rbac.yaml and networkpolicy.yaml on a real API server: what a host may do with them, and what it may not."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import requests
import yaml
from requirements import require, use_testbed

from rayroll.errors import SubstrateError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.kubernetes import KubernetesConfig, KubernetesSubstrate
from rayroll.testing.sandboxes import open_sandbox

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ResourceQuota": "/api/v1/namespaces/{namespace}/resourcequotas",
    "LimitRange": "/api/v1/namespaces/{namespace}/limitranges",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
}

NEEDED = [
    *[(verb, "pods") for verb in ("create", "get", "list", "watch", "patch", "delete")],
    *[(verb, f"pods/{way}") for way in ("attach", "exec") for verb in ("get", "create")],
    *[(verb, "configmaps") for verb in ("get", "create")],
    ("list", "events"),
    ("get", "networkpolicies"),
]
"""What a host does in the sandboxes' namespace."""
REFUSED = [
    *[(verb, "secrets") for verb in ("get", "list", "create")],
    *[("create", what) for what in ("serviceaccounts/token", "rolebindings", "networkpolicies", "services", "jobs")],
    *[(verb, what) for what in ("networkpolicies", "configmaps", "resourcequotas") for verb in ("delete", "patch")],
    ("deletecollection", "pods"),
]
"""What it has no business with, even there."""
GROUPS = {"networkpolicies": "networking.k8s.io", "rolebindings": "rbac.authorization.k8s.io", "jobs": "batch"}

LOOK = """\
import json, ssl, sys, urllib.request
given = "/var/run/secrets/kubernetes.io/serviceaccount/"
headers = {"Authorization": "Bearer " + open(given + "token").read()}
url = sys.argv[1] + "/api/v1/namespaces/" + open(given + "namespace").read() + "/pods"
direct = urllib.request.build_opener(
    urllib.request.ProxyHandler({}),
    urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=given + "ca.crt")),
)
print(json.load(direct.open(urllib.request.Request(url, headers=headers)))["kind"])
"""
"""A program that knows no more than what is mounted."""


class Api:
    """An API server, and who asks."""

    def __init__(self, server: str, authority: str, token: str) -> None:
        self.server, self.authority, self.token = server, authority, token
        self.session = requests.Session()
        self.session.verify, self.session.trust_env = authority, False
        self.session.headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        """Status and answer. What is applied is compared with the types: a field that they lack is an error."""
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        reply = self.session.request(
            method, self.server + path, data=json.dumps(body), headers={"Content-Type": kind}, params=query, timeout=30
        )
        return reply.status_code, reply.json()

    def apply(self, made: dict[str, Any], **query: str) -> tuple[int, Any]:
        """As `kubectl apply --server-side`."""
        collection = COLLECTIONS[made["kind"]].format(namespace=made["metadata"].get("namespace"))
        return self.ask("PATCH", f"{collection}/{made['metadata']['name']}", made, fieldManager="test", **query)

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        name, _, part = resource.partition("/")
        asked = {"verb": verb, "resource": name, "subresource": part, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "group": GROUPS.get(name, "")}},
        }
        status, answer = self.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        assert status == 201, answer
        return bool(answer["status"]["allowed"])


def documents(name: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """A manifest with the namespaces of this test in place of ours."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        return names.get(value, value) if isinstance(value, str) else value

    return [renamed(made) for made in yaml.safe_load_all((CLUSTER / name).read_text())]


@dataclass(frozen=True)
class Installed:
    """The manifests, under names of this test run."""

    admin: Api
    cluster: str
    sandboxes: str

    def account(self, name: str) -> Api:
        """Who has nothing but the rights of a service account of the Ray namespace."""
        path = f"/api/v1/namespaces/{self.cluster}/serviceaccounts/{name}/token"
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        status, answer = self.admin.ask("POST", path, wanted)
        assert status == 201, answer
        return Api(self.admin.server, self.admin.authority, answer["status"]["token"])

    def documents(self, name: str) -> list[dict[str, Any]]:
        return documents(name, {"rayroll": self.cluster, "rayroll-sandboxes": self.sandboxes})


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Sessions keep their connections."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """On the test bed alone: it takes an administrator, and makes namespaces."""
    use_testbed()
    config = os.environ.get("RAYROLL_TESTBED_KUBECONFIG", "")
    require(
        "kubernetes", None if Path(config).is_file() else "no API server; fix: cluster/testbed/testbed up kubernetes"
    )
    made = Installed(administrator(Path(config), tmp_path_factory.mktemp("api")), *unique_names())
    try:
        for name in ("rbac.yaml", "networkpolicy.yaml"):
            for document in made.documents(name):
                status, answer = made.admin.apply(document, force="true")
                assert status in (200, 201), answer
        yield made
    finally:
        for namespace in (made.sandboxes, made.cluster):
            made.admin.ask("DELETE", f"/api/v1/namespaces/{namespace}")


def administrator(config: Path, folder: Path) -> Api:
    (cluster,), (user,) = (yaml.safe_load(config.read_text())[part] for part in ("clusters", "users"))
    authority = folder / "authority.crt"
    authority.write_bytes(base64.b64decode(cluster["cluster"]["certificate-authority-data"]))
    return Api(cluster["cluster"]["server"], str(authority), user["user"]["token"])


def unique_names() -> tuple[str, str]:
    mark = secrets.token_hex(4)
    return f"rayroll-test-{mark}", f"rayroll-test-{mark}-sandboxes"


def pod(namespace: str, name: str, **container: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "busybox:latest", "imagePullPolicy": "IfNotPresent", **container}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def test_a_host_may_do_what_the_substrate_needs_and_nothing_else(installed: Installed) -> None:
    host = installed.account("rayroll-host")
    refused = [what for what in NEEDED if not host.may(*what, installed.sandboxes)]
    granted = [what for what in REFUSED if host.may(*what, installed.sandboxes)]
    elsewhere = [
        (what, where) for where in (installed.cluster, "default", "") for what in NEEDED if host.may(*what, where)
    ]
    assert (refused, granted, elsewhere) == ([], [], [])
    assert not host.may("list", "nodes", "") and not host.may("create", "namespaces", "")


def test_the_role_is_the_documented_one_but_for_a_policy_that_is_there_already(installed: Installed) -> None:
    (role,) = [made for made in installed.documents("rbac.yaml") if made["kind"] == "Role"]
    page = (CLUSTER.parent / "docs" / "substrates" / "kubernetes.md").read_text()
    (documented,) = re.findall(r"^```yaml\n(apiVersion: rbac.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert rights(role) == set(NEEDED)
    assert rights(yaml.safe_load(documented)) - rights(role) == {("create", "networkpolicies")}


def rights(role: dict[str, Any]) -> set[tuple[str, str]]:
    return {(verb, what) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}


def test_a_host_makes_watches_enters_and_deletes_a_pod(installed: Installed) -> None:
    host, pods = installed.account("rayroll-host"), f"/api/v1/namespaces/{installed.sandboxes}/pods"
    status, made = host.ask("POST", pods, pod(installed.sandboxes, "one", command=["sleep", "600"]))
    assert status == 201, made
    try:
        assert made["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2Gi", "what LimitRange gives"
        assert not made["spec"].get("volumes"), "no token of a service account"
        wait_for("Running", host, pods, "one")
        assert output_of_exec(host, f"{pods}/one", "echo inside") == "inside\n"
    finally:
        status, _ = host.ask("DELETE", f"{pods}/one", gracePeriodSeconds="0")
    assert status == 200
    assert host.ask("GET", f"{pods}/one")[0] == 404


def wait_for(phase: str, api: Api, pods: str, name: str) -> None:
    query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": "60"}
    seen: dict[str, Any] = {}
    with api.session.get(api.server + pods, params=query, stream=True, timeout=90) as events:
        for line in events.iter_lines():
            seen = json.loads(line)["object"]["status"]
            if seen.get("phase") in (phase, "Succeeded", "Failed"):
                break
    assert seen.get("phase") == phase, seen


def output_of_exec(api: Api, path: str, script: str) -> str:
    """What a script prints, by the websocket way that kubelets speak: frames begin with the number of their stream."""
    from websockets.sync.client import connect

    query = urlencode([("command", "sh"), ("command", "-c"), ("command", script), ("stdout", "1")])
    with connect(
        f"{api.server.replace('https', 'wss')}{path}/exec?{query}",
        ssl=ssl.create_default_context(cafile=api.authority),
        additional_headers={"Authorization": f"Bearer {api.token}"},
        subprotocols=["v4.channel.k8s.io"],  # type: ignore[list-item]
        proxy=None,
    ) as stream:
        return b"".join(bytes(frame)[1:] for frame in stream if bytes(frame)[0] == 1).decode()


def test_who_is_not_bound_cannot_make_a_pod(installed: Installed) -> None:
    stranger = installed.account("default")
    status, answer = stranger.ask(
        "POST", f"/api/v1/namespaces/{installed.sandboxes}/pods", pod(installed.sandboxes, "two")
    )
    assert (status, answer["reason"]) == (403, "Forbidden")
    host = installed.account("rayroll-host")
    status, answer = host.ask("POST", f"/api/v1/namespaces/{installed.cluster}/pods", pod(installed.cluster, "two"))
    assert (status, answer["reason"]) == (403, "Forbidden")


def test_a_field_that_a_type_lacks_would_not_have_been_taken(installed: Installed) -> None:
    policy = installed.documents("networkpolicy.yaml")[0]
    status, answer = installed.admin.apply({**policy, "spec": {**policy["spec"], "egres": []}})
    assert status >= 400 and "egres" in answer["message"]


def test_the_pods_of_the_cluster_are_ones_that_an_api_server_takes(installed: Installed) -> None:
    (cluster,) = installed.documents("raycluster.yaml")
    for name, group in (("head", cluster["spec"]["headGroupSpec"]), ("worker", cluster["spec"]["workerGroupSpecs"][0])):
        template = group["template"]
        metadata = {**template.get("metadata", {}), "name": name, "namespace": installed.cluster}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        status, answer = installed.admin.apply(made, dryRun="All")
        assert status in (200, 201), answer
        tokens = [volume["name"] for volume in answer["spec"].get("volumes", ())]
        assert tokens == (["account"] if name == "worker" else [])


def test_a_worker_works_in_the_sandboxes_namespace_with_the_hosts_rights(installed: Installed) -> None:
    template = worker_template(installed)
    (container,) = template["spec"]["containers"]
    container |= {
        "image": "python:3.11-slim",
        "resources": {},
        "command": ["python", "-c", LOOK, installed.admin.server],
    }
    template["spec"]["restartPolicy"] = "Never"
    name, pods = "worker", f"/api/v1/namespaces/{installed.cluster}/pods"
    made = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}
    status, answer = installed.admin.ask("POST", pods, made)
    assert status == 201, answer
    wait_for("Succeeded", installed.admin, pods, name)
    assert installed.admin.session.get(f"{installed.admin.server}{pods}/{name}/log", timeout=30).text == "PodList\n"


def worker_template(installed: Installed) -> dict[str, Any]:
    (cluster,) = installed.documents("raycluster.yaml")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    template: dict[str, Any] = group["template"]
    return template


def substrate_of(installed: Installed, account: str, folder: Path) -> KubernetesSubstrate:
    """As that account, in the sandboxes' namespace. The test bed's node has no CPU to reserve for each pod."""
    api = installed.account(account)
    context = {"cluster": "it", "user": "it", "namespace": installed.sandboxes}
    parts = {
        "clusters": {"cluster": {"server": api.server, "certificate-authority": api.authority}},
        "users": {"user": {"token": api.token}},
        "contexts": {"context": context},
    }
    config = {name: [{"name": "it", **part}] for name, part in parts.items()}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "it", **config}))
    return KubernetesSubstrate(KubernetesConfig(kubeconfig=str(path), request_share=0.01))


async def test_a_host_with_these_rights_runs_a_sandbox(installed: Installed, tmp_path: Path, run_id: str) -> None:
    async with substrate_of(installed, "rayroll-host", tmp_path) as substrate:
        assert (await substrate.probe()).ok
        async with open_sandbox(substrate, SandboxSpec(image="busybox:latest"), run_id=run_id) as live:
            assert (await live.sh("echo inside")).output == "inside\n"
            await substrate.set_network(live.ref, True)
        assert await substrate.list({"run": run_id}) == []


async def test_a_host_without_them_says_which_are_missing(installed: Installed, tmp_path: Path, run_id: str) -> None:
    async with substrate_of(installed, "default", tmp_path) as substrate:
        probe = await substrate.probe()
        with pytest.raises(SubstrateError, match="forbids") as caught:
            await substrate.create(SandboxSpec(image="busybox:latest"), Lease(run_id, "test"))
    assert not probe.ok and "may not create pods" in probe.reason and probe.fix
    assert "system:serviceaccount" in caught.value.facts["said"]


async def test_a_full_quota_is_no_missing_right(installed: Installed, tmp_path: Path, run_id: str) -> None:
    (quota,) = [made for made in installed.documents("rbac.yaml") if made["kind"] == "ResourceQuota"]
    installed.admin.apply({**quota, "spec": {"hard": {**quota["spec"]["hard"], "pods": "0"}}}, force="true")
    try:
        async with substrate_of(installed, "rayroll-host", tmp_path) as substrate:
            with pytest.raises(SubstrateError) as caught:
                await substrate.create(SandboxSpec(image="busybox:latest"), Lease(run_id, "test"))
        assert "exceeded quota" in caught.value.facts["said"] and "forbids" not in caught.value.message
    finally:
        installed.admin.apply(quota, force="true")
