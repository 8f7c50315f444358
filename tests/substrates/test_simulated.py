"""The substrate that is not there behaves like one that is, repeats itself for a seed, and fails on order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from jumping_clock import JumpingClock

from rayroll._live import start
from rayroll.errors import ConfigError, SandboxFileError, SandboxLostError, StartTimeoutError, SubstrateError
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.simulated import Draw, Profile, Script, SimulatedConfig, SimulatedSubstrate
from rayroll.timing import Recorder

LEASE = Lease("run-1", "host-1", 30.0)


@pytest.fixture
async def client() -> AsyncIterator[RunnerClient]:
    async with SimulatedSubstrate(SimulatedConfig()) as simulated:
        yield await connected(simulated)


async def connected(simulated: SimulatedSubstrate, spec: SandboxSpec | None = None) -> RunnerClient:
    sandbox = await simulated.create(spec or SandboxSpec(workdir="/app"), LEASE)
    return await RunnerClient.connect(sandbox.channel, lease_s=30.0, reopen=lambda: simulated.reopen(sandbox.ref))


async def test_the_small_shell_prints_and_fails(client: RunnerClient) -> None:
    assert (await client.exec("echo 'a  b' c")).output == "a  b c\n"
    assert (await client.exec("pwd")).output == "/app\n"
    assert [(await client.exec(command)).exit_code for command in ("true", "false", "exit 7", "'")] == [0, 1, 7, 2]
    assert (await client.exec(argv=["echo", "hi"])).output == "hi\n"


async def test_files_are_kept_listed_and_removed(client: RunnerClient) -> None:
    data = bytes(range(256)) * 2000
    await client.write_file("/app/sub/data", data, mode=0o600)
    assert await client.read_file("/app/sub/data") == data
    assert (await client.stat("/app/sub/data")).mode == 0o600
    assert [entry.path for entry in await client.list_tree("/app")] == [b"sub", b"sub/data"]
    assert [entry.path for entry in await client.list_tree("/", exclude=[b"app/sub"])] == [b"app"]
    before = await client.digest("/app")
    await client.write_file("/app/sub/data", b"x")
    assert await client.digest("/app") != before
    await client.remove("/app/sub")
    with pytest.raises(SandboxFileError):
        await client.read_file("/app/sub/data")


async def test_output_beyond_the_cap_keeps_head_and_tail() -> None:
    profile = Profile(scripts=(Script(match="^make$", output="a" * 50 + "b" * 50, exit_code=2),))
    async with SimulatedSubstrate(SimulatedConfig(profile=profile)) as simulated:
        result = await (await connected(simulated)).exec("make", output_cap_bytes=20)
    assert (result.exit_code, result.raw, result.output_bytes, result.truncated) == (
        2,
        b"a" * 10 + b"b" * 10,
        100,
        True,
    )


async def test_a_script_may_leave_files() -> None:
    profile = Profile(scripts=(Script(match="pytest", writes={"/app/report.txt": "fine"}),))
    async with SimulatedSubstrate(SimulatedConfig(profile=profile)) as simulated:
        client = await connected(simulated)
        await client.exec("python -m pytest -q")
        assert await client.read_file("/app/report.txt") == b"fine"


async def test_a_command_over_its_limit_is_stopped_and_its_files_are_not_there(client: RunnerClient) -> None:
    result = await client.exec("sleep 60", timeout_s=0.01)
    assert (result.timed_out, result.limit, result.exit_code) == (True, "total", 143)


async def test_kill_all_ends_what_runs(client: RunnerClient) -> None:
    running = asyncio.ensure_future(client.exec("sleep 60"))
    await client.exec("true")
    assert await client.kill_all() == 1
    assert (await running).exit_code == 143


async def test_the_stream_can_be_broken_and_opened_again_without_losing_a_result() -> None:
    profile = Profile(stream_break_per_command=1.0, run=Draw(median_s=0.01))
    async with SimulatedSubstrate(SimulatedConfig(profile=profile)) as simulated:
        client = await connected(simulated)
        assert (await client.exec("echo once")).output == "once\n"
        assert client.reattached == 1


async def test_death_in_mid_command_is_a_lost_sandbox_with_its_cause() -> None:
    async with SimulatedSubstrate(SimulatedConfig(profile=Profile(death_per_command=1.0))) as simulated:
        sandbox = await simulated.create(SandboxSpec(), LEASE)
        client = await RunnerClient.connect(sandbox.channel, reopen=lambda: simulated.reopen(sandbox.ref))
        with pytest.raises(SandboxLostError):
            await client.exec("echo hi")
        assert await simulated.cause_of_death(sandbox.ref) == "exit 137"
        assert await simulated.list({}) == []


async def test_creation_and_hello_fail_on_order() -> None:
    async with SimulatedSubstrate(SimulatedConfig(profile=Profile(create_failure=1.0))) as simulated:
        with pytest.raises(SubstrateError):
            await simulated.create(SandboxSpec(), LEASE)
    async with SimulatedSubstrate(SimulatedConfig(profile=Profile(hello_failure=1.0))) as simulated:
        with pytest.raises(StartTimeoutError):
            await connected(simulated)


async def test_a_lease_that_nobody_renews_ends_the_sandbox() -> None:
    async with SimulatedSubstrate(SimulatedConfig()) as simulated:
        sandbox = await simulated.create(SandboxSpec(), Lease("r", "o", 0.01))
        receiver = Ended()
        sandbox.channel.start(receiver)
        await receiver.ended.wait()
        assert await simulated.cause_of_death(sandbox.ref) == "lease"


async def test_sandboxes_are_listed_by_label_and_gone_when_destroyed() -> None:
    async with SimulatedSubstrate(SimulatedConfig()) as simulated:
        sandbox = await simulated.create(SandboxSpec(), LEASE)
        other = await simulated.create(SandboxSpec(), Lease("run-2", "host-1"))
        assert await simulated.list({"run": "run-1"}) == [sandbox.ref]
        assert await simulated.list({"owner": "host-1"}) == [sandbox.ref, other.ref]
        await simulated.destroy(sandbox.ref)
        await simulated.destroy(sandbox.ref)
        assert await simulated.list({"run": "run-1"}) == []


async def test_an_image_is_pulled_once_and_all_who_wait_for_it_are_cold() -> None:
    profile = Profile(pull=Draw(median_s=0.01))
    async with SimulatedSubstrate(SimulatedConfig(profile=profile)) as simulated:
        spec = SandboxSpec(image="a")
        first = await asyncio.gather(*(simulated.create(spec, LEASE) for _ in range(3)))
        later = await simulated.create(spec, LEASE)
        assert [sandbox.rung for sandbox in first] == ["cold"] * 3
        assert later.rung == "cached" and "pull" not in later.phases_s


def test_equal_seeds_take_equal_times_on_a_clock_of_their_own() -> None:
    assert hours("heavy-tail", seed=1) == hours("heavy-tail", seed=1)
    assert hours("heavy-tail", seed=1) != hours("heavy-tail", seed=2)


def test_a_wrong_profile_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'docker-like'"):
        SimulatedConfig.parse({"profile": "docker_like"})


async def test_the_sandboxes_of_a_host_that_is_gone_do_not_all_end_at_once() -> None:
    clock, lived_s = JumpingClock(), []
    async with SimulatedSubstrate(SimulatedConfig(), clock=clock) as simulated:
        jumping = asyncio.ensure_future(clock.jump())
        for _ in range(30):
            live = await start(simulated, SandboxSpec(), LEASE, Recorder(), hello_timeout_s=5.0)
            await live.runner.close()  # it renews nothing any more
            began_s = clock.now_s
            while await simulated.list({}):  # noqa: ASYNC110 - its lease
                await asyncio.sleep(0)
            lived_s.append(clock.now_s - began_s)
        jumping.cancel()
    assert LEASE.duration_s <= min(lived_s) and max(lived_s) <= 2 * LEASE.duration_s
    assert max(lived_s) - min(lived_s) > LEASE.duration_s / 2


def hours(profile: str, seed: int) -> float:
    """Virtual seconds that fifty commands in ten sandboxes take, without waiting for any of them."""

    async def run() -> float:
        clock = JumpingClock()
        async with SimulatedSubstrate(SimulatedConfig(profile=profile, seed=seed), clock=clock) as simulated:
            jumping = asyncio.ensure_future(clock.jump())
            for _ in range(10):
                client = await connected(simulated)
                for number in range(5):
                    await client.exec(f"echo {number}")
                await client.close()
            jumping.cancel()
            return clock.now_s

    return asyncio.run(run())


class Ended:
    """A receiver that waits for the end of its stream."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()
