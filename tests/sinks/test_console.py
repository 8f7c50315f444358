"""Whoever watches learns how far, how fast and how long still; stdout stays untouched."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import synthetic
from rich.console import Console

from rayroll.errors import Failure
from rayroll.sinks import SinkWorker
from rayroll.sinks.console import ConsoleSink, Progress


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def progress(total: int | None = 10) -> Progress:
    state = Progress(total=total, title="sweep")
    state.start(100.0)
    return state


def text_of(state: Progress, now_s: float, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(state.render(now_s))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_rate_and_time_left_follow_from_what_finished() -> None:
    state = progress()
    for second in range(1, 5):
        state.add(synthetic.rollout(sample=second, actions=1), 100.0 + 3 * second)
    assert state.rate_per_s(112.0) == pytest.approx(4 / 12)
    assert state.eta_s(112.0) == pytest.approx(6 * 3)
    assert state.line(112.0).startswith("sweep: 4/10 | 20.0/min | 0:18 left")


def test_a_resumed_run_counts_what_was_done_before_but_not_in_its_rate() -> None:
    state = Progress(total=1000, done=900)
    state.start(0.0)
    for second in (1, 2):
        state.add(synthetic.rollout(sample=second, actions=1), float(second))
    assert (state.done, state.rate_per_s(2.0), state.eta_s(2.0)) == (902, 1.0, 98.0)


def test_before_anything_finished_nothing_is_guessed() -> None:
    state = progress()
    assert (state.rate_per_s(101.0), state.eta_s(101.0), state.shares()) == (None, None, {})
    assert state.line(101.0) == "sweep: 0/10"
    assert "sweep" in text_of(state, 101.0)


def test_shares_are_of_the_time_spent_and_failures_are_told_by_fault() -> None:
    state = progress(None)
    record = synthetic.rollout(actions=2)
    timing = replace(record.timing, wall_s=10.0, env_s=5.0, infra_s=3.0, policy_s=2.0)
    state.add(replace(record, timing=timing), 101.0)
    state.add(replace(record, timing=timing, failure=Failure("infra", "gone")), 102.0)
    line = state.line(103.0)
    assert "sweep: 2 |" in line
    assert "env 50% | infra 30% | policy 20% | failed: 1 infra" in line


def test_the_display_has_a_line_per_cell_with_its_total_and_its_overhead() -> None:
    state = progress()
    state.cell_totals = {"docker-a3-c1": 4}
    state.gauges = {"sched/in_flight": 3.0}
    for sample in range(2):
        state.add(synthetic.rollout("docker", sample=sample, actions=3), 101.0 + sample)
    state.add(synthetic.rollout("qemu", actions=3), 104.0)
    text = text_of(state, 105.0)
    assert "3/10" in text and "3 in flight" in text
    assert [line.split()[:2] for line in text.splitlines() if "-a3-c1" in line] == [
        ["docker-a3-c1", "2/4"],
        ["qemu-a3-c1", "1"],
    ]


def test_more_cells_than_a_screen_holds_show_the_ones_touched_last() -> None:
    state = progress()
    for actions in range(1, 16):
        state.add(synthetic.rollout(actions=actions), 100.0 + actions)
    text = text_of(state, 120.0)
    assert "and 3 more" in text
    assert "docker-a15-c1" in text and "docker-a1-c1" not in text


def test_without_a_terminal_there_are_plain_lines_now_and_then_and_one_at_the_end() -> None:
    out, clock = io.StringIO(), Clock()
    sink = ConsoleSink(total=30, title="sweep", console=Console(file=out), clock=clock, line_s=10)
    sink.open()
    for sample in range(25):
        clock.now_s += 1
        sink.add(synthetic.rollout(sample=sample, actions=1))
    sink.close()
    sink.close()
    lines = out.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["sweep: 1/30", "sweep: 11/30", "sweep: 21/30", "sweep: 25/30"]
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_the_last_state_stays_and_stdout_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with SinkWorker([ConsoleSink(total=3, title="sweep", console=console)]) as worker:
        for sample in range(3):
            worker.put_blocking(synthetic.rollout(sample=sample, actions=1))
        print("the result")  # noqa: T201
    assert "3/3" in out.getvalue()
    assert capsys.readouterr().out == "the result\n"


def test_by_default_it_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with SinkWorker([ConsoleSink(total=1)]) as worker:
        worker.put_blocking(synthetic.rollout(actions=1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "rollouts: 1/1" in captured.err
