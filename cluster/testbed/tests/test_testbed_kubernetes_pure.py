"""What the daemons of Kubernetes are told, and who may talk to them. Keys are made for real, by openssl."""

from __future__ import annotations

import base64
import dataclasses
import json
import ssl
import stat
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from parts._kubernetes_build import openapi_packages, upstream_version
from parts._kubernetes_commands import Commands, Ports
from parts._kubernetes_keys import Keys, write_named_after_content

PORTS = Ports(etcd=1, etcd_peer=2, api=3, controller_manager=4, scheduler=5, kubelet=6, kubelet_health=7)
NAMES = ("10.213.0.1", "localhost")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path / "keys")
    made.make({"admin": ["system:masters"], "guest": []}, NAMES)
    return made


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    keys = Keys(tmp_path / "keys")
    return Commands(tmp_path, keys, PORTS, IPv4Address("10.213.0.1"), IPv4Network("10.213.64.0/24"))


def test_a_kubeconfig_holds_all_that_it_takes(keys: Keys):
    config = json.loads(keys.kubeconfig("https://10.213.0.1:3", "admin"))
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://10.213.0.1:3"
    assert base64.b64decode(cluster["certificate-authority-data"]) == keys.authority.read_bytes()
    assert config["users"] == [{"name": "admin", "user": {"token": keys.token("admin")}}]


def test_each_user_has_a_token_of_its_own_with_its_groups(keys: Keys):
    lines = keys.tokens.read_text().splitlines()
    assert lines == [f'{keys.token("admin")},admin,admin,"system:masters"', f'{keys.token("guest")},guest,guest,""']
    assert keys.token("admin") != keys.token("guest")


def test_only_their_owner_may_read_keys(keys: Keys):
    assert stat.S_IMODE(keys.folder.stat().st_mode) == 0o700


def test_keys_stay_until_there_are_other_users(keys: Keys):
    token = keys.token("admin")
    keys.make({"admin": ["system:masters"], "guest": []}, NAMES)
    assert keys.token("admin") == token
    keys.make({"admin": ["system:masters"]}, NAMES)
    assert keys.token("admin") != token


def test_a_server_with_another_name_gets_another_certificate_of_the_same_authority(keys: Keys):
    authority = keys.authority.read_bytes()
    keys.make({"admin": ["system:masters"], "guest": []}, (*NAMES, "10.214.0.1"))
    assert keys.server(NAMES) != keys.server((*NAMES, "10.214.0.1"))
    assert keys.authority.read_bytes() == authority


def test_a_client_that_is_strict_accepts_the_certificate_for_its_names_and_no_other(keys: Keys):
    handshake(keys, "10.213.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(keys, "10.213.0.2")


def test_a_file_is_named_after_what_is_in_it(tmp_path: Path):
    other = write_named_after_content(tmp_path, "config-of-another", "one")
    first = write_named_after_content(tmp_path, "config", "one")
    assert write_named_after_content(tmp_path, "config", "one") == first
    second = write_named_after_content(tmp_path, "config", "two")
    assert second != first and not first.exists() and other.exists()
    assert stat.S_IMODE(second.stat().st_mode) == 0o600


def test_the_api_is_on_the_bridge_and_etcd_on_loopback(commands: Commands):
    told = commands.api_server(Path("kube-apiserver"))
    assert {"--bind-address=10.213.0.1", "--secure-port=3", "--insecure-port=0"} <= set(told)
    assert "--authorization-mode=Node,RBAC" in told
    assert not any("0.0.0.0" in str(word) for word in [*told, *commands.etcd(Path("etcd"))])


def test_the_kubelet_deletes_no_image_and_evicts_no_pod_of_a_full_disk(commands: Commands):
    config: dict[str, Any] = json.loads(commands.kubelet_config())
    assert config["imageGCHighThresholdPercent"] == 100
    assert set(config["evictionHard"].values()) == {"0%"}


def test_another_port_is_another_command_line_and_another_file(commands: Commands):
    moved = dataclasses.replace(commands, ports=dataclasses.replace(PORTS, kubelet=8, etcd=9))
    assert moved.kubelet_config() != commands.kubelet_config()
    assert moved.api_server(Path("a")) != commands.api_server(Path("a"))


def test_the_version_is_the_one_that_debian_says_it_really_is():
    assert upstream_version("1.20.5+really1.20.2-1.1+deb12u1") == "1.20.2"
    assert upstream_version("1.20.2-1") == "1.20.2"


def test_packages_that_describe_the_api_are_found_under_the_names_that_go_knows_them_by(tmp_path: Path):
    for path, text in {
        "pkg/apis/abac/v0/doc.go": "// +k8s:openapi-gen=true\npackage v0\n",
        "pkg/apis/core/doc.go": "package core\n",
        "cmd/cloud/config/doc.go": "// +k8s:openapi-gen=true\npackage config\n",
        "staging/src/k8s.io/api/core/v1/doc.go": "// +k8s:openapi-gen=true\npackage v1\n",
        "staging/src/k8s.io/apiserver/pkg/apis/example/v1/doc.go": "// +k8s:openapi-gen=true\npackage v1\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert openapi_packages(tmp_path) == [
        "k8s.io/kubernetes/cmd/cloud/config",
        "k8s.io/kubernetes/pkg/apis/abac/v0",
        "k8s.io/kubernetes/vendor/k8s.io/api/core/v1",
    ]


def handshake(keys: Keys, name: str) -> None:
    """Between a client and a server in memory."""
    strict = ssl.create_default_context(cafile=str(keys.authority))
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*keys.server(NAMES))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = strict.wrap_bio(to_client, to_server, server_hostname=name)
    server = served.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
