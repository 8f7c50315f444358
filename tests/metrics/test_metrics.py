"""Metrics say what happened, in the units they state, and nothing where there is nothing to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import synthetic

from rayroll.errors import ConfigError, Failure
from rayroll.metrics import Context, Distribution, compute, metric, metrics
from rayroll.metrics.__main__ import page
from rayroll.metrics.actions import latency_s, overhead_s
from rayroll.timing import PHASES
from rayroll.types import Rollout

ROLLOUTS = [synthetic.rollout(task=f"t{i}", actions=5) for i in range(8)]
SPOILT = synthetic.rollout(task="t9", actions=5, failure=Failure("infra", "gone"))


# -- the registry ------------------------------------------------------------------------------------------------


def test_every_metric_has_a_unit_and_a_sentence() -> None:
    for found in metrics().values():
        assert found.unit
        assert found.about.endswith("."), found.name


def test_every_value_has_the_name_that_its_metric_promises() -> None:
    values = compute([*ROLLOUTS, SPOILT], Context(reference=ROLLOUTS, price_per_slot_hour=1.0))
    promised = {n.split("<")[0] + s for m in metrics().values() for n in [m.name] for s in m.suffixes}
    prefixes = {m.name.split("<")[0] for m in metrics().values() if "<" in m.name}
    for name in values:
        assert name in promised or any(name.startswith(prefix) for prefix in prefixes), name
    silent = [m.name for m in metrics().values() if not any(v.startswith(m.name.split("<")[0]) for v in values)]
    assert silent == ["start/reset_s/<rung>"]  # nothing was reset


def test_without_rollouts_there_are_counts_of_nothing_and_no_other_value() -> None:
    assert {name for name, value in compute([]).items() if value != 0} == set()


def test_the_page_in_docs_is_the_one_that_the_registry_writes() -> None:
    assert (Path(__file__).parents[2] / "docs" / "metrics.md").read_text() == page()


def test_a_name_can_be_taken_only_once() -> None:
    metrics()
    with pytest.raises(ConfigError, match="two metrics of one name"):

        @metric("rollout/n", unit="rollouts")
        def again(rollouts: object) -> float:
            return 0.0


def test_quantiles_interpolate_between_the_nearest_two() -> None:
    assert Distribution([4, 1, 3, 2]).parts() == pytest.approx({"mean": 2.5, "p50": 2.5, "p95": 3.85, "p99": 3.97})
    assert Distribution([7]).parts() == {"mean": 7, "p50": 7, "p95": 7, "p99": 7}
    assert Distribution.of([None, None]) is None


# -- what they say -----------------------------------------------------------------------------------------------


def test_failures_are_counted_by_fault_and_spoilt_rollouts_are_not_valid() -> None:
    values = compute([*ROLLOUTS, SPOILT, replace(ROLLOUTS[0], failure=Failure("policy", "killed its sandbox"))])
    assert (values["rollout/n"], values["rollout/valid_n"]) == (10, 9)
    assert (values["failures/infra"], values["failures/policy"], values["failures/task"]) == (1, 1, 0)


def test_an_action_is_its_run_and_its_overhead_and_the_policy_is_in_neither() -> None:
    step = ROLLOUTS[0].steps[0]
    phases = step.phases_s
    assert latency_s(step) == pytest.approx(sum(phases.values()) - phases["policy"])
    assert overhead_s(step) == pytest.approx(latency_s(step) - phases["run"])
    values = compute([replace(ROLLOUTS[0], steps=(step,))])
    assert values["action/overhead_s/p99"] == pytest.approx(overhead_s(step))
    assert values["action/run_s/p50"] == pytest.approx(step.timing.run_ns / 1e9)


def test_starts_are_told_by_rung_and_never_mixed() -> None:
    cold = [replace(r, rung="cold", cold_start_s=9.0) for r in ROLLOUTS[:2]]
    cached = [replace(r, rung="cached", cold_start_s=1.0, reset_s=0.5) for r in ROLLOUTS[2:]]
    values = compute([*cold, *cached])
    assert (values["start/cold_s/cold/p50"], values["start/cold_s/cached/p50"]) == (9.0, 1.0)
    assert values["start/reset_s/cached/mean"] == 0.5
    assert "start/reset_s/cold/mean" not in values


def test_the_wait_for_a_slot_is_in_no_share_and_in_no_tax() -> None:
    waited = []
    for record in ROLLOUTS:
        phases = {**record.timing.phases, "queue": 100.0}
        timing = record.timing
        timing = replace(timing, phases=phases, wall_s=timing.wall_s + 100, infra_s=timing.infra_s + 100)
        waited.append(replace(record, timing=timing))
    at_once, later = (compute(rollouts, Context(reference=ROLLOUTS)) for rollouts in (ROLLOUTS, waited))
    for name in ("timing_s/in_slot/p50", "timing_s/tax/mean", "share/infra", "projection/slot_hours"):
        assert later[name] == pytest.approx(at_once[name]), name
    assert later["timing_s/total/p50"] == pytest.approx(at_once["timing_s/total/p50"] + 100)


def test_shares_add_up_to_one_and_phases_to_their_kind() -> None:
    values = compute([*ROLLOUTS, SPOILT])
    assert sum(v for k, v in values.items() if k in ("share/env", "share/infra", "share/policy")) == pytest.approx(1)
    assert sum(v for k, v in values.items() if k.startswith("share/phase/")) == pytest.approx(1)
    parts = [v for k, v in values.items() if k.removeprefix("timing_s/infra/") in PHASES]
    assert sum(parts) == pytest.approx(values["timing_s/infra/mean"])


def slower(rollout: Rollout, factor: float) -> Rollout:
    """The same work with commands that take ``factor`` times as long."""
    steps = tuple(replace(s, phases_s={**s.phases_s, "run": s.phases_s["run"] * factor}) for s in rollout.steps)
    phases = {n: s * factor if PHASES[n].kind == "env" else s for n, s in rollout.timing.phases.items()}
    timing = replace(rollout.timing, phases=phases, env_s=rollout.timing.env_s * factor)
    return replace(rollout, steps=steps, timing=timing)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_slowdown_is_what_the_same_commands_take_beyond_the_reference_and_is_signed(factor: float) -> None:
    here = [slower(r, factor) for r in ROLLOUTS]
    values = compute(here, Context(reference=ROLLOUTS))
    env_s = sum(r.timing.env_s for r in ROLLOUTS) / len(ROLLOUTS)
    assert values["slowdown/factor"] == pytest.approx(factor)
    assert values["timing_s/slowdown/mean"] == pytest.approx(env_s * (factor - 1))
    assert values["timing_s/tax/mean"] == pytest.approx(values["timing_s/infra/mean"] + env_s * (factor - 1))


def test_other_work_has_no_slowdown() -> None:
    other = replace(ROLLOUTS[0], task_id="never seen by the reference")
    step = ROLLOUTS[0].steps[0]
    changed = replace(ROLLOUTS[0], steps=(replace(step, act=replace(step.act, command="make fast")),))
    values = compute([other, changed], Context(reference=ROLLOUTS))
    assert not {"slowdown/factor", "timing_s/slowdown/mean", "timing_s/tax/mean"} & set(values)


def test_a_cell_is_projected_onto_the_target_and_says_when_it_had_to_extrapolate() -> None:
    as_is = compute(ROLLOUTS, Context(target_rollouts=1000, target_actions=5))
    scaled = compute(ROLLOUTS, Context(target_rollouts=1000, target_actions=50))
    per_rollout_s = sum(r.timing.env_s + r.timing.infra_s for r in ROLLOUTS) / len(ROLLOUTS)
    assert as_is["projection/worker_hours"] == pytest.approx(1000 * per_rollout_s / 3600)
    assert as_is["measured/worker_hours"] == pytest.approx(8 * per_rollout_s / 3600)
    assert as_is["projection/worker_hours_lo"] <= as_is["projection/worker_hours"]
    assert (as_is["projection/extrapolated"], scaled["projection/extrapolated"]) == (0, 1)
    assert scaled["projection/worker_hours"] > as_is["projection/worker_hours"]


def test_cost_appears_with_a_price_and_is_slot_hours_times_it() -> None:
    values = compute(ROLLOUTS, Context(price_per_slot_hour=0.5))
    assert values["projection/cost"] == pytest.approx(values["projection/slot_hours"] / 2)
    assert "projection/cost" not in compute(ROLLOUTS)
