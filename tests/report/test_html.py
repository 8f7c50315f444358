"""The page is one file that asks for nothing, shows what the summary says, and survives odd runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest
import synthetic

from rayroll.errors import Failure
from rayroll.record import to_line
from rayroll.report import _format
from rayroll.report.charts import FAMILIES, family_of, timeline_bars
from rayroll.report.html import machine_line, write_report
from rayroll.timing import PHASES
from rayroll.types import Rollout

pytest.importorskip("vl_convert", reason="needs the extra rayroll[report]")


def page_of(folder: Path, rollouts: Sequence[Rollout], **changes: Any) -> str:
    return write_report(synthetic.write_results(folder, rollouts, **changes)).read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    rollouts = list(synthetic.sweep(actions=(5, 10), tasks=4))
    write_report(synthetic.write_results(folder, rollouts, target_actions=10))
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.S)]


def words(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_asks_for_nothing_and_runs_nothing(page: str) -> None:
    assert not re.search(r"<script|<link|<iframe|<img|@import|url\(|\bsrc=|href=", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert len(page) < 400_000


def test_the_first_picture_says_hours_n_and_failures_of_every_substrate(page: str, folder: Path) -> None:
    summary = orjson.loads((folder / "summary.json").read_bytes())
    told = words(pictures(page)[0])
    for s in summary["substrates"]:
        assert s["substrate"] in told
        assert _format.hours(s["worker_hours"]["hours"]) in told
        assert f"{s['valid']} of {s['n']} valid" in told
    failed = sum(sum(s["failures"].values()) > 0 for s in summary["substrates"])
    assert sum(text.startswith("failed: ") for text in told) == failed > 0


def test_hovering_a_segment_says_its_hours_and_share(page: str) -> None:
    titles = [e.text or "" for e in pictures(page)[0].iter("{http://www.w3.org/2000/svg}title")]
    assert any(re.fullmatch(r"qemu, slowdown: [\d,.]+ h, [\d.]+%", title) for title in titles)


def test_the_second_picture_says_the_quantiles_of_every_substrate(page: str, folder: Path) -> None:
    summary = orjson.loads((folder / "summary.json").read_bytes())
    told = words(pictures(page)[1])
    for s in summary["substrates"]:
        assert _format.seconds(s["overhead_s"]["p50"]) in told
        assert _format.seconds(s["overhead_s"]["p99"]) in told


def test_there_is_a_timeline_per_substrate_and_every_colour_is_the_pages(page: str) -> None:
    found = pictures(page)
    assert len(found) == 2 + 5
    colours = {e.get(a) for svg in found for e in svg.iter() for a in ("fill", "stroke")} - {None}
    named = {colour for colour in colours if colour and colour.startswith("var(--")}
    assert colours - named <= {"none", "transparent", "#fff", "#111"}
    assert all(f"{name[4:-1]}:" in page for name in named if name)


def test_names_from_outside_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>&\"'"
    rollouts = [replace(synthetic.rollout(task=evil, actions=2), substrate=s) for s in ("docker", evil)]
    page = page_of(tmp_path, rollouts, run_id=evil, machine={"cpu": evil})
    assert "<script" not in page
    assert evil in words(pictures(page)[0])


@pytest.mark.parametrize(
    ("rollouts", "says"),
    [
        ([synthetic.rollout(task=f"t{i}", actions=3) for i in range(3)], "docker would take"),
        ([synthetic.rollout(failure=Failure("infra", "gone"))], "None of 1 rollouts was valid"),
        ([replace(synthetic.rollout(actions=0), labels={})], "No action was executed"),
        ([replace(synthetic.rollout(actions=2), cold_start_s=None, first_action_s=None)], "never started"),
        ([replace(synthetic.rollout(actions=2), grade=None, reward=None)], "docker would take"),
        ([synthetic.rollout(actions=2, concurrency=8)], "extrapolated from 2 actions, concurrency 8"),
    ],
    ids=["one substrate", "all spoilt", "no action", "no start", "no grade", "crowded only"],
)
def test_odd_runs_have_a_page_too(tmp_path: Path, rollouts: list[Rollout], says: str) -> None:
    page = page_of(tmp_path, rollouts)
    assert says in page
    assert pictures(page) or "nothing can be projected" in page


def test_small_numbers_are_shown_as_they_are(tmp_path: Path) -> None:
    rollouts = [replace(synthetic.rollout(task=f"t{i}", actions=3), labels={}) for i in range(3)]
    page = page_of(tmp_path, rollouts, target_rollouts=1000, target_actions=None)
    summary = orjson.loads((tmp_path / "summary.json").read_bytes())
    assert _format.hours(summary["substrates"][0]["worker_hours"]["hours"]) in words(pictures(page)[0])


def test_what_preparing_took_is_shown_by_rung_where_it_was_recorded(tmp_path: Path) -> None:
    measured = [synthetic.rollout(task=f"t{i}", actions=3) for i in range(3)]
    assert "Before the first rollout" not in page_of(tmp_path, measured)
    (tmp_path / "prepare.jsonl").write_bytes(to_line(synthetic.rollout(actions=1, rung="cold")))
    assert "<td>docker</td><td>cold</td><td>1</td>" in page_of(tmp_path, measured)


# -- the timeline ------------------------------------------------------------------------------------------------


def test_a_timeline_fills_the_time_in_the_slot_without_a_gap_and_gives_each_phase_its_own() -> None:
    record = synthetic.rollout(actions=6, concurrency=8, rung="cold")
    bars = timeline_bars(record)
    assert bars[0].start_s == 0
    assert all(a.end_s == b.start_s for a, b in pairwise(bars))
    queue_s = record.timing.phases["queue"]
    assert queue_s > 0
    assert bars[-1].end_s == pytest.approx(record.timing.wall_s - queue_s)
    for phase, seconds in record.timing.phases.items():
        if phase == "queue":
            continue
        laid = sum(bar.end_s - bar.start_s for bar in bars if bar.phase == phase)
        assert laid == pytest.approx(seconds), phase


def test_the_turn_that_submits_comes_after_the_last_action() -> None:
    record = synthetic.rollout(actions=2)
    longer = {**record.timing.phases, "policy": record.timing.phases["policy"] + 5.0}
    bars = timeline_bars(replace(record, timing=replace(record.timing, phases=longer)))
    last = [bar for bar in bars if bar.phase == "policy"][-1]
    assert (last.what, last.end_s - last.start_s) == ("", pytest.approx(5.0))


def test_every_phase_has_one_colour() -> None:
    assert {family_of(phase).key for phase in PHASES} <= {family.key for family in FAMILIES}
    named = [phase for family in FAMILIES for phase in family.phases]
    assert len(named) == len(set(named))


# -- words -------------------------------------------------------------------------------------------------------


def test_the_machine_is_one_line_whatever_was_recorded() -> None:
    facts = {"cpu": "Example CPU", "cpus": 2, "memory_gib": 8, "kernel": "6.1", "gpu": None}
    assert machine_line(facts) == "Example CPU · 2 CPUs · memory 8 GiB · kernel 6.1"
    assert machine_line("a laptop") == "a laptop"
    assert machine_line(None) == "machine not recorded"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.00085, "850 µs"),
        (0.00273, "2.73 ms"),
        (4.046, "4.05 s"),
        (424.0, "424 s"),
        (3600.0, "60 min"),
        (-0.0019, "−1.9 ms"),
    ],
)
def test_seconds_are_told_in_the_unit_that_fits(value: float | None, text: str) -> None:
    assert _format.seconds(value) == text


def test_several_seconds_share_a_unit_unless_that_hides_the_small_one() -> None:
    assert _format.several_seconds([0.00233, 0.00295, 0.046]) == "2.33 / 2.95 / 46 ms"
    assert _format.several_seconds([0.002, 3.0]) == "2 ms / 3 s"
