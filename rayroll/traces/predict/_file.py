"""A model file: a line that says what it is, a line of JSON, and arrays that are used as they lie there."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson

from rayroll.errors import ConfigError
from rayroll.traces.predict.sketch import BINS, Array

VERSION = 1
"""Raised with every change of the file, the keys or the grid."""

_MAGIC = b"rayroll predicts calls\n"


@dataclass(frozen=True, slots=True)
class Head:
    """All but the sketches."""

    weights: Mapping[str, float]
    shares: tuple[float, float, float]
    salt: bytes
    facts: Mapping[str, Any]


class Stored:
    """Sketches in four arrays, by key; never changed."""

    def __init__(self, keys: Array, starts: Array, bins: Array, counts: Array) -> None:
        self._keys = keys
        # A memoryview hands out Python's own integers, which bisect compares three times as fast as an array's.
        self._view = memoryview(keys.tobytes()).cast("Q")
        self._starts, self._bins, self._counts = starts, bins, counts

    @classmethod
    def empty(cls) -> Self:
        """None at all."""
        return cls(np.zeros(0, "<u8"), np.zeros(1, "<u4"), np.zeros(0, "<u2"), np.zeros(0, "<f4"))

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return self.find(key) >= 0

    def find(self, key: int) -> int:
        """Where the key's sketch is; -1: it has none."""
        at = bisect_left(self._view, key)
        return at if at < len(self._keys) and self._view[at] == key else -1

    def total(self, at: int) -> float:
        """How many calls it has counted."""
        return float(self._counts[self._starts[at] : self._starts[at + 1]].sum())

    def mix_into(self, at: int, into: Array, factor: float) -> None:
        """Add its counts times a factor."""
        part = slice(self._starts[at], self._starts[at + 1])
        into[self._bins[part]] += factor * self._counts[part]

    def counts(self, at: int) -> tuple[list[int], list[float]]:
        """Its bins and what they hold."""
        part = slice(self._starts[at], self._starts[at + 1])
        return self._bins[part].tolist(), self._counts[part].tolist()

    def sketches(self) -> dict[int, list[tuple[int, float]]]:
        """All of them."""
        return {key: list(zip(*self.counts(at), strict=True)) for at, key in enumerate(self._keys.tolist())}


def write(path: Path, head: Head, sketches: Mapping[int, list[tuple[int, float]]]) -> None:
    """Write a model, all of it or nothing."""
    ordered = sorted(sketches)
    lengths = [len(sketches[key]) for key in ordered]
    arrays = [
        np.array(ordered, "<u8"),
        np.concatenate([[0], np.cumsum(lengths)]).astype("<u4"),
        np.array([at for key in ordered for at, _ in sketches[key]], "<u2"),
        np.array([count for key in ordered for _, count in sketches[key]], "<f4"),
    ]
    said = {
        "version": VERSION,
        **asdict(head),
        "salt": head.salt.hex(),
        "keys": len(ordered),
        "cells": int(arrays[1][-1]),
    }
    line = orjson.dumps(said)
    line += b" " * (-(len(_MAGIC) + len(line) + 1) % 8) + b"\n"  # the arrays begin where 8-byte numbers may lie
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(_MAGIC + line + b"".join(array.tobytes() for array in arrays))
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise ConfigError(f"cannot write the model {path}: {error.strerror}", fix="choose another --out") from None


def read(path: Path) -> tuple[Head, Stored]:
    """Raises ConfigError for everything that is no model of this version."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the model {path}: {error.strerror}", fix="rayroll traces predict fit") from None
    if not content.startswith(_MAGIC):
        raise ConfigError(f"{path} is no model", fix="name a file that `rayroll traces predict fit` has written")
    try:
        end = content.index(b"\n", len(_MAGIC)) + 1
        said = orjson.loads(content[len(_MAGIC) : end])
        version = int(said["version"])
        if version != VERSION:
            newer = version > VERSION
            raise ConfigError(
                f"{path} was made by {'a newer' if newer else 'an older'} rayroll",
                version=version,
                known=VERSION,
                fix="update rayroll" if newer else "fit it again",
            )
        keys, cells = int(said["keys"]), int(said["cells"])
        stored = _arrays(content, end, keys, cells)
        weights = {str(level): float(weight) for level, weight in said["weights"].items()}
        shares = tuple(map(float, said["shares"]))
        assert len(shares) == 3
        return Head(weights, shares, bytes.fromhex(said["salt"]), dict(said["facts"])), stored
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, OverflowError):
        raise ConfigError(f"the model {path} is damaged", fix="fit it again") from None


def _arrays(content: bytes, at: int, keys: int, cells: int) -> Stored:
    arrays = []
    for kind, length in (("<u8", keys), ("<u4", keys + 1), ("<u2", cells), ("<f4", cells)):
        arrays.append(np.frombuffer(content, kind, length, at))
        at += arrays[-1].nbytes
    found, starts, bins, counts = arrays
    sound = (
        at == len(content)
        and (found[1:] > found[:-1]).all()
        and starts[0] == 0
        and starts[-1] == cells
        and (starts[1:] >= starts[:-1]).all()
        and (bins < BINS).all()
        and (counts > 0).all()
        and np.isfinite(counts).all()
    )
    if not sound:
        raise ValueError("arrays that do not fit together")
    return Stored(found, starts, bins, counts)
