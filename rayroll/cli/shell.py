"""Into the sandbox of a rollout that was kept."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rayroll.errors import RayrollError, SandboxLostError
from rayroll.substrates import Login, SandboxRef, Substrate, load
from rayroll.types import Kept, Rollout

__all__ = ["shell"]

ENDED_WITH_ITS_SANDBOX = 137
"""The exit code of a shell whose sandbox was removed under it: what it died of."""
TOLD_TO_END = 143


def shell(
    rollout: Annotated[str | None, typer.Argument(help="Its id, or how it begins. Without: what is kept.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="After `--`: instead of a shell.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Results folder of the run. [all in ./results and ~/rayroll-results]")
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="Say what is kept, and where.")] = False,
) -> None:
    """Open a shell in a kept sandbox, as the task's agent, where the agent began. Ends with the shell's exit code.

    Rollouts are kept by `rayroll run` and `sweep` with --keep on-failure. Needs no Ray.
    """
    from rayroll.cli._kept import Ledger

    ledger = Ledger(results)
    if rollout is None or as_list:
        _list(ledger.kept(), ledger.folders)
        return
    try:
        code = asyncio.run(_enter(ledger.find(rollout), command or ()))
    except asyncio.CancelledError:
        code = TOLD_TO_END
    raise typer.Exit(code)


async def _enter(rollout: Rollout, argv: Sequence[str]) -> int:
    from rayroll.cli import _terminal as terminal

    kept = rollout.kept
    assert kept is not None
    sits_here = terminal.has_terminal()
    seeds = {} if rollout.seed is None else {"RAYROLL_SEED": str(rollout.seed)}
    login = Login(
        shell=kept.shell,
        argv=tuple(argv),
        workdir=kept.workdir,
        user=kept.user,
        env={**seeds, **({"TERM": os.environ.get("TERM", "xterm")} if sits_here else {})},
        terminal=terminal.size() if sits_here else None,
    )
    substrate = await _opened(rollout.id, kept)
    try:
        ref = await _found(substrate, rollout.run_id, kept)
        if ref is None:
            raise _gone(rollout.id, kept)
        if sits_here:
            typer.echo(f"{rollout.task_id} ({_outcome(rollout)}), {kept.substrate}, {_left(kept)} left", err=True)
        inside = await substrate.shell(ref, login)
        try:
            code = await terminal.join(inside, with_terminal=sits_here)
        finally:
            await inside.close()
    finally:
        await substrate.close()
    if code is None:
        typer.echo("rayroll: the sandbox ended: its time is over, or somebody removed it", err=True)
        return ENDED_WITH_ITS_SANDBOX
    return code


async def _opened(rollout: str, kept: Kept) -> Substrate:
    kind = load(kept.substrate)
    substrate = kind(kind.config_type.parse(kept.place, where=f"substrate {kept.substrate!r}"))
    try:
        await substrate.open()
    except RayrollError as error:
        await substrate.close()
        if kept.node != socket.gethostname():
            raise _gone(rollout, kept) from error
        raise
    return substrate


async def _found(substrate: Substrate, run_id: str, kept: Kept) -> SandboxRef | None:
    found = await substrate.list({"run": run_id})
    return next((ref for ref in found if ref.id == kept.sandbox and ref.state == "running"), None)


def _gone(rollout: str, kept: Kept) -> SandboxLostError:
    here = socket.gethostname()
    if kept.node != here:
        return SandboxLostError(
            f"the sandbox of rollout {rollout} is on another node; run the same there, with these results",
            node=kept.node,
            here=here,
        )
    return SandboxLostError(
        f"the sandbox of rollout {rollout} is gone before its time: it ended by itself (memory, a restart of its "
        "engine), or somebody removed it",
        substrate=kept.substrate,
        sandbox=kept.sandbox[:12],
    )


def _list(rollouts: list[Rollout], folders: Sequence[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rollouts:
        where = ", ".join(str(folder) for folder in folders[:3]) or "./results"
        typer.echo(f"nothing is kept of the runs in {where}; rayroll run --keep on-failure keeps what fails")
        return
    table = Table(box=None)
    for column in ("rollout", "task", "outcome", "substrate", "node", "left", ""):
        table.add_column(column, no_wrap=column == "rollout")
    here = asyncio.run(_living(rollouts))
    for rollout in rollouts:
        kept = rollout.kept
        assert kept is not None
        state = "" if kept.sandbox in here else "gone" if kept.node == socket.gethostname() else "on that node"
        table.add_row(rollout.id, rollout.task_id, _outcome(rollout), kept.substrate, kept.node, _left(kept), state)
    Console(width=None if os.isatty(1) else 140).print(table)
    typer.echo("rayroll shell ROLLOUT opens a shell in one; rayroll gc --all removes them before their time")


async def _living(rollouts: Sequence[Rollout]) -> set[str]:
    """Sandboxes that can be entered from here."""
    found = set()
    for rollout in rollouts:
        assert rollout.kept is not None
        try:
            substrate = await _opened(rollout.id, rollout.kept)
        except RayrollError:
            continue
        try:
            if await _found(substrate, rollout.run_id, rollout.kept) is not None:
                found.add(rollout.kept.sandbox)
        finally:
            await substrate.close()
    return found


def _outcome(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return f"{rollout.failure.fault}: {rollout.failure.error or rollout.failure.reason}"
    return f"reward {rollout.reward:g}" if rollout.reward is not None else "no verdict"


def _left(kept: Kept) -> str:
    left_s = max(0.0, kept.until_unix_s - time.time())
    if left_s < 60:
        return f"{left_s:.0f} s"
    minutes = round(left_s / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
