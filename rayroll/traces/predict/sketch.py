"""How long something took, as counts on a grid of powers of two: adds up, mixes, and forgets.

A bin is a sixteenth of an octave, 4.4 %, from 8 µs to 12 days. Quantiles do not care whether times or their logarithms
are counted, so that one sketch answers for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["BINS", "EDGES", "Array", "Sketch", "bin_of", "vague"]

Array = np.ndarray[Any, np.dtype[Any]]

_PER_OCTAVE = 16
_LOWEST = -17  # log2 of seconds
BINS = 37 * _PER_OCTAVE
EDGES: Array = _LOWEST + np.arange(BINS + 1) / _PER_OCTAVE
"""Between the bins, as log2 of seconds."""

_DENSE_FROM = 24
MOST = 4000.0
"""A sketch that has counted so many halves its counts: what was long ago fades."""


def bin_of(seconds: float) -> int:
    """The bin of a time above 0."""
    return min(max(int((math.log2(seconds) - _LOWEST) * _PER_OCTAVE), 0), BINS - 1)


def vague() -> Array:
    """What is thought before anything was seen: about a second, give or take a factor of thirty."""
    middle = (EDGES[:-1] + EDGES[1:]) / 2
    weights = np.exp(-0.5 * (middle / 5.0) ** 2)
    return np.asarray(weights / weights.sum())


class Sketch:
    """Counts that grow."""

    __slots__ = ("dense", "sparse", "total")

    def __init__(self, bins: Iterable[int] = (), counts: Iterable[float] = ()) -> None:
        self.sparse: dict[int, float] = dict(zip(bins, counts, strict=True))
        self.dense: Array | None = None
        self.total = float(sum(self.sparse.values()))

    def add(self, at: int) -> None:
        """One more in this bin."""
        self.total += 1
        if self.dense is None:
            self.sparse[at] = self.sparse.get(at, 0.0) + 1
            if len(self.sparse) > _DENSE_FROM:
                self.dense = np.zeros(BINS)
                self.dense[list(self.sparse)] = list(self.sparse.values())
                self.sparse = {}
        else:
            self.dense[at] += 1
        if self.total > MOST:
            self.total /= 2
            if self.dense is None:
                self.sparse = {at: count / 2 for at, count in self.sparse.items()}
            else:
                self.dense /= 2

    def mix_into(self, into: Array, factor: float) -> None:
        """Add the counts times a factor."""
        if self.dense is not None:
            into += factor * self.dense
        else:
            for at, count in self.sparse.items():
                into[at] += factor * count

    def items(self) -> list[tuple[int, float]]:
        """Bins and their counts, by bin."""
        if self.dense is None:
            return sorted(self.sparse.items())
        return [(int(at), float(self.dense[at])) for at in np.flatnonzero(self.dense)]
