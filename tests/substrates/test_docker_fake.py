"""The docker substrate against an engine that fails on purpose: nothing half made stays, and errors say what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import IMAGE, Call, FakeEngine, Lines, fake_engine

from rayroll.errors import (
    ConfigError,
    DiskFullError,
    EngineDownError,
    ImageError,
    StartTimeoutError,
    SubstrateError,
    TaskError,
)
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.docker import MOST_REMOVALS, DockerConfig, DockerSubstrate
from rayroll.types import FileTree

LEASE = Lease("run-1", "host-1", 5.0)
SPEC = SandboxSpec(image="plain:latest", memory_mib=64)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with fake_engine(tmp_path) as engine:
        yield engine


@pytest.fixture
async def docker(engine: FakeEngine) -> AsyncIterator[DockerSubstrate]:
    async with DockerSubstrate(DockerConfig(host=engine.host)) as substrate:
        yield substrate


# creates that fail half-way


async def test_a_container_that_the_engine_made_before_it_failed_is_removed(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    engine.after.append((r"POST /containers/create", _fails_for_sandboxes(500, "the daemon lost its mind")))
    with pytest.raises(SubstrateError, match="lost its mind"):
        await docker.create(SPEC, LEASE)
    assert engine.containers == {}


async def test_a_container_that_comes_to_be_after_its_create_was_cancelled_is_removed(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    reached, go_on = _gate(engine, r"POST /containers/create", sandboxes_only=True)
    creating = asyncio.ensure_future(docker.create(SPEC, LEASE))
    await reached.wait()
    creating.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert engine.count(r"POST /containers/create") > 0
    assert engine.containers == {}


async def test_the_helper_that_fills_the_runners_volume_is_removed_when_its_create_is_cancelled(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    reached, go_on = _gate(engine, r"PUT /containers/helper")
    creating = asyncio.ensure_future(docker.create(SPEC, LEASE))
    await reached.wait()
    (helper,) = engine.containers.values()
    assert helper["Labels"]["rayroll.run"] == "run-1"
    creating.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert engine.containers == {}


async def test_creates_under_way_leave_nothing_when_a_sibling_fails(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    others_are_creating = asyncio.Event()

    async def fail_the_third(call: Call) -> tuple[int, Any] | None:
        number = engine.count(r"POST /containers/rayroll-\w+/start")
        if number == 8:
            others_are_creating.set()
        if number == 3:
            await others_are_creating.wait()
            return 500, {"message": "no more"}
        if number > 4:
            await asyncio.sleep(0.2)
        return None

    engine.before.append((r"POST /containers/rayroll-\w+/start", fail_the_third))
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(_create_and_destroy(docker))
    assert caught.group_contains(SubstrateError, match="no more")
    assert engine.containers == {}


async def test_a_second_cancellation_does_not_cut_the_clean_up_short(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    started, start = _gate(engine, r"POST /containers/rayroll-\w+/start")
    removing, remove = _gate(engine, r"DELETE /containers/rayroll")
    creating = asyncio.ensure_future(docker.create(SPEC, LEASE))
    await started.wait()
    creating.cancel()
    start.set()
    await removing.wait()
    creating.cancel()
    remove.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert engine.containers == {}


async def test_an_engine_that_does_not_answer_a_create_gives_a_typed_error_in_time(engine: FakeEngine) -> None:
    reached, go_on = _gate(engine, r"POST /containers/rayroll-\w+/start")
    async with DockerSubstrate(DockerConfig(host=engine.host, create_timeout_s=0.2)) as docker:
        asyncio.get_running_loop().call_later(0.5, go_on.set)
        with pytest.raises(StartTimeoutError, match="not started in time"):
            await docker.create(SPEC, LEASE)
        assert reached.is_set()
    assert engine.containers == {}


async def test_every_container_carries_run_owner_and_lease_from_birth(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    sandbox = await docker.create(SandboxSpec(image="plain:latest", memory_mib=64, labels={"task": "p/t"}), LEASE)
    (create,) = [c for c in engine.calls if c.path == "/containers/create" and c.query.get("name")]
    assert json.loads(create.body)["Labels"] == {
        "rayroll.run": "run-1",
        "rayroll.owner": "host-1",
        "rayroll.lease": "5",
        "rayroll.task": "p/t",
    }
    await docker.destroy(sandbox.ref)


async def test_the_container_is_hardened_and_can_be_attached_to_again(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    sandbox = await docker.create(SPEC, LEASE)
    (container,) = engine.containers.values()
    host = container["HostConfig"]
    assert container["StdinOnce"] is False and container["OpenStdin"] is True and container["Tty"] is False
    assert container["Healthcheck"]["Test"] == ["NONE"]
    assert host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges"]
    assert set(host["CapAdd"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"}
    assert host["PidsLimit"] == 512 and host["NetworkMode"] == "none" and host["AutoRemove"] is True
    assert host["Memory"] == host["MemorySwap"] == 64 << 20 and host["NanoCpus"] == 10**9
    assert host["LogConfig"] == {"Type": "none", "Config": {}} or host["LogConfig"]["Type"] == "none"
    assert not host.get("Privileged")
    await docker.destroy(sandbox.ref)


async def test_an_image_with_a_user_of_its_own_gets_no_capabilities(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    engine.images["own:1"] = {**IMAGE, "Config": {"User": "agent"}}
    sandbox = await docker.create(SandboxSpec(image="own:1", memory_mib=64), LEASE)
    (container,) = engine.containers.values()
    assert not container["HostConfig"].get("CapAdd")
    await docker.destroy(sandbox.ref)


async def test_a_sweep_removes_what_was_created_and_never_started(engine: FakeEngine, docker: DockerSubstrate) -> None:
    labels = {"rayroll.run": "dead", "rayroll.owner": "h", "rayroll.lease": "1"}
    engine.containers = {
        "left": {"Id": "left", "State": "created", "Labels": labels},
        "alive": {"Id": "alive", "State": "running", "Labels": labels},
        "other": {"Id": "other", "State": "created", "Labels": {**labels, "rayroll.run": "another"}},
        "foreign": {"Id": "foreign", "State": "exited", "Labels": {}},
    }
    swept = await docker.sweep({"run": "dead"})
    assert [ref.id for ref in swept] == ["left"]
    assert engine.containers.keys() == {"alive", "other", "foreign"}


# images


async def test_one_pull_serves_all_and_is_patient_with_429(engine: FakeEngine) -> None:
    running = [0, 0]

    async def put_off_twice(call: Call) -> tuple[int, Any] | None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0)
        running[0] -= 1
        if engine.count(r"POST /images/create") <= 2:
            return 429, {"message": "toomanyrequests: You have reached your pull rate limit"}
        return None

    engine.before.append((r"POST /images/create", put_off_twice))
    spec = SandboxSpec(image="wanted:1", memory_mib=64)
    async with DockerSubstrate(DockerConfig(host=engine.host, pull_pause_s=0.01)) as docker:
        sandboxes = await asyncio.gather(*(docker.create(spec, LEASE) for _ in range(16)))
        await asyncio.gather(*(docker.destroy(sandbox.ref) for sandbox in sandboxes))
    assert engine.count(r"POST /images/create") == 3
    assert running[1] == 1
    assert {sandbox.rung for sandbox in sandboxes} == {"cold"}
    assert all(sandbox.phases_s["pull"] > 0 for sandbox in sandboxes)


async def test_a_missing_image_fails_at_once_and_is_not_asked_for_again(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    async def unknown(call: Call) -> tuple[int, Any]:
        return 404, {"message": "manifest for nope:1 not found: manifest unknown"}

    engine.before.append((r"POST /images/create", unknown))
    with pytest.raises(ImageError, match="manifest unknown"):
        await docker.create(SandboxSpec(image="nope:1", memory_mib=64), LEASE)
    assert engine.count(r"POST /images/create") == 1


async def test_an_error_in_the_middle_of_a_pull_is_an_error_of_the_image(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    async def breaks_off(call: Call) -> tuple[int, Any]:
        return 200, {"error": "pull access denied, repository does not exist"}

    engine.before.append((r"POST /images/create", breaks_off))
    with pytest.raises(ImageError, match="pull access denied"):
        await docker.create(SandboxSpec(image="secret:1", memory_mib=64), LEASE)


async def test_images_of_docker_hub_come_from_the_mirror_and_keep_their_name(engine: FakeEngine) -> None:
    async def tag(call: Call) -> tuple[int, Any]:
        engine.images[f"{call.query['repo']}:{call.query['tag']}"] = IMAGE
        return 201, None

    engine.before.append((r"POST /images/.*/tag", tag))
    async with DockerSubstrate(DockerConfig(host=engine.host, mirror="mirror.local:5000")) as docker:
        sandbox = await docker.create(SandboxSpec(image="debian:12", memory_mib=64), LEASE)
        await docker.destroy(sandbox.ref)
    (pull,) = [call for call in engine.calls if call.path == "/images/create"]
    assert pull.query["fromImage"] == "mirror.local:5000/library/debian"


async def test_an_image_for_another_cpu_is_refused_before_anything_is_made(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    engine.images["arm:1"] = {**IMAGE, "Architecture": "arm64"}
    with pytest.raises(ImageError, match=r"aarch64.*x86_64"):
        await docker.create(SandboxSpec(image="arm:1", memory_mib=64), LEASE)
    assert engine.count(r"POST /containers") == 0


async def test_exec_format_error_names_the_cpu_as_the_reason(engine: FakeEngine, docker: DockerSubstrate) -> None:
    async def wrong_cpu(call: Call) -> tuple[int, Any]:
        return 400, {"message": "OCI runtime create failed: exec format error: unknown"}

    engine.before.append((r"POST /containers/rayroll-\w+/start", wrong_cpu))
    with pytest.raises(ImageError, match="another CPU"):
        await docker.create(SPEC, LEASE)
    assert engine.containers == {}


async def test_a_build_that_fails_names_the_step_and_shows_the_end_of_its_log(
    engine: FakeEngine, docker: DockerSubstrate
) -> None:
    async def build(call: Call) -> tuple[int, Any]:
        lines = [{"stream": "Step 2/2 : RUN pip install nope\n"}, {"stream": "ERROR: no nope\n"}, {"error": "code 1"}]
        return 200, Lines(lines)

    engine.images["base:1"] = IMAGE
    engine.before.append((r"POST /build", build))
    environment = FileTree.from_files({"Dockerfile": "FROM base:1\nRUN pip install nope\n"})
    with pytest.raises(TaskError) as caught:
        await docker.create(SandboxSpec(environment=environment, memory_mib=64), LEASE)
    assert caught.value.facts["step"] == "Step 2/2 : RUN pip install nope"
    assert "no nope" in caught.value.facts["log"]


async def test_one_build_serves_all(engine: FakeEngine, docker: DockerSubstrate) -> None:
    async def build(call: Call) -> tuple[int, Any]:
        engine.images[call.query["t"]] = IMAGE
        return 200, {"stream": "Successfully built"}

    engine.images["base:1"] = IMAGE
    engine.before.append((r"POST /build", build))
    spec = SandboxSpec(environment=FileTree.from_files({"Dockerfile": "FROM base:1\n"}), memory_mib=64)
    sandboxes = await asyncio.gather(*(docker.create(spec, LEASE) for _ in range(6)))
    assert engine.count(r"POST /build") == 1
    await asyncio.gather(*(docker.destroy(sandbox.ref) for sandbox in sandboxes))


async def test_images_beyond_the_budget_go_least_recently_used_first(engine: FakeEngine) -> None:
    async def remove(call: Call) -> tuple[int, Any]:
        del engine.images[call.path.removeprefix("/images/")]
        return 200, []

    engine.before.append((r"DELETE /images/", remove))
    engine.before.append((r"GET /images/\w+:\d/json", _sized(engine, 600 << 20)))
    config = DockerConfig(host=engine.host, image_budget_mib=1500)
    async with DockerSubstrate(config) as docker:
        for name in ("a:1", "b:1", "a:1", "c:1"):
            sandbox = await docker.create(SandboxSpec(image=name, memory_mib=64), LEASE)
            await docker.destroy(sandbox.ref)
    assert engine.images.keys() == {"plain:latest", "a:1", "c:1"}


# the engine itself


async def test_a_stopped_engine_is_said_to_be_down_and_how_to_start_it(tmp_path: Path) -> None:
    (tmp_path / "docker.sock").touch()
    probe = await DockerSubstrate(DockerConfig(host=f"unix://{tmp_path}/docker.sock")).probe()
    assert (probe.ok, probe.reason, probe.fix) == (
        False,
        "no Docker engine answers",
        "start it: systemctl start docker",
    )
    with pytest.raises(EngineDownError):
        await DockerSubstrate(DockerConfig(host=f"unix://{tmp_path}/docker.sock")).open()


async def test_a_missing_socket_asks_where_the_engine_is(tmp_path: Path) -> None:
    probe = await DockerSubstrate(DockerConfig(host=f"unix://{tmp_path}/none.sock")).probe()
    assert not probe.ok and "DOCKER_HOST" in probe.fix


async def test_a_wrong_tcp_host_is_said_to_be_down() -> None:
    probe = await DockerSubstrate(DockerConfig(host="tcp://127.0.0.1:9")).probe()
    assert not probe.ok and "listening there" in probe.fix


async def test_an_engine_over_ssh_is_refused_with_the_way_around() -> None:
    probe = await DockerSubstrate(DockerConfig(host="ssh://me@there")).probe()
    assert not probe.ok and "ssh -NL" in probe.reason


async def test_an_engine_that_went_away_is_no_reason_to_give_a_sandbox_up(tmp_path: Path) -> None:
    async with fake_engine(tmp_path) as engine:
        docker = DockerSubstrate(DockerConfig(host=engine.host))
        await docker.open()
        sandbox = await docker.create(SPEC, LEASE)
        (tmp_path / "engine.sock").rename(tmp_path / "moved.sock")
        with pytest.raises(EngineDownError):
            await docker.reopen(sandbox.ref)
        (tmp_path / "moved.sock").rename(tmp_path / "engine.sock")
        (await docker.reopen(sandbox.ref)).close()
        await docker.destroy(sandbox.ref)
        await docker.close()


async def test_a_full_disk_and_a_full_address_pool_are_named(engine: FakeEngine, docker: DockerSubstrate) -> None:
    said = [
        "write /var/lib/docker/x: no space left on device",
        "all predefined address pools have been fully subnetted",
    ]

    async def refuse(call: Call) -> tuple[int, Any]:
        return 500, {"message": said.pop(0)}

    engine.before.append((r"POST /containers/rayroll-\w+/start", refuse))
    with pytest.raises(DiskFullError, match="docker system prune"):
        await docker.create(SPEC, LEASE)
    with pytest.raises(SubstrateError, match="docker network prune"):
        await docker.create(SPEC, LEASE)
    assert engine.containers == {}


async def test_memory_folders_larger_than_the_memory_are_refused(engine: FakeEngine) -> None:
    async with DockerSubstrate(DockerConfig(host=engine.host, tmpfs_mib={"/tmp": 64})) as docker:
        with pytest.raises(ConfigError, match="stay below"):
            await docker.create(SPEC, LEASE)


async def test_no_more_than_max_starting_are_started_at_once(engine: FakeEngine) -> None:
    running = _at_once(engine, r"POST /containers/rayroll-\w+/start")
    async with DockerSubstrate(DockerConfig(host=engine.host, max_starting=3)) as docker:
        sandboxes = await asyncio.gather(*(docker.create(SPEC, LEASE) for _ in range(12)))
        await asyncio.gather(*(docker.destroy(sandbox.ref) for sandbox in sandboxes))
    assert max(running) == 3


async def test_however_many_are_closed_few_are_removed_at_once(engine: FakeEngine, docker: DockerSubstrate) -> None:
    removed = _at_once(engine, r"DELETE /containers/")
    sandboxes = await asyncio.gather(*(docker.create(SPEC, LEASE) for _ in range(24)))
    await asyncio.gather(*(docker.destroy(sandbox.ref) for sandbox in sandboxes))
    assert max(removed) == MOST_REMOVALS and engine.containers == {}


# helpers


def _fails_for_sandboxes(status: int, message: str) -> Any:
    async def hook(call: Call) -> tuple[int, Any] | None:
        return (status, {"message": message}) if call.query.get("name") else None

    return hook


def _sized(engine: FakeEngine, size_bytes: int) -> Any:
    async def hook(call: Call) -> tuple[int, Any] | None:
        name = call.path.split("/")[2]
        return (200, {**IMAGE, "Size": size_bytes}) if name in engine.images else None

    return hook


def _at_once(engine: FakeEngine, pattern: str) -> list[int]:
    """How many calls of that kind were under way when each began; they take a moment."""
    seen: list[int] = []
    under_way = 0

    async def slow(call: Call) -> None:
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        await asyncio.sleep(0.01)
        under_way -= 1

    engine.before.append((pattern, slow))
    return seen


def _gate(engine: FakeEngine, pattern: str, *, sandboxes_only: bool = False) -> tuple[asyncio.Event, asyncio.Event]:
    """Set when a call matches, and what that call waits for."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def hook(call: Call) -> None:
        if not sandboxes_only or call.query.get("name"):
            reached.set()
            await go_on.wait()

    engine.before.append((pattern, hook))
    return reached, go_on


async def _create_and_destroy(docker: DockerSubstrate) -> None:
    sandbox = await docker.create(SPEC, LEASE)
    try:
        await asyncio.Event().wait()
    finally:
        await docker.destroy(sandbox.ref)
