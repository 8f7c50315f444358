"""Who is prefilled first: a queue before one model server, and how long each step waits for its first token.

One server prefills one batch at a time and never stops in the middle of one; all steps of a batch have their first
token when it ends. Arrivals are given (an open loop): a step that waits longer does not make its session's next one
later. An order decides what goes next and how much goes together; every order serves the same steps.

>>> queue = arrivals(store.connection, session_every_s=2.0)
>>> [serve(queue, order) for order in (FIRST_COME, SHORTEST_APPEND, append_batches(16_384))]
"""

from __future__ import annotations

import heapq
import math
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayroll.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "FIRST_COME",
    "SHORTEST_APPEND",
    "Arrival",
    "CostModel",
    "Order",
    "Served",
    "append_batches",
    "arrivals",
    "first_tokens",
    "load_cost",
    "pace_s",
    "serve",
    "standard",
]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A step that asks for its first token."""

    step_id: int
    at_s: float
    prefix_tokens: int
    """Already in the KV cache: read, not prefilled."""
    append_tokens: int
    """To be prefilled."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """How long a batch takes: what any batch costs, then each token, then each token's look at those before it.

    As given: a dense model of 70e9 parameters (80 layers of width 8192, 16 bits) on eight H100 at half their peak, 4e15
    FLOP/s, reading its weights at 27e12 bytes/s. They are estimates from these figures, not measurements: put your own
    server's in.
    """

    batch_s: float = 0.005
    """Any batch: the weights are read once, 140e9 bytes / 27e12 bytes/s."""
    token_s: float = 35e-6
    """Each appended token: 2 FLOP for each parameter, 140e9 / 4e15 FLOP/s."""
    pair_s: float = 0.65e-9
    """Each pair of an appended token and one before it: 4 FLOP for each layer and its width, 2.6e6 / 4e15 FLOP/s."""

    def __post_init__(self) -> None:
        for name in ("batch_s", "token_s", "pair_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: {getattr(self, name)} is no time", fix="seconds, 0 or more")

    def step_s(self, arrival: Arrival) -> float:
        """A step's own part of its batch: its tokens, each with the prefix and, on average, half of what it appends."""
        append = arrival.append_tokens
        return append * self.token_s + append * (arrival.prefix_tokens + append / 2) * self.pair_s

    def seconds(self, batch: Iterable[Arrival]) -> float:
        """The whole batch."""
        return self.batch_s + math.fsum(self.step_s(arrival) for arrival in batch)


@dataclass(frozen=True, slots=True)
class Order:
    """What waits goes by ``key``, the smallest first, ties as they came."""

    name: str
    key: Callable[[Arrival], float]
    budget_tokens: int | None = None
    """As many as fit into this many appended tokens go together, at least one; None: each step goes alone."""
    patience_s: float = math.inf
    """Who has waited longer goes first whatever its key, so that the long are late and not lost."""


@dataclass(frozen=True, slots=True)
class Served:
    """How an order did."""

    order: str
    steps: int
    batches: int
    tokens: int
    """Appended tokens of all steps."""
    ttft_p50_s: float | None
    """Time to the first token, from arrival; None: there was no step."""
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    tokens_per_s: float | None
    """Throughput: tokens by the time from the first arrival to the last first token."""
    busy_share: float | None
    """Of that time, how much the server worked."""


_ASKING = """
    SELECT *, epoch_us(coalesce(input_at, first_at)) AS at_us
    FROM steps
    WHERE at_us IS NOT NULL AND prefix_tokens >= 0 AND append_tokens > 0
"""

FIRST_COME = Order("first come", key=lambda arrival: arrival.at_s)
SHORTEST_APPEND = Order("shortest append", key=lambda arrival: arrival.append_tokens)


def append_batches(budget_tokens: int, *, patience_s: float = 10.0) -> Order:
    """Short appends go together, the shortest first, as long as they fit into a budget of tokens.

    Raises:
        ConfigError: The budget is below one token, or the patience below nothing.
    """
    if not patience_s >= 0:
        raise ConfigError(f"patience_s: {patience_s} is no time", fix="seconds, 0 or more; inf never ends")
    if budget_tokens < 1:
        raise ConfigError("a batch needs a budget of one token at least", budget_tokens=budget_tokens, fix="say 16384")
    name = f"append batches of {budget_tokens}"
    return Order(name, key=lambda arrival: arrival.append_tokens, budget_tokens=budget_tokens, patience_s=patience_s)


def standard(budget_tokens: int = 16_384, *, patience_s: float = 10.0) -> tuple[Order, ...]:
    """What is worth comparing."""
    return FIRST_COME, SHORTEST_APPEND, append_batches(budget_tokens, patience_s=patience_s)


def load_cost(path: Path | str) -> CostModel:
    """The cost model in a TOML file: ``batch_s``, ``token_s`` and ``pair_s``; what is left out is as given.

    Raises:
        ConfigError: It cannot be read, or is no cost model.
    """
    fix = "write lines such as `token_s = 35e-6`, for batch_s, token_s and pair_s"
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the cost model {path}: {error}", fix=fix) from None
    known = [field.name for field in fields(CostModel)]
    for name, value in values.items():
        if name not in known:
            raise unknown_name("constant of the cost model", name, known)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{path}: {name} is no number of seconds: {value!r}", fix=fix)
    return CostModel(**values)


def pace_s(connection: duckdb.DuckDBPyConnection, load: float, cost: CostModel | None = None) -> float:
    """How often a session must start, in seconds, to give the server so much work for its time.

    Args:
        connection: Of an open store.
        load: 1: as much as it can do if each step is prefilled alone. What comes above it waits ever longer.
        cost: The server's.

    Raises:
        ConfigError: The load is not above 0.
    """
    if not 0 < load < math.inf:
        raise ConfigError(f"a load of {load} is none", fix="above 0; 0.8 leaves a fifth of the server's time free")
    cost = CostModel() if cost is None else cost
    counted = connection.execute(f"SELECT count(DISTINCT session_id) FROM ({_ASKING})").fetchone()
    work_s = math.fsum(cost.seconds([arrival]) for arrival in arrivals(connection))
    return work_s / load / counted[0] if counted and counted[0] else 0.0


def serve(queue: Iterable[Arrival], order: Order, cost: CostModel | None = None) -> Served:
    """What the steps of a queue wait for under an order."""
    cost = CostModel() if cost is None else cost
    coming = sorted(queue, key=lambda arrival: (arrival.at_s, arrival.step_id))
    if not coming:
        return Served(order.name, 0, 0, 0, None, None, None, None, None)
    waits_s: list[float] = []
    batches, busy_s, end_s = 0, 0.0, 0.0
    for end_s, took_s, batch in _batches(coming, order, cost):
        batches += 1
        busy_s += took_s
        waits_s += (end_s - arrival.at_s for arrival in batch)
    waits_s.sort()
    tokens = sum(arrival.append_tokens for arrival in coming)
    span_s = end_s - coming[0].at_s
    return Served(
        order=order.name,
        steps=len(waits_s),
        batches=batches,
        tokens=tokens,
        ttft_p50_s=_percentile(waits_s, 0.5),
        ttft_p95_s=_percentile(waits_s, 0.95),
        ttft_p99_s=_percentile(waits_s, 0.99),
        tokens_per_s=tokens / span_s if span_s > 0 else None,
        busy_share=busy_s / span_s if span_s > 0 else None,
    )


def first_tokens(queue: Iterable[Arrival], order: Order, cost: CostModel | None = None) -> list[tuple[int, float]]:
    """When each step has its first token, as (step_id, seconds), in the order in which they are served."""
    coming = sorted(queue, key=lambda arrival: (arrival.at_s, arrival.step_id))
    made = _batches(coming, order, CostModel() if cost is None else cost)
    return [(arrival.step_id, end_s) for end_s, _, batch in made for arrival in batch]


def arrivals(connection: duckdb.DuckDBPyConnection, *, session_every_s: float | None = None) -> list[Arrival]:
    """The steps of an open store as they came, seconds from the first.

    Args:
        connection: Of the store.
        session_every_s: Start a session every so many seconds, in the order in which they started, each at its own pace
            after that: the load on the server, where the recorded one is spread over months. When the last has had
            its time the first starts again, for ever, and what comes in one such round is returned: sessions take
            days, so that a single pass would leave the server idle for most of its time. 0: all at once, and once.
            None: as recorded.

    Raises:
        ConfigError: Sessions cannot start so often.
    """
    if session_every_s is not None and not 0 <= session_every_s < math.inf:
        raise ConfigError(f"a session every {session_every_s} s is no pace", fix="seconds, 0 or more")
    rows: list[tuple[Any, ...]] = connection.execute(f"""
        SELECT
            step_id,
            (at_us - min(at_us) OVER ()) / 1e6,
            (at_us - started_us) / 1e6,
            dense_rank() OVER (ORDER BY started_us, session_id) - 1,
            prefix_tokens,
            append_tokens
        FROM (
            SELECT *, min(at_us) OVER (PARTITION BY session_id) AS started_us
            FROM ({_ASKING})
        )
        ORDER BY at_us, step_id
    """).fetchall()
    sessions = max((row[3] for row in rows), default=-1) + 1
    round_s = sessions * session_every_s if session_every_s else math.inf
    return [
        Arrival(
            step_id,
            recorded_s if session_every_s is None else (place * session_every_s + own_s) % round_s,
            prefix,
            append,
        )
        for step_id, recorded_s, own_s, place, prefix, append in rows
    ]


def _batches(coming: Sequence[Arrival], order: Order, cost: CostModel) -> Iterator[tuple[float, float, list[Arrival]]]:
    """Each batch with when it ends and how long it took; ``coming`` is sorted by arrival."""
    queue = _Queue(order)
    now_s, came = -math.inf, 0
    while came < len(coming) or queue.length:
        if not queue.length:
            now_s = max(now_s, coming[came].at_s)
        while came < len(coming) and coming[came].at_s <= now_s:
            queue.add(coming[came])
            came += 1
        batch = queue.take(now_s)
        took_s = cost.seconds(batch)
        now_s += took_s
        yield now_s, took_s, batch


@dataclass(slots=True)
class _Waiting:
    arrival: Arrival
    is_taken: bool = False


class _Queue:
    """What waits, by key and by age; who is taken by one of the two is skipped by the other."""

    def __init__(self, order: Order) -> None:
        self.length = 0
        self._order = order
        self._added = 0
        self._by_key: list[tuple[float, int, _Waiting]] = []
        self._by_age: deque[_Waiting] = deque()

    def add(self, arrival: Arrival) -> None:
        waiting = _Waiting(arrival)
        heapq.heappush(self._by_key, (self._order.key(arrival), self._added, waiting))
        self._by_age.append(waiting)
        self._added += 1
        self.length += 1

    def take(self, now_s: float) -> list[Arrival]:
        """The next batch: at least one, and as many more as fit, until the first that does not."""
        batch: list[Arrival] = []
        room = -1 if self._order.budget_tokens is None else self._order.budget_tokens
        for waiting in self._in_turn(now_s):
            if batch and waiting.arrival.append_tokens > room:
                break
            waiting.is_taken = True
            batch.append(waiting.arrival)
            room -= waiting.arrival.append_tokens
        self.length -= len(batch)
        return batch

    def _in_turn(self, now_s: float) -> Iterator[_Waiting]:
        """Those whose patience is over, the eldest first, then all by key; what was yielded must be taken to go on."""
        while self._by_age:
            eldest = self._by_age[0]
            if not eldest.is_taken:
                if now_s - eldest.arrival.at_s <= self._order.patience_s:
                    break
                yield eldest
            self._by_age.popleft()
        while self._by_key:
            first = self._by_key[0][2]
            if not first.is_taken:
                yield first
            heapq.heappop(self._by_key)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Between neighbours as SQL's quantile_cont."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
