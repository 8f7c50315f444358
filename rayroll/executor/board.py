"""What an executor is doing, for people who look at it from another process: a board that hangs at its first host.

The driver writes it once a second; ``rayroll top`` finds the boards of all executors by the names of their hosts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import ray

from rayroll.errors import InfraFailure
from rayroll.executor.link import HOST_PREFIX, NAMESPACE, remote_call
from rayroll.scheduler import Snapshot
from rayroll.types import Rollout

__all__ = ["Tally", "boards", "join"]

WINDOW_S = 60.0
"""Rates are over this long."""
KEPT = 50
"""Starts that are remembered for each host and each image."""
SHOWN = 10
"""Hosts and images on a board, the slowest first."""
READ_S = 5.0
KNOCK_S = 5.0
"""Longest wait for the head to be reached."""


class Tally:
    """Counts an executor's rollouts."""

    def __init__(self, run_id: str, substrate: str) -> None:
        self._who = {"run_id": run_id, "substrate": substrate}
        self._began_s = time.monotonic()
        self._rollouts = self._valid = self._steps = self._attempts = 0
        self._reward = 0.0
        self._failures: Counter[str] = Counter()
        self._lately: deque[tuple[float, int]] = deque()
        self._starts_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._image_of: dict[str, str] = {}
        self._image_starts_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._image_failures: Counter[str] = Counter()

    def know(self, images: Mapping[str, str | None]) -> None:
        """The images of some tasks, by their ids. A task that needs none counts for itself."""
        self._image_of.update((task, image or task) for task, image in images.items())

    def add(self, rollout: Rollout) -> None:
        """One more is over."""
        now_s = time.monotonic()
        self._rollouts += 1
        self._valid += rollout.valid
        self._reward += rollout.reward or 0.0
        self._steps += len(rollout.steps)
        self._attempts += rollout.attempts
        image = self._image_of.get(rollout.task_id, rollout.task_id)
        if rollout.failure is not None:
            self._failures[rollout.failure.fault] += 1
            self._image_failures[image] += rollout.failure.fault == "infra"
        if rollout.cold_start_s is not None:
            self._starts_s[rollout.host].append(rollout.cold_start_s)
            self._image_starts_s[image].append(rollout.cold_start_s)
        self._lately.append((now_s, len(rollout.steps)))
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        while self._lately and self._lately[0][0] < now_s - WINDOW_S:
            self._lately.popleft()

    def board(self, snapshot: Snapshot) -> dict[str, Any]:
        """Plain values, for JSON."""
        now_s = time.monotonic()
        self._forget(now_s)
        window_s = max(min(WINDOW_S, now_s - self._began_s), 1e-9)
        hosts = [
            {"name": name, **values, "start_p50_s": _middle(self._starts_s.get(name))}
            for name, values in snapshot.hosts.items()
        ]
        images = [
            {
                "name": name,
                "start_p50_s": _middle(starts_s),
                "starts": len(starts_s),
                "infra": self._image_failures[name],
            }
            for name, starts_s in self._image_starts_s.items()
        ]
        return {
            **self._who,
            "up_s": now_s - self._began_s,
            "waiting": snapshot.waiting,
            "stages": dict(snapshot.stages),
            "rollouts": self._rollouts,
            "valid": self._valid,
            "mean_reward": self._reward / self._valid if self._valid else None,
            "rollouts_per_s": len(self._lately) / window_s,
            "steps_per_s": sum(steps for _, steps in self._lately) / window_s,
            "failures": dict(self._failures),
            "retries": snapshot.retries,
            "spares": snapshot.spares,
            "warm_hits": snapshot.warm_hits,
            "warm_misses": snapshot.warm_misses,
            "hosts": sorted(hosts, key=_slowest)[:SHOWN],
            "images": sorted(images, key=_slowest)[:SHOWN],
        }


def _middle(values: deque[float] | None) -> float | None:
    return statistics.median(values) if values else None


def _slowest(item: Mapping[str, Any]) -> float:
    return -(item["start_p50_s"] or 0.0)


def join(address: str) -> None:
    """Connect this process to a Ray cluster, to look at it.

    Args:
        address: ``IP:PORT``, ``ray://...``, or ``auto`` for the one of this machine.

    Raises:
        InfraFailure: There is none.
    """
    ip, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself knocks for minutes
            socket.create_connection((ip.removeprefix("ray://"), int(port)), timeout=KNOCK_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except OSError as error:
        raise InfraFailure("no Ray cluster is there; start one, or give its --address", reason=str(error)) from None


async def boards() -> list[dict[str, Any]]:
    """The boards of all executors of the cluster this process is connected to; of one that ends it may be missing."""
    found = []
    for actor in await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(HOST_PREFIX):
            try:
                handle = await asyncio.to_thread(ray.get_actor, actor["name"], namespace=NAMESPACE)
                board = await remote_call(handle.board.remote(), deadline_s=READ_S, what="board")
            except Exception:  # it ends as we look
                continue
            if board is not None:
                found.append(board)
    return sorted(found, key=lambda board: str(board["run_id"]))
