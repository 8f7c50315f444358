"""What a session's calls have in common: the normal posterior, beside the one that matrices give."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rayroll.traces.predict.pace import Pace, Shares

SHARES = Shares(session=0.2, program=0.15, command=0.3)


def by_matrices(seen: list[tuple[str, str, float]], program: str, command: str) -> tuple[float, float]:
    keys = [(p, c) for p, c, _ in seen] + [(program, command)]
    covariance = np.array(
        [[SHARES.session + SHARES.program * (a[0] == b[0]) + SHARES.command * (a == b) for b in keys] for a in keys]
    ) + SHARES.noise * np.eye(len(keys))
    known, cross = covariance[:-1, :-1], covariance[-1, :-1]
    scores = np.array([score for _, _, score in seen])
    mean = cross @ np.linalg.solve(known, scores)
    variance = covariance[-1, -1] - cross @ np.linalg.solve(known, cross)
    return float(mean), float(variance**0.5)


@pytest.mark.parametrize("seed", range(5))
def test_the_posterior_is_exact_and_needs_no_matrix(seed: int) -> None:
    draw = random.Random(seed)
    pace, seen = Pace(), []
    for _ in range(25):
        program = draw.choice("ab")
        command = program + draw.choice("xyz")
        if seen:
            assert pace.next(program, command, SHARES) == pytest.approx(by_matrices(seen, program, command))
        score = draw.gauss(0, 1)
        pace.add(program, command, score, SHARES)
        seen.append((program, command, score))


def test_a_session_that_did_nothing_has_no_pace() -> None:
    assert Pace().next("a", "a x", SHARES) == (0.0, 1.0)


def test_where_calls_have_nothing_in_common_nothing_is_learned() -> None:
    pace = Pace()
    pace.add("a", "ax", 3.0, Shares())
    assert pace.next("a", "ax", Shares()) == (0.0, 1.0)


def test_the_same_command_tells_more_than_the_same_program_and_that_more_than_the_session() -> None:
    pace = Pace()
    pace.add("a", "ax", 2.0, SHARES)
    means = [pace.next(*call, SHARES)[0] for call in (("a", "ax"), ("a", "ay"), ("b", "bx"))]
    assert means == pytest.approx([2 * 0.65, 2 * 0.35, 2 * 0.2])
