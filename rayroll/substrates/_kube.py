"""Calls to a Kubernetes API: its own client in a few threads, and streams beside it on the same configuration."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from rayroll.errors import ConfigError, EngineDownError, SubstrateError

__all__ = ["ApiEndpoint", "Cluster", "answer", "is_status", "library", "load_library", "refusal", "translated"]

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HELLO_TIMEOUT_S = 5.0
FIX = "pip install 'rayroll[kubernetes]'"


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """Where the API is, for our own streams."""

    url: str
    """As the configuration has it: ``https://host:port``, perhaps with a path."""
    context: ssl.SSLContext | None
    server_name: str | None = None

    async def connect(self, factory: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """Open a connection. Raises OSError when nothing answers."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        port = parts.port or (443 if self.context else 80)
        name = self.server_name if self.context else None
        return await asyncio.get_running_loop().create_connection(
            factory, parts.hostname, port, ssl=self.context, server_hostname=name
        )

    @property
    def host(self) -> str:
        """The value of the Host header."""
        return urlsplit(self.url).netloc


class Cluster:
    """One API server, its client, and the threads that wait for it."""

    def __init__(self, configuration: Any, namespace: str, *, is_inside: bool, threads: int, timeout_s: float) -> None:
        client = library()
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="rayroll-kubernetes")
        self.core = client.CoreV1Api(self._client)
        self.namespace = namespace
        self.is_inside = is_inside
        """This process runs in a pod of the cluster."""
        self.endpoint = ApiEndpoint(
            configuration.host.rstrip("/"), _ssl_context(configuration), configuration.tls_server_name
        )
        self.facts: dict[str, str] = {}

    @classmethod
    async def connect(
        cls, kubeconfig: str | None, context: str | None, namespace: str | None, *, threads: int, timeout_s: float
    ) -> Cluster:
        """Reach a cluster.

        Raises:
            ConfigError: The client is not installed, or there is no usable configuration.
            EngineDownError: Nothing answers.
            SubstrateError: We are not let in.
        """
        await asyncio.to_thread(load_library)
        configuration, is_inside, found = await asyncio.to_thread(_configuration, kubeconfig, context, threads)
        cluster = await asyncio.to_thread(
            lambda: cls(configuration, namespace or found, is_inside=is_inside, threads=threads, timeout_s=timeout_s)
        )
        try:
            said = await cluster.call(_version)
        except BaseException:
            await cluster.close()
            raise
        cluster.facts = {
            "kubernetes": str(said.get("gitVersion", "unknown")),
            "server": cluster.endpoint.url,
            "namespace": cluster.namespace,
        }
        return cluster

    async def call(self, use: Callable[[Any, str, dict[str, Any]], Any]) -> Any:
        """Run ``use(core API, namespace, options)`` in a thread; its answer as plain values, its errors as ours.

        ``options`` go into the client's call: its answer comes unparsed, for its models take milliseconds a pod.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._use, use)

    def _use(self, use: Callable[[Any, str, dict[str, Any]], Any]) -> Any:
        options = {"_preload_content": False, "_request_timeout": self._timeout_s}
        with translated(self.endpoint.url):
            return answer(use(self.core, self.namespace, options))

    async def headers(self) -> dict[str, str]:
        """What a request of our own says to be let in: an expired token is renewed first, as the client does it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _credentials, self._configuration)

    def credentials(self) -> dict[str, Any]:
        """What another process needs to speak to the API for a while. Blocks."""

        def text(path: str | None) -> str | None:
            return Path(path).read_text() if path else None

        configuration = self._configuration
        return {
            "url": self.endpoint.url,
            "server_name": self.endpoint.server_name,
            "authority": text(configuration.ssl_ca_cert),
            "verify": bool(configuration.verify_ssl),
            "certificate": text(configuration.cert_file),
            "key": text(configuration.key_file),
            "headers": _credentials(configuration),
            "token_file": str(ACCOUNT / "token") if self.is_inside else None,
        }

    def path(
        self, rest: str, query: Mapping[str, Any] | None = None, *, repeated: tuple[tuple[str, str], ...] = ()
    ) -> str:
        """Of a resource of our namespace, below the server's own."""
        words = [(name, str(value)) for name, value in (query or {}).items()] + list(repeated)
        tail = f"?{urlencode(words)}" if words else ""
        return f"{urlsplit(self.endpoint.url).path}/api/v1/namespaces/{self.namespace}/{rest}{tail}"

    async def close(self) -> None:
        """Let the threads and connections go, after the calls under way."""
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._client.close)


def library() -> Any:
    """The client's own module."""
    return importlib.import_module("kubernetes.client")


def load_library() -> None:
    """Import all of the client that we use: a second of CPU time, so in a thread.

    Raises:
        ConfigError: It is missing.
    """
    if missing := [name for name in ("kubernetes", "websockets") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the substrate 'kubernetes' needs {' and '.join(missing)}", fix=FIX)
    importlib.import_module("kubernetes.config")
    for part in ("CoreV1Api", "VersionApi", "AuthorizationV1Api", "NetworkingV1Api"):
        getattr(library(), part)  # each is imported when it is first named


def answer(response: Any) -> Any:
    """The JSON of an unparsed answer."""
    try:
        data = response.data
        return json.loads(data) if data else {}
    finally:
        response.release_conn()


def _version(core: Any, namespace: str, options: dict[str, Any]) -> Any:
    return library().VersionApi(core.api_client).get_code(**{**options, "_request_timeout": HELLO_TIMEOUT_S})


def _configuration(kubeconfig: str | None, context: str | None, threads: int) -> tuple[Any, bool, str]:
    """The client's configuration, whether we run in a pod of the cluster, and the namespace. Blocks.

    Raises:
        ConfigError: Nothing says where the cluster is.
    """
    config: Any = importlib.import_module("kubernetes.config")
    configuration = library().Configuration()
    configuration.connection_pool_maxsize = threads
    configuration.retries = False  # urllib3's own would send a create again, at once
    named = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    exists = any(Path(part).expanduser().exists() for part in named.split(os.pathsep) if part)
    try:
        if kubeconfig is None and not exists and (ACCOUNT / "token").exists():
            config.load_incluster_config(client_configuration=configuration)
            return configuration, True, (ACCOUNT / "namespace").read_text().strip()
        if not exists:
            raise ConfigError(
                "nothing says where the Kubernetes cluster is",
                kubeconfig=named,
                fix="export KUBECONFIG=/path/to/config",
            )
        config.load_kube_config(named, context, configuration)
        contexts, active = config.list_kube_config_contexts(named)
    except config.ConfigException as error:
        raise ConfigError("the kubeconfig cannot be used", kubeconfig=named, reason=str(error)) from error
    chosen = next((each for each in contexts if each["name"] == context), active)
    is_inside = (ACCOUNT / "token").exists()
    return configuration, is_inside, str(chosen["context"].get("namespace") or "default")


def _ssl_context(configuration: Any) -> ssl.SSLContext | None:
    if not configuration.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context


def _credentials(configuration: Any) -> dict[str, str]:
    """Asking for the key renews it where it has expired: a kubeconfig's exec plugin, a rotated service account."""
    token = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    if token is None:
        token = configuration.get_api_key_with_prefix("authorization")
    if token is None and configuration.username:
        token = configuration.get_basic_auth_token()
    if not token:
        return {}
    return {"Authorization": token if " " in token else f"Bearer {token}"}


@contextmanager
def translated(server: str) -> Iterator[None]:
    """What the client raises, as errors that say what to do."""
    import urllib3.exceptions

    ApiException: type[Any] = library().ApiException

    try:
        yield
    except ApiException as error:
        raise refusal(error.status or 0, error.body or str(error.reason), error.headers or {}) from error
    except (urllib3.exceptions.HTTPError, OSError, EOFError) as error:
        raise down(server, error) from None  # its chain is four exceptions long and says the same


def down(server: str, error: BaseException) -> EngineDownError:
    """The error for an API that does not answer."""
    reason = error
    while (deeper := reason.__cause__ or reason.__context__) is not None:
        reason = deeper
    fix = "is the cluster up, and the current context the right one? kubectl cluster-info"
    said = str(reason)[-300:] or type(reason).__name__
    return EngineDownError("the Kubernetes API does not answer", server=server, reason=said, fix=fix)


def refusal(status: int, body: str | bytes, headers: Mapping[str, str] | None = None) -> SubstrateError:
    """The error for an answer that is none."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    said = text.strip()
    with contextlib.suppress(ValueError, AttributeError):
        said = str(json.loads(text).get("message") or said)
    facts: dict[str, Any] = {"status": status, "said": said[:600]}
    if status == 401:
        return SubstrateError(
            "the Kubernetes API knows no such user", **facts, fix="renew the kubeconfig's credentials"
        )
    if status == 403 and "exceeded quota" not in said:
        return SubstrateError(
            "the Kubernetes API forbids it", **facts, fix="bind the Role in docs/substrates/kubernetes.md to this user"
        )
    if status == 429:
        with contextlib.suppress(KeyError, ValueError):
            facts["retry_after_s"] = float((headers or {})["Retry-After"])
        return SubstrateError("the Kubernetes API asks for patience", **facts)
    return SubstrateError("the Kubernetes API refused", **facts)


def is_status(error: SubstrateError, *statuses: int) -> bool:
    """Whether the API refused with one of these HTTP statuses."""
    return error.facts.get("status") in statuses
