"""Containers for real: what they may do, how they end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import docker as docker_py
import little
import pytest
from requirements import needs, use_testbed

from rayroll.errors import ConfigError, ImageError, SandboxLostError, TaskError
from rayroll.runner.client import RunnerClient
from rayroll.session import Client
from rayroll.substrates import Lease, Sandbox, SandboxSpec
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates.docker import MOST_REMOVALS, DockerConfig, DockerSubstrate
from rayroll.substrates.local import LocalConfig, LocalSubstrate
from rayroll.types import FileTree

pytestmark = pytest.mark.docker
needs_docker = needs("docker")
use_testbed()

PLAIN = SandboxSpec(image="debian:bookworm-slim", memory_mib=128)
PROJECT = FileTree.from_files(
    {
        "Dockerfile": "FROM python:3.11-slim\nRUN useradd -m -u 1000 dev\nENV MODE=test\n"
        "WORKDIR /srv/work/app\nCOPY . .\nRUN chown -R dev /srv/work\nUSER dev\n",
        "calc.py": "def add(a, b):\n    return a + b\n",
        "test_calc.py": "import calc\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n",
    }
)


@pytest.fixture
def lease() -> Lease:
    return Lease(f"test-{secrets.token_hex(4)}", "host-1", 20.0)


@pytest.fixture
async def docker() -> AsyncIterator[DockerSubstrate]:
    async with DockerSubstrate(DockerConfig()) as substrate:
        yield substrate


@pytest.fixture
def api() -> Any:
    client = docker_py.APIClient(base_url=endpoints.find(None).url, version="auto")
    yield client
    client.close()


@asynccontextmanager
async def running(
    docker: DockerSubstrate | LocalSubstrate, spec: SandboxSpec, lease: Lease
) -> AsyncIterator[tuple[Sandbox, RunnerClient]]:
    sandbox = await docker.create(spec, lease)
    try:
        client = await RunnerClient.connect(
            sandbox.channel, lease_s=lease.duration_s, reopen=lambda: docker.reopen(sandbox.ref)
        )
        try:
            yield sandbox, client
        finally:
            await client.close()
    finally:
        await docker.destroy(sandbox.ref)


async def output(client: RunnerClient, script: str) -> str:
    return (await client.exec(script, timeout_s=60)).output


# what it may do


async def test_the_engine_was_told_to_hold_it(docker: DockerSubstrate, lease: Lease, api: Any) -> None:
    async with running(docker, PLAIN, lease) as (sandbox, client):
        found = await asyncio.to_thread(api.inspect_container, sandbox.ref.id)
        host, config = found["HostConfig"], found["Config"]
        assert host["Privileged"] is False and host["CapDrop"] == ["ALL"] and host["NetworkMode"] == "none"
        assert host["SecurityOpt"] == ["no-new-privileges"] and host["PidsLimit"] == 512
        assert host["Memory"] == host["MemorySwap"] == 128 << 20 and host["NanoCpus"] == 10**9
        assert host["AutoRemove"] is True and host["LogConfig"]["Type"] == "none"
        assert host["ShmSize"] == 32 << 20
        assert config["StdinOnce"] is False and config["OpenStdin"] is True
        assert config["Labels"].items() >= {
            ("rayroll.run", lease.run_id),
            ("rayroll.owner", "host-1"),
            ("rayroll.lease", "20"),
        }
        mounts = [(m["Destination"], m["RW"]) for m in found["Mounts"]]
        assert mounts == [("/.rayroll", False)]
        assert client.greeting.is_init and client.greeting.uid == 0
        status = await output(client, "grep -E '^(CapEff|NoNewPrivs)' /proc/self/status")
        assert status.split() == ["CapEff:", "00000000000000eb", "NoNewPrivs:", "1"]
        assert sandbox.rung == "cached" and set(sandbox.phases_s) >= {"create", "boot"}


async def test_root_can_use_other_users_files_and_become_them(docker: DockerSubstrate, lease: Lease) -> None:
    async with running(docker, PLAIN, lease) as (_, client):
        script = "mkdir /d && chown 1000:1000 /d && chmod 700 /d && echo hi > /d/f && cat /d/f"
        assert await output(client, script) == "hi\n"
        assert (await client.exec("id -u", user="1000")).output == "1000\n"
        assert (await client.exec("mount -t tmpfs x /mnt")).exit_code != 0


async def test_an_image_with_its_own_user_has_no_capabilities_at_all(docker: DockerSubstrate, lease: Lease) -> None:
    async with running(docker, SandboxSpec(environment=PROJECT, memory_mib=256), lease) as (_, client):
        result = await output(client, "id -un; pwd; echo $MODE; grep CapEff /proc/self/status; python3 -m pytest -q")
        assert result.split()[:5] == ["dev", "/srv/work/app", "test", "CapEff:", "0" * 16]
        assert "1 passed" in result


async def test_the_network_is_off_until_it_is_switched_on(docker: DockerSubstrate, lease: Lease) -> None:
    async with running(docker, PLAIN, lease) as (sandbox, client):
        interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | xargs"
        assert await output(client, interfaces) == "lo\n"
        await docker.set_network(sandbox.ref, True)
        await docker.set_network(sandbox.ref, True)
        assert await output(client, interfaces) == "lo eth0\n"
        await docker.set_network(sandbox.ref, False)
        assert await output(client, interfaces) == "lo\n"


async def test_a_read_only_root_leaves_the_folders_in_memory(lease: Lease) -> None:
    config = DockerConfig(read_only_root=True, tmpfs_mib={"/tmp": 8, "/data": 8})
    async with DockerSubstrate(config) as docker, running(docker, PLAIN, lease) as (_, client):
        assert (await client.exec("touch /x")).exit_code == 1
        assert (await client.exec("echo hi > /tmp/x && echo hi > /data/x")).exit_code == 0
        full = await client.exec("head -c 20M /dev/zero > /tmp/big")
        assert "No space left" in full.output
        assert await output(client, "echo alive") == "alive\n"


async def test_orphans_are_reaped(docker: DockerSubstrate, lease: Lease) -> None:
    async with running(docker, PLAIN, lease) as (_, client):
        await client.exec("for i in $(seq 300); do (sleep 0 &) ; done", timeout_s=60)
        await client.exec("sleep 1")
        assert await output(client, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '") == "0\n"


async def test_processes_are_limited_and_a_neighbour_does_not_notice(docker: DockerSubstrate, lease: Lease) -> None:
    small = SandboxSpec(image="busybox:latest", memory_mib=64, pids=20)
    async with running(docker, small, lease) as (_, client), running(docker, PLAIN, lease) as (_, neighbour):
        result = await client.exec("for i in $(seq 40); do sleep 5 & done; wait", timeout_s=10)
        assert "can't fork" in result.output
        assert await output(neighbour, "echo alive") == "alive\n"
        await client.kill_all()
        assert await output(client, "echo alive too") == "alive too\n"


async def test_a_quiet_command_outlasts_the_clients_timeout_for_calls(lease: Lease) -> None:
    async with DockerSubstrate(DockerConfig(call_timeout_s=1)) as docker, running(docker, PLAIN, lease) as (_, client):
        assert await output(client, "sleep 2.5; echo done") == "done\n"


async def test_sixteen_at_once_on_four_threads(lease: Lease) -> None:
    spec = SandboxSpec(image="busybox:latest", memory_mib=32)

    async def one(docker: DockerSubstrate, number: int) -> str:
        async with running(docker, spec, lease) as (_, client):
            return await output(client, f"sleep 1; echo {number}")

    async with DockerSubstrate(DockerConfig(control_threads=4, max_starting=4)) as docker:
        assert await asyncio.gather(*(one(docker, n) for n in range(16))) == [f"{n}\n" for n in range(16)]
        assert await docker.list({"run": lease.run_id}) == []


# how it ends


async def test_a_broken_stream_is_opened_again_and_state_is_still_there(docker: DockerSubstrate, lease: Lease) -> None:
    async with running(docker, PLAIN, lease) as (sandbox, client):
        await client.exec("cd /tmp; export A=1")
        for _ in range(3):
            sandbox.channel.close()
            assert await output(client, "pwd; echo $A") == "/tmp\n1\n"


async def test_a_killed_container_is_lost_and_says_how(docker: DockerSubstrate, lease: Lease, api: Any) -> None:
    async with running(docker, PLAIN, lease) as (sandbox, client):
        command = asyncio.ensure_future(client.exec("sleep 60"))
        await client.exec("true")
        await asyncio.to_thread(api.kill, sandbox.ref.id)
        with pytest.raises(SandboxLostError):
            await command
        assert await docker.cause_of_death(sandbox.ref) == "exit 137"
        with pytest.raises(SandboxLostError):
            await docker.reopen(sandbox.ref)


async def test_memory_that_runs_out_in_the_runners_place_is_an_oom(lease: Lease) -> None:
    config = DockerConfig(tmpfs_mib={"/a": 40})
    spec = SandboxSpec(image="debian:bookworm-slim", memory_mib=48)
    async with DockerSubstrate(config) as docker, running(docker, spec, lease) as (sandbox, client):
        # Files in memory cannot be killed: with more of them than the limit allows, PID 1 goes in the end.
        fill = "head -c 39M /dev/zero > /a/x; head -c 12M /dev/zero > /dev/shm/x; sleep 5"
        try:
            await client.exec(fill, timeout_s=30)
            await client.exec("head -c 39M /dev/zero | tail -c 38M | wc -c", timeout_s=30)
        except SandboxLostError:
            assert await docker.cause_of_death(sandbox.ref) == "oom"
        else:
            assert await docker.cause_of_death(sandbox.ref) == ""


async def test_stopping_it_takes_no_grace_period(docker: DockerSubstrate, lease: Lease, api: Any) -> None:
    async with running(docker, PLAIN, lease) as (sandbox, client):
        await client.exec("(trap '' TERM; sleep 60) & sleep 60 &")
        await asyncio.to_thread(api.stop, sandbox.ref.id, 60)
        assert await docker.cause_of_death(sandbox.ref) == "exit 0"


async def test_its_lease_ends_it_and_the_container_removes_itself(docker: DockerSubstrate) -> None:
    lease = Lease(f"test-{secrets.token_hex(4)}", "host-1", 0.5)
    sandbox = await docker.create(PLAIN, lease)
    assert await docker.cause_of_death(sandbox.ref) in ("", "exit 0")
    async with asyncio.timeout(20):
        while await docker.list({"run": lease.run_id}):  # noqa: ASYNC110 - the engine's doing
            await asyncio.sleep(0.05)
    assert await docker.cause_of_death(sandbox.ref) == "exit 0"


async def test_what_was_created_and_never_started_is_swept(docker: DockerSubstrate, lease: Lease, api: Any) -> None:
    labels = {"rayroll.run": lease.run_id, "rayroll.owner": "host-1", "rayroll.lease": "0"}
    made = await asyncio.to_thread(lambda: api.create_container("busybox:latest", ["true"], labels=labels)["Id"])
    (found,) = await docker.list({"run": lease.run_id})
    assert (found.id, found.state) == (made, "created")
    swept = await docker.sweep({"run": lease.run_id}, older_than_s=0.0)
    assert [ref.id for ref in swept] == [made]
    assert await docker.list({"run": lease.run_id}) == []


async def test_destroying_what_is_gone_is_no_error(docker: DockerSubstrate, lease: Lease) -> None:
    sandbox = await docker.create(PLAIN, lease)
    await asyncio.gather(*(docker.destroy(sandbox.ref) for _ in range(3)))
    await docker.destroy(sandbox.ref)
    assert await docker.list({"run": lease.run_id}) == []


async def test_a_cancelled_create_leaves_nothing(docker: DockerSubstrate, lease: Lease) -> None:
    for delay_s in (0.0, 0.01, 0.05, 0.15, 0.3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay_s):
                sandbox = await docker.create(PLAIN, lease)
                await docker.destroy(sandbox.ref)
                raise TimeoutError  # it was faster
        assert await docker.list({"run": lease.run_id}) == []


async def test_however_many_sessions_close_at_once_the_engine_has_few_removals_under_way(api: Any) -> None:
    since = int(time.time())
    async with Client("docker") as client:
        sessions = [client.open(little.task()) for _ in range(12)]
        await asyncio.gather(*(session.booted() for session in sessions))
    query = {"since": since, "until": int(time.time()) + 1, "filters": {"label": f"rayroll.run={client.run_id}"}}
    told = await asyncio.to_thread(lambda: [event["Action"] for event in api.events(**query, decode=True)])
    told = told[len(told) - told[::-1].index("start") :]
    # A kill begins a removal. Nobody died otherwise.
    under_way = [told[:end].count("kill") - told[:end].count("destroy") for end in range(len(told) + 1)]
    assert told.count("kill") == told.count("die") == told.count("destroy") == 12
    assert max(under_way) <= MOST_REMOVALS


# images


async def test_a_dockerfile_is_built_once_and_its_sandbox_is_then_cached(docker: DockerSubstrate, lease: Lease) -> None:
    files = {"Dockerfile": "FROM busybox:latest\nCOPY token /token\n", "token": secrets.token_hex(8)}
    spec = SandboxSpec(environment=FileTree.from_files(files), memory_mib=64)
    sandboxes = await asyncio.gather(*(docker.create(spec, lease) for _ in range(3)))
    assert {s.rung for s in sandboxes} == {"cold"} and all(s.phases_s["build"] > 0 for s in sandboxes)
    assert len({s.facts["image"] for s in sandboxes}) == 1
    await asyncio.gather(*(docker.destroy(s.ref) for s in sandboxes))
    async with running(docker, spec, lease) as (sandbox, client):
        assert sandbox.rung == "cached"
        assert await output(client, "cat /token") == files["token"]
    await docker._engine.call(lambda api: api.remove_image(sandbox.facts["image"], force=True))


async def test_a_dockerfile_that_does_not_build_names_its_step(docker: DockerSubstrate, lease: Lease) -> None:
    files = {"Dockerfile": f"FROM busybox:latest\nRUN echo {secrets.token_hex(4)} && ls /no-such-folder\n"}
    with pytest.raises(TaskError, match="does not build") as caught:
        await docker.create(SandboxSpec(environment=FileTree.from_files(files)), lease)
    assert caught.value.facts["step"].startswith("Step 2/3 : RUN echo")
    assert "/no-such-folder: No such file" in caught.value.facts["log"]


async def test_an_image_that_nobody_has_is_named(lease: Lease) -> None:
    registry = os.environ.get("RAYROLL_TESTBED_REGISTRY", "127.0.0.1:9")
    async with DockerSubstrate(DockerConfig(pull_pause_s=0.01)) as docker:
        with pytest.raises(ImageError, match="no-such-image"):
            await docker.create(SandboxSpec(image=f"{registry}/no-such-image:1"), lease)


@pytest.mark.skipif("RAYROLL_TESTBED_REGISTRY" not in os.environ, reason="needs the test bed's registry")
async def test_an_image_of_a_registry_is_pulled_once_for_all(docker: DockerSubstrate, lease: Lease, api: Any) -> None:
    name = f"{os.environ['RAYROLL_TESTBED_REGISTRY']}/pulled-{secrets.token_hex(4)}"

    def publish() -> None:
        api.tag("busybox:latest", name, "1")
        list(api.push(name, "1", stream=True))
        api.remove_image(f"{name}:1")

    await asyncio.to_thread(publish)
    spec = SandboxSpec(image=f"{name}:1", memory_mib=64)
    sandboxes = await asyncio.gather(*(docker.create(spec, lease) for _ in range(4)))
    assert {s.rung for s in sandboxes} == {"cold"} and all(s.phases_s["pull"] > 0 for s in sandboxes)
    await asyncio.gather(*(docker.destroy(s.ref) for s in sandboxes))
    await asyncio.to_thread(api.remove_image, f"{name}:1")


# the engine's address


@pytest.mark.skipif("RAYROLL_TESTBED_DOCKER_TCP" not in os.environ, reason="needs the test bed's engine on TCP")
async def test_the_engine_is_reached_over_tcp_as_well(lease: Lease) -> None:
    config = DockerConfig(host=os.environ["RAYROLL_TESTBED_DOCKER_TCP"])
    async with DockerSubstrate(config) as docker, running(docker, PLAIN, lease) as (sandbox, client):
        assert (await docker.probe()).facts["host"].startswith("tcp://")
        sandbox.channel.close()
        assert await output(client, "head -c 1000000 /dev/zero | wc -c") == "1000000\n"


# the same root filesystem without the engine's overhead


@pytest.mark.local
async def test_a_local_sandbox_stands_on_the_same_image(lease: Lease) -> None:
    needed = LocalSubstrate(LocalConfig(rootfs="image"))
    if not (probe := await needed.probe()).ok:
        pytest.skip(probe.reason)
    spec = SandboxSpec(environment=PROJECT)
    script = "id -un; pwd; ls; echo $MODE; python3 -m pytest -q -p no:cacheprovider | head -1"
    async with DockerSubstrate(DockerConfig()) as docker, running(docker, spec, lease) as (_, client):
        expected = await output(client, script)
    async with needed as local, running(local, spec, lease) as (sandbox, client):
        assert sandbox.system == "image"
        assert await output(client, script) == expected
        assert (await client.exec("touch /usr/x /etc/x")).exit_code == 1
        workdir = "cd / && rm -rf /srv/work/app && mkdir /srv/work/app && touch /srv/work/app/new ~/.profile-of-mine"
        assert (await client.exec(workdir)).exit_code == 0
    config = LocalConfig(rootfs="image", engine="unix:///nowhere.sock")
    async with LocalSubstrate(config) as offline, running(offline, spec, lease) as (sandbox, client):
        assert await output(client, "cat calc.py") == "def add(a, b):\n    return a + b\n"
        assert sandbox.rung == "cached"
        with pytest.raises(ConfigError):
            await offline.set_network(sandbox.ref, True)


@pytest.mark.local
async def test_a_local_sandbox_falls_back_to_the_node_where_the_task_allows_it(lease: Lease) -> None:
    files = {"Dockerfile": f"FROM busybox:latest\nWORKDIR /app\nCOPY token .\n# {secrets.token_hex(8)}\n", "token": "t"}
    spec = SandboxSpec(environment=FileTree.from_files(files), host_packages=())
    config = LocalConfig(engine="unix:///nowhere.sock")
    async with LocalSubstrate(config) as local, running(local, spec, lease) as (sandbox, client):
        assert sandbox.system == "host"
        assert await output(client, "cat token") == "t"
