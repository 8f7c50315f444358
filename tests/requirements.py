"""What a test needs of this machine: it is skipped with the reason and the way out, or fails where it was required.

``RAYROLL_REQUIRE=local,docker`` names what must be there; CI sets it, so that a suite cannot go quietly green.
"""

from __future__ import annotations

import asyncio
import functools
import os

import pytest

from rayroll.errors import RayrollError
from rayroll.substrates import Probe, load

__all__ = ["is_required", "needs", "probe"]


def needs(kind: str) -> pytest.MarkDecorator:
    """Marks a test that needs a substrate. Where it is required and cannot run, the test fails with the reason."""
    found = probe(kind)
    if found.ok or is_required(kind):
        mark: pytest.MarkDecorator = getattr(pytest.mark, kind)
        return mark
    way_out = f"; to have it: {found.fix}" if found.fix else ""
    return pytest.mark.skip(reason=f"needs {kind}: {found.reason}{way_out}")


def is_required(kind: str) -> bool:
    """Whether ``RAYROLL_REQUIRE`` names it."""
    return kind in os.environ.get("RAYROLL_REQUIRE", "").split(",")


@functools.cache
def probe(kind: str) -> Probe:
    """What the substrate itself says about this machine; asked once."""
    try:
        found = load(kind)
        return asyncio.run(found(found.config_type()).probe())
    except RayrollError as error:
        return Probe(False, str(error), str(error.facts.get("fix", "")))
