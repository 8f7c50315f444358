"""The scheduler's benchmark takes the times that simulated sandboxes take, and shares processors as it says."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import pytest
from _simulation import CONTAINERS, CROWDED, Cluster, Curve, Provider, Trouble, Work
from jumping_clock import JumpingClock

from rayroll import Client, SessionConfig, Task
from rayroll.scheduler import SchedulerConfig
from rayroll.substrates.simulated import PROFILES, Draw, Profile, SimulatedConfig, SimulatedSubstrate
from rayroll.types import FileTree

TASK = Task("bench/nothing", "", environment=FileTree.from_files({}), tests=FileTree.from_files({}))
ROLLOUTS, TURNS = 300, 3
SECOND = Profile(create=Draw(median_s=1.0))
PAIR = Curve(((1, 1.0), (2, 2.0)))
"""Two processors, and nothing lost."""


def outcome(profile: Profile, rollouts: int, *, starts: int = 1000, turns: int = 0, **more: Any) -> Any:
    config = SchedulerConfig.parse({"starts": {"first": starts, "most": 1000, "is_adaptive": False}})
    work = Work(rollouts, turns, policy=Draw(), group_size=1, ahead=None)
    return Cluster(**{"nodes": 1, "slots": 1000, "profile": profile, "work": work, "config": config, **more}).run()


@pytest.mark.parametrize("name", ["docker-like", "heavy-tail"])
async def test_rollouts_through_the_simulated_substrate_take_as_long(name: str) -> None:
    profile = PROFILES[name].model_copy(update={"pull": Draw()})
    clock = JumpingClock()
    jumping = asyncio.ensure_future(clock.jump())
    started_s, commands_s = [], []
    substrate = SimulatedSubstrate(SimulatedConfig(profile=profile, seed=1), clock=clock)
    # The lease is renewed by the real clock, which this one leaves far behind.
    async with Client(substrate, config=SessionConfig(lease_s=86_400.0)) as client:
        for _ in range(ROLLOUTS):
            async with client.open(TASK, trusted=True) as session:
                began_s = clock.now_s
                await session.booted()
                started_s.append(clock.now_s - began_s)
                for _ in range(TURNS):
                    began_s = clock.now_s
                    await session.exec("true")
                    commands_s.append(clock.now_s - began_s)
    jumping.cancel()
    modelled = outcome(profile, ROLLOUTS, turns=TURNS, curve=None)
    # Medians: a mean over 300 of these tails is off by a third between two seeds of the same.
    assert statistics.median(modelled.start_s) == pytest.approx(statistics.median(started_s), rel=0.15)
    assert statistics.median(modelled.command_s) == pytest.approx(statistics.median(commands_s), rel=0.25)
    assert statistics.mean(modelled.start_s) == pytest.approx(statistics.mean(started_s), rel=0.5)


def test_more_starts_than_processors_only_make_all_of_them_wait() -> None:
    assert outcome(SECOND, 8, starts=2, curve=PAIR).makespan_s == pytest.approx(4.0)
    crowd = outcome(SECOND, 8, starts=8, curve=PAIR)
    assert crowd.makespan_s == pytest.approx(4.0)
    assert crowd.start_s == pytest.approx([4.0] * 8)


def test_a_crowd_costs_what_was_measured() -> None:
    assert outcome(SECOND, 32, starts=32, curve=CROWDED).makespan_s == pytest.approx(32 / 0.98)
    assert CONTAINERS.speed(3) == pytest.approx(1.90)
    assert CONTAINERS.speed(5) == pytest.approx(2.15)
    assert Curve(CONTAINERS.at, scale=10.0).speed(30) == pytest.approx(19.0)


def test_a_provider_refuses_whoever_asks_too_often() -> None:
    provider = Provider(per_s=1.0, burst=2, retry_after_s=3.0)
    refused = outcome(SECOND, 6, curve=None, provider=provider)
    assert (refused.done, refused.lost) == (6, 0)
    assert refused.attempts > 6


def test_a_lost_node_spoils_what_it_runs() -> None:
    lost = outcome(SECOND, 4, curve=None, nodes=2, slots=2, troubles=[Trouble(0, 0.5, 5.0, is_down=True)])
    assert (lost.done, lost.attempts, lost.retries) == (4, 6, 2)
