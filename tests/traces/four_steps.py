"""One session of four steps in round numbers, and what a statistic says of it or of others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from traces.tiny import call, result, session, step, store, text, user

from rayroll.traces import statistics
from rayroll.traces.store import Store

PRICES = [{"place": 0, "model": "model-*", "append_usd": 10, "prefix_usd": 1, "output_usd": 100}]
"""Every tiny step's model, at round prices."""

UNKNOWN: dict[str, Any] = dict.fromkeys(("input_tokens_total", "prefix_tokens", "newly_append_tokens", "output_tokens"))
"""A step whose tokens nobody knows."""

# The session, and what follows from it:
#   step  trigger  gap s  prefix  append  context  grew  output before  fresh
#   0     user     -      0       1000    1000     -     -              -
#   1     tool     3      1000    500     1500     500   100            400
#   2     user     93     0       1700    1700     200   50             150
#   3     tool     600    1700    100     1800     100   300            0
ROWS = session(
    "a",
    step(user(0), call(2, id="t1", result=5), append=1000, output=100),
    step(result(5, id="t1"), text(7), prefix=1000, append=500, output=50),
    step(user(100), call(104, id="t2", result=704), append=1700, output=300),
    step(result(704, id="t2"), text(706), prefix=1700, append=100, output=20),
)


def rows(source: Store | list[dict[str, Any]], name: str, **parameters: Any) -> list[dict[str, Any]]:
    """The statistic's rows over a store, or over one of these rows."""
    if isinstance(source, Store):
        return statistics.compute(source.connection, name, **parameters)
    with store(source) as opened:
        return statistics.compute(opened.connection, name, **parameters)


def row(source: Store | list[dict[str, Any]], name: str, **keys: Any) -> dict[str, Any]:
    """The one row with these keys, its keys left out; ``parameters`` are the statistic's."""
    parameters = keys.pop("parameters", {})
    keys = {"provider": "all", **keys}
    [found] = [r for r in rows(source, name, **parameters) if keys.items() <= r.items()]
    return {column: value for column, value in found.items() if column not in keys}


def totals(*contexts: int, trigger: str = "tool", provider: str = "claude") -> list[dict[str, Any]]:
    """A session whose steps have these contexts, all but the first of this trigger."""
    event = result if trigger == "tool" else user
    later = [step(event(10 * n), text(10 * n + 1), append=size) for n, size in enumerate(contexts[1:], 1)]
    return session("t", step(user(0), text(1), append=contexts[0]), *later, provider=provider)


def each(name: str, cases: Iterable[tuple[int, ...]]) -> list[dict[str, Any]]:
    """The statistic's row of each case, a session whose steps have these contexts."""
    sessions = [totals(*contexts, provider=f"case {n:02}") for n, contexts in enumerate(cases)]
    return [r for r in rows([*chain(*sessions)], name) if r["provider"] != "all"]
