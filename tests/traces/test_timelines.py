"""A session over time: every span on its lane, at its second, and what nobody accounts for is idle."""

from __future__ import annotations

import pytest
from traces.tiny import call, result, session, step, store, text, user

from rayroll.traces import timelines as module
from rayroll.traces._shield import Shield
from rayroll.traces.timelines import Span, Timeline, timelines

# 0 user, 4 two calls until 6 and 9; 9 result, 12 text; 30 user (after 18 s), 33 a call without result; 40 text (idle
# from 33).
CALLS = (call(4, "Bash", result=9, input={"command": "make test"}), call(4, "Read", result=6))
ROWS = session(
    "a",
    step(user(0), *CALLS, append=10, output=5),
    step(result(9), text(12), prefix=10, append=5, output=3),
    step(user(30), call(33, "Bash"), append=7, output=2),
    step(text(40)),
)


def of(*sessions: list[dict[str, object]], include_inputs: bool = False) -> list[Timeline]:
    with store(*sessions) as opened:
        return timelines(opened.connection, Shield(), include_inputs=include_inputs)


def spans(lane: str, *, include_inputs: bool = False) -> list[Span]:
    [line] = of(ROWS, include_inputs=include_inputs)
    return [span for span in line.spans if span.lane == lane]


def test_the_model_works_from_its_newest_input_to_its_last_output() -> None:
    assert [(span.start_s, span.seconds) for span in spans("model")] == [(0, 4), (9, 3), (30, 3)]
    assert spans("model")[1].note == "10 tokens read, 5 appended, 3 written"


def test_calls_are_on_the_lane_of_their_category_and_unfinished_ones_are_moments() -> None:
    assert [(s.start_s, s.seconds, s.what, s.note) for s in spans("shell_command")] == [
        (4, 5, "Bash", ""),
        (33, 0, "Bash", "unfinished"),
    ]
    assert [(s.start_s, s.seconds, s.what) for s in spans("file_read_search")] == [(4, 2, "Read")]


def test_people_are_waited_for_before_their_message() -> None:
    assert [(span.start_s, span.seconds) for span in spans("human")] == [(12, 18)]


def test_what_no_span_covers_is_idle() -> None:
    assert [(span.start_s, span.seconds) for span in spans("idle")] == [(33, 7)]


def test_inputs_are_told_only_where_it_was_asked_for() -> None:
    assert "make" not in repr(of(ROWS))
    assert spans("shell_command", include_inputs=True)[0].note == "make"


def test_a_store_that_has_commands_tells_their_first_200_characters() -> None:
    with store(ROWS) as opened:
        opened.connection.execute("UPDATE tools SET command = repeat('x', 300) WHERE name = 'Bash' AND step_id = 0")
        [shut], [told] = (timelines(opened.connection, Shield(), include_inputs=include) for include in (False, True))
    assert "xx" not in repr(shut)
    assert [span.note for span in told.spans if "x" in span.note] == ["x" * 200]


def test_what_overlaps_on_a_lane_is_laid_below_each_other() -> None:
    [line] = of(
        session("a", step(user(0), *(call(1, "Bash", result=9) for _ in range(6)), call(10, "Bash", result=11)))
    )
    assert [span.row for span in line.spans if span.lane == "shell_command"] == [0, 1, 2, 3, 3, 3, 0]


def test_sessions_are_chosen_for_what_they_have_most_of_each_once() -> None:
    long = session("long", step(user(0), text(1)), step(user(5000), text(5001)))
    calls = (call(1, "Bash", result=2) for _ in range(3))
    busy = session("busy", step(user(0), *calls), *(step(result(2 + n), text(3 + n)) for n in range(5)))
    plain = session("plain", step(user(0), text(3)), step(text(4)))
    untimed = session("untimed", *(step(text(None)) for _ in range(9)))
    assert [(line.session, line.why) for line in of(long, busy, plain, untimed)] == [
        ("session 1", "longest, most requests, median number of steps"),
        ("session 2", "most steps, most tool calls"),
    ]


def test_of_too_many_spans_the_longest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 3)
    [line] = of(ROWS)
    assert sorted(span.seconds for span in line.spans if span.lane != "idle") == [4, 5, 18]
    assert line.left_out == 4
