"""Images on an engine: one pull and one build per image and node, however many sandboxes wait for it.

A pull that can only fail fails at once; one that needs patience (429, a registry that stumbles) is tried again after a
pause that grows and differs from caller to caller.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import logging
import math
import os
import random
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from rayroll.errors import DiskFullError, ImageError, SubstrateError, TaskError
from rayroll.substrates import SandboxSpec
from rayroll.substrates import _dockerfile as dockerfile
from rayroll.substrates._attach import json_lines
from rayroll.substrates._engine import MACHINES, Engine, is_status, translated
from rayroll.substrates._flight import SingleFlight
from rayroll.types import FileTree

__all__ = ["Image", "Images", "name_of", "pull_credentials", "tag_of"]

logger = logging.getLogger(__name__)

LOG_TAIL_LINES = 30
DOCKER_HUB = "docker.io"
REMEMBERED_S = 30.0
"""How long a pull that failed is not tried again: the samples of one task come one after another, and would each wait
for the same."""


class Refusal(NamedTuple):
    """A way in which pulls fail."""

    words: tuple[str, ...]
    """The engine's."""
    message: str
    attempts: int
    """How often it is worth trying."""


REFUSALS = (
    Refusal(("toomanyrequests", "too many requests", "status: 429"), "the registry asks for patience", 6),
    Refusal(
        ("no such host", "connection refused", "network is unreachable", "no route to host", "dial tcp", "lookup "),
        "the registry cannot be reached",
        3,
    ),
    # The engine itself has tried a layer six times then.
    Refusal(
        ("status: 5", "timeout", "unexpected eof", ": eof", "connection reset", "verification failed", "handshake"),
        "the registry stumbles",
        3,
    ),
    Refusal(("manifest unknown", "name unknown", "not found"), "the registry has no such image", 1),
    Refusal(
        ("no basic auth", "unauthorized", "denied", "authentication required"),
        "the registry has no such image, or wants a login (docker login)",
        1,
    ),
)
OTHERWISE = Refusal((), "the image cannot be pulled", 1)


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it is on the engine."""

    id: str
    name: str
    machine: str
    env: Mapping[str, str]
    workdir: str
    user: str
    size_bytes: int

    @property
    def runs_as_root(self) -> bool:
        return self.user.partition(":")[0] in ("", "0", "root")


class Images:
    """Pulls and builds."""

    def __init__(
        self,
        engine: Engine,
        locks: Path,
        *,
        mirror: str | None = None,
        pull_timeout_s: float = 900.0,
        first_pause_s: float = 1.0,
    ) -> None:
        self._engine = engine
        self._locks = locks
        self._mirror = mirror
        self._pull_timeout_s = pull_timeout_s
        self._first_pause_s = first_pause_s
        self._flights: SingleFlight[Image] = SingleFlight()
        self._refused: dict[str, tuple[float, ImageError]] = {}

    async def listed(self) -> frozenset[str]:
        """Names, digests and ids of all that the engine has."""
        found = await self._engine.call(lambda api: api.images())
        names = (name for image in found for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())))
        return frozenset({*names, *(image["Id"] for image in found)})

    async def find(self, spec: SandboxSpec, plain_image: str) -> Image | None:
        """The image of a spec; None when the engine does not have it."""
        return await self.inspect(_wanted(spec, plain_image))

    async def ensure(self, spec: SandboxSpec, plain_image: str, phases_s: dict[str, float]) -> tuple[Image, bool]:
        """The image of a spec, pulled or built if the engine does not have it.

        Returns:
            The image, and whether it was absent. Seconds spent waiting go to ``pull`` or ``build`` of ``phases_s``.

        Raises:
            ImageError: It is not there and cannot be pulled, or is for another CPU.
            TaskError: The Dockerfile does not build.
        """
        environment = spec.environment if spec.image is None else None
        name = _wanted(spec, plain_image)
        found = await self.inspect(name)
        if found is not None:
            return self._checked(found), False
        if name.startswith("sha256:"):
            raise ImageError("the engine has no image of this id, and no registry is asked for ids", image=name)
        start_s = time.monotonic()
        try:
            if environment is None:
                return self._checked(await self.pull(name)), True
            build = functools.partial(self._build, environment, spec.build_timeout_s)
            return self._checked(await self._flights(name, build)), True
        finally:
            phases_s["build" if environment else "pull"] = time.monotonic() - start_s

    async def inspect(self, name: str) -> Image | None:
        """The image of that name or id; None when the engine has none."""
        try:
            found = await self._engine.call(lambda api: api.inspect_image(name))
        except SubstrateError as error:
            if is_status(error, 404):
                return None
            raise
        config = found.get("Config") or {}
        return Image(
            id=found["Id"],
            name=name,
            machine=MACHINES.get(found.get("Architecture", ""), found.get("Architecture", "")),
            env=dict(item.partition("=")[::2] for item in config.get("Env") or ()),
            workdir=config.get("WorkingDir") or "/",
            user=config.get("User") or "",
            size_bytes=found.get("Size", 0),
        )

    async def pull(self, name: str) -> Image:
        """The image of that name, pulled. Callers that ask at the same time share one pull."""
        return await self._flights(name, functools.partial(self._pull, name))

    def _checked(self, image: Image) -> Image:
        if image.machine and image.machine != self._engine.machine:
            raise ImageError(
                f"the image is made for {image.machine}, and this engine's CPU is {self._engine.machine}; "
                "use an image for this CPU (docker pull --platform), or a node of the other one",
                image=image.name,
            )
        return image

    # pull

    async def _pull(self, name: str) -> Image:
        failed_s, error = self._refused.get(name, (-math.inf, None))
        if error is not None and time.monotonic() - failed_s < REMEMBERED_S:
            raise ImageError(error.message, **error.facts)
        async with self._node_lock(name):
            found = await self.inspect(name)  # another process of this node may have pulled it meanwhile
            if found is not None:
                return found
            await self._pull_patiently(name)
        found = await self.inspect(name)
        if found is None:
            raise ImageError("the image was pulled, but the engine does not have it", image=name)
        return found

    async def _pull_patiently(self, name: str) -> None:
        pause_s = self._first_pause_s
        for attempt in itertools.count(1):
            try:
                async with asyncio.timeout(self._pull_timeout_s):
                    await self._pull_once(name)
                return
            except TimeoutError:
                raise ImageError(
                    "the image was not pulled in time",
                    image=name,
                    registry=_registry(_from_mirror(name, self._mirror)),
                    timeout_s=self._pull_timeout_s,
                ) from None
            except ImageError as error:
                if attempt >= _refusal(str(error.facts["said"])).attempts:
                    self._refused[name] = time.monotonic(), error
                    raise
                logger.warning("pull of %s was put off: %s", name, error)
            # Half to one and a half of the pause: nodes that were refused together must not come back together.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s *= 2

    async def _pull_once(self, name: str) -> None:
        source = _from_mirror(name, self._mirror)
        repository, tag = _split(source)
        path = f"/images/create?{urlencode({'fromImage': repository, 'tag': tag})}"
        headers = await self._engine.call(pull_credentials, repository)
        try:
            with translated(self._engine.endpoint):
                async with json_lines(self._engine.endpoint, "POST", path, headers=headers) as progress:
                    async for event in progress:
                        if "error" in event:
                            raise _not_pulled(name, source, event["error"])
        except SubstrateError as error:
            if is_status(error, 404, 403, 401, 500, 400, 429):
                raise _not_pulled(name, source, error.facts["said"]) from error
            raise
        if source != name:
            repository, tag = _split(name)
            await self._engine.call(lambda api: api.tag(source, repository, tag))

    # build

    async def _build(self, environment: FileTree, timeout_s: float) -> Image:
        name = tag_of(environment)
        async with self._node_lock(name):
            found = await self.inspect(name)
            if found is not None:
                return found
            for base in await asyncio.to_thread(_bases, environment):
                if await self.inspect(base) is None:
                    await self.pull(base)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._build_once(name, environment)
            except TimeoutError:
                raise TaskError("the task's Dockerfile was not built in time", build_timeout_s=timeout_s) from None
        found = await self.inspect(name)
        if found is None:
            raise SubstrateError("the image was built, but the engine does not have it", image=name)
        return found

    async def _build_once(self, name: str, environment: FileTree) -> None:
        query = {"t": name, "rm": 1, "forcerm": 1, "labels": json.dumps({"rayroll.task": environment.digest})}
        headers = {"Content-Type": "application/x-tar", **await self._engine.call(_build_credentials)}
        step, log = "", list[str]()
        with translated(self._engine.endpoint):
            async with json_lines(
                self._engine.endpoint, "POST", f"/build?{urlencode(query)}", headers=headers, body=environment.tar
            ) as progress:
                async for event in progress:
                    text = event.get("stream", "")
                    log += text.splitlines()
                    if text.startswith("Step "):
                        step = text.strip()
                    if "error" in event:
                        raise _not_built(event["error"], step, log)

    # one process of this node at a time

    @contextlib.asynccontextmanager
    async def _node_lock(self, name: str) -> AsyncIterator[None]:
        """A file lock that is asked for again and again rather than waited for: no thread is spent on waiting."""
        digest = hashlib.sha256(f"{self._engine.endpoint.url} {name}".encode()).hexdigest()[:24]
        fd = await asyncio.to_thread(_open_lock, self._locks / f"{digest}.lock")
        try:
            while not _try_lock(fd):  # noqa: ASYNC110 - another process holds it
                await asyncio.sleep(random.uniform(0.05, 0.15))
            yield
        finally:
            os.close(fd)


def tag_of(environment: FileTree) -> str:
    """The name of the image made from a build context."""
    return f"rayroll/task:{environment.digest[:32]}"


def name_of(spec: SandboxSpec, plain_image: str) -> str:
    """The image of a spec, as an engine lists it: with tag or digest, and Docker Hub's without where they are from."""
    name = _wanted(spec, plain_image)
    if name.startswith("sha256:"):
        return name
    for prefix in ("index.docker.io/", "docker.io/", "library/"):
        name = name.removeprefix(prefix)
    repository, tag = _split(name)
    return f"{_split(repository)[0]}@{tag}" if "@" in name else f"{repository}:{tag}"


def _wanted(spec: SandboxSpec, plain_image: str) -> str:
    environment = spec.environment if spec.image is None else None
    return tag_of(environment) if environment else spec.image or plain_image


def _bases(environment: FileTree) -> list[str]:
    try:
        text = environment.read("Dockerfile").decode(errors="replace")
    except KeyError:
        raise TaskError("the task's environment has no Dockerfile", files=environment.names()[:20]) from None
    return dockerfile.bases(text)


def _split(name: str) -> tuple[str, str]:
    """Repository and tag (or digest)."""
    if "@" in name:
        repository, _, digest = name.partition("@")
        return repository, digest
    head, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{head}{slash}{repository}", tag or "latest"


def _from_mirror(name: str, mirror: str | None) -> str:
    """Where to pull an image of Docker Hub from; images of other registries come from there."""
    if mirror is None or _registry(name) != DOCKER_HUB:
        return name
    return f"{mirror}/{name if '/' in name else f'library/{name}'}"


def _registry(name: str) -> str:
    first, slash, _ = name.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB


def _refusal(said: str) -> Refusal:
    words = re.sub(r"\S*/\S*", "", said.lower())  # what an image or a registry is called says nothing
    return next((refusal for refusal in REFUSALS if any(word in words for word in refusal.words)), OTHERWISE)


def _not_pulled(name: str, source: str, said: str) -> ImageError | DiskFullError:
    facts = {"image": name, "registry": _registry(source), "said": said.strip()}
    if "no space left" in said.lower():
        return DiskFullError("no space is left for the image where the Docker engine keeps its data", **facts)
    return ImageError(f"{_refusal(said).message}; the engine does not have the image", **facts)


def _not_built(said: str, step: str, log: list[str]) -> Exception:
    if "no space left" in said.lower():
        return ImageError("no space was left for the build; docker system prune", said=said)
    return TaskError(
        "the task's Dockerfile does not build", step=step, said=said.strip(), log="\n".join(log[-LOG_TAIL_LINES:])
    )


def pull_credentials(api: Any, repository: str) -> dict[str, str]:
    """What ``docker login`` stored for the image's registry."""
    from docker import auth

    registry, _ = auth.resolve_repository_name(repository)
    header = auth.get_config_header(api, registry)
    return {"X-Registry-Auth": header.decode()} if header else {}


def _build_credentials(api: Any) -> dict[str, str]:
    known = api._auth_configs.get_all_credentials() if api._auth_configs else {}
    return {"X-Registry-Config": base64.urlsafe_b64encode(json.dumps(known).encode()).decode()} if known else {}


def _open_lock(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
