"""Executors with leases as short as they may be, on the session's Ray."""

from __future__ import annotations

from typing import Any

import pytest
from chaos.stage import Stage
from executor.conftest import blocking_door, nothing_is_left, opened

__all__ = ["blocking_door", "nothing_is_left", "opened"]


@pytest.fixture
def stage(tmp_path: Any) -> Stage:
    return Stage(tmp_path)
