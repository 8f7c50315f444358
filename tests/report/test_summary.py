"""The summary says what the results folder holds: parts add up, like is compared with like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import synthetic

from rayroll.errors import ConfigError, Failure
from rayroll.report.results import Results
from rayroll.report.summary import summarize, write_summary
from rayroll.timing import PHASES
from rayroll.types import Rollout, Timing


@pytest.fixture(scope="module")
def swept() -> dict[str, Any]:
    return summary_of(list(synthetic.sweep(actions=(5, 10), tasks=4)), target_actions=10)


def summary_of(rollouts: Sequence[Rollout], **changes: Any) -> dict[str, Any]:
    substrates = list(dict.fromkeys(r.substrate for r in rollouts))
    return summarize(Results(rollouts, synthetic.config(substrates, **changes)))


def of(summary: dict[str, Any], substrate: str) -> dict[str, Any]:
    return next(s for s in summary["substrates"] if s["substrate"] == substrate)


def taking(seconds: float, substrate: str, task: str, phase: str = "run", **changes: Any) -> Rollout:
    """A rollout of one phase and known length."""
    env_s, infra_s = (seconds, 0.0) if PHASES[phase].kind == "env" else (0.0, seconds)
    record = synthetic.rollout(substrate, task=task, actions=1)
    timing = Timing(seconds, env_s, infra_s, 0.0, 0.0, {phase: seconds, "other": 0.0})
    return replace(record, steps=(), timing=timing, labels={}, **changes)


# -- the projection ----------------------------------------------------------------------------------------------


def test_the_papers_two_substrates_are_1_82_times_apart() -> None:
    rollouts = [taking(s, name, f"t{i}") for name, s in (("docker", 23.4), ("kubernetes", 42.5)) for i in range(5)]
    summary = summary_of(rollouts, target_actions=None)
    hours = {s["substrate"]: round(s["worker_hours"]["hours"]) for s in summary["substrates"]}
    assert hours == {"docker": 6500, "kubernetes": 11806}
    found = summary["spreads"]["worker_hours"]
    assert (found["least"], found["most"], round(found["ratio"], 2)) == ("docker", "kubernetes", 1.82)
    assert (found["paired"]["lo"], found["paired"]["tasks"]) == (pytest.approx(42.5 / 23.4), 5)


def test_the_parts_of_every_bar_add_up_to_it(swept: dict[str, Any]) -> None:
    for s in swept["substrates"]:
        assert sum(s["parts"].values()) == pytest.approx(s["worker_hours"]["hours"]), s["substrate"]
        assert not {"queue", "policy"} & set(s["parts"])


def test_cost_is_slot_hours_times_the_price(swept: dict[str, Any]) -> None:
    s = of(swept, "docker")
    assert s["cost"]["hours"] == pytest.approx(s["slot_hours"]["hours"] * 0.05)
    assert of(summary_of([synthetic.rollout()], price_per_slot_hour=None), "docker")["cost"] is None


def test_slowdown_is_a_part_of_env_and_nought_for_the_reference(swept: dict[str, Any]) -> None:
    qemu, docker = of(swept, "qemu"), of(swept, "docker")
    assert swept["reference"] == "docker"
    assert (docker["slowdown_factor"], docker["parts"]["slowdown"]) == (1.0, 0.0)
    assert qemu["slowdown_factor"] == pytest.approx(1.9 / 1.03, rel=0.1)  # as the habits of the made-up ones say
    whole = qemu["parts"]["env"] + qemu["parts"]["slowdown"]
    assert whole / qemu["parts"]["env"] == pytest.approx(qemu["slowdown_factor"])


def test_what_the_machine_spoilt_is_paid_by_the_valid_ones() -> None:
    good = [taking(10.0, "docker", f"t{i}") for i in range(4)]
    spoilt = taking(20.0, "docker", "t0", "boot", valid=False, reward=None, failure=Failure("infra", "gone"))
    alone, together = summary_of(good, target_actions=None), summary_of([*good, spoilt], target_actions=None)
    assert of(alone, "docker")["worker_hours"]["per_rollout_s"] == 10.0
    assert of(together, "docker")["worker_hours"]["per_rollout_s"] == 15.0
    assert of(together, "docker")["failures"] == {"infra": 1}


# -- like with like ----------------------------------------------------------------------------------------------


def test_the_floor_takes_no_part_in_spreads(swept: dict[str, Any]) -> None:
    assert swept["floor"] == "local"
    assert "local" not in swept["spreads"]["substrates"]
    assert all("local" not in (v["least"], v["most"]) for v in swept["spreads"].values() if isinstance(v, dict))


def test_cold_starts_do_not_enter_what_cached_ones_are_compared_by() -> None:
    cached = [taking(10.0, "docker", f"t{i}", cold_start_s=1.0) for i in range(3)]
    cold = [taking(99.0, "docker", "t0", rung="cold", cold_start_s=60.0)]
    s = of(summary_of([*cached, *cold], target_actions=None), "docker")
    assert (s["rung"], s["rungs"]) == ("cached", {"cached": 3, "cold": 1})
    assert (s["worker_hours"]["per_rollout_s"], s["cold_start_s"]["p99"]) == (10.0, 1.0)


def test_substrates_that_started_on_different_rungs_have_no_spread() -> None:
    rollouts = [taking(10.0, "docker", "t", rung="cached"), taking(20.0, "qemu", "t", rung="snapshot")]
    summary = summary_of(rollouts, target_actions=None)
    assert summary["spreads"] == {"rung": "cached", "substrates": ["docker"]}
    assert of(summary, "qemu")["rung"] == "snapshot"


def test_starts_that_nobody_measured_leave_the_rung_open() -> None:
    s = of(summary_of([taking(10.0, "docker", "t", cold_start_s=None)], target_actions=None), "docker")
    assert (s["rung"], s["cold_start_s"], s["worker_hours"]["per_rollout_s"]) == (None, None, 10.0)


def test_equal_work_is_said_and_who_did_other_work_is_named(swept: dict[str, Any]) -> None:
    assert swept["equal_work"]["equal"] and swept["equal_work"]["compared"] > 0
    rollouts = [synthetic.rollout(s, task="t1", actions=2) for s in ("docker", "kubernetes", "qemu")]
    rollouts[2] = replace(rollouts[2], work_digest="another")
    found = summary_of(rollouts)["equal_work"]
    assert (found["equal"], found["differing"], found["tasks"]) == (False, {"qemu": 1}, ["t1"])


def test_one_substrate_alone_has_no_equal_work_and_no_spread() -> None:
    summary = summary_of([synthetic.rollout(actions=2)])
    assert (summary["equal_work"]["compared"], summary["equal_work"]["equal"]) == (0, False)
    assert set(summary["spreads"]) == {"rung", "substrates"}


# -- cells and counts --------------------------------------------------------------------------------------------


def test_every_cell_tells_its_metrics_in_the_order_of_the_configuration(swept: dict[str, Any]) -> None:
    assert [(c["substrate"], c["actions"], c["concurrency"]) for c in swept["cells"][:4]] == [
        (swept["cells"][0]["substrate"], actions, width) for actions in (5, 10) for width in (1, 8)
    ]
    for cell in swept["cells"]:
        assert cell["metrics"]["rollout/n"] == cell["n"] == 8
        assert cell["metrics"]["projection/worker_hours"] > 0
    assert sum(c["n"] for c in swept["cells"]) == swept["rollouts"]["n"]


def test_the_histogram_counts_every_action_once(swept: dict[str, Any]) -> None:
    for s in swept["substrates"]:
        assert sum(b["n"] for b in s["overhead_histogram"]) == s["overhead_s"]["n"]


def test_a_cell_of_very_many_rollouts_is_told_by_a_part_of_them_with_exact_counts() -> None:
    record = taking(10.0, "docker", "t")
    bad = replace(record, valid=False, failure=Failure("infra", "gone"))
    summary = summary_of([record] * 5_200 + [bad] * 100, target_actions=None)
    (cell,) = summary["cells"]
    assert (cell["n"], cell["valid"], cell["failures"], cell["sampled"]) == (5_300, 5_200, {"infra": 100}, True)
    assert cell["metrics"]["rollout/n"] == 5_000


# -- the folder --------------------------------------------------------------------------------------------------


def test_a_folder_is_summarized_in_place_and_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    rollouts = [synthetic.rollout(task=f"t{i}", actions=2) for i in range(3)]
    folder = synthetic.write_results(tmp_path / "run", rollouts)
    with (folder / "rollouts.jsonl").open("ab") as file:
        file.write(b'{"v":1,"id":"torn')
    summary = write_summary(folder)
    assert summary["rollouts"]["n"] == 3
    assert orjson.loads((folder / "summary.json").read_bytes()) == orjson.loads(orjson.dumps(summary))


def test_the_same_folder_gives_the_same_summary(tmp_path: Path) -> None:
    folder = synthetic.write_results(tmp_path, list(synthetic.sweep(("docker", "qemu"), actions=(3,), tasks=3)))
    assert write_summary(folder) == write_summary(folder)


def test_what_is_no_results_folder_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        write_summary(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        write_summary(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no rollouts\.jsonl"):
        write_summary(tmp_path)


def test_secrets_of_the_configuration_stay_out_of_the_summary() -> None:
    summary = summary_of([synthetic.rollout(actions=1)], policy={"api_key": "sesame"})
    assert b"sesame" not in orjson.dumps(summary)


def test_preparation_is_told_by_rung_and_counts_nowhere_else() -> None:
    measured = [synthetic.rollout(task=f"t{i}", actions=3) for i in range(3)]
    prepared = [
        synthetic.rollout(task=f"t{i}", actions=1, rung=rung) for i, rung in enumerate(["cold", "cold", "cached"])
    ]
    config = synthetic.config(["docker"])
    summary = summarize(Results(measured, config, prepared))
    assert [(g["substrate"], g["rung"], g["n"]) for g in summary["preparation"]] == [
        ("docker", "cached", 1),
        ("docker", "cold", 2),
    ]
    assert summary | {"preparation": []} == summarize(Results(measured, config))
