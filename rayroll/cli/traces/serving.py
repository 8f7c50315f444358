"""What a trace tells of the serving side: which caches to hold, and who is prefilled first."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayroll.cli.traces._tables import StorePath, console, folder_for, show, write_csv

if TYPE_CHECKING:
    from rayroll.traces.prefill import Order
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
    patience_s: Annotated[
        float, typer.Option("--patience", help="Seconds after which who waits for a batch goes first; inf: never.")
    ] = 10.0,
    csv_folder: Annotated[Path | None, typer.Option("--csv", help="Also write a CSV file here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON document instead of a table.")] = False,
) -> None:
    """Hold or drop: what policies for a waiting session's KV cache would have done. Or: who is prefilled first.

    Hit rate, storage ratio R and prefill amplification are those of the statistic eviction_sweep; of fixed times, with
    what TraceLab published of its data set beside. With --prefill: time to the first token and throughput by order, on
    a cost model whose constants are printed.
    """
    from rayroll.errors import ConfigError
    from rayroll.traces.prefill import standard as orders
    from rayroll.traces.store import Store

    _belong(prefill, {"--cost": cost, "--session-every": session_every_s, "--as-recorded": as_recorded or None}, model)
    folder_for(csv_folder)
    with Store.open(store, read_only=True) as opened:
        if not opened.connection.execute("SELECT 1 FROM steps LIMIT 1").fetchone():
            raise ConfigError("the store is empty: there is nothing to study", fix="rayroll traces load fills it")
        if prefill:
            every_s = session_every_s if session_every_s is not None else "recorded" if as_recorded else None
            tables, said = _prefill(opened, cost, load, every_s, orders(budget_tokens, patience_s=patience_s))
            said |= {"budget_tokens": budget_tokens, "patience_s": patience_s}
        else:
            tables, said = _hold_or_drop(opened, break_even_s, model)
    if csv_folder is not None:
        for name, lines in tables.items():
            write_csv(csv_folder / f"{name}.csv", lines)
    if not tables["prefill" if prefill else "kv"]:
        typer.echo("no step of this trace has both times and tokens", err=True)
    if as_json:
        sys.stdout.write(json.dumps({**tables, **said}) + "\n")
        return
    notes = {"kv_published": "" if said.get("is_public_data") else "of other data: TraceLab's"}
    constants = ", ".join(f"{name} = {value}" for name, value in said.items())
    for name, lines in tables.items():
        show(console(sys.stdout), name, lines, notes.get(name, constants))


def _belong(prefill: bool, of_prefill: Mapping[str, Any], model: Path | None) -> None:
    """Refuse an option of the study that was not asked for: it would change nothing, and nobody would notice."""
    from rayroll.errors import ConfigError

    given = [name for name, value in of_prefill.items() if value is not None]
    if given and not prefill:
        raise ConfigError(f"{given[0]} is for the order of prefills", fix=f"add --prefill, or leave {given[0]} out")
    if model is not None and prefill:
        raise ConfigError("--model is for caches, not for the order of prefills", fix="leave --model or --prefill out")
    if len(given) > len({"--cost"} & {*given}) + 1:
        raise ConfigError("sessions start either as recorded or at a pace", fix="leave one out", given=given)


_Tables = dict[str, list[dict[str, Any]]]


def _hold_or_drop(store: Store, break_even_s: float, model: Path | None) -> tuple[_Tables, dict[str, Any]]:
    from rayroll.traces import kv as caches
    from rayroll.traces import statistics
    from rayroll.traces.published import is_public_data

    expected = None
    if model is not None:
        from rayroll.traces.predict.gaps import waits
        from rayroll.traces.predict.model import Predictor

        expected = waits(store.connection, Predictor.load(model))
    policies = caches.standard(break_even_s=break_even_s, predict=expected)
    outcomes = caches.study(caches.Gaps.read(store.connection), policies)
    is_public = is_public_data(statistics.compute(store.connection, "counts_scope"))
    beside = [
        {
            "policy": policy,
            "measure": one.published.column,
            "ours": one.ours,
            "published": one.published.value,
            "difference": one.difference if is_public else None,
        }
        for policy, one in caches.beside_published(outcomes)
    ]
    said = {"break_even_s": break_even_s, "is_public_data": is_public}
    return {"kv": [asdict(outcome) for outcome in outcomes], "kv_published": beside}, said


def _prefill(
    store: Store, cost: Path | None, load: float, every_s: float | str | None, orders: Sequence[Order]
) -> tuple[_Tables, dict[str, Any]]:
    from rayroll.traces.prefill import CostModel, arrivals, load_cost, pace_s, serve

    model = CostModel() if cost is None else load_cost(cost)
    said: dict[str, Any] = asdict(model)
    if every_s is None:
        every_s = pace_s(store.connection, load, model)
        said["load"] = load
    said["session_every_s"] = every_s
    pace = None if isinstance(every_s, str) else every_s
    queue = arrivals(store.connection, session_every_s=pace)
    served = [serve(queue, order, model) for order in orders]
    return {"prefill": [asdict(one) for one in served if one.steps]}, said
