"""Pulls that fail: each kind is a typed error that names image and registry, tried again only where that may help."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

import docker as docker_py
import pytest
from fake_registry import FakeRegistry, fake_registry
from requirements import needs, use_testbed

from rayroll.errors import ImageError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates.docker import DockerConfig, DockerSubstrate

pytestmark = pytest.mark.docker
needs_docker = needs("docker")
use_testbed()

PULL, MANIFEST, LAYER = r"^/v2/$", r"/manifests/", r"/blobs/"
LOGIN = {"Www-Authenticate": 'Basic realm="fake"'}


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with fake_registry() as registry:
        yield registry


@pytest.fixture
async def docker() -> AsyncIterator[DockerSubstrate]:
    async with DockerSubstrate(DockerConfig(pull_pause_s=0.01)) as substrate:
        yield substrate


@pytest.fixture
def api() -> Any:
    client = docker_py.APIClient(base_url=endpoints.find(None).url, version="auto")
    yield client
    client.close()


async def refused(docker: DockerSubstrate, image: str) -> ImageError:
    """What asking for a sandbox of an image that cannot be pulled raises."""
    with pytest.raises(ImageError) as caught:
        await docker.create(spec_of(image), new_lease())
    assert caught.value.fault == "infra"
    assert (caught.value.facts["image"], caught.value.facts["registry"]) == (image, image.partition("/")[0])
    return caught.value


def spec_of(image: str) -> SandboxSpec:
    return SandboxSpec(image=image, memory_mib=64)


def new_lease() -> Lease:
    return Lease(f"test-{secrets.token_hex(4)}", "host-1", 20.0)


async def test_a_tag_that_does_not_exist_is_asked_for_once(registry: FakeRegistry, docker: DockerSubstrate) -> None:
    image = f"{registry.new_name()}:no-such-tag"
    assert "no such image" in str(await refused(docker, image))
    assert "no such image" in str(await refused(docker, image))
    assert registry.count(PULL) == 1


@pytest.mark.parametrize(
    ("path", "status", "code", "headers"), [(PULL, 401, "UNAUTHORIZED", LOGIN), (MANIFEST, 403, "DENIED", {})]
)
async def test_a_registry_that_wants_a_login_is_asked_once(
    registry: FakeRegistry, docker: DockerSubstrate, path: str, status: int, code: str, headers: dict[str, str]
) -> None:
    registry.fail(path, status, code, **headers)
    image = f"{registry.new_name()}:1"
    assert "docker login" in str(await refused(docker, image))
    seen = len(registry.asked)
    await refused(docker, image)
    assert len(registry.asked) == seen


async def test_a_registry_that_is_not_there_is_tried_a_few_times_for_all_who_wait(docker: DockerSubstrate) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    errors = await asyncio.gather(*(refused(docker, f"{address}/image:1") for _ in range(8)))
    assert {error.message for error in errors} == {"the registry cannot be reached; the engine does not have the image"}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (MANIFEST, 429, "TOOMANYREQUESTS"),
        (MANIFEST, 500, "UNKNOWN"),
        (LAYER, 500, "UNKNOWN"),
        (LAYER, 200, "TRUNCATED"),
    ],
)
async def test_a_registry_that_stumbles_twice_is_asked_again(
    registry: FakeRegistry, docker: DockerSubstrate, api: Any, path: str, status: int, code: str
) -> None:
    registry.fail(path, status, code, times=2)
    image = f"{registry.new_name()}:1"
    sandboxes = await asyncio.gather(*(docker.create(spec_of(image), new_lease()) for _ in range(3)))
    assert {sandbox.rung for sandbox in sandboxes} == {"cold"}
    await asyncio.gather(*(docker.destroy(sandbox.ref) for sandbox in sandboxes))
    await asyncio.to_thread(api.remove_image, image)


@pytest.mark.parametrize(
    ("status", "code", "words"), [(429, "TOOMANYREQUESTS", "asks for patience"), (500, "", "stumbles")]
)
async def test_patience_ends(
    registry: FakeRegistry, docker: DockerSubstrate, status: int, code: str, words: str
) -> None:
    registry.fail(MANIFEST, status, code)
    assert words in str(await refused(docker, f"{registry.new_name()}:1"))
    assert registry.count(PULL) == {429: 6, 500: 3}[status]


async def test_a_layer_that_always_breaks_off_is_given_up(registry: FakeRegistry, docker: DockerSubstrate) -> None:
    registry.fail(LAYER, 200, "TRUNCATED")
    assert "unexpected EOF" in str(await refused(docker, f"{registry.new_name()}:1"))


async def test_an_image_that_came_by_another_way_meanwhile_is_used(
    registry: FakeRegistry, docker: DockerSubstrate, api: Any
) -> None:
    registry.fail(MANIFEST, 403, "DENIED", times=1)
    image = registry.new_name()
    await refused(docker, f"{image}:1")
    await asyncio.to_thread(lambda: list(api.pull(image, "1", stream=True)))
    sandbox = await docker.create(spec_of(f"{image}:1"), new_lease())
    await docker.destroy(sandbox.ref)
    await asyncio.to_thread(api.remove_image, f"{image}:1")


# ahead of need


async def test_a_fetched_image_is_listed_and_no_pull_is_left_for_its_first_sandbox(
    registry: FakeRegistry, docker: DockerSubstrate, api: Any
) -> None:
    spec = spec_of(f"{registry.new_name()}:1")
    assert docker.image_of(spec) not in await docker.images()
    assert await docker.fetch(spec)
    assert docker.image_of(spec) in await docker.images()
    sandbox = await docker.create(spec, new_lease())
    await docker.destroy(sandbox.ref)
    assert sandbox.rung == "cached"
    await asyncio.to_thread(api.remove_image, spec.image)
    assert docker.image_of(spec) not in await docker.images()


async def test_what_nobody_needs_yet_takes_half_of_the_budget_at_most(registry: FakeRegistry, api: Any) -> None:
    specs = [spec_of(f"{registry.new_name()}:1") for _ in range(4)]  # of 1 MiB each
    async with DockerSubstrate(DockerConfig(image_budget_mib=3)) as docker:
        assert [await docker.fetch(spec) for spec in specs] == [True, True, False, False]
        sandbox = await docker.create(specs[0], new_lease())
        await docker.destroy(sandbox.ref)
        assert [await docker.fetch(spec) for spec in specs[:3]] == [True, True, True]
        there = await docker.images()
        assert docker.image_of(specs[1]) in there and docker.image_of(specs[2]) in there
    for spec in specs[:3]:
        await asyncio.to_thread(api.remove_image, spec.image)


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("debian", "debian:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("reg:5000/a/b", "reg:5000/a/b:latest"),
        ("a/b:1@sha256:00", "a/b@sha256:00"),
        ("sha256:00", "sha256:00"),
    ],
)
def test_an_image_is_called_what_engines_list_it_as(asked: str, listed: str) -> None:
    assert DockerSubstrate(DockerConfig()).image_of(spec_of(asked)) == listed
