"""What a report says of a store: by the statistics' own definitions, and without anybody's names."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traces.tiny import call, result, session, step, store, text, user

from rayroll.errors import ConfigError
from rayroll.traces import figures, prices, statistics
from rayroll.traces._kept import KEPT, kept
from rayroll.traces._shield import Shield
from rayroll.traces.findings import Findings, find
from rayroll.traces.main_numbers import MAIN, main
from rayroll.traces.store import Store
from rayroll.traces.synth import synthesize

CALLS = (call(2, "mcp__acme__deploy", result=5), call(2, "Bash", result=3))
OWN = session(
    "my-secret-session",
    step(user(0), *CALLS, append=1000, output=9, model="acme-llm"),
    step(result(5), text(7), prefix=1000, append=500, output=50, model="acme-llm"),
    provider="acme-agent",
)


@pytest.fixture(scope="module")
def made() -> Iterator[Store]:
    with Store.open() as store:
        store.load_rows(synthesize(20, seed=5))
        yield store


@pytest.fixture(scope="module")
def found(made: Store) -> Findings:
    return find(made, prices.load())


def of(rows: list[dict[str, Any]], **keys: Any) -> list[dict[str, Any]]:
    return [row for row in rows if keys.items() <= row.items()]


@pytest.mark.parametrize(
    ("curve", "keys"),
    [
        ("human_wait_s", {}),
        ("generation_s", {"part": "generation_span"}),
        ("request_s", {"part": "e2e"}),
        ("session_s", {"part": "elapsed"}),
        *((f"{measure}_tokens", {"measure": measure}) for measure in ("prefix", "append", "output")),
    ],
)
def test_a_curve_goes_through_the_percentiles_of_its_statistic(
    found: Findings, curve: str, keys: dict[str, Any]
) -> None:
    for provider in ("all", "claude", "codex"):
        [row] = of([*found.statistics[figures.CURVES[curve]]], provider=provider, **keys)
        points = of([*found.figures[curve]], series=provider)
        assert points[0]["n"] == row.get("n", row.get("steps"))
        for share, column in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            assert of(points, share=share)[0]["value"] == pytest.approx(row[column])


def test_the_curves_of_tools_go_through_the_percentiles_of_their_categories(found: Findings) -> None:
    for row in of([*found.statistics["tools_categories"]], provider="all"):
        points = of([*found.figures["tool_latency_s"]], series=row["category"])
        assert of(points, share=0.5)[0]["value"] == pytest.approx(row["p50"])


def test_a_sweep_goes_through_the_rows_of_its_statistic(found: Findings) -> None:
    for name, sweep in figures.SWEEPS.items():
        for row in found.statistics[sweep.statistic]:
            assert row in [
                pytest.approx(other) for other in found.figures[name] if other["provider"] == row["provider"]
            ]


def test_every_statistic_is_the_same_while_views_are_kept_and_views_are_views_again(made: Store) -> None:
    def ask() -> dict[str, Any]:
        return {
            name: sorted(repr([f"{v:.6g}" if isinstance(v, float) else v for v in row.values()]) for row in rows)
            for name in statistics.names()
            for rows in [statistics.compute(made.connection, name)]
        }

    before = ask()
    with kept(made.connection):
        assert ask() == before
    views = {name for (name,) in made.connection.execute("SELECT view_name FROM duckdb_views()").fetchall()}
    assert set(KEPT) <= views and ask() == before


def test_views_are_views_again_after_an_error(made: Store) -> None:
    with pytest.raises(ZeroDivisionError), kept(made.connection):
        raise ZeroDivisionError
    assert statistics.compute(made.connection, "counts_scope")


def test_names_that_are_somebodys_own_are_in_nothing_that_is_found() -> None:
    with store(OWN) as own:
        shut, open_ = (find(own, prices.load(), include_inputs=include) for include in (False, True))
    told = repr((shut.statistics, shut.figures, shut.timelines, shut.published()))
    for name in ("acme", "secret", "'ann'"):
        assert name not in told
    assert "Bash" in told and "other tool 1" in told and "other model 1" in told and "other provider 1" in told
    assert "mcp__acme__deploy" in repr(open_.timelines) and "secret" not in repr(open_.timelines)


def test_a_standin_is_the_same_everywhere_in_a_report() -> None:
    shield = Shield()
    names = [shield.name("name", name) for name in ("b", "a", "b", "Bash")]
    assert names == ["other tool 1", "other tool 2", "other tool 1", "Bash"]
    assert shield.name("model", "claude-opus-4-7") == "claude-opus-4-7"
    assert shield.name("steps", 3) == 3


def test_a_trace_without_times_says_what_is_missing_and_still_counts() -> None:
    rows = session("a", step(user(None), call(None, "Bash", wall_ms=500), append=10, output=5))
    with store(rows) as untimed:
        found = find(untimed, prices.load())
    assert any("No step has a time" in sentence for sentence in found.missing)
    assert found.timelines == [] and found.figures["human_wait_s"] == [] and found.failed == {}
    assert found.value("counts_scope", "steps", provider="all") == 1
    assert found.value("tools_latency", "p50", provider="all") == 500


def test_parts_that_are_missing_are_counted() -> None:
    rows = session(
        "a", step(user(0), call(1, "Bash"), text(2)), step(user(None), text(None), prefix_tokens=None), step(text(9))
    )
    with store(rows) as partial:
        told = " ".join(find(partial, prices.load()).missing)
    assert "1 of 3 steps have no time" in told
    assert "1 of 3 steps do not say how many tokens they read" in told
    assert "All 1 tool calls have no latency" in told
    assert "All 3 steps are of models without a price" in told


def test_what_a_store_cannot_answer_costs_only_its_part() -> None:
    with store(OWN) as own:
        own.connection.execute("ALTER TABLE tools DROP COLUMN is_error")
        found = find(own, prices.load())
    assert "tools_overview" in found.failed and found.statistics["tools_overview"] == []
    assert found.statistics["counts_scope"]


def test_an_empty_store_says_what_fills_it() -> None:
    with Store.open() as empty, pytest.raises(ConfigError, match="the store is empty"):
        find(empty, prices.load())


def test_csv_files_hold_every_statistic_every_figure_and_the_comparison(found: Findings, tmp_path: Path) -> None:
    files = found.write_csv(tmp_path / "csv")
    names = {path.stem for path in files}
    assert names == {*statistics.names(), *(f"figure_{n}" for n in (*figures.CURVES, *figures.SWEEPS)), "published"}
    with (tmp_path / "csv" / "published.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found.comparisons)
    assert {line["published_of"] for line in lines} == {"other data"} and {line["difference"] for line in lines} == {""}


def test_a_folder_that_cannot_be_made_is_named(found: Findings, tmp_path: Path) -> None:
    (tmp_path / "csv").write_text("")
    with pytest.raises(ConfigError, match="cannot write CSV files"):
        found.write_csv(tmp_path / "csv")


def test_progress_counts_every_part(made: Store) -> None:
    seen: list[tuple[str, int, int]] = []
    find(made, prices.load(), progress=lambda *at: seen.append(at))
    assert [done for _, done, _ in seen[1:]] == list(range(seen[-1][2]))


def test_each_main_number_was_published(found: Findings) -> None:
    assert [number for number, _ in main(found.comparisons)] == list(MAIN)
