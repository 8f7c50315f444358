"""What Codex's tool runner reports of a call stands in the text that the model gets, in a head above the output.

``Chunk ID: b7e3a1\\nWall time: 0.0103 seconds\\nProcess exited with code 0\\nOriginal token count: 0\\nOutput:\\n...``;
older versions give JSON: ``{"output": "...", "metadata": {"exit_code": 0, "duration_seconds": 0.1}}``.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from rayroll.traces.steps import duration_ms

__all__ = ["exit_was_error", "reported_ms"]

_EXIT_CODE = re.compile(r"(?:Exit code|Process exited with code)[: ]+(-?\d{1,18})")
_WALL_TIME = re.compile(r"^Wall time:\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*seconds\b", re.MULTILINE)
_HEAD_CHARS = 1000


def exit_was_error(output: Any) -> bool | None:
    """Did the command fail? ``None``: it does not say, such as while it still runs."""
    if not isinstance(output, str):
        return None
    if match := _EXIT_CODE.search(_head(output)):
        return int(match[1]) != 0
    metadata = _metadata(output)
    if isinstance(code := metadata.get("exit_code"), int):
        return code != 0
    if isinstance(success := metadata.get("success"), bool):
        return not success
    return None


def reported_ms(output: Any) -> int | None:
    """How long the call took, by its runner: of an output, or of a ``{"secs": 1, "nanos": 5000000}``."""
    if isinstance(output, dict):
        seconds, nanos = duration_ms(output.get("secs"), 1000), duration_ms(output.get("nanos"), 1e-6)
        return None if seconds is None else seconds + (nanos or 0)
    if not isinstance(output, str):
        return None
    if match := _WALL_TIME.search(_head(output)):
        return round(float(match[1]) * 1000)
    return duration_ms(_metadata(output).get("duration_seconds"), 1000)


def _head(output: str) -> str:
    """Without the command's own output, which may say anything."""
    head, _, _ = output[:_HEAD_CHARS].partition("\nOutput:\n")
    return head


def _metadata(output: str) -> dict[str, Any]:
    if not output.startswith("{"):
        return {}
    try:
        value = orjson.loads(output)
    except orjson.JSONDecodeError:
        return {}
    metadata = value.get("metadata") if isinstance(value, dict) else None
    return metadata if isinstance(metadata, dict) else {}
