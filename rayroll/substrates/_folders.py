"""Sandboxes that have a folder on this node, found by any process (see ``_leftovers``)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates import SandboxRef
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._leftovers import Remains

__all__ = ["refs", "remains_of", "remove"]


def refs(kind: str, base: Path, labels: Mapping[str, str]) -> list[SandboxRef]:
    """All below ``base`` with these labels, as a substrate lists them. Blocks."""
    now_unix_s = time.time()
    return [
        SandboxRef(
            kind, r.id, r.run_id, r.owner, r.state, now_unix_s - r.created_unix_s, r.lease_s, r.kept_until_unix_s
        )
        for r in leftovers.find(base, labels)
    ]


def remains_of(base: Path, ref: SandboxRef) -> Remains:
    """What is on record. Blocks. Raises SandboxLostError when it is gone."""
    for remains in leftovers.find(base, {"run": ref.run_id}):
        if remains.id == ref.id:
            return remains
    raise SandboxLostError("the sandbox is gone", id=ref.id)


def remove(base: Path, name: str) -> None:
    """Remove a sandbox of another process. Blocks. Raises SubstrateError where something stays."""
    for remains in leftovers.find(base, {}):
        if remains.id == name:
            try:
                leftovers.remove(remains)
            except OSError as error:
                raise SubstrateError("a sandbox could not be removed", id=name, reason=str(error)) from error
