"""Every instant of a rollout belongs to exactly one phase, and only `other` is a remainder."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayroll.errors import ConfigError
from rayroll.timing import PHASES, TIMELINE, Recorder, Span, clock_id, split_ns
from rayroll.types import CommandTiming

unhurried = settings(deadline=None)  # a busy machine stalls; how long is not what is tested

MS = 1_000_000
LEAVES = [name for name, phase in PHASES.items() if not phase.contains and name != "other"]

spans_of = st.lists(
    st.builds(
        lambda phase, start, length: Span(phase, start, start + length),
        st.sampled_from([name for name in PHASES if name != "other"]),
        st.integers(-20, 60),
        st.integers(0, 40),
    ),
    max_size=12,
)


class Clock:
    """A monotonic clock that moves when told."""

    def __init__(self) -> None:
        self.ns = 7_000 * MS

    def __call__(self) -> int:
        return self.ns

    def passes(self, ms: float) -> None:
        self.ns += int(ms * MS)


# -- the sweep ---------------------------------------------------------------------------------------------------


@unhurried
@given(spans_of, st.integers(0, 50))
def test_phases_add_up_to_wall_exactly_and_nothing_is_negative(spans: list[Span], wall_ns: int) -> None:
    phases_ns, hidden_ns = split_ns(spans, 0, wall_ns)
    assert sum(phases_ns.values()) == wall_ns
    assert all(ns > 0 for ns in phases_ns.values())
    assert hidden_ns >= 0


@unhurried
@given(spans_of, st.integers(0, 50))
def test_the_sweep_agrees_with_looking_at_every_single_nanosecond(spans: list[Span], wall_ns: int) -> None:
    expected: Counter[str] = Counter()
    hidden = 0
    for at in range(wall_ns):
        alive = [phase for phase, start, end in spans if start <= at < end]
        winner = min(alive, key=list(PHASES).index, default="other")
        expected[winner] += 1
        for name, count in Counter(alive).items():
            contains = PHASES[name].contains
            inside = contains and (PHASES[winner].kind == "infra" or winner == f"{name}_run")
            if not inside:
                hidden += (1 if contains else count) - (name == winner)
    assert split_ns(spans, 0, wall_ns) == (dict(expected), hidden)


@unhurried
@given(st.lists(st.tuples(st.sampled_from(LEAVES), st.integers(1, 30)), max_size=10))
def test_what_does_not_overlap_hides_nothing_and_leaves_no_remainder(parts: list[tuple[str, int]]) -> None:
    recorder = Recorder()
    end_ns = sum(ns for _, ns in parts)
    recorder.add_sequence(0, end_ns, parts)
    phases_ns, hidden_ns = split_ns(recorder.spans, 0, end_ns)
    totals: Counter[str] = Counter()
    for phase, ns in parts:
        totals[phase] += ns
    assert (phases_ns, hidden_ns) == (dict(totals), 0)


def test_a_boot_behind_the_first_generation_is_hidden_and_costs_only_what_outlasts_it() -> None:
    recorder = Recorder()
    recorder.add("boot", 0, 800 * MS)
    recorder.add("policy", 0, 500 * MS)
    timing = recorder.split(0, 800 * MS)
    assert timing.phases == {"boot": 0.3, "policy": 0.5, "other": 0.0}
    assert (timing.infra_s, timing.policy_s, timing.hidden_s) == (0.3, 0.5, 0.5)


def test_parallel_commands_count_once_and_the_second_is_hidden() -> None:
    recorder = Recorder()
    recorder.add("run", 0, 100 * MS)
    recorder.add("run", 0, 80 * MS)
    timing = recorder.split(0, 100 * MS)
    assert (timing.env_s, timing.hidden_s) == (0.1, 0.08)


def test_grading_says_what_its_tests_and_what_its_machinery_cost_and_hides_neither() -> None:
    recorder = Recorder()
    command = CommandTiming(spawn_ns=5 * MS, run_ns=300 * MS, drain_ns=5 * MS)
    recorder.add("grade", 0, 400 * MS)
    recorder.add_command(50 * MS, 380 * MS, command, within="grade")
    timing = recorder.split(0, 400 * MS)
    assert timing.phases == {"grade": 0.1, "grade_run": 0.3, "other": 0.0}
    assert (timing.env_s, timing.infra_s, timing.hidden_s) == (0.3, 0.1, 0.0)


def test_a_set_up_behind_a_generation_is_hidden_but_a_boot_inside_a_reset_is_not() -> None:
    assert split_ns([Span("setup", 0, 10), Span("policy", 0, 10)], 0, 10) == ({"policy": 10}, 10)
    assert split_ns([Span("reset", 0, 10), Span("boot", 2, 6)], 0, 10) == ({"reset": 6, "boot": 4}, 0)


def test_every_phase_has_a_kind_a_meaning_and_a_place_in_the_timeline() -> None:
    assert sorted(TIMELINE) == sorted(PHASES)
    assert all(phase.meaning for phase in PHASES.values())
    assert [p.name for p in PHASES.values() if p.kind == "env"] == ["run", "grade_run", "setup_run"]
    assert [p.name for p in PHASES.values() if p.kind == "policy"] == ["policy"]


def test_the_table_in_docs_is_the_one_that_the_code_follows() -> None:
    page = (Path(__file__).parents[1] / "docs" / "timing.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{p.name}` | {p.kind} | {p.meaning} |" for p in PHASES.values()]


# -- the recorder ------------------------------------------------------------------------------------------------


def test_a_span_is_recorded_also_when_its_body_raises() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    with pytest.raises(RuntimeError), recorder.span("create"):
        clock.passes(20)
        raise RuntimeError
    assert recorder.spans == (Span("create", 7_000 * MS, 7_020 * MS),)


def test_a_phase_nobody_knows_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'teardown'"):
        Recorder().add("tear_down", 0, 1)


def test_a_command_lies_in_its_round_trip_with_the_transport_on_both_sides() -> None:
    recorder = Recorder()
    timing = CommandTiming(queued_ns=1, spawn_ns=2, run_ns=10, drain_ns=3)
    recorder.add_command(100, 120, timing, handled_ns=125)
    assert recorder.spans == (
        Span("transport", 100, 102),
        Span("spawn", 102, 105),
        Span("run", 105, 115),
        Span("drain", 115, 118),
        Span("transport", 118, 120),
        Span("host", 120, 125),
    )


@unhurried
@given(st.integers(0, 1000), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 3000))
def test_a_runner_whose_clock_runs_fast_never_makes_time_negative(
    window_ns: int, queued_ns: int, spawn_ns: int, run_ns: int, drain_ns: int
) -> None:
    recorder = Recorder()
    timing = CommandTiming(queued_ns=queued_ns, spawn_ns=spawn_ns, run_ns=run_ns, drain_ns=drain_ns)
    recorder.add_command(0, window_ns, timing)
    phases_ns, hidden_ns = split_ns(recorder.spans, 0, window_ns)
    assert sum(phases_ns.values()) == window_ns
    assert hidden_ns == 0
    assert "other" not in phases_ns


def test_spans_of_a_process_with_the_same_clock_stand_as_they_are_and_both_ways_are_exact() -> None:
    recorder = Recorder()
    recorder.add_remote(100, 200, 60, [Span("run", 120, 170)], same_clock=True, arrived_ns=115)
    assert recorder.spans == (Span("dispatch", 100, 115), Span("run", 120, 170), Span("return", 175, 200))


def test_spans_of_another_machine_are_centred_in_the_call() -> None:
    recorder = Recorder()
    recorder.add_remote(100, 200, 60, [Span("run", 9_005, 9_050)], same_clock=False, arrived_ns=9_000)
    assert recorder.spans == (Span("dispatch", 100, 120), Span("run", 125, 170), Span("return", 180, 200))


def test_a_remote_boot_that_began_before_the_call_keeps_its_place() -> None:
    recorder = Recorder()
    recorder.add_remote(100, 200, 100, [Span("boot", 8_950, 9_020)], same_clock=False, arrived_ns=9_000)
    assert recorder.spans == (Span("boot", 50, 120),)


@unhurried
@given(spans_of, st.integers(0, 200), st.integers(0, 300), st.booleans(), st.integers(-50, 250))
def test_whatever_another_process_claims_the_split_still_adds_up(
    spans: list[Span], wall_ns: int, residence_ns: int, same_clock: bool, arrived_ns: int
) -> None:
    recorder = Recorder()
    recorder.add_remote(0, wall_ns, residence_ns, spans, same_clock=same_clock, arrived_ns=arrived_ns)
    phases_ns, _ = split_ns(recorder.spans, 0, wall_ns)
    assert sum(phases_ns.values()) == wall_ns


def test_an_actions_own_seconds_look_only_at_what_came_after_the_mark() -> None:
    recorder = Recorder()
    recorder.add("boot", 0, 500 * MS)
    mark = recorder.mark()
    recorder.add("policy", 500 * MS, 700 * MS)
    recorder.add_command(700 * MS, 750 * MS, CommandTiming(spawn_ns=10 * MS, run_ns=30 * MS))
    assert recorder.phases_s(500 * MS, 750 * MS, since=mark) == {
        "policy": 0.2,
        "transport": 0.01,
        "spawn": 0.01,
        "run": 0.03,
    }
    assert [span.phase for span in recorder.spans_since(mark)] == ["policy", "transport", "spawn", "run", "transport"]


def test_spans_cross_processes_unchanged() -> None:
    span = Span("run", 1, 2)
    assert pickle.loads(pickle.dumps(span)) == span


def test_processes_of_one_machine_name_the_same_clock() -> None:
    assert clock_id() == clock_id() != ""


# -- who is charged ----------------------------------------------------------------------------------------------


def test_queue_connect_and_transfer_are_never_charged_to_the_command() -> None:
    clock = Clock()
    recorder = Recorder(clock)
    start_ns = clock()
    with recorder.span("queue"):
        clock.passes(300)
    with recorder.span("connect"):
        clock.passes(500)
    sent_ns = clock()
    clock.passes(100 + 200)
    recorder.add_command(sent_ns, clock(), CommandTiming(run_ns=100 * MS))
    timing = recorder.split(start_ns, clock())
    assert (timing.wall_s, timing.env_s, timing.infra_s, timing.policy_s) == (1.1, 0.1, 1.0, 0.0)
    assert timing.phases == {"queue": 0.3, "connect": 0.5, "transport": 0.2, "run": 0.1, "other": 0.0}


def test_setting_the_wall_clock_back_an_hour_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    start_ns = recorder.now_ns()
    with recorder.span("queue"):
        monkeypatch.setattr(time, "time", lambda: 0.0)
        monkeypatch.setattr(time, "time_ns", lambda: 0)
    end_ns = recorder.now_ns()
    phases_ns, _ = split_ns(recorder.spans, start_ns, end_ns)
    assert sum(phases_ns.values()) == end_ns - start_ns
    assert all(ns >= 0 for ns in phases_ns.values())


def one_rollout(slow: str, by_ms: float) -> dict[str, float]:
    """Phases of a small rollout in which one place takes longer."""
    clock, host_clock = Clock(), Clock()
    host_clock.ns = 91 * MS  # another machine, booted at another time

    late = {slow: by_ms}

    def ms(place: str, usual: float) -> float:
        return usual + late.pop(place, 0)  # the delay happens once

    recorder = Recorder(clock)
    start_ns = clock()
    for place in ("queue", "create", "boot", "connect"):
        with recorder.span(place):
            clock.passes(ms(place, 20))
    for _ in range(2):
        with recorder.span("policy"):
            clock.passes(ms("policy", 40))
        # Two clocks: what passes in the host passes on the driver as well.
        call_ns, arrived_ns, host = clock(), host_clock(), Recorder(host_clock)
        busy = CommandTiming(
            spawn_ns=int(ms("spawn", 1) * MS), run_ns=int(ms("run", 30) * MS), drain_ns=int(ms("drain", 1) * MS)
        )
        sent_ns = host_clock()
        host_clock.passes(busy.busy_ns / MS + ms("transport", 2))
        received_ns = host_clock()
        host_clock.passes(ms("host", 1))
        host.add_command(sent_ns, received_ns, busy, handled_ns=host_clock())
        residence_ns = host_clock() - arrived_ns
        clock.passes(residence_ns / MS + ms("wire", 6))
        recorder.add_remote(call_ns, clock(), residence_ns, host.spans, same_clock=False, arrived_ns=arrived_ns)
    with recorder.span("grade"):
        clock.passes(ms("grade", 10))
        sent_ns, run_ns = clock(), int(ms("grade_run", 100) * MS)
        clock.passes(run_ns / MS)
        recorder.add_command(sent_ns, clock(), CommandTiming(run_ns=run_ns), within="grade")
    with recorder.span("teardown"):
        clock.passes(ms("teardown", 15))
    clock.passes(ms("other", 1))
    timing = recorder.split(start_ns, clock())
    assert sum(timing.phases.values()) == pytest.approx(timing.wall_s, abs=1e-9)
    return dict(timing.phases)


@pytest.mark.parametrize(
    "place",
    [
        *("queue", "create", "boot", "connect", "policy", "transport", "spawn", "run", "drain", "host"),
        *("grade", "grade_run", "teardown", "other"),
    ],
)
def test_50_ms_put_in_at_one_place_grow_that_phase_and_no_other(place: str) -> None:
    before, after = one_rollout(place, 0), one_rollout(place, 50)
    grown = {name: round(after[name] - before[name], 6) for name in after}
    assert {name: s for name, s in grown.items() if s} == {place: 0.05}


def test_50_ms_on_the_wire_to_another_machine_are_shared_by_the_two_ways() -> None:
    before, after = one_rollout("wire", 0), one_rollout("wire", 50)
    grown = {name: round(after[name] - before[name], 6) for name in after}
    assert {name: s for name, s in grown.items() if s} == {"dispatch": 0.025, "return": 0.025}


def test_a_timing_can_be_summed_by_who_pays() -> None:
    recorder = Recorder()
    recorder.add_sequence(0, 10 * MS, [("run", 3 * MS), ("policy", 2 * MS), ("drain", 4 * MS)])
    timing = recorder.split(0, 10 * MS)
    assert replace(timing, phases={}) == replace(
        timing, wall_s=0.01, env_s=0.003, policy_s=0.002, infra_s=0.005, hidden_s=0.0, phases={}
    )
