"""For how long will a session wait for its tools? What a cache's policy (``traces.kv.predicted``) wants to know.

>>> expected = waits(store.connection, Predictor.load("calls.model"))
>>> study(gaps, standard(break_even_s=300, predict=expected))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rayroll.traces.kv import Gap
from rayroll.traces.predict.examples import in_time, sessions_of
from rayroll.traces.predict.features import Session
from rayroll.traces.predict.model import Forecast, Predictor

if TYPE_CHECKING:
    import duckdb

__all__ = ["waits"]


def waits(
    connection: duckdb.DuckDBPyConnection, predictor: Predictor, *, level: float = 0.5
) -> Callable[[Gap], float | None]:
    """A function for ``kv.predicted`` and ``kv.standard``: the seconds that a gap will last, as known when it starts.

    A gap for tools lasts as long as the longest of its step's calls. Every call is predicted at its start, from what
    had ended by then; the predictor goes on learning, so give it one that is not kept.

    Args:
        connection: Of the open store that the gaps are of.
        predictor: Best fitted on other sessions.
        level: Which quantile: higher ones drop a cache sooner.
    """
    sessions = sessions_of(connection)
    states = [Session(project=session.project) for session in sessions]
    started: dict[int, Forecast] = {}
    longest_s: dict[int, float] = {}
    for at, timed, ended in in_time(sessions):
        if not ended:
            said = started[id(timed)] = predictor.predict(timed.call, states[at], (level,))
            longest_s[timed.step_id] = max(said.quantiles_s[0], longest_s.get(timed.step_id, 0.0))
        else:
            said = started.pop(id(timed))
            predictor.observe(timed.call, states[at], timed.seconds, forecast=said, result_chars=timed.result_chars)

    def expected_s(gap: Gap) -> float | None:
        return longest_s.get(gap.previous_step_id) if gap.trigger == "tool" else None

    return expected_s
