"""Each step of the work is printed with the seconds it took, so that a slow test bed shows where."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Steps:
    """The seconds spent so far, by step; standard output gets one line for each."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        outcome = "failed"
        try:
            yield
            outcome = ""
        finally:
            self.seconds[name] = time.monotonic() - began_s
            print(f"{self.seconds[name]:8.2f} s  {name} {outcome}".rstrip(), flush=True)

    def note(self, text: str) -> None:
        print(f"{'':8}    {text}", flush=True)
