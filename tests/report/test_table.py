"""The comparison on a terminal fits it, and its rows can be kept anywhere."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import orjson
import pytest
import synthetic
from rich.console import Console

from rayroll.errors import Failure
from rayroll.report.results import Results
from rayroll.report.summary import summarize
from rayroll.report.table import comparison, report_rows, report_values


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    rollouts = list(synthetic.sweep(actions=(5,), concurrency=(1,), tasks=4))
    return summarize(Results(rollouts, synthetic.config(["docker"], target_actions=5)))


def text_of(summary: dict[str, Any], width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(comparison(summary))
    return out.getvalue()


def test_the_table_has_a_line_per_substrate_the_floor_first_then_by_hours(summary: dict[str, Any]) -> None:
    lines = [line.split() for line in text_of(summary).splitlines()]
    names = [line[0] for line in lines if line and line[0] in synthetic.HABITS]
    hours = {s["substrate"]: s["worker_hours"]["hours"] for s in summary["substrates"]}
    title = [line[0] for line in lines][:1]
    assert names[-5:] == ["local", *sorted((n for n in hours if n != "local"), key=hours.__getitem__)]
    assert title == [summary["spreads"]["worker_hours"]["most"]]


def test_the_table_fits_the_80_columns_of_a_log(summary: dict[str, Any]) -> None:
    text = text_of(summary, width=80)
    assert "…" not in text


def test_a_run_without_a_valid_rollout_has_a_table_too() -> None:
    rollouts = [synthetic.rollout(failure=Failure("infra", "gone"), actions=2)]
    text = text_of(summarize(Results(rollouts, synthetic.config(["docker"]))))
    assert "0/1" in text and "1 infra" in text


def test_what_starts_on_another_rung_is_named_beside_the_spread(summary: dict[str, Any]) -> None:
    rollouts = [*synthetic.sweep(actions=(5,), concurrency=(1,), tasks=4)]
    changed = [replace(r, rung="snapshot") if r.substrate == "qemu" else r for r in rollouts]
    text = " ".join(text_of(summarize(Results(changed, synthetic.config(["docker"], target_actions=5)))).split())
    assert "qemu apart, its starts are snapshot" in text
    assert "apart" not in text_of(summary)


def test_what_a_substrate_says_of_its_sandboxes_is_told_but_not_what_all_say() -> None:
    rollouts = [
        replace(r, labels={**r.labels, "system": "image", **({"accelerator": "tcg"} if r.substrate == "qemu" else {})})
        for r in synthetic.sweep(actions=(5,), concurrency=(1,), tasks=2)
    ]
    text = text_of(summarize(Results(rollouts, synthetic.config(["docker"], target_actions=5))))
    assert "qemu: accelerator tcg" in text
    assert "system" not in text


def test_env_slowdown_and_infra_are_all_of_the_hours(summary: dict[str, Any]) -> None:
    rows = report_rows(summary)
    assert all(row["env_share"] + row["slowdown_share"] + row["infra_share"] == pytest.approx(1) for row in rows)
    assert all(row["slowdown_share"] + row["infra_share"] == pytest.approx(row["tax_share"]) for row in rows)


def test_rows_are_plain_and_of_equal_columns(summary: dict[str, Any]) -> None:
    rows = report_rows(summary)
    assert len(rows) == 5
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert all(value is None or isinstance(value, str | int | float) for row in rows for value in row.values())
    orjson.dumps(rows)


def test_values_to_remember_are_spreads_and_hours(summary: dict[str, Any]) -> None:
    values = report_values(summary)
    assert values["spread/worker_hours"] == summary["spreads"]["worker_hours"]["ratio"]
    assert values["projection/worker_hours/docker"] > 0
