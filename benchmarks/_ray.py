"""Ray for one measurement: a cluster of its own, so that it neither waits for others' work nor ends with theirs."""

from __future__ import annotations

import logging

import ray

__all__ = ["start_ray"]


def start_ray() -> None:
    """Start it on this machine, whatever else runs here; it ends with this process."""
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
