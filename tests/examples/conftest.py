"""Examples are scripts beside each other, not a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rayroll.sync import portal

sys.path.append(str(Path(__file__).parents[2] / "examples"))


@pytest.fixture(scope="package", autouse=True)
def blocking_door() -> None:
    """Its thread lasts as long as the process, so it is no leak of the test that opens it first."""
    portal()
