"""Runs rollouts on a Ray cluster: the only part of this package that imports Ray."""

from __future__ import annotations

from rayroll.executor.executor import Executor, collect
from rayroll.executor.play import PlayConfig, rollout_id
from rayroll.executor.run import Run

__all__ = ["Executor", "PlayConfig", "Run", "collect", "rollout_id"]
