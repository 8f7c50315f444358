"""Whose history a Codex log repeats: its heading names the parent, and its head is the parent's steps, stamped anew."""

from __future__ import annotations

import re
from typing import Any

from rayroll.traces.steps import time_ms

__all__ = ["is_history", "is_subagent", "parent_of"]

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-", re.IGNORECASE)


def is_history(own: str, start_ms: int | None, turn: Any, at: Any) -> bool:
    """Was a step at the head of a fork's log made before the fork?

    ``own`` is the fork's id and ``start_ms`` the time of its heading; ``turn`` and ``at`` are the step's.
    """
    if isinstance(turn, str) and _UUID7.match(turn) and _UUID7.match(own):
        return turn.lower() < own.lower()  # version 7 begins with the time
    # History is copied within the second in which the fork is made, or keeps its older times; no call of a
    # model is made and answered in that second.
    at_ms = time_ms(at)
    return start_ms is not None and at_ms is not None and at_ms // 1000 <= start_ms // 1000


def parent_of(payload: dict[str, Any]) -> str | None:
    """The session that this one was forked from or started by."""
    source = payload.get("source")
    spawn: Any = source.get("subagent") if isinstance(source, dict) else None
    spawn = spawn.get("thread_spawn") if isinstance(spawn, dict) else None
    spawned_by = spawn.get("parent_thread_id") if isinstance(spawn, dict) else None
    for value in (payload.get("forked_from_id"), spawned_by, payload.get("parent_thread_id")):
        if isinstance(value, str) and value:
            return value
    return None


def is_subagent(payload: dict[str, Any]) -> bool:
    """Did another session start this one?"""
    source = payload.get("source")
    return (isinstance(source, dict) and "subagent" in source) or payload.get("thread_source") == "subagent"
