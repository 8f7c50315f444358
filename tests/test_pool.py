"""The pool of idle sandboxes: what is handed out lives, is of the right shape, and is no longer kept than was said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import little
import pytest
from requirements import check

from rayroll import Client, SessionConfig
from rayroll.errors import ClosedError, ConfigError, InfraFailure, SubstrateError
from rayroll.pool import PoolStats
from rayroll.substrates import Channel, Lease, Sandbox, SandboxRef, SandboxSpec, load
from rayroll.testing.disturbed import Disturbed, DisturbedConfig


@contextlib.asynccontextmanager
async def opened(kind: str = "local", *, wrong: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[Client]:
    """A client, and the certainty that its run leaves nothing."""
    check(kind)
    substrate = Disturbed(DisturbedConfig(inner=kind, inner_config=little.SUBSTRATE_CONFIG[kind], **(wrong or {})))
    async with Client(substrate, config=SessionConfig(**{"lease_s": 5.0, **config})) as client:
        yield client
    assert await listed(kind, client.run_id) == []


async def listed(kind: str, run_id: str) -> list[SandboxRef]:
    substrate = load(kind)
    async with substrate(substrate.config_type()) as fresh:
        return await fresh.list({"run": run_id})


def made(client: Client) -> int:
    """How many sandboxes were started."""
    assert isinstance(client.substrate, Disturbed)
    return len(client.substrate.created)


@pytest.fixture(params=["local", "docker"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with opened(request.param) as client:
        yield client


async def use(client: Client, task: Any = None) -> tuple[str, str | None]:
    """Open, run, close; the sandbox's id and its rung."""
    async with client.open(task or little.task()) as session:
        assert (await session.exec("echo here")).output == "here\n"
        return (await session.booted()).ref.id, session.rung


# --- warm ---


async def test_a_warm_sandbox_is_handed_out_once_and_to_its_shape_alone(client: Client) -> None:
    assert await client.warm(little.task())
    assert client.pool.stats.idle == 1
    other = await use(client, little.task("other"))
    assert (other[1], client.pool.stats.idle) == ("cached", 1)
    assert [(await use(client))[1] for _ in range(2)] == ["warm", "cached"]
    stats = client.pool.stats
    assert (stats.hits, stats.misses, stats.hit_rate) == (1, 2, 1 / 3)


@pytest.mark.parametrize(
    "change", [{"memory_mib": 300}, {"env": {"A": "1"}}, {"workdir": "/tmp"}, {"agent_network": True}], ids=str
)
async def test_what_a_sandbox_is_born_with_is_its_shape(change: dict[str, Any]) -> None:
    async with opened() as client:
        assert client.shape(little.task()) == client.shape(little.task())
        assert client.shape(little.task()) != client.shape(little.task(**change))
        assert client.shape(little.task()) != client.shape(little.task(), trusted=True)


async def test_the_rollout_pays_for_the_hand_out_alone(client: Client) -> None:
    await client.warm(little.task())
    async with client.open(little.task()) as session:
        await session.booted()
        assert [span.phase for span in session.recorder.spans] == ["connect"]
        assert session.cold_start_s is not None
        (span,) = session.recorder.spans
        assert session.cold_start_s == pytest.approx((span.end_ns - span.start_ns) / 1e9)


async def test_a_dead_one_is_found_out_when_it_is_wanted(client: Client) -> None:
    gone: list[str] = []
    client.pool.on_gone = gone.append
    await client.warm(little.task())
    assert isinstance(client.substrate, Disturbed)
    await client.substrate.inner.destroy(client.substrate.created[0])
    assert (await use(client))[1] == "cached"
    stats = client.pool.stats
    assert (stats.dead_at_hand_out, stats.hits, stats.misses, stats.idle) == (1, 0, 1, 0)
    assert gone == [client.shape(little.task())]


async def test_a_warm_start_that_is_cancelled_leaves_nothing() -> None:
    async with opened(wrong={"create_s": 0.1}) as client:
        for moment in range(8):
            warming = asyncio.create_task(client.warm(little.task()))
            await little.pause(0.03 * moment)
            warming.cancel()
            await asyncio.wait({warming})
            await client.cool()
            assert await listed("local", client.run_id) == []


async def test_a_client_that_closes_ends_what_is_on_its_way_up() -> None:
    async with opened(wrong={"create_s": 0.3}) as client:
        warming = asyncio.create_task(client.warm(little.task()))
        await little.pause(0.1)
    with pytest.raises(ClosedError):
        await warming


async def test_a_failed_warm_start_is_told() -> None:
    async with opened(wrong={"creates_that_fail": 1}) as client:
        with pytest.raises(SubstrateError, match="told to fail"):
            await client.warm(little.task())
        assert client.pool.stats.idle == 0


# --- bounds ---


async def test_a_full_pool_makes_room_for_another_shape_only() -> None:
    async with opened(max_idle=2) as client:
        assert [await client.warm(little.task()) for _ in range(3)] == [True, True, False]
        assert await client.warm(little.task("other"))
        assert client.pool.stats.idle == 2
        assert [(await use(client))[1], (await use(client, little.task("other")))[1]] == ["warm", "warm"]


async def test_idle_sandboxes_are_taken_down_as_asked() -> None:
    async with opened() as client:
        for name in ("one", "one", "two"):
            await client.warm(little.task(name))
        assert await client.cool(little.task("one"), most=1) == 1
        assert await client.cool(little.task("three")) == 0
        assert len(await listed("local", client.run_id)) == client.pool.stats.idle == 2
        assert await client.cool() == 2


async def test_nobody_idles_for_longer_than_was_said() -> None:
    async with opened(max_idle_s=0.2) as client:
        await client.warm(little.task())

        async def is_gone() -> bool:
            return await listed("local", client.run_id) == []

        await little.until_true(is_gone)
        assert client.pool.stats.idle == 0


async def test_a_sandbox_is_used_again_so_often_and_no_more(client: Client) -> None:
    async with opened(client.substrate.config.inner, reset="recycle", max_reuses=2) as recycling:  # type: ignore[attr-defined]
        rungs = [(await use(recycling))[1] for _ in range(4)]
        assert rungs == ["cached", "recycled", "recycled", "cached"]
        assert made(recycling) == 2


async def test_without_room_to_idle_nothing_is_reset() -> None:
    async with opened(reset="recycle", max_idle=0) as client:
        assert [(await use(client))[1] for _ in range(2)] == ["cached", "cached"]
        assert client.pool.stats == PoolStats(0, 0, 2, 0, 0, 0, {})


# --- giving back ---


async def test_a_fresh_reset_destroys_what_was_used(client: Client) -> None:
    assert len({(await use(client))[0] for _ in range(2)}) == 2
    assert client.pool.stats.recycled == 0


async def test_a_sandbox_that_is_still_in_use_is_not_handed_on() -> None:
    async with opened(reset="recycle") as client:
        session = client.open(little.task())
        await session.booted()
        running = asyncio.create_task(session.exec("sleep 100"))
        await little.pause(0.1)
        await session.close()
        with pytest.raises(ClosedError):
            await running
        assert client.pool.stats.reasons == {"in use": 1}
        assert (await use(client))[1] == "cached"


async def test_a_closed_session_cannot_reach_the_sandbox_that_another_has() -> None:
    async with opened(reset="recycle") as client:
        async with client.open(little.task()) as closed:
            await closed.exec("true")
        async with client.open(little.task()) as session:
            assert (await session.exec("ls")).output == ""
            assert session.rung == "recycled"
            for reach in (closed.exec("true"), closed.write("x", b""), closed.read("/etc/passwd"), closed.grade()):
                with pytest.raises(ClosedError):
                    await reach


async def test_a_lost_sandbox_is_not_handed_on() -> None:
    async with opened(reset="recycle") as client:
        async with client.open(little.task()) as session:
            assert isinstance(client.substrate, Disturbed)
            await client.substrate.inner.destroy((await session.booted()).ref)
        assert client.pool.stats.reasons == {"lost": 1}


async def test_a_client_that_closes_resets_nothing_and_leaves_nothing() -> None:
    async with opened(reset="recycle") as client:
        sessions = [client.open(little.task()) for _ in range(3)]
        await asyncio.gather(*(session.exec("echo x > left") for session in sessions))
        closing = asyncio.create_task(sessions[0].close())
        await asyncio.sleep(0)
    await closing
    assert client.pool.stats.idle == 0


async def test_a_cancelled_close_still_gives_back() -> None:
    async with opened(reset="recycle") as client:
        session = client.open(little.task())
        await session.exec("echo x > left")
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert client.pool.stats.recycled == 1
        assert (await use(client))[1] == "recycled"


async def test_a_sandbox_whose_network_was_switched_is_not_handed_on() -> None:
    task = little.task(grade_network=True)
    async with opened("docker", reset="recycle") as client:
        async with client.open(task) as session:
            await session.grade()
        assert client.pool.stats.reasons == {"network": 1}


async def test_a_plain_process_is_never_known_to_be_clean() -> None:
    check("local")
    config = SessionConfig(reset="recycle")
    async with Client("local", substrate_config={"isolation": "none", "rootfs": "host"}, config=config) as client:
        async with client.open(little.task()) as session:
            live = await session._live()
            with pytest.raises(InfraFailure, match="only as PID 1"):
                await live.runner.reset()
        assert client.pool.stats.reasons == {"dirty": 1}


# --- restore ---


@pytest.mark.parametrize("kind", ["local", "docker", "simulated"])
def test_a_substrate_that_cannot_restore_says_so_at_once(kind: str) -> None:
    with pytest.raises(ConfigError, match="cannot restore a sandbox by itself; set reset to 'recycle'"):
        Client(kind, config=SessionConfig(reset="restore"))


class Restoring(Disturbed):
    """A restored sandbox is one whose runner has heard nothing yet: here a new one, behind the name of the old."""

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        self.asked = (spec, lease)
        self.behind: list[SandboxRef] = []
        return await super().create(spec, lease)

    async def restore(self, ref: SandboxRef) -> Channel:
        again = await self.inner.create(*self.asked)
        self.behind.append(again.ref)
        return again.channel

    async def destroy(self, ref: SandboxRef) -> None:
        for hidden in (*self.behind, ref):
            await super().destroy(hidden)


async def test_a_substrate_that_can_restore_is_spoken_to_anew() -> None:
    check("local")
    substrate = Restoring(DisturbedConfig(inner="local", inner_config=little.SUBSTRATE_CONFIG["local"]))
    async with Client(substrate, config=SessionConfig(reset="restore")) as client:
        assert [(await use(client))[1] for _ in range(2)] == ["cached", "recycled"]
        assert (len(substrate.created), len(substrate.behind), client.pool.stats.recycled) == (1, 2, 2)
