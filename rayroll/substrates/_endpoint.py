"""Where a Docker engine listens: found as Docker's own clients find it, reached over unix, TCP or TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from rayroll.errors import ConfigError

__all__ = ["Endpoint", "find"]

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine's address."""

    url: str
    """``unix:///path`` or ``tcp://host:port``."""
    tls_folder: Path | None = None
    """Holds ca.pem, cert.pem and key.pem; None: no TLS."""
    tls_verify: bool = True

    async def connect(self, factory: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """Open a stream. Raises OSError when nothing answers."""
        loop = asyncio.get_running_loop()
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return await loop.create_unix_connection(factory, parts.path)
        assert parts.hostname and parts.port, "find() has checked it"
        context = await asyncio.to_thread(self._ssl_context) if self.tls_folder else None
        return await loop.create_connection(factory, parts.hostname, parts.port, ssl=context)

    def _ssl_context(self) -> ssl.SSLContext:
        assert self.tls_folder is not None
        context = ssl.create_default_context(cafile=self.tls_folder / "ca.pem")
        context.load_cert_chain(self.tls_folder / "cert.pem", self.tls_folder / "key.pem")
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def find(host: str | None) -> Endpoint:
    """The engine to use.

    Args:
        host: An address; None: ``DOCKER_HOST``, else Docker's socket, else a rootless Docker's or Podman's.

    Raises:
        ConfigError: An address of a kind that is not supported.
    """
    url = host or os.environ.get("DOCKER_HOST") or _usual_socket()
    if url.startswith("http://"):
        url = "tcp://" + url.removeprefix("http://")
    if url.startswith("/"):
        url = "unix://" + url
    parts = urlsplit(url)
    if parts.scheme not in ("unix", "tcp", "https"):
        raise ConfigError(
            "a Docker engine is reached at unix:///path or tcp://host:port; for a remote one over SSH, forward its "
            "socket: ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST",
            host=url,
        )
    if parts.scheme != "unix" and parts.port is None:
        raise ConfigError("the Docker engine's address needs a port (2375, or 2376 with TLS)", host=url)
    verify = bool(os.environ.get("DOCKER_TLS_VERIFY"))
    if parts.scheme == "unix" or not (verify or parts.scheme == "https" or os.environ.get("DOCKER_TLS")):
        return Endpoint(url)
    folder = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    return Endpoint(f"tcp://{parts.netloc}", folder, verify or parts.scheme == "https")


def _usual_socket() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = (
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    )
    return "unix://" + next((path for path in usual if Path(path).exists()), usual[0])
