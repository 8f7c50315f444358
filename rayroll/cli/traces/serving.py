"""What a trace tells of the serving side: which caches to hold, and who is prefilled first."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayroll.cli.traces._tables import StorePath, console, show, write_csv

if TYPE_CHECKING:
    from rayroll.traces.store import Store

__all__ = ["kv"]


def kv(
    store: StorePath,
    break_even_s: Annotated[
        float, typer.Option("--break-even", help="Seconds of holding a cache that cost as much as filling it again.")
    ] = 300.0,
    model: Annotated[
        Path | None, typer.Option(help="Of `rayroll traces predict fit`: also hold by predicted waits for tools.")
    ] = None,
    prefill: Annotated[bool, typer.Option("--prefill", help="Who is prefilled first, instead.")] = False,
    cost: Annotated[Path | None, typer.Option(help="Constants of your server (TOML), for --prefill.")] = None,
    load: Annotated[float, typer.Option(help="Work for the server's time: how often sessions start.")] = 0.8,
    session_every_s: Annotated[
        float | None, typer.Option("--session-every", help="Seconds between starts of sessions, instead of --load.")
    ] = None,
    as_recorded: Annotated[bool, typer.Option("--as-recorded", help="Sessions start when they did.")] = False,
    budget_tokens: Annotated[int, typer.Option("--budget", help="Appended tokens that may go together.")] = 16_384,
    csv_folder: Annotated[Path | None, typer.Option("--csv", help="Also write a CSV file here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON document instead of a table.")] = False,
) -> None:
    """Hold or drop: what policies for a waiting session's KV cache would have done. Or: who is prefilled first.

    Hit rate, storage ratio R and prefill amplification are those of the statistic eviction_sweep. With --prefill: time
    to the first token and throughput by order, on a cost model whose constants are printed.
    """
    from rayroll.traces.store import Store

    with Store.open(store, read_only=True) as opened:
        if prefill:
            every_s = session_every_s if session_every_s is not None else "recorded" if as_recorded else None
            name, found, said = "prefill", *_prefill(opened, cost, load, every_s, budget_tokens)
        else:
            name, found, said = "kv", _hold_or_drop(opened, break_even_s, model), {"break_even_s": break_even_s}
    if csv_folder is not None:
        csv_folder.mkdir(parents=True, exist_ok=True)
        write_csv(csv_folder / f"{name}.csv", found)
    if as_json:
        sys.stdout.write(json.dumps({name: found, **said}) + "\n")
        return
    show(console(sys.stdout), name, found, ", ".join(f"{constant} = {value}" for constant, value in said.items()))
    if not found:
        typer.echo("no step of this trace has both times and tokens", err=True)


def _hold_or_drop(store: Store, break_even_s: float, model: Path | None) -> list[dict[str, Any]]:
    from rayroll.traces import kv as caches

    expected = None
    if model is not None:
        from rayroll.traces.predict.gaps import waits
        from rayroll.traces.predict.model import Predictor

        expected = waits(store.connection, Predictor.load(model))
    policies = caches.standard(break_even_s=break_even_s, predict=expected)
    return [asdict(outcome) for outcome in caches.study(caches.Gaps.read(store.connection), policies)]


def _prefill(
    store: Store, cost: Path | None, load: float, every_s: float | str | None, budget_tokens: int
) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    from rayroll.traces import prefill as orders

    model = orders.CostModel() if cost is None else orders.load_cost(cost)
    said: dict[str, Any] = asdict(model)
    if every_s is None:
        every_s = orders.pace_s(store.connection, load, model)
        said["load"] = load
    said["session_every_s"] = every_s
    pace = None if isinstance(every_s, str) else every_s
    queue = orders.arrivals(store.connection, session_every_s=pace)
    served = (orders.serve(queue, order, model) for order in orders.standard(budget_tokens))
    return [asdict(one) for one in served if one.steps], said
