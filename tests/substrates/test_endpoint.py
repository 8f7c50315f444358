"""Where an engine is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayroll.errors import ConfigError
from rayroll.substrates._endpoint import Endpoint, find


@pytest.fixture(autouse=True)
def no_docker_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_TLS", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_a_given_host_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    assert find("unix:///run/d.sock") == Endpoint("unix:///run/d.sock")
    assert find(None) == Endpoint("tcp://elsewhere:2375")


def test_tls_is_as_dockers_own_client_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    assert find("tcp://h:2376") == Endpoint("tcp://h:2376", tmp_path, True)
    assert find("unix:///run/d.sock") == Endpoint("unix:///run/d.sock")


def test_podmans_socket_is_found_where_docker_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    socket = tmp_path / "podman" / "podman.sock"
    socket.parent.mkdir()
    socket.touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if Path("/var/run/docker.sock").exists():
        pytest.skip("this machine has a Docker engine at the usual place")
    assert find(None).url == f"unix://{socket}"


@pytest.mark.parametrize("host", ["ssh://me@there", "npipe:////./pipe/docker", "tcp://nowhere"])
def test_what_cannot_be_reached_is_refused_with_a_way_out(host: str) -> None:
    with pytest.raises(ConfigError):
        find(host)
