"""Sessions that nobody had, with the published statistics of those that many had: a workload without a private trace.

What is followed, and from where, is in `_calibration`. Figures are met by a set of sessions, not by each: a set is made
whole (up to 5,000 sessions at a time) and handed out session by session.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from rayroll.errors import ConfigError, unknown_name
from rayroll.traces import _calibration as calibration
from rayroll.traces._synth_counts import count, ranked
from rayroll.traces._synth_rows import Call, Step, rows
from rayroll.traces._synth_tokens import outputs, prefixes
from rayroll.traces._synth_tools import call_tools

__all__ = ["synthesize"]

_BLOCK = 5_000  # about 420,000 steps and 500 MB at most, however many sessions are asked for
_CHARS_PER_TOKEN = 4


def synthesize(sessions: int, *, seed: int, providers: Mapping[str, float] | None = None) -> Iterator[dict[str, Any]]:
    """Rows in TraceLab's format, without inputs, in order of session and round; the same for the same arguments.

    Args:
        sessions: how many. Percentiles need many: at 5,000 they are within 10 % of the published ones.
        seed: of all draws.
        providers: weights of ``claude`` and ``codex``; TraceLab's own (63 % Claude's) unless given. Counts of requests,
            steps and calls are published for both together, and stay so with other weights.

    Raises:
        ConfigError: no sessions, a negative seed, an unknown provider, or weights that are not positive.
    """
    if sessions < 1:
        raise ConfigError("a trace has one session at least", sessions=sessions, fix="ask for 1 or more")
    if seed < 0:
        raise ConfigError("a seed is 0 or more", seed=seed, fix="give any other whole number")
    weights = calibration.PROVIDERS if providers is None else providers
    for name in weights:
        if name not in calibration.PROVIDERS:
            raise unknown_name("provider", name, calibration.PROVIDERS)
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights.values()) or not any(weights.values()):
        raise ConfigError("weights of providers are 0 or more, one of them more", fix='{"claude": 2, "codex": 1}')
    return _blocks(sessions, seed, weights.get("codex", 0) / sum(weights.values()))


def _blocks(sessions: int, seed: int, codex_share: float) -> Iterator[dict[str, Any]]:
    for start in range(0, sessions, _BLOCK):
        yield from _block(min(_BLOCK, sessions - start), codex_share, seed, start)


def _block(sessions: int, codex_share: float, seed: int, start: int) -> Iterator[dict[str, Any]]:
    """Everything about the block's steps and calls as arrays first, then row after row."""
    import numpy as np

    rng = np.random.default_rng([seed, start])
    counts = count(sessions, codex_share, rng)
    length = counts.request_steps + 1
    last = np.cumsum(length) - 1
    session = np.repeat(counts.request_session, length)
    is_codex = counts.is_codex[session]
    is_user = np.zeros(len(session), bool)
    is_user[last - counts.request_steps] = True
    calls_of = np.zeros(len(session), int)
    calls_of[np.setdiff1d(np.arange(len(session)), last, assume_unique=True)] = counts.step_calls
    caller = np.repeat(np.arange(len(session)), calls_of)
    calls = call_tools(session[caller], is_codex[caller], rng)

    output = outputs(is_codex, calls_of, rng)
    # Shorter in long requests and in short sessions: the sums of both then come near the published ones.
    pace = np.log(output) + 0.6 * rng.standard_normal(len(session)) - 0.25 * is_codex
    pace += 0.25 * np.log(np.bincount(session)[session]) - 0.25 * np.log(np.repeat(length, length))
    generation_ms = np.maximum(np.rint(1000 * ranked(pace, calibration.GENERATION_S)), 2)
    wait_ms = np.zeros(len(session))
    opens = np.diff(session, prepend=-1) != 0
    for provider, curve in calibration.WAIT_S.items():
        own = np.flatnonzero(is_user & ~opens & (is_codex == (provider == "codex")))
        wait_ms[own] = np.rint(1000 * ranked(rng.random(len(own)), curve))
    typed = np.rint(300 * np.exp(1.3 * rng.standard_normal(len(session)))) + 1
    results = np.bincount(caller + 1, calls.result_chars, len(session) + 1)[: len(session)]
    tool_ms = np.zeros(len(session) + 1)
    np.maximum.at(tool_ms, caller + 1, calls.wall_ms)
    tokens = prefixes(
        session,
        is_codex,
        is_user,
        np.where(is_user, typed, results) / _CHARS_PER_TOKEN,
        output,
        np.where(is_user, wait_ms, tool_ms[: len(session)]) / 1000,
        rng,
    )
    # Plain numbers from here: reading an array's item costs several times a list's.
    steps = map(
        Step,
        session.tolist(),
        is_user.tolist(),
        calls_of.tolist(),
        output.tolist(),
        generation_ms.astype(int).tolist(),
        wait_ms.astype(int).tolist(),
        typed.astype(int).tolist(),
        tokens.prefix.tolist(),
        tokens.append.tolist(),
    )
    made = map(
        Call,
        calls.name,
        calls.wall_ms.astype(int).tolist(),
        [None if ms != ms else int(ms) for ms in calls.internal_ms.tolist()],
        calls.is_error.tolist(),
        calls.input_chars.tolist(),
        calls.result_chars.tolist(),
    )
    yield from rows(steps, made, counts.is_codex.tolist(), random.Random(f"{seed} {start}"))
