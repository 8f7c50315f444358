"""The second net below leases: finds sandboxes that are left on this node, of every kind, and removes them. No Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rayroll.errors import InfraFailure
from rayroll.substrates import SandboxRef, Substrate, load

__all__ = ["sweep"]

logger = logging.getLogger(__name__)


async def sweep(
    kinds: Sequence[str],
    *,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    run_id: str | None = None,
    owner: str | None = None,
    older_than_s: float | None = None,
    also_kept: bool = False,
    dry_run: bool = False,
) -> list[SandboxRef]:
    """Destroy sandboxes of this user on this node, whatever state they are in.

    Args:
        kinds: Substrates to look at; one that this node cannot run has nothing here and is passed over.
        configs: Fields of their configs, by kind.
        run_id: Only of this run.
        owner: Only of this host.
        older_than_s: Only those at least so many seconds old; None: of any age, also those of runs under way.
        also_kept: Also those that were kept and whose time is not over.
        dry_run: Destroy nothing.

    Returns:
        What was destroyed, or would be.

    Raises:
        ConfigError: Unknown kind, with the nearest names; nothing was looked at.
        ExceptionGroup: Some could not be destroyed, or an engine broke off; all others were.
    """
    labels = {name: value for name, value in (("run", run_id), ("owner", owner)) if value is not None}
    substrates = [_made(kind, (configs or {}).get(kind, {})) for kind in kinds]
    swept = await asyncio.gather(
        *(_sweep_one(substrate, labels, older_than_s or 0.0, also_kept, dry_run) for substrate in substrates)
    )
    errors = [error for _, failed in swept for error in failed]
    if errors:
        raise ExceptionGroup("not everything could be removed", errors)
    return [ref for found, _ in swept for ref in found]


def _made(kind: str, config: Mapping[str, Any]) -> Substrate:
    substrate = load(kind)
    return substrate(substrate.config_type.parse(config, where=f"substrate {kind!r}"))


async def _sweep_one(
    substrate: Substrate, labels: dict[str, str], older_than_s: float, also_kept: bool, dry_run: bool
) -> tuple[list[SandboxRef], list[Exception]]:
    probe = await substrate.probe()
    if not probe.ok:
        logger.info("%s is passed over: %s", substrate.kind, probe.reason)
        return [], []
    try:
        async with substrate:
            found = [
                ref
                for ref in await substrate.list(labels)
                if ref.age_s >= older_than_s and (also_kept or not ref.is_kept)
            ]
            return (found, []) if dry_run else await _destroyed(substrate, found)
    except InfraFailure as error:
        return [], [error]


async def _destroyed(substrate: Substrate, found: Iterable[SandboxRef]) -> tuple[list[SandboxRef], list[Exception]]:
    gone: list[SandboxRef] = []
    errors: list[Exception] = []
    for ref in found:
        try:
            await substrate.destroy(ref)
            gone.append(ref)
        except InfraFailure as error:
            errors.append(error)
    return gone, errors
