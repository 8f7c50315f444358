"""Starts are compared within a round, on the rung they were brought to; a claim that was not measured is no pass."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from _arms import Skipped
from _ladders import LADDERS, REGISTRY, Way
from cold_start import Row, Start, cache_folder, gates, over_first, takes_part

from rayroll.substrates import kinds


def row(name: str, cold_start_s: dict[int, float], kind: str = "qemu") -> Row:
    starts = {n: Start(value, 0.0, value, "cached", {}) for n, value in cold_start_s.items()}
    return Row(kind, Way("cached", name), starts)


def test_ratios_are_of_rounds_that_both_have() -> None:
    boot, saved = row("boot", {0: 20.0, 1: 30.0, 2: 99.0}), row("saved", {0: 2.0, 1: 2.0, 3: 0.1})
    assert over_first(saved, [boot, saved]) == pytest.approx([1 / 15, 1 / 12, 1 / 10], abs=1e-4)
    (gate,) = gates([boot, saved], ["qemu"])
    assert (gate.value, gate.passed) == (12.5, True)


def test_a_claim_about_what_was_asked_for_and_never_started_fails() -> None:
    assert [gate.passed for gate in gates([row("boot", {0: 9.0}), row("saved", {})], ["qemu"])] == [False]
    assert [gate.passed for gate in gates([], ["qemu"])] == [False]
    assert gates([row("", {0: 1.0}, "local")], ["local"]) == []


def test_slow_ways_take_part_in_as_many_rounds_as_were_asked_for_spread_over_all() -> None:
    chosen = [number for number in range(20) if takes_part(number, 20, 5)]
    assert (len(chosen), chosen[0], {b - a for a, b in itertools.pairwise(chosen)}) == (5, 0, {4})
    assert [sum(takes_part(n, 7, most) for n in range(7)) for most in (1, 3, 7)] == [1, 3, 7]
    assert takes_part(-1, 20, 5), "caches are filled before all rounds"


def test_without_a_registry_nothing_can_be_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REGISTRY, raising=False)
    (cold,) = [way for way in LADDERS["docker"].ways if way.rung == "cold"]
    with pytest.raises(Skipped, match=REGISTRY):
        cold.image("busybox")


def test_every_ladder_is_of_a_substrate_and_its_claims_are_about_its_ways() -> None:
    for kind, ladder in LADDERS.items():
        assert kind in kinds()
        assert {name for claim in ladder.claims for name in (claim.slow, claim.fast)} <= {w.name for w in ladder.ways}


def test_a_cache_of_ones_own_can_be_read_by_sandboxes() -> None:
    with cache_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o711
    assert not Path(folder).exists()
