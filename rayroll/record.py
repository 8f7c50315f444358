"""A rollout as one line of JSON, and back: the file that resuming, reports and other people's tools read.

The line is the ``Rollout`` field by field, after ``"v"``, the version of the format. What JSON has comes back equal,
also ``tokens``; tuples come back as lists, arrays (numpy, torch) as lists of numbers, NaN and infinities as null, and
what cannot be written leaves its type's name in its place. Fields that a reader does not know are ignored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from rayroll.errors import Failure
from rayroll.types import Act, CommandTiming, Grade, Kept, Rollout, Step, Timing

__all__ = ["VERSION", "finished_ids", "from_line", "read_rollouts", "to_line"]

VERSION = 1

logger = logging.getLogger(__name__)

_HEAD = b'{"v":%d,' % VERSION
# orjson refuses lone surrogates and reads integers above 64 bits as floats; such lines are the standard library's.
_SLOW_HEAD = _HEAD + b'"json":"stdlib",'

T = TypeVar("T")


def to_line(rollout: Rollout) -> bytes:
    """One line, newline included. Never raises for what a policy put into ``tokens`` or a grader into ``details``."""
    try:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        return _HEAD + orjson.dumps(rollout, default=_plain, option=options)[1:] + b"\n"
    except TypeError:
        slow = json.dumps(rollout, default=_plain, separators=(",", ":"), skipkeys=True)
        return _SLOW_HEAD + slow.encode()[1:] + b"\n"


def from_line(line: bytes) -> Rollout:
    """The rollout of one line.

    Raises:
        ValueError: The line is damaged, or no rollout, or of a newer format.
    """
    values = json.loads(line) if line.startswith(_SLOW_HEAD) else orjson.loads(line)
    if not isinstance(values, dict) or not isinstance(values.get("v"), int):
        raise ValueError("not a rollout: no format version")
    if values["v"] > VERSION:
        raise ValueError(f"format {values['v']} is newer than {VERSION}: update rayroll")
    try:
        return _build(
            Rollout,
            values,
            timing=_build(Timing, values["timing"]),
            steps=tuple(_step(step) for step in values["steps"]),
            grade=None if values["grade"] is None else _grade(values["grade"]),
            failure=_failure(values["failure"]),
            kept=_kept(values.get("kept")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a rollout: {type(error).__name__}: {error}") from error


def read_rollouts(path: Path | str) -> Iterator[Rollout]:
    """Every rollout of a file, in the order they finished, one at a time.

    A last line that a crash tore, and any other damaged line, is passed over and named in the log. An id may come
    twice: a rollout that the machine spoilt and that a resumed run made again; both cost time.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield from_line(line)
            except ValueError as error:
                torn = "torn by a crash" if not line.endswith(b"\n") else str(error)
                logger.warning("rollout passed over: %s line %d: %s", path, number, torn)


def finished_ids(path: Path | str) -> set[str]:
    """Ids that a resumed run skips: all in the file, but those the machine spoilt. A missing file has none."""
    if not Path(path).exists():
        return set()
    finished = set()
    for rollout in read_rollouts(path):
        if rollout.failure is None or rollout.failure.fault != "infra":
            finished.add(rollout.id)
    return finished


def _plain(value: Any) -> Any:
    """What to write for a value that JSON does not have."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, Path):
        return str(value)
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        return to_list()
    return {"unserializable": f"{type(value).__module__}.{type(value).__qualname__}"}


def _build(cls: type[T], values: Mapping[str, Any], **made: Any) -> T:
    known = {field.name: values[field.name] for field in fields(cls) if field.name in values}  # type: ignore[arg-type]
    return cls(**(known | made))


def _step(values: Mapping[str, Any]) -> Step:
    return _build(Step, values, act=_build(Act, values["act"]), timing=_build(CommandTiming, values["timing"]))


def _grade(values: Mapping[str, Any]) -> Grade:
    return _build(Grade, values, failure=_failure(values["failure"]))


def _failure(values: Mapping[str, Any] | None) -> Failure | None:
    return None if values is None else _build(Failure, values)


def _kept(values: Mapping[str, Any] | None) -> Kept | None:
    return None if values is None else _build(Kept, values)
