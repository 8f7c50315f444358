"""A sandbox as a container: the runner is its PID 1, and the engine's attach stream leads to it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from pydantic import Field

from rayroll.errors import (
    ClosedError,
    ConfigError,
    EngineDownError,
    SandboxLostError,
    StartTimeoutError,
    SubstrateError,
)
from rayroll.runner.build import cache_dir, runner_path, source_digest
from rayroll.substrates import (
    Channel,
    Lease,
    Login,
    Probe,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Shell,
    Substrate,
    SubstrateConfig,
)
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates._attach import AttachChannel, attach
from rayroll.substrates._budget import ImageBudget
from rayroll.substrates._docker_shell import log_in
from rayroll.substrates._engine import LEASE, OWNER, RUN, Engine, is_status, labels_of, translated
from rayroll.substrates._events import Events
from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._images import Image, Images, name_of
from rayroll.substrates._reaper import adopted_name, kept_name, kept_until
from rayroll.substrates._reaping import Watches
from rayroll.substrates._shield import Chores, finish

__all__ = ["DockerConfig", "DockerSubstrate"]

T = TypeVar("T")

FOLDER = "/.rayroll"
RUNNER = f"{FOLDER}/runner"
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""What root in an image needs for its own files and for becoming another user; without them it cannot write a folder of
uid 1000. Images with a user of their own get none."""
MOST_REMOVALS = 4
"""Removals under way at the same time; the rest wait. Docker 20.10 locks itself up for good when some 200 containers
end at once: in libnetwork each one that leaves its network waits for one loop, and that for the network's lock, which
nobody gives back. Two cores removed 16, 25, 29 and 33 containers a second with 1, 2, 4 and 8 under way."""
GONE_PATIENCE_S = 20.0
SNAPSHOTS = "rayroll-snapshot"
"""The repository of the engine's own that saved sandboxes are tagged in."""
UNDO_PATIENCE_S = 15.0
DEATH_NOTICE_S = 1.0


class DockerConfig(SubstrateConfig):
    """How containers are made."""

    host: str | None = None
    """The engine: ``unix:///path`` or ``tcp://host:port``; None: DOCKER_HOST, else the usual sockets. TLS as Docker's
    own client does it: DOCKER_TLS_VERIFY, DOCKER_CERT_PATH."""
    plain_image: str = "debian:bookworm-slim"
    """For specs with neither image nor Dockerfile."""
    mirror: str | None = None
    """Registry that Docker Hub's images are pulled from (``host:port``); None: Docker Hub."""
    image_budget_mib: int | None = None
    """Most disk for images that were pulled or built for sandboxes; above it those used longest ago are removed. None:
    no limit. Images that were there before are never removed."""
    pull_timeout_s: float = 900.0
    """Longest pull of one image."""
    pull_pause_s: float = 1.0
    """First pause when a registry asks for patience (429); each further one is twice as long, give or take a half."""
    control_threads: int = Field(default=16, ge=1)
    """Calls to the engine at the same time."""
    call_timeout_s: float = 120.0
    """Longest wait for an answer of the engine to a control call; commands are not calls."""
    read_only_root: bool = False
    """The image's files cannot be changed; ``tmpfs_mib`` says what can be written."""
    tmpfs_mib: Mapping[str, int] = Field(default_factory=dict)
    """Folders in memory, with their size. It counts as the sandbox's memory, so all together must stay below that."""
    shm_mib: int = 64
    """Size of /dev/shm, at most a quarter of the sandbox's memory."""
    limit_disk: bool = False
    """Enforce ``disk_mib``, which only engines on xfs with project quotas can."""
    runtime: str | None = None
    """Another OCI runtime of the engine (``runsc``, ``kata``); None: its default."""


class DockerSubstrate(Substrate):
    """Sandboxes as containers."""

    kind: ClassVar[str] = "docker"
    config_type: ClassVar[type[SubstrateConfig]] = DockerConfig

    def __init__(self, config: DockerConfig) -> None:
        super().__init__(config)
        self.config: DockerConfig = config
        self._starting = asyncio.Semaphore(config.max_starting)
        self._removing = asyncio.Semaphore(MOST_REMOVALS)
        self._filling: SingleFlight[str] = SingleFlight()
        self._volumes: dict[str, str] = {}
        self._channels: dict[str, AttachChannel] = {}
        self._reopening: dict[str, asyncio.Lock] = {}
        self._alive: set[str] = set()
        self._watches = Watches()
        self._image_ids: dict[str, str] = {}
        """Of images that were asked for, by ``image_of``: an engine lists some under other names."""
        self._root: Path | None = None
        """Where the engine keeps its data."""
        self._undoing = Chores("a half-made container was not removed, its lease or the reaper will do it")
        self._parts: tuple[Engine, Images, Events] | None = None

    # life of the substrate

    async def open(self) -> None:
        engine = await self._connect()
        images = Images(
            engine,
            cache_dir() / "locks",
            mirror=self.config.mirror,
            pull_timeout_s=self.config.pull_timeout_s,
            first_pause_s=self.config.pull_pause_s,
        )
        events = Events(engine.endpoint, self._on_death)
        events.start()
        self._budget = ImageBudget(engine, cache_dir() / "images", self.config.image_budget_mib)
        self._parts = engine, images, events

    async def _connect(self) -> Engine:
        return await Engine.connect(
            endpoints.find(self.config.host), threads=self.config.control_threads, timeout_s=self.config.call_timeout_s
        )

    @property
    def _engine(self) -> Engine:
        return self._opened()[0]

    def _opened(self) -> tuple[Engine, Images, Events]:
        if self._parts is None:
            raise ClosedError("the docker substrate is not open")
        return self._parts

    async def close(self) -> None:
        if self._parts is None:
            return
        await self._undoing.wait(UNDO_PATIENCE_S)
        if not self._undoing and not self._alive:
            await self._watches.lift()
        (engine, _, events), self._parts = self._parts, None
        await events.close()
        for channel in self._channels.values():
            channel.abort()
        self._channels.clear()
        await engine.close()

    async def probe(self) -> Probe:
        try:
            engine = await self._connect()
        except (EngineDownError, SubstrateError, ConfigError) as error:
            return Probe(
                False, error.message, str(error.facts.get("fix", "")), {k: str(v) for k, v in error.facts.items()}
            )
        await engine.close()
        return Probe(True, facts={**engine.facts, "host": engine.endpoint.url, "machine": engine.machine})

    # images

    def image_of(self, spec: SandboxSpec) -> str:
        return name_of(spec, self.config.plain_image)

    async def images(self) -> frozenset[str]:
        _, images, _ = self._opened()
        listed = await images.listed()
        return listed | {name for name, id in self._image_ids.items() if id in listed}

    async def fetch(self, spec: SandboxSpec) -> bool:
        _, images, _ = self._opened()
        if not await self._budget.has_room_ahead() and await images.find(spec, self.config.plain_image) is None:
            return False
        image, was_absent = await images.ensure(spec, self.config.plain_image, {})
        self._image_ids[self.image_of(spec)] = image.id
        if was_absent:
            await self._budget.brought(image.name)
        return True

    async def free_disk_mib(self) -> int | None:
        if not self._engine.endpoint.url.startswith("unix://"):
            return None  # another machine's folder may have the same name here
        if self._root is None:
            self._root = Path((await self._engine.call(lambda api: api.info()))["DockerRootDir"])
        with contextlib.suppress(OSError):
            return (await asyncio.to_thread(shutil.disk_usage, self._root)).free >> 20
        return None

    # life of a sandbox

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        self._check(spec)
        _, images, _ = self._opened()
        phases_s: dict[str, float] = {}
        image, was_absent = await images.ensure(spec, self.config.plain_image, phases_s)
        self._image_ids[self.image_of(spec)] = image.id
        await self._budget.used(image.name, was_absent=was_absent)
        await self._watches.cover_engine(self._engine.endpoint, lease)
        volume = await self._runner_volume(image, lease, phases_s)
        name = f"rayroll-{secrets.token_hex(8)}"
        calls: list[asyncio.Future[Any]] = []
        async with self._starting:
            try:
                async with asyncio.timeout(self.config.create_timeout_s):
                    container_id, channel = await self._start(name, image, spec, lease, volume, calls, phases_s)
            except TimeoutError:
                await self._undo(name, calls)
                raise StartTimeoutError(
                    "the container was not started in time; is the engine overloaded (lower max_starting)?",
                    image=image.name,
                    create_timeout_s=self.config.create_timeout_s,
                ) from None
            except BaseException:
                await self._undo(name, calls)
                raise
        self._channels[container_id] = channel
        self._alive.add(container_id)
        return Sandbox(
            SandboxRef(self.kind, container_id, lease.run_id, lease.owner, lease_s=lease.duration_s),
            channel,
            "cold" if was_absent else "cached",
            phases_s,
            facts={**self._engine.facts, "image": image.id, "name": name},
        )

    def _check(self, spec: SandboxSpec) -> None:
        in_memory_mib = sum(self.config.tmpfs_mib.values())
        if in_memory_mib >= spec.memory_mib:
            # Filling a tmpfs past the memory limit kills PID 1, and with it the sandbox.
            raise ConfigError(
                "the folders in memory (tmpfs_mib) must together stay below the sandbox's memory",
                tmpfs_mib=in_memory_mib,
                memory_mib=spec.memory_mib,
            )

    async def _start(
        self,
        name: str,
        image: Image,
        spec: SandboxSpec,
        lease: Lease,
        volume: str,
        calls: list[asyncio.Future[Any]],
        phases_s: dict[str, float],
    ) -> tuple[str, AttachChannel]:
        async def call(use: Callable[[Any], T]) -> T:
            # A call goes on in its thread when its waiter is cancelled: undoing must wait for it.
            calls.append(asyncio.ensure_future(self._engine.call(use)))
            return cast(T, await asyncio.shield(calls[-1]))

        start_s = time.monotonic()
        container_id = await call(lambda api: _create(api, name, image, spec, lease, volume, self.config))
        created_s = time.monotonic()
        with translated(self._engine.endpoint):
            channel = await attach(self._engine.endpoint, container_id)
        try:
            await call(lambda api: api.start(container_id))
        except BaseException as error:
            channel.abort()
            if isinstance(error, SubstrateError) and FOLDER in str(error):
                self._volumes.clear()  # somebody pruned the runner's volume: the next create fills it again
            raise
        phases_s["create"] = created_s - start_s
        phases_s["boot"] = time.monotonic() - created_s
        return container_id, channel

    async def _undo(self, name: str, calls: list[asyncio.Future[Any]]) -> None:
        """Remove what a failed or cancelled create may have made.

        By name: the engine may have made it although the call failed, and then nobody knows its id. An engine that
        does not answer does not hold up the caller for longer than UNDO_PATIENCE_S; ``close`` and the reaper finish it.
        """

        async def undo() -> None:
            waiting = set(calls)
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=UNDO_PATIENCE_S / 3)
            await self._remove(name)
            if waiting:  # a call that hung may still make it
                await asyncio.wait(waiting)
                await self._remove(name)
            for call in calls:
                call.cancelled() or call.exception()  # mark as seen

        await self._undoing.run(undo(), UNDO_PATIENCE_S)

    async def _runner_volume(self, image: Image, lease: Lease, phases_s: dict[str, float]) -> str:
        """The volume that holds the runner for this CPU, filled once per engine.

        Mounted read-only into every container. Putting the file into each container instead takes 64 of the 316 ms
        of a start, where the mount takes 20, and is refused where the root is read-only.
        """
        machine = image.machine or self._engine.machine
        if machine not in self._volumes:
            self._volumes[machine] = await self._filling(
                machine, functools.partial(self._fill_volume, machine, image, lease)
            )
        return self._volumes[machine]

    async def _fill_volume(self, machine: str, image: Image, lease: Lease) -> str:
        path = await asyncio.to_thread(runner_path, machine)
        content = await asyncio.to_thread(path.read_bytes)
        volume = f"rayroll-{path.name}"
        await finish(self._engine.call(_fill, volume, image.id, content, lease))
        return volume

    async def reopen(self, ref: SandboxRef) -> Channel:
        async with self._reopening.setdefault(ref.id, asyncio.Lock()):
            old = self._channels.get(ref.id)
            if old is not None:
                old.close()
                await old.wait_until_closed()  # or what it still has under way would be mixed into the new one's bytes
            try:
                with translated(self._engine.endpoint):
                    channel = self._channels[ref.id] = await attach(self._engine.endpoint, ref.id)
            except SubstrateError as error:
                if is_status(error, 404, 409):
                    raise SandboxLostError(
                        "the container is gone", id=ref.id[:12], cause=await self.cause_of_death(ref)
                    ) from error
                raise
            return channel

    async def adopt(self, ref: SandboxRef, lease: Lease) -> Channel:
        await self._watches.cover_engine(self._engine.endpoint, lease)
        try:
            # Labels cannot be changed; a name can.
            name = await self._engine.call(lambda api: api.inspect_container(ref.id)["Name"].lstrip("/"))
            await self._engine.call(lambda api: api.rename(ref.id, adopted_name(name, lease.owner)))
        except SubstrateError as error:
            if is_status(error, 404, 409):
                raise SandboxLostError("the container is gone", id=ref.id[:12]) from error
            raise
        channel = await self.reopen(ref)
        self._alive.add(ref.id)
        return channel

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        wanted = [RUN, *(f"{_label(name)}={value}" for name, value in labels.items())]
        found = await self._engine.call(lambda api: api.containers(all=True, filters={"label": wanted}))
        return [_ref(container) for container in found]

    async def destroy(self, ref: SandboxRef) -> None:
        channel = self._channels.pop(ref.id, None)
        if channel is not None:
            channel.abort()
        await finish(self._remove(ref.id))
        self._alive.discard(ref.id)
        self._reopening.pop(ref.id, None)

    async def _remove(self, name: str) -> None:
        """Kill and remove a container in whatever state, when it is its turn; returns when it is gone."""
        async with self._removing:
            deadline_s = time.monotonic() + GONE_PATIENCE_S
            while True:
                try:
                    await self._engine.call(lambda api: api.remove_container(name, force=True, v=True))
                except SubstrateError as error:
                    if is_status(error, 404):
                        return
                    # 409: its own AutoRemove is at it.
                    if not is_status(error, 409) or time.monotonic() > deadline_s:
                        raise
                else:
                    return
                await asyncio.sleep(0.02)

    async def cause_of_death(self, ref: SandboxRef) -> str:
        _, _, events = self._opened()
        cause = await events.cause(ref.id, DEATH_NOTICE_S)
        channel = self._channels.get(ref.id)
        words = channel.stderr.decode(errors="replace").strip() if channel is not None else ""
        return f"{cause}: {words}" if cause and words else cause

    async def set_network(self, ref: SandboxRef, enabled: bool) -> None:
        def switch(api: Any) -> None:
            attached = set(api.inspect_container(ref.id)["NetworkSettings"]["Networks"])
            wanted = "bridge" if enabled else "none"
            # One at a time: connecting straight from `none` is refused.
            for network in attached - {wanted}:
                api.disconnect_container_from_network(ref.id, network, force=True)
            if wanted not in attached:
                api.connect_container_to_network(ref.id, wanted)

        await finish(self._engine.call(switch))

    async def pause(self, ref: SandboxRef) -> None:
        with _gone(ref):
            await finish(self._engine.call(lambda api: api.pause(ref.id)))

    async def resume(self, ref: SandboxRef) -> Channel:
        with _gone(ref):
            await finish(self._engine.call(lambda api: api.unpause(ref.id)))
        return await self.reopen(ref)

    async def snapshot(self, ref: SandboxRef) -> str:
        tag = secrets.token_hex(8)
        labels = f'LABEL {RUN}="{ref.run_id}"'
        with _gone(ref):
            # The tag keeps it from being pruned; the id, other than a name, is never looked for in a registry.
            saved = await finish(self._engine.call(lambda api: api.commit(ref.id, SNAPSHOTS, tag, changes=[labels])))
        return str(saved["Id"])

    async def forget(self, image: str) -> None:
        try:
            await finish(self._engine.call(lambda api: api.remove_image(image)))
        except SubstrateError as error:
            if not is_status(error, 404):
                raise
        self._image_ids.pop(image, None)

    async def keep(self, ref: SandboxRef, until_unix_s: float) -> Mapping[str, str]:
        def rename(api: Any) -> None:
            name = api.inspect_container(ref.id)["Name"].lstrip("/")
            api.rename(ref.id, kept_name(name, until_unix_s))

        await finish(self._engine.call(rename))
        return {"host": self._engine.endpoint.url}

    async def shell(self, ref: SandboxRef, login: Login) -> Shell:
        return await log_in(self._engine, ref.id, login)

    def _on_death(self, container_id: str) -> None:
        self._alive.discard(container_id)
        asyncio.get_running_loop().call_later(DEATH_NOTICE_S, self._hang_up, container_id)

    def _hang_up(self, container_id: str) -> None:
        """Close the stream of a dead container: an attach while it died neither answers nor ends, nor does a connection
        that the network lost."""
        channel = self._channels.get(container_id)
        if channel is not None:
            channel.abort()


@contextlib.contextmanager
def _gone(ref: SandboxRef) -> Iterator[None]:
    """Raises SandboxLostError where the engine does not know the container, or it has ended."""
    try:
        yield
    except SubstrateError as error:
        if is_status(error, 404, 409):
            raise SandboxLostError("the container is gone", id=ref.id[:12]) from error
        raise


def _label(name: str) -> str:
    """The container's label for a label of ours (``run``, ``owner``, ``task``)."""
    return name if "." in name else f"rayroll.{name}"


def _create(
    api: Any, name: str, image: Image, spec: SandboxSpec, lease: Lease, volume: str, config: DockerConfig
) -> str:
    """Create a container; its id."""
    memory_bytes = spec.memory_mib << 20
    host = api.create_host_config(
        auto_remove=True,
        binds={volume: {"bind": FOLDER, "mode": "ro"}},
        cap_drop=["ALL"],
        cap_add=list(ROOT_CAPABILITIES) if image.runs_as_root else [],
        security_opt=["no-new-privileges"],
        pids_limit=spec.pids,
        mem_limit=memory_bytes,
        memswap_limit=memory_bytes,
        nano_cpus=round(spec.cpus * 1e9),
        network_mode="bridge" if spec.network else "none",
        read_only=config.read_only_root,
        # The engine's own default is noexec: an agent could not run the script that it has just written.
        tmpfs={folder: f"size={size_mib}m,mode=1777,exec" for folder, size_mib in config.tmpfs_mib.items()},
        shm_size=min(config.shm_mib, spec.memory_mib // 4) << 20,
        # json-file stores all that is printed, and doubled the time of 64 MB of output.
        log_config={"Type": "none"},
        ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
        storage_opt={"size": f"{spec.disk_mib}m"} if config.limit_disk else None,
        runtime=config.runtime,
        init=False,
    )
    container = api.create_container_config(
        image.id,
        ["serve", "--lease-ms", str(round(lease.duration_s * 1000)), "--rlimit", f"fsize={spec.disk_mib << 20}"],
        entrypoint=[RUNNER],
        hostname="sandbox",
        stdin_open=True,
        environment=dict(spec.env),
        working_dir=None if spec.workdir == "/" else spec.workdir,
        labels={
            **{_label(name): value for name, value in spec.labels.items()},
            RUN: lease.run_id,
            OWNER: lease.owner,
            LEASE: f"{lease.duration_s:g}",
        },
        healthcheck={"Test": ["NONE"]},
        host_config=host,
    )
    # docker-py ties both together. With StdinOnce the runner's input would end with the first client.
    container["StdinOnce"] = False
    return str(api.create_container_from_config(container, name)["Id"])


def _fill(api: Any, volume: str, image_id: str, content: bytes, lease: Lease) -> None:
    """Put the runner into its volume, by way of a container that is never started; nothing when it is there."""
    api.create_volume(volume, labels={"rayroll.runner": source_digest()})
    host = api.create_host_config(binds={volume: {"bind": FOLDER, "mode": "rw"}}, network_mode="none")
    helper = api.create_container(image_id, ["-"], entrypoint=[RUNNER], host_config=host, labels=labels_of(lease))["Id"]
    try:
        with contextlib.suppress(Exception):  # 404 when it is empty, in whichever words
            _, found = api.get_archive(helper, RUNNER)
            if found["size"] == len(content):
                return
        api.put_archive(helper, FOLDER, _tar("runner", content))
    finally:
        api.remove_container(helper, force=True)


def _tar(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o755
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _ref(container: Mapping[str, Any]) -> SandboxRef:
    labels = container["Labels"]
    return SandboxRef(
        "docker",
        container["Id"],
        labels[RUN],
        labels.get(OWNER, ""),
        container["State"],
        age_s=max(0.0, time.time() - container["Created"]),
        lease_s=float(labels.get(LEASE, 0)),
        kept_until_unix_s=kept_until(container.get("Names")),
    )
