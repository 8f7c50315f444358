"""A sandbox of an OpenSandbox server: made by its SDK, spoken to by a stream of the daemon that it puts inside."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rayroll.errors import (
    ClosedError,
    ConfigError,
    EngineDownError,
    ImageError,
    SandboxLostError,
    StartTimeoutError,
    SubstrateError,
)
from rayroll.runner.build import runner_path
from rayroll.substrates import (
    Channel,
    Lease,
    Probe,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Substrate,
    SubstrateConfig,
)
from rayroll.substrates._hosted import RUNNER, Lifetimes, decoded, encoded, first_command, runner_command
from rayroll.substrates._published import Publisher
from rayroll.substrates._reaping import Watches
from rayroll.substrates._shield import Chores, finish

if TYPE_CHECKING:
    from opensandbox import Sandbox as Machine
    from opensandbox import SandboxManager
    from opensandbox.config import ConnectionConfig
    from opensandbox.models.sandboxes import SandboxInfo

    from rayroll.substrates._execd import Session, SessionChannel

__all__ = ["OpenSandboxConfig", "OpenSandboxSubstrate"]

logger = logging.getLogger(__name__)

RUN, OWNER, LEASE, NAME = "rayroll.run", "rayroll.owner", "rayroll.lease", "rayroll.name"
EXECD_PORT = 44772
SNAPSHOT = "snapshot:"
"""Before the id of a saved sandbox, where an image is asked for."""
FIRST_LIFETIME_S = 60
"""The shortest that the server makes one with; renewing may then shorten it."""
PAGE = 100
UNDO_PATIENCE_S = 5.0
GONE_PATIENCE_S = 20.0
AWAY_PATIENCE_S = 10.0
"""How long a removal waits for a server that does not answer: it may be starting again, and has to be told."""
FIX = "pip install 'rayroll[opensandbox]'"


class OpenSandboxConfig(SubstrateConfig):
    """Which server, and how sandboxes are asked for."""

    domain: str | None = None
    """``host:port`` of the server; None: OPEN_SANDBOX_DOMAIN, else ``localhost:8080``."""
    api_key_variable: str = "OPEN_SANDBOX_API_KEY"
    """Environment variable of the host with the key: the key itself is in no config and no record."""
    protocol: Literal["http", "https"] = "http"
    """To the server and to sandboxes."""
    use_server_proxy: bool = False
    """Reach sandboxes through the server, where their own addresses cannot be reached from here."""
    plain_image: str = "debian:bookworm-slim"
    """For specs without an image."""
    registry: str | None = None
    """Where images of Dockerfiles are pushed to and the server pulls them from, such as ``registry.example:5000/team``;
    "": nowhere, for the server runs on the very engine that builds them. None: tasks with a Dockerfile are refused."""
    build_engine: str | None = None
    """The Docker engine that builds them; None: DOCKER_HOST, else the usual."""
    network: Literal["policy", "open"] = "policy"
    """How ``network=False`` is kept. ``policy``: a policy of the server that denies all, for which it needs its egress
    image. ``open``: not at all; every sandbox has the server's network, and its facts say so."""
    request_timeout_s: float = 30.0
    """Longest wait for an answer of the server."""
    ready_poll_s: float = 0.01
    """Pause between two looks whether a new sandbox answers; the SDK's own 0.2 would be most of a start."""
    lifetime_s: float | None = None
    """How long the server lets a sandbox live that nobody renews; those in use are renewed every third of it. None:
    twice the lease, and 12 at least."""
    max_connections: int = 100
    """To the server and to sandboxes' daemons, by HTTP; streams come on top."""


class OpenSandboxSubstrate(Substrate):
    """Sandboxes of an OpenSandbox server."""

    kind: ClassVar[str] = "opensandbox"
    config_type: ClassVar[type[SubstrateConfig]] = OpenSandboxConfig

    def __init__(self, config: OpenSandboxConfig) -> None:
        super().__init__(config)
        self.config: OpenSandboxConfig = config
        self._starting = asyncio.Semaphore(config.max_starting)
        self._parts: tuple[ConnectionConfig, SandboxManager, Any] | None = None
        self._lifetimes = Lifetimes(self._renew)
        self._lasts_s: dict[str, float] = {}
        self._sessions: dict[str, Session] = {}
        self._channels: dict[str, SessionChannel] = {}
        self._paused: set[str] = set()
        """Without a stream, and still renewed."""
        self._undoing = Chores("a half-made sandbox was not removed, its lifetime will do it")
        self._watches = Watches()
        self._published = Publisher(self.kind, config.registry, config.build_engine)
        self._facts: dict[str, str] = {}

    # life of the substrate

    async def open(self) -> None:
        connection, http, sdk_version = await asyncio.to_thread(_connect, self.config)
        self._parts = connection, await _manager(connection), http
        self._facts = {"sdk": sdk_version}
        try:
            self._facts |= await self._ask_version()
        except BaseException:
            await self.close()
            raise

    async def _ask_version(self) -> dict[str, str]:
        """Who answers. Raises EngineDownError, or SubstrateError where the key is refused."""
        connection, manager, http = self._opened()
        domain = connection.get_domain()
        with _translated(domain):
            from opensandbox.models.sandboxes import SandboxFilter

            await manager.list_sandbox_infos(SandboxFilter(page_size=1, page=1))
            said = await http.get(f"{connection.get_base_url().removesuffix('/v1')}/version")
        version = ""
        with contextlib.suppress(ValueError, AttributeError):
            version = str(said.json().get("version", ""))
        return {"server": version or "unknown", "domain": domain}

    def _opened(self) -> tuple[ConnectionConfig, SandboxManager, Any]:
        if self._parts is None:
            raise ClosedError("the opensandbox substrate is not open")
        return self._parts

    async def close(self) -> None:
        if self._parts is None:
            return
        await self._undoing.wait(UNDO_PATIENCE_S)
        if not self._undoing and not self._sessions:
            await self._watches.lift()
        await self._lifetimes.close()
        for channel in self._channels.values():
            channel.abort()
        self._channels.clear()
        (connection, _, http), self._parts = self._parts, None
        await http.aclose()
        await self._published.close()
        assert connection.transport is not None
        await connection.transport.aclose()

    async def probe(self) -> Probe:
        try:
            async with asyncio.timeout(9.0), OpenSandboxSubstrate(self.config) as other:
                assert isinstance(other, OpenSandboxSubstrate)
                return Probe(True, facts=other._facts)
        except TimeoutError:
            return Probe(False, "the OpenSandbox server does not answer", "look at its log")
        except (SubstrateError, ConfigError) as error:
            return Probe(
                False, error.message, str(error.facts.get("fix", "")), {k: str(v) for k, v in error.facts.items()}
            )

    # life of a sandbox

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        phases_s: dict[str, float] = {}
        image, was_absent = await self._published.ensure(spec, self.config.plain_image, phases_s)
        name = secrets.token_hex(8)
        metadata = {
            **{_label(key): encoded(value) for key, value in spec.labels.items()},
            RUN: encoded(lease.run_id),
            OWNER: encoded(lease.owner),
            LEASE: f"{lease.duration_s:g}",
            NAME: name,
        }
        connection, _, _ = self._opened()
        await self._watches.cover_server(
            connection.get_base_url().removesuffix("/v1"),
            {"OPEN-SANDBOX-API-KEY": connection.get_api_key()},
            {RUN: metadata[RUN], OWNER: metadata[OWNER]},
            lease,
        )
        runner = await asyncio.to_thread(lambda: runner_path().read_bytes())
        async with self._starting:
            making = asyncio.ensure_future(self._make(image, spec, lease, metadata))
            try:
                async with asyncio.timeout(self.config.create_timeout_s):
                    command = runner_command(name, spec, lease)
                    id, channel = await self._start(making, image, runner, command, lease, phases_s)
            except TimeoutError:
                await self._undo(name, making)
                raise StartTimeoutError(
                    "the sandbox was not started in time; is the server overloaded (lower max_starting)?",
                    image=image,
                    create_timeout_s=self.config.create_timeout_s,
                ) from None
            except BaseException:
                await self._undo(name, making)
                raise
        self._channels[id] = channel
        return Sandbox(
            SandboxRef(self.kind, id, lease.run_id, lease.owner, lease_s=lease.duration_s),
            channel,
            # Whether it had to pull the server does not say.
            "cold" if was_absent else "snapshot" if image.startswith(SNAPSHOT) else "cached",
            phases_s,
            facts={**self._facts, "image": image, "network": self.config.network},
            labels={"network": "open"} if self.config.network == "open" else {},
        )

    async def _make(self, image: str, spec: SandboxSpec, lease: Lease, metadata: dict[str, str]) -> Machine:
        from opensandbox import Sandbox as Machine
        from opensandbox.models.sandboxes import NetworkPolicy

        connection, _, _ = self._opened()
        denied = not spec.network and self.config.network == "policy"
        with _translated(connection.get_domain(), image=image):
            return await Machine.create(
                None if image.startswith(SNAPSHOT) else image,
                snapshot_id=image.removeprefix(SNAPSHOT) if image.startswith(SNAPSHOT) else None,
                timeout=timedelta(seconds=max(FIRST_LIFETIME_S, self._lasting_s(lease))),
                ready_timeout=timedelta(seconds=self.config.create_timeout_s),
                env=dict(spec.env),
                metadata=metadata,
                resource={"cpu": f"{round(spec.cpus * 1000)}m", "memory": f"{spec.memory_mib}Mi"},
                network_policy=NetworkPolicy(defaultAction="deny") if denied else None,
                entrypoint=first_command(metadata[NAME], self.config.create_timeout_s),
                connection_config=connection,
                health_check_polling_interval=timedelta(seconds=self.config.ready_poll_s),
            )

    async def _start(
        self,
        making: asyncio.Future[Machine],
        image: str,
        runner: bytes,
        command: str,
        lease: Lease,
        phases_s: dict[str, float],
    ) -> tuple[str, SessionChannel]:
        from opensandbox.models.filesystem import WriteEntry

        connection, _, _ = self._opened()
        start_s = time.monotonic()
        machine = await asyncio.shield(making)  # a call that nobody waits for any more may still make one
        phases_s["create"] = time.monotonic() - start_s
        with _translated(connection.get_domain(), image=image):
            await machine.files.write_files([WriteEntry(path=RUNNER, data=runner, mode=755)])
            session = await self._begin(machine, command)
            self._sessions[machine.id] = session
            channel = await self._stream(machine.id, session)
            self._lasts_s[machine.id] = self._lasting_s(lease)
            # Shorter from here on: a host that dies now leaves nothing for longer than it would later.
            await self._renew(machine.id, self._lasts_s[machine.id])
        self._lifetimes.hold(machine.id, self._lasts_s[machine.id])
        phases_s["boot"] = time.monotonic() - start_s - phases_s["create"]
        return machine.id, channel

    async def _begin(self, machine: Machine, command: str) -> Session:
        """Have execd keep a process for us. The SDK has no call for it."""
        from rayroll.substrates._execd import Session

        connection, _, http = self._opened()
        endpoint = await machine.get_endpoint(EXECD_PORT)
        headers = endpoint.build_request_headers(connection)
        answer = await http.post(
            f"{connection.protocol}://{endpoint.endpoint}/pty", json={"command": command}, headers=headers
        )
        if answer.status_code >= 300:
            raise SubstrateError(
                "execd offers no sessions; is it too old?", status=answer.status_code, said=answer.text
            )
        scheme = "wss" if connection.protocol == "https" else "ws"
        return Session(f"{scheme}://{endpoint.endpoint}/pty/{answer.json()['session_id']}/ws", headers)

    async def _stream(self, id: str, session: Session) -> SessionChannel:
        from rayroll.substrates._execd import open_session

        return await open_session(session, functools.partial(self._on_end, id))

    def _on_end(self, id: str, channel: SessionChannel) -> None:
        """A stream ended; unless another one is there, the sandbox is left to its lease and its lifetime."""
        if self._channels.get(id) is channel and id not in self._paused:
            self._lifetimes.drop(id)

    def _lasting_s(self, lease: Lease) -> float:
        return self.config.lifetime_s or max(2 * lease.duration_s, 12.0)

    async def _renew(self, id: str, lasts_s: float) -> bool:
        connection, manager, _ = self._opened()
        try:
            with _translated(connection.get_domain()):
                await manager.renew_sandbox(id, timedelta(seconds=lasts_s))
        except SubstrateError as error:
            if error.facts.get("status") == 404:
                return False
            raise
        return True

    async def _undo(self, name: str, making: asyncio.Future[Machine]) -> None:
        """Remove what a failed or cancelled create may have made: by its own label, for its id may never have come."""

        async def undo() -> None:
            if not making.done():
                await asyncio.wait({making})
            making.cancelled() or making.exception()  # mark as seen
            deadline_s = time.monotonic() + FIRST_LIFETIME_S  # by then the server has done it itself
            while True:
                try:
                    for ref in await self._listed({NAME: name}):
                        await self.destroy(ref)
                    return
                except EngineDownError:
                    if time.monotonic() > deadline_s:
                        raise
                await asyncio.sleep(1.0)

        await self._undoing.run(undo(), UNDO_PATIENCE_S)

    async def reopen(self, ref: SandboxRef) -> Channel:
        session, old = self._sessions.get(ref.id), self._channels.get(ref.id)
        if session is None:
            raise SandboxLostError("another process has the stream of this sandbox", id=ref.id)
        if old is not None:
            old.close()
            if old.has_exited:
                raise SandboxLostError("the runner has ended", id=ref.id, cause=await self.cause_of_death(ref))
        try:
            channel = await self._stream(ref.id, session)
        except (OSError, SubstrateError) as error:
            info = await self._info(ref.id)
            if info is None or info.status.state != "Running":
                raise SandboxLostError(
                    "the sandbox is gone", id=ref.id, cause=info.status.message or "" if info is not None else ""
                ) from error
            if isinstance(error, OSError):
                raise SubstrateError("the sandbox's daemon does not answer", id=ref.id, reason=str(error)) from error
            raise
        self._channels[ref.id] = channel
        self._lifetimes.hold(ref.id, self._lasts_s[ref.id])
        return channel

    async def pause(self, ref: SandboxRef) -> None:
        connection, manager, _ = self._opened()
        self._paused.add(ref.id)
        try:
            if (channel := self._channels.get(ref.id)) is not None:
                channel.close()
            with _translated(connection.get_domain()):
                await manager.pause_sandbox(ref.id)
        except BaseException:
            self._paused.discard(ref.id)
            raise

    async def resume(self, ref: SandboxRef) -> Channel:
        connection, manager, _ = self._opened()
        with _translated(connection.get_domain()):
            await manager.resume_sandbox(ref.id)
        self._paused.discard(ref.id)
        return await self.reopen(ref)

    async def snapshot(self, ref: SandboxRef) -> str:
        connection, manager, _ = self._opened()
        with _translated(connection.get_domain()):
            saved = await manager.create_snapshot(ref.id, encoded(ref.run_id))
            try:
                while saved.status.state == "Creating":
                    await asyncio.sleep(self.config.ready_poll_s)
                    saved = await manager.get_snapshot(saved.id)
            except BaseException:
                await finish(manager.delete_snapshot(saved.id))
                raise
        if saved.status.state != "Ready":
            raise SubstrateError("the sandbox was not saved", id=ref.id, said=saved.status.message or "")
        return SNAPSHOT + saved.id

    async def forget(self, image: str) -> None:
        connection, manager, _ = self._opened()
        try:
            with _translated(connection.get_domain()):
                await finish(manager.delete_snapshot(image.removeprefix(SNAPSHOT)))
        except SubstrateError as error:
            if error.facts.get("status") != 404:
                raise

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        return [*await self._listed({_label(key): encoded(value) for key, value in labels.items()})]

    async def _listed(self, metadata: dict[str, str]) -> tuple[SandboxRef, ...]:
        from opensandbox.models.sandboxes import SandboxFilter

        connection, manager, _ = self._opened()
        found: dict[str, SandboxRef] = {}
        page = 1
        while True:
            with _translated(connection.get_domain()):
                answer = await manager.list_sandbox_infos(
                    SandboxFilter(metadata=metadata or None, page=page, page_size=PAGE)
                )
            found |= {info.id: _ref(info) for info in answer.sandbox_infos if RUN in (info.metadata or {})}
            if not answer.pagination.has_next_page:
                return tuple(found.values())
            page += 1

    async def _info(self, id: str) -> SandboxInfo | None:
        """None: there is no such sandbox."""
        connection, manager, _ = self._opened()
        try:
            with _translated(connection.get_domain()):
                return await manager.get_sandbox_info(id)
        except SubstrateError as error:
            if error.facts.get("status") == 404:
                return None
            raise

    async def destroy(self, ref: SandboxRef) -> None:
        self._lifetimes.drop(ref.id)
        self._sessions.pop(ref.id, None)
        self._lasts_s.pop(ref.id, None)
        self._paused.discard(ref.id)
        if (channel := self._channels.pop(ref.id, None)) is not None:
            channel.abort()
        await finish(self._remove(ref.id))

    async def _remove(self, id: str) -> None:
        connection, manager, _ = self._opened()
        start_s = time.monotonic()
        while True:
            try:
                with _translated(connection.get_domain()):
                    await manager.kill_sandbox(id)
                return
            except EngineDownError:
                if time.monotonic() > start_s + AWAY_PATIENCE_S:
                    raise
            except SubstrateError as error:
                if error.facts.get("status") == 404:
                    return
                # 500: it ends by itself, or somebody else removes it, at this very moment.
                if error.facts.get("status") not in (409, 429, 500) or time.monotonic() > start_s + GONE_PATIENCE_S:
                    raise
            await asyncio.sleep(0.1)

    async def cause_of_death(self, ref: SandboxRef) -> str:
        info = await self._info(ref.id)
        cause = "" if info is None or info.status.state == "Running" else info.status.message or info.status.state
        channel = self._channels.get(ref.id)
        words = channel.stderr.decode(errors="replace").strip() if channel is not None else ""
        return f"{cause}: {words}" if cause and words else cause


def _connect(config: OpenSandboxConfig) -> tuple[ConnectionConfig, Any, str]:
    """What speaks to the server, nothing said yet, and the SDK's version. Half a second of imports; reads files.

    Raises:
        ConfigError: The SDK is missing.
    """
    if missing := [name for name in ("opensandbox", "websockets") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the substrate 'opensandbox' needs {' and '.join(missing)}", fix=FIX)
    sdk = logging.getLogger("opensandbox")
    if sdk.level == logging.NOTSET:
        sdk.setLevel(logging.CRITICAL)  # what it would log, it raises as well: and that is ours to tell
    for name in ("opensandbox.adapters.factory", "opensandbox.models.filesystem", "rayroll.substrates._execd"):
        importlib.import_module(name)  # now and here, or it would be read on the event loop
    import httpx
    from opensandbox.config import ConnectionConfig
    from opensandbox.transport import RetryPolicy

    connection = ConnectionConfig(
        domain=config.domain,
        api_key=os.environ.get(config.api_key_variable),
        protocol=config.protocol,
        request_timeout=timedelta(seconds=config.request_timeout_s),
        use_server_proxy=config.use_server_proxy,
        disable_metrics=True,
        # A published port accepts before execd listens, and hangs up: the SDK's first pause after that is 0.5 s, which
        # is half of a start.
        retry_policy=RetryPolicy(initial_backoff=timedelta(seconds=config.ready_poll_s)),
    )
    # One for all sandboxes: each would otherwise bring its own pool and read the certificates again.
    transport = connection.new_owned_transport(max_connections=config.max_connections)
    shared = connection.model_copy(update={"transport": transport})
    shared._owns_transport = False
    http = httpx.AsyncClient(transport=transport, timeout=config.request_timeout_s, headers=shared.headers)
    return shared, http, importlib.metadata.version("opensandbox")


async def _manager(connection: ConnectionConfig) -> SandboxManager:
    from opensandbox import SandboxManager

    return await SandboxManager.create(connection)


@contextmanager
def _translated(domain: str, **facts: Any) -> Iterator[None]:
    """The SDK's errors as ours.

    Raises:
        EngineDownError: Nothing answers there.
        ImageError: The server cannot get the image.
        SubstrateError: It refused; ``status``, and ``retry_after_s`` where it said when to come back.
    """
    import httpx
    from opensandbox.exceptions import (
        SandboxApiException,
        SandboxConnectionException,
        SandboxException,
        SandboxRateLimitException,
        SandboxReadyTimeoutException,
        SandboxTimeoutException,
    )

    try:
        yield
    except (SandboxConnectionException, SandboxTimeoutException, httpx.TransportError) as error:
        fix = f"start opensandbox-server at {domain}, or set OPEN_SANDBOX_DOMAIN"
        raise EngineDownError(
            "the OpenSandbox server does not answer", domain=domain, reason=str(error), fix=fix
        ) from error
    except SandboxReadyTimeoutException as error:
        raise StartTimeoutError("the sandbox's daemon did not answer in time", reason=str(error), **facts) from error
    except SandboxRateLimitException as error:
        if error.retry_after is not None:
            facts["retry_after_s"] = error.retry_after.total_seconds()
        raise SubstrateError("the OpenSandbox server asks for patience", status=429, **facts) from error
    except SandboxApiException as error:
        status, said = error.status_code, str(error.error.message or error)
        if "IMAGE" in error.error.code.upper():
            raise ImageError("the server cannot get the image", status=status, said=said, **facts) from error
        if status in (401, 403):
            facts["fix"] = "set the server's key in the variable that api_key_variable names (OPEN_SANDBOX_API_KEY)"
        raise SubstrateError("the OpenSandbox server refused", status=status, said=said, **facts) from error
    except SandboxException as error:
        raise SubstrateError("OpenSandbox failed", reason=str(error), **facts) from error


def _label(name: str) -> str:
    """The metadata key for a label of ours (``run``, ``owner``, ``task``)."""
    return name if "." in name else f"rayroll.{name}"


def _ref(info: SandboxInfo) -> SandboxRef:
    metadata = info.metadata or {}
    return SandboxRef(
        "opensandbox",
        info.id,
        decoded(metadata[RUN]),
        decoded(metadata.get(OWNER, "")),
        info.status.state.lower(),
        age_s=max(0.0, (datetime.now(UTC) - info.created_at).total_seconds()),
        lease_s=float(metadata.get(LEASE, 0)),
    )
