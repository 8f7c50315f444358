"""What the manifests say, as far as it can be known without a cluster: fields that exist, versions that agree."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"

# ray.io/v1 as of KubeRay 1.6.2, from the reference that is generated from its types (docs.ray.io, "KubeRay CRD API
# reference"). What is a dict or a list here is not looked into.
CLUSTER_SPEC: Mapping[str, Any] = {
    "rayVersion": str,
    "authOptions": {"mode": str, "secretName": str, "enableK8sTokenAuth": bool},
    "suspend": bool,
    "managedBy": str,
    "upgradeStrategy": {"type": str},
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {
        **dict.fromkeys(("imagePullPolicy", "image", "upscalingMode", "version"), str),
        "idleTimeoutSeconds": int,
        **dict.fromkeys(("resources", "securityContext"), dict),
        **dict.fromkeys(("env", "envFrom", "volumeMounts"), list),
    },
    "gcsFaultToleranceOptions": dict,
    "headServiceAnnotations": dict,
    "headGroupSpec": {
        "serviceType": str,
        "enableIngress": bool,
        **dict.fromkeys(("rayStartParams", "labels", "resources", "template", "headService"), dict),
    },
    "workerGroupSpecs": [
        {
            "groupName": str,
            "suspend": bool,
            **dict.fromkeys(("replicas", "minReplicas", "maxReplicas", "numOfHosts", "idleTimeoutSeconds"), int),
            **dict.fromkeys(("rayStartParams", "labels", "resources", "template", "scaleStrategy"), dict),
        }
    ],
}
JOB_SPEC: Mapping[str, Any] = {
    **dict.fromkeys(
        ("entrypoint", "runtimeEnvYAML", "jobId", "submissionMode", "managedBy", "entrypointResources"), str
    ),
    **dict.fromkeys(
        ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished", "preRunningDeadlineSeconds"), int
    ),
    **dict.fromkeys(("entrypointNumCpus", "entrypointNumGpus"), (int, float)),
    **dict.fromkeys(("shutdownAfterJobFinishes", "suspend"), bool),
    **dict.fromkeys(
        ("metadata", "clusterSelector", "submitterConfig", "submitterPodTemplate", "deletionStrategy"), dict
    ),
    "rayClusterSpec": CLUSTER_SPEC,
}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def strange(value: Any, known: Any, where: str) -> list[str]:
    """Fields that the type does not have, and values of another type."""
    if isinstance(known, Mapping):
        return [
            line
            for name, inner in value.items()
            for line in (
                strange(inner, known[name], f"{where}.{name}") if name in known else [f"{where}.{name}: no such field"]
            )
        ]
    if isinstance(known, list):
        return [line for at, inner in enumerate(value) for line in strange(inner, known[0], f"{where}[{at}]")]
    return [] if isinstance(value, known) else [f"{where}: {value!r} is no {known}"]


@pytest.mark.parametrize(("name", "kind", "known"), [
    ("raycluster.yaml", "RayCluster", CLUSTER_SPEC),
    ("rayjob.yaml", "RayJob", JOB_SPEC),
])  # fmt: skip
def test_every_field_is_one_that_kuberay_knows(name: str, kind: str, known: Mapping[str, Any]) -> None:
    (made,) = documents(name)
    assert (made["apiVersion"], made["kind"]) == ("ray.io/v1", kind)
    assert strange(made["spec"], known, "spec") == []
    assert strange({**made["spec"], "authOption": {}, "suspend": "no"}, known, "spec") == [
        "spec.authOption: no such field",
        "spec.suspend: 'no' is no <class 'bool'>",
    ]


def test_the_head_plays_nothing_and_the_dashboard_is_for_the_cluster_alone() -> None:
    (cluster,) = documents("raycluster.yaml")
    head, (workers,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    assert cluster["spec"]["authOptions"]["mode"] == "token"
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert (head["serviceType"], head["enableIngress"]) == ("ClusterIP", False)
    assert "serviceAccountName" not in head["template"]["spec"]
    assert workers["template"]["spec"]["serviceAccountName"] == "rayroll-host"


def test_the_job_goes_to_the_cluster_and_runs_a_file_that_the_image_holds() -> None:
    (cluster,), (job,) = documents("raycluster.yaml"), documents("rayjob.yaml")
    assert job["metadata"]["namespace"] == cluster["metadata"]["namespace"]
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    python, script, *_ = job["spec"]["entrypoint"].split()
    assert python == "python" and (ROOT / script.removeprefix("/opt/rayroll/")).exists()
    assert "COPY benchmarks /opt/rayroll/benchmarks\n" in (CLUSTER / "node.Dockerfile").read_text()


def test_image_manifests_and_package_agree_on_ray_python_and_extras() -> None:
    recipe = (CLUSTER / "node.Dockerfile").read_text()
    given = dict(re.findall(r"^ARG (\w+)=\"?([^\"\n]*)", recipe, re.MULTILINE))
    bases = set(re.findall(r"^FROM python:(\S+)-slim", recipe, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (ray,) = [wanted for wanted in map(Requirement, project["dependencies"]) if wanted.name == "ray"]
    assert given["RAY"] in ray.specifier
    assert all(f"{base}.0" in SpecifierSet(project["requires-python"]) for base in bases) and len(bases) == 1
    assert set(given["EXTRAS"].split(",")) <= set(project["optional-dependencies"])
    (cluster,) = documents("raycluster.yaml")
    assert cluster["spec"]["rayVersion"] == given["RAY"]
    assert f"ray[default]=={given['RAY']}" in (CLUSTER / "aws.yaml").read_text()


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "10.0.0.1", "172.20.3.4", "192.168.1.1", "100.64.7.7", "fd00::1"]
)
def test_no_sandbox_reaches_the_cluster_or_the_clouds_metadata(address: str) -> None:
    assert not reached(address)
    assert reached("1.1.1.1") and reached("2606:4700::1111")


def reached(address: str) -> bool:
    """Whether any policy of the sandboxes' namespace lets a packet out to an address, pods aside."""
    rules = [
        rule
        for policy in documents("networkpolicy.yaml")
        if policy["metadata"]["namespace"] == "rayroll-sandboxes"
        for rule in policy["spec"].get("egress", ())
    ]
    blocks = [to["ipBlock"] for rule in rules for to in rule["to"] if "ipBlock" in to]
    packet = ip_address(address)
    return any(
        packet in ip_network(block["cidr"]) and not any(packet in ip_network(hole) for hole in block.get("except", ()))
        for block in blocks
    )
