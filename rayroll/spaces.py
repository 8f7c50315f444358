"""The space of shell commands and of what they print: any text up to a length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym

__all__ = ["UnicodeText"]

_HARMLESS = ("true", "pwd", "echo hello", "ls", ":")
# `check_env` and random agents execute what they sample; random characters would be a random command.


class UnicodeText(gym.Space[str]):
    """Text of at most ``max_length`` characters, any of Unicode's.

    Gymnasium's own ``Text`` holds letters and digits by default, so not even a newline; with all of Unicode as its
    alphabet it takes 4 s to build and 46 MB to pickle. This one only compares a length.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(shape=None, dtype=str)
        self.max_length = max_length

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A harmless command: samples are executed."""
        return _HARMLESS[int(self.np_random.integers(len(_HARMLESS)))]

    def contains(self, x: Any) -> bool:
        """Is it text, and short enough?"""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Texts are JSON as they are."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[str]) -> list[str]:
        """The inverse of ``to_jsonable``."""
        return list(sample_n)

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    __hash__ = None  # type: ignore[assignment]
