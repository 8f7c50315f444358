"""Held-out sessions decide: against all calls, tools and programs, on recorded commands and on sizes alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from traces.tiny import call, result, session, step, store, user

from rayroll.errors import ConfigError
from rayroll.traces import kv
from rayroll.traces.predict.evaluate import evaluate, split
from rayroll.traces.predict.examples import Recorded, in_time, sessions_in, sessions_of
from rayroll.traces.predict.fit import fit, pinball, shareable
from rayroll.traces.predict.gaps import waits
from rayroll.traces.rows import write_rows
from rayroll.traces.synth import synthesize

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "benchmarks" / "results" / "commands" / "commands.jsonl.zst"
DATA = Path(__file__).parent / "data"


@cache
def recorded() -> list[Recorded]:
    """Every fourth of the recorded sessions; benchmarks/predict.py takes all of them."""
    return sessions_in(COMMANDS)[::4]


def repository(one: Recorded) -> str:
    return (one.project or "").rpartition("-")[0]


def test_recorded_commands_are_predicted_15_percent_better_than_by_tool_and_in_unseen_repositories_too() -> None:
    for group in (None, repository):
        train, test = split(recorded(), "session" if group is None else "project", group=group)
        gain = evaluate(train, test).gain("per tool")
        assert gain.least >= 0.15
        assert min(gain.seconds_low, gain.log_low) > 0


def test_of_tools_and_sizes_alone_it_makes_no_less_than_tools_do(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", synthesize(60, seed=1))  # type: ignore[arg-type]
    train, test = split(sessions_in(tmp_path / "rows.jsonl"))
    found = evaluate(train, test)
    assert found.gain("per tool").log >= 0
    assert found.gain("per tool").seconds >= -0.02


def test_the_same_seed_gives_the_same_figures() -> None:
    train, test = split(recorded()[:30], seed=3)
    assert evaluate(train, test, seed=3).scores == evaluate(train, test, seed=3).scores


def test_baselines_are_exact_quantiles() -> None:
    times = [float(n) for n in range(1, 21)]
    train = recorded_calls("train", [("Bash", t) for t in times] + [("Read", 0.5)] * 20)
    test = recorded_calls("test", [("Bash", 7.5)])
    scores = {score.name: score for score in evaluate(train, test).scores}
    levels = np.array((0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99))
    loss = pinball(np.array([7.5]), np.quantile(times, levels)[None])
    assert scores["per tool"].pinball_s == pytest.approx(float(loss[0]))
    assert scores["per tool"].coverage == {0.1: 0, 0.25: 0, 0.5: 1, 0.75: 1, 0.9: 1, 0.95: 1, 0.99: 1}


def test_the_pinball_loss_by_hand() -> None:
    assert pinball(np.array([10.0]), np.array([[4.0, 12.0]]), (0.5, 0.9)).tolist() == pytest.approx(
        [(0.5 * 6 + 0.1 * 2) / 2]
    )


@pytest.mark.parametrize("by", ["session", "time", "project"])
def test_no_session_is_on_both_sides(by: str) -> None:
    train, test = split(recorded(), by, seed=5)  # type: ignore[arg-type]
    assert {one.id for one in train}.isdisjoint(one.id for one in test)
    assert len(train) + len(test) == len(recorded())
    if by == "project":
        assert {one.project for one in train}.isdisjoint(one.project for one in test)
    if by == "time":
        assert test == recorded()[-len(test) :]


def test_one_session_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="cannot be split"):
        split(recorded()[:1])


def test_traces_without_times_are_refused(tmp_path: Path) -> None:
    rows = session("a", step(user(None), call(None)))
    write_rows(tmp_path / "r.jsonl", rows)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no tool call"):
        sessions_in(tmp_path / "r.jsonl")


def test_times_are_the_stores_effective_latency() -> None:
    rows = session(
        "a", step(user(0), call(1, result=5, internal_ms=1500), call(1, "Read", result=3), call(1, "Edit", result=None))
    )
    with store(rows) as opened:
        [one] = sessions_of(opened.connection)
    assert [timed.seconds for timed in one.calls] == [1.5, 2.0, None]


def test_calls_side_by_side_start_before_either_ends() -> None:
    rows = session(
        "a", step(user(0), call(1, result=9), call(2, "Read", result=4)), step(result(9), call(10, result=11))
    )
    with store(rows) as opened:
        events = [(timed.call.tool, ended) for _, timed, ended in in_time(sessions_of(opened.connection))]
    assert events == [("Bash", False), ("Read", False), ("Read", True), ("Bash", True), ("Bash", False), ("Bash", True)]


def test_rows_bring_their_commands_and_rollouts_follow_one_another(tmp_path: Path) -> None:
    write_rows(tmp_path / "r.jsonl", session("a", step(user(0), call(1, result=2, input={"command": "make"}))))  # type: ignore[arg-type]
    [one] = sessions_in(tmp_path / "r.jsonl")
    assert "make" in str(one.calls[0].call.input)
    starts = [one.calls[0].call.at_s or 0.0 for one in recorded() if one.calls]
    assert starts == sorted(starts) and len(set(starts)) == len(starts)


def test_a_shareable_model_knows_no_command_and_no_project() -> None:
    made = fit(shareable(recorded()[:20]))
    full = fit(recorded()[:20])
    assert len(made) < 50 < len(full)
    assert not {"program", "main", "exact", "where"} & set(made.weights) or len(made) < 50


def test_a_caches_policy_is_told_the_longest_of_a_steps_calls() -> None:
    rows = [
        row
        for n in range(9)
        for row in session(
            str(n),
            step(user(0), call(1, "Bash", id="a", result=101), call(1, "Read", id="b", result=2), append=10),
            step(result(101, id="a"), result(101, id="b"), call(102, "Read", id="c", result=103), prefix=10, append=5),
            step(result(103, id="c"), prefix=15, append=5),
            step(user(200), prefix=20, append=5),
        )
    ]
    with store(rows) as opened:
        sessions = sessions_of(opened.connection)
        gaps = kv.Gaps.read(opened.connection)
        expected = waits(opened.connection, fit(sessions))
        said = [(gap.trigger, expected(gap)) for gap in gaps.gaps][-3:]
        outcomes = kv.study(gaps, [kv.predicted(expected, 50.0)])
    (_, long_s), (_, short_s), of_user = said
    assert long_s is not None and short_s is not None
    assert long_s > 50 > 5 > short_s
    assert of_user == ("user", None)
    assert 0 < outcomes[0].hits < outcomes[0].steps


def recorded_calls(name: str, calls: list[tuple[str, float]]) -> list[Recorded]:
    rows = session(
        name, *(step(user(100 * n), call(100 * n, tool, result=100 * n + s)) for n, (tool, s) in enumerate(calls))
    )
    with store(rows) as opened:
        return sessions_of(opened.connection)
