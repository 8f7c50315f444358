"""Images that are built here and pulled elsewhere, with a real engine and a real registry."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import docker as docker_py
import pytest
from requirements import check, use_testbed

from rayroll.errors import ConfigError, SubstrateError
from rayroll.substrates import SandboxSpec
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates._published import Publisher
from rayroll.types import FileTree

use_testbed()
REGISTRY = os.environ.get("RAYROLL_TESTBED_REGISTRY", "")
needs_registry = pytest.mark.skipif(not REGISTRY, reason="needs the test bed's registry")


@pytest.fixture
def api() -> Iterator[Any]:
    check("docker")
    client = docker_py.APIClient(base_url=endpoints.find(None).url, version="auto")
    yield client
    client.close()


@pytest.fixture
def spec() -> SandboxSpec:
    """A Dockerfile that nobody has built."""
    text = f"FROM busybox:latest\nLABEL only={secrets.token_hex(8)}\n"
    return SandboxSpec(environment=FileTree.from_files({"Dockerfile": text}))


@asynccontextmanager
async def publisher(registry: str | None) -> AsyncIterator[Publisher]:
    opened = Publisher("anything", registry, None)
    yield opened
    await opened.close()


def remove(api: Any, *names: str) -> None:
    for name in names:
        with suppress(docker_py.errors.ImageNotFound):
            api.remove_image(name)


@needs_registry
async def test_what_one_node_has_built_another_finds_in_the_registry(api: Any, spec: SandboxSpec) -> None:
    async with publisher(f"{REGISTRY}/team") as one, publisher(f"{REGISTRY}/team") as other:
        name, was_built = await one.ensure(spec, "plain", phases_s := {})
        local = name.removeprefix(f"{REGISTRY}/team/")
        remove(api, name, local)  # as on another node
        assert (name, False) == await other.ensure(spec, "plain", {})
    assert was_built and phases_s["build"] > 0 and name.startswith(f"{REGISTRY}/team/")
    with pytest.raises(docker_py.errors.ImageNotFound):
        api.inspect_image(local)
    api.pull(*name.rsplit(":", 1))
    remove(api, name)


async def test_without_a_registry_it_stays_on_the_engine(api: Any, spec: SandboxSpec) -> None:
    async with publisher("") as one:
        name, was_built = await one.ensure(spec, "plain", {})
        assert was_built and api.inspect_image(name)
        assert (name, False) == await one.ensure(spec, "plain", {})
    remove(api, name)


async def test_a_ready_image_is_left_alone() -> None:
    async with publisher(None) as one:
        assert await one.ensure(SandboxSpec(image="some/image"), "plain", {}) == ("some/image", False)
        assert await one.ensure(SandboxSpec(), "plain", {}) == ("plain", False)


async def test_a_dockerfile_that_nobody_said_where_to_put_is_refused(spec: SandboxSpec) -> None:
    async with publisher(None) as one:
        with pytest.raises(ConfigError, match="registry"):
            await one.ensure(spec, "plain", {})


async def test_a_registry_that_takes_nothing_is_named(api: Any, spec: SandboxSpec) -> None:
    async with publisher("127.0.0.1:1") as one:
        with pytest.raises(SubstrateError, match="registry"):
            await one.ensure(spec, "plain", {})
        remove(api, one.name_of(spec, ""), one.name_of(spec, "").removeprefix("127.0.0.1:1/"))
