"""Calls to a Docker engine that answer at once: docker-py in a few threads, its errors turned into ours here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from rayroll.errors import ConfigError, DiskFullError, EngineDownError, ImageError, RayrollError, SubstrateError
from rayroll.substrates import Lease
from rayroll.substrates._attach import EngineAnswer
from rayroll.substrates._endpoint import Endpoint

__all__ = ["LEASE", "OWNER", "RUN", "Engine", "down", "is_status", "labels_of", "translated"]

T = TypeVar("T")

RUN, OWNER, LEASE = "rayroll.run", "rayroll.owner", "rayroll.lease"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64", "aarch64": "aarch64"}
HELLO_TIMEOUT_S = 5
OLDEST_API = "1.24"
"""Only asked for the version; then the engine's own is spoken."""


class Engine:
    """One engine, its client, and the threads that wait for it."""

    def __init__(self, endpoint: Endpoint, api: Any, threads: int) -> None:
        self.endpoint = endpoint
        self._api = api
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rayroll-docker")
        self.version = ""
        self.machine = ""
        """``x86_64`` or ``aarch64``: the CPU that containers get."""
        self.facts: dict[str, str] = {}

    @classmethod
    async def connect(cls, endpoint: Endpoint, *, threads: int, timeout_s: float) -> Engine:
        """Reach an engine.

        Raises:
            ConfigError: docker-py is not installed.
            EngineDownError: Nothing answers, or not as an engine.
        """
        await _knock(endpoint)
        try:
            api = await asyncio.to_thread(_client, endpoint, threads, timeout_s)
            engine = cls(endpoint, api, threads)
            said = await engine.call(lambda api: api.version())
        except EngineDownError:
            raise
        except (RayrollError, OSError) as error:
            raise down(endpoint, error) from None
        engine.version = said["Version"]
        engine.machine = MACHINES.get(said["Arch"], said["Arch"])
        engine.facts = {"engine": said["Version"], "api": said["ApiVersion"], "kernel": said.get("KernelVersion", "")}
        return engine

    async def call(self, use: Callable[..., T], *args: Any) -> T:
        """Run ``use(client, *args)`` in a thread, with its errors as ours."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._use, use, args)

    def _use(self, use: Callable[..., T], args: tuple[Any, ...]) -> T:
        with translated(self.endpoint):
            return use(self._api, *args)

    async def close(self) -> None:
        """Let the threads and connections go, after the calls under way."""
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._api.close)


def labels_of(lease: Lease) -> dict[str, str]:
    """What everything on an engine carries from the moment it exists, helpers as well."""
    return {RUN: lease.run_id, OWNER: lease.owner, LEASE: f"{lease.duration_s:g}"}


async def _knock(endpoint: Endpoint) -> None:
    """Is anybody there? Asked on the loop: docker-py leaves a socket open when nobody is."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            transport, _ = await endpoint.connect(asyncio.Protocol)
    except (OSError, TimeoutError) as error:
        raise down(endpoint, error) from None
    transport.abort()


def _client(endpoint: Endpoint, threads: int, timeout_s: float) -> Any:
    try:
        import docker
    except ImportError as error:
        raise ConfigError("docker-py is missing; pip install 'rayroll[docker]'") from error
    folder = endpoint.tls_folder
    with translated(endpoint):
        tls = folder and docker.tls.TLSConfig(
            client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
            ca_cert=str(folder / "ca.pem"),
            verify=endpoint.tls_verify,
        )
        # The default pool of 10 connections starves 16 threads, and the default 60 s ends calls that only take long.
        options: dict[str, Any] = {"base_url": endpoint.url, "tls": tls or False, "max_pool_size": threads}
        hello = _untrusting(docker.APIClient(**options, version=OLDEST_API, timeout=HELLO_TIMEOUT_S))
        version = hello.version(api_version=False)["ApiVersion"]
        hello.close()
        return _untrusting(docker.APIClient(**options, version=version, num_pools=threads, timeout=round(timeout_s)))


def _untrusting(api: Any) -> Any:
    """A client that leaves the environment's web proxies and certificate bundles (REQUESTS_CA_BUNDLE) alone: the bundle
    would come before the engine's own ca.pem."""
    api.trust_env = False
    return api


@contextmanager
def translated(endpoint: Endpoint) -> Iterator[None]:
    """What docker-py and our own requests raise, as errors that say what to do."""
    import docker.errors
    import requests.exceptions

    try:
        yield
    except docker.errors.APIError as error:
        raise _refusal(error.status_code, error.explanation or str(error)) from error
    except EngineAnswer as error:
        raise _refusal(error.status, error.message) from error
    except requests.exceptions.Timeout as error:
        raise SubstrateError(
            "the Docker engine did not answer in time", host=endpoint.url, reason=str(error)
        ) from error
    except (requests.exceptions.RequestException, docker.errors.DockerException, OSError, EOFError) as error:
        raise down(endpoint, error) from None  # its chain is four exceptions long and says the same


def down(endpoint: Endpoint, error: BaseException) -> EngineDownError:
    """The error for an engine that does not answer."""
    reason = _root_cause(error)
    if endpoint.url.startswith("unix://"):
        if isinstance(reason, PermissionError) or "Permission denied" in str(reason):
            fix = "add this user to the docker group (usermod -aG docker USER), or use a rootless engine"
        elif not isinstance(reason, FileNotFoundError) and "No such file" not in str(reason):
            fix = "start it: systemctl start docker"
        else:
            fix = "install and start it, or say where it is: export DOCKER_HOST=unix:///path/docker.sock"
    else:
        fix = "is DOCKER_HOST right, the engine listening there, and DOCKER_TLS_VERIFY as the engine wants it?"
    said = str(reason)[-300:] or type(reason).__name__
    return EngineDownError("no Docker engine answers", host=endpoint.url, reason=said, fix=fix)


def _root_cause(error: BaseException) -> BaseException:
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


def _refusal(status: int | None, message: object) -> SubstrateError:
    said = (message.decode(errors="replace") if isinstance(message, bytes) else str(message)).strip()
    low = said.lower()
    if "no space left" in low or "disk quota exceeded" in low:
        return DiskFullError(
            "no space is left where the Docker engine keeps its data; remove what is unused: docker system prune",
            said=said,
        )
    if "exec format error" in low or "does not match the detected host platform" in low:
        return ImageError("the image is made for another CPU than this engine's", said=said)
    if "address pool" in low or "pool overlaps" in low:
        return SubstrateError(
            "the Docker engine has no addresses left for another network; remove unused ones: docker network prune",
            said=said,
        )
    return SubstrateError("the Docker engine refused", status=status, said=said)


def is_status(error: SubstrateError, *statuses: int) -> bool:
    """Whether the engine refused with one of these HTTP statuses."""
    return error.facts.get("status") in statuses
