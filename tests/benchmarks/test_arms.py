"""What the benchmarks stand on: outputs that are checked, turns that end, claims that can fail."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _arms import Burst, Load, WrongOutput, async_burst, next_echo, thread_burst
from _stats import at_least, below, quantile
from _step_claims import FLOOR, Cell, gates
from step_overhead import BASELINES, SUBSTRATES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


async def right(script: str) -> str:
    """What a shell prints for an echo."""
    return script.split()[-1] + "\n"


async def wrong(script: str) -> str:
    """What a cache prints."""
    return "1000000\n"


def test_two_echoes_are_never_the_same_and_have_the_size_asked_for() -> None:
    first, second = next_echo(1000), next_echo(1000)
    assert first != second
    assert len(first.expected) == len(second.expected) == 1000


async def test_every_output_of_a_burst_is_checked() -> None:
    burst = await async_burst(Load(steps=5, output_bytes=0, budget_s=60.0), [right, right])
    assert burst.checked == len(burst.latencies_s) == 10
    assert burst.wall_s > 0


async def test_a_wrong_output_ends_a_burst() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await async_burst(Load(steps=5, output_bytes=0, budget_s=60.0), [right, wrong])
    assert raised.group_contains(WrongOutput)


async def test_wrong_outputs_of_what_is_not_ours_are_counted() -> None:
    load = Load(steps=5, output_bytes=0, budget_s=60.0)
    with ThreadPoolExecutor(2) as pool:
        burst = await thread_burst(load, pool, [lambda script: "something else\n", lambda script: f"{script[5:]}\n"])
    assert (burst.checked, len(burst.wrong), len(burst.latencies_s)) == (10, 5, 10)
    assert "printed 15 characters: 'something else" in burst.wrong[0]


async def test_no_step_begins_after_the_turn_is_over() -> None:
    async def slow(script: str) -> str:
        await asyncio.sleep(0)
        return await right(script)

    burst = await async_burst(Load(steps=10**9, output_bytes=0, budget_s=0.0), [slow])
    assert burst.checked == 1


def test_a_claim_is_about_the_median_and_can_fail() -> None:
    rounds = [9.0, 100.0, 11.0]
    assert at_least("speed", 10.0, rounds).passed
    assert not at_least("speed", 12.0, rounds).passed
    assert not below("cost", 10.0, rounds).passed
    assert below("cost", 11.0, rounds).value == 11.0


def test_claims_about_steps_are_those_of_what_was_asked_for_and_each_can_fail() -> None:
    fast, slow = Burst(wall_s=1.0, latencies_s=[0.002]), Burst(wall_s=1.0, latencies_s=[0.01])
    names = {"runner-opensandbox": fast, "opensandbox-sdk": slow}
    cell = Cell(1, 0, rounds=[names], floors_s=[{FLOOR: [0.001, 0.001]}])
    (gate,) = gates([cell], {"opensandbox", "opensandbox-sdk"})
    assert (gate.value, gate.passed) == (pytest.approx(5.0), True)
    assert [gate.value for gate in gates([Cell(1, 0, rounds=[{}])], {"opensandbox", "opensandbox-sdk"})] == [None]
    assert gates([cell], {"opensandbox"}) == []


def test_every_baseline_runs_beside_a_substrate_that_can_be_measured() -> None:
    for baseline in BASELINES.values():
        assert baseline.substrate is None or baseline.substrate in SUBSTRATES
        assert (BENCHMARKS / f"{baseline.module}.py").exists()


def test_what_was_not_measured_is_no_pass() -> None:
    gate = below("cost", 1.0, None)
    assert not gate.passed
    assert gate.as_json()["value"] is None


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 3.0
    assert quantile([5.0], 0.99) == 5.0
