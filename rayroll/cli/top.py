"""What the executors of a cluster are doing, live."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rayroll.executor.board import boards, join

__all__ = ["top"]

STAGES = {"waiting": "wait", "start": "start", "policy": "policy", "exec": "exec", "grade": "grade", "close": "close"}


def top(
    address: Annotated[
        str, typer.Option(help="Ray cluster, IP:PORT or ray://...; auto: the one of this machine.")
    ] = "auto",
    every_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document for each look.")] = False,
) -> None:
    """Show what every executor is doing: slots, phases, rates, failures by fault, slowest hosts and images."""
    join(address)
    try:
        asyncio.run(_watch(every_s, once=once, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _watch(every_s: float, *, once: bool, as_json: bool) -> None:
    if as_json or once:
        while True:
            found = await boards()
            if as_json:
                typer.echo(json.dumps(found))
            else:
                Console().print(picture(found))
            if once:
                return
            await asyncio.sleep(every_s)
    with Live(Text("looking"), screen=True, auto_refresh=False) as live:
        while True:
            live.update(picture(await boards()), refresh=True)
            await asyncio.sleep(every_s)


def picture(found: list[dict[str, Any]]) -> Group:
    """Boards as people read them."""
    if not found:
        return Group(Text("no executor is at work in this cluster"))
    return Group(*(part for board in found for part in (_executors(board), _hosts(board), _images(board))))


def _executors(board: dict[str, Any]) -> Table:
    table = Table(
        title=f"run {board['run_id']} on {board['substrate']}, up {board['up_s']:.0f} s", title_justify="left"
    )
    for column in (
        "done",
        "valid",
        "reward",
        "rollouts/s",
        "steps/s",
        *STAGES.values(),
        "retries",
        "spares",
        "failures",
    ):
        table.add_column(column, justify="left" if column == "failures" else "right")
    stages = {"waiting": board["waiting"], **board["stages"]}
    reward = "-" if board["mean_reward"] is None else f"{board['mean_reward']:.2f}"
    failures = ", ".join(f"{fault} {count}" for fault, count in sorted(board["failures"].items())) or "none"
    table.add_row(
        *(str(board["rollouts"]), str(board["valid"]), reward),
        *(f"{board['rollouts_per_s']:.2f}", f"{board['steps_per_s']:.1f}"),
        *(str(stages.get(stage, 0)) for stage in STAGES),
        *(str(board["retries"]), str(board["spares"]), failures),
    )
    return table


def _hosts(board: dict[str, Any]) -> Table:
    table = Table(box=None)
    for column in ("host", "running", "starting", "of at most", "warm", "start p50", ""):
        table.add_column(column, justify="left" if column in ("host", "") else "right")
    for host in board["hosts"]:
        rests = f"rests {host['rests_s']:.0f} s" if host["rests_s"] else ""
        state = "down" if not host["is_up"] else f"short of {host['short_of']}" if host["short_of"] else rests
        counts = (f"{host[name]:.0f}" for name in ("running", "starting", "start_limit", "warm"))
        table.add_row(host["name"], *counts, _seconds(host["start_p50_s"]), state)
    return table


def _images(board: dict[str, Any]) -> Table:
    table = Table(box=None)
    for column in ("slowest images, or tasks without", "starts", "start p50", "infra failures"):
        table.add_column(column, justify="left" if "images" in column else "right")
    for image in board["images"]:
        table.add_row(image["name"], str(image["starts"]), _seconds(image["start_p50_s"]), str(image["infra"]))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"
