"""Whose a step is: the work it takes to say so, counted in instructions of SQLite and not in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayroll.traces._owners import decide, in_order
from rayroll.traces._state import State

COLUMNS = "log, position, family, name, provider, session, round_index, trace_key, at, weight, copied, flags, body"


def work(folder: Path, *, sessions: int, logs: int, steps: int) -> int:
    """Thousands of instructions that it takes to decide over so many sessions, logs of each, and steps of each log."""
    state = State(folder / f"{sessions}-{steps}.state")
    found = 0

    def count() -> int:
        nonlocal found
        found += 1
        return 0

    try:
        with state.transaction():
            for session in range(sessions):
                for part in range(logs):
                    log = state.begin_log(Path(f"/{session}/{part}"))
                    name = f"s{session}"
                    rows = [
                        (log, n, name, f"{part}:{n}", "claude", name, n, f"{n}", n, 1, 0, "no_usage", b"{}")
                        for n in range(steps)
                    ]
                    state.db.executemany(f"INSERT INTO steps ({COLUMNS}) VALUES ({','.join('?' * 13)})", rows)
        state.db.set_progress_handler(count, 1_000)
        decide(state.db)
        for _ in in_order(state.db):
            pass
    finally:
        state.close()
    return found


@pytest.mark.parametrize(
    ("few", "many"),
    [
        pytest.param({"sessions": 100, "logs": 1, "steps": 2}, {"sessions": 800, "logs": 1, "steps": 2}, id="sessions"),
        pytest.param({"sessions": 1, "logs": 2, "steps": 100}, {"sessions": 1, "logs": 2, "steps": 800}, id="steps"),
    ],
)
def test_eight_times_as_much_takes_about_eight_times_the_work(
    tmp_path: Path, few: dict[str, int], many: dict[str, int]
) -> None:
    assert work(tmp_path, **many) < 16 * work(tmp_path, **few)
