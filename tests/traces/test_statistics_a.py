"""Statistics of counts, time and tools, each checked by hand on a trace one can keep in one's head."""

from __future__ import annotations

from traces.tiny import call, result, session, step, store, text, user

from rayroll.traces import statistics


def test_a_provider_s_sessions_steps_and_calls_are_counted() -> None:
    first = session("a", step(user(0), call(4, result=6)), step(result(6), text(9)))
    second = session("b", step(user(0), call(1, result=2), call(1, result=2)), provider="codex")
    with store(first, second) as traces:
        assert statistics.compute(traces.connection, "counts_by_provider") == [
            {"provider": "claude", "sessions": 1, "steps": 2, "tool_calls": 1},
            {"provider": "codex", "sessions": 1, "steps": 1, "tool_calls": 2},
        ]
