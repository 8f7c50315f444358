"""Images of Dockerfiles for machines that pull by themselves: built on an engine, found in a registry they know."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlencode

from rayroll.errors import ConfigError, SubstrateError
from rayroll.runner.build import cache_dir
from rayroll.substrates import SandboxSpec
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates._attach import json_lines
from rayroll.substrates._engine import Engine, is_status, translated
from rayroll.substrates._flight import SingleFlight
from rayroll.substrates._images import Images, pull_credentials, tag_of

__all__ = ["Publisher"]

THREADS = 4
CALL_TIMEOUT_S = 120.0


class Publisher:
    """Names of images that a cluster's or a provider's machines can pull.

    Args:
        kind: The substrate, for what is said.
        registry: Where built images are, such as ``registry.example:5000/team``; "": the machines run on the very
            engine that builds. None: nothing is built.
        engine: The Docker engine that builds; None: DOCKER_HOST, else the usual.
    """

    def __init__(self, kind: str, registry: str | None, engine: str | None) -> None:
        self._kind = kind
        self._registry = registry
        self._host = engine
        self._parts: tuple[Engine, Images] | None = None
        self._connecting = asyncio.Lock()
        self._flights: SingleFlight[bool] = SingleFlight()
        self._published: set[str] = set()

    def name_of(self, spec: SandboxSpec, plain_image: str) -> str:
        """What its image is called, there or not.

        Raises:
            ConfigError: It has a Dockerfile, and nothing is built.
        """
        if spec.image is not None or not spec.environment:
            return spec.image or plain_image
        if self._registry is None:
            raise ConfigError(
                f"{self._kind} runs ready images, and this task has a Dockerfile",
                fix="name a registry that its machines pull from (registry='host:port/path'), or '' where they run on "
                "the Docker engine of this node",
            )
        name = tag_of(spec.environment)
        return f"{self._registry.rstrip('/')}/{name}" if self._registry else name

    async def ensure(self, spec: SandboxSpec, plain_image: str, phases_s: dict[str, float]) -> tuple[str, bool]:
        """The name of its image, which is there, and whether it had to be built. Its seconds are ``build``.

        Raises:
            ConfigError: As ``name_of``.
            EngineDownError, ImageError, TaskError: It cannot be built.
            SubstrateError: The registry does not take it.
        """
        name = self.name_of(spec, plain_image)
        if spec.image is not None or not spec.environment or name in self._published:
            return name, False
        start_s = time.monotonic()
        try:
            was_absent = await self._flights(name, lambda: self._publish(name, spec))
        finally:
            phases_s["build"] = phases_s.get("build", 0.0) + time.monotonic() - start_s
        if self._registry:
            self._published.add(name)
        return name, was_absent

    async def _publish(self, name: str, spec: SandboxSpec) -> bool:
        engine, images = await self._opened()
        if self._registry and await self._has(engine, name):
            return False
        built, was_absent = await images.ensure(spec, "", {})
        if self._registry:
            await self._push(engine, built.id, name)
        return was_absent or bool(self._registry)

    async def _has(self, engine: Engine, name: str) -> bool:
        try:
            await engine.call(lambda api: api.inspect_distribution(name))
        except SubstrateError as error:
            if is_status(error, 404, 403, 401, 500):  # a repository that is not there yet is often denied
                return False
            raise
        return True

    async def _push(self, engine: Engine, image_id: str, name: str) -> None:
        repository, _, tag = name.rpartition(":")
        await engine.call(lambda api: api.tag(image_id, repository, tag))
        headers = await engine.call(pull_credentials, repository) or {"X-Registry-Auth": "e30="}  # the engine wants one
        with translated(engine.endpoint):
            path = f"/images/{repository}/push?{urlencode({'tag': tag})}"
            async with json_lines(engine.endpoint, "POST", path, headers=headers) as progress:
                async for event in progress:
                    if "error" in event:
                        raise SubstrateError(
                            "the registry does not take the image that was built",
                            image=name,
                            said=event["error"].strip(),
                            fix="docker login, for this user",
                        )

    async def _opened(self) -> tuple[Engine, Images]:
        async with self._connecting:
            if self._parts is None:
                engine = await Engine.connect(endpoints.find(self._host), threads=THREADS, timeout_s=CALL_TIMEOUT_S)
                self._parts = engine, Images(engine, cache_dir() / "locks")
            return self._parts

    async def close(self) -> None:
        """Let the engine go. Idempotent."""
        if self._parts is not None:
            (engine, _), self._parts = self._parts, None
            await engine.close()
