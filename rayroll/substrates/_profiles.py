"""What a simulated node is like: how long things take, how often they fail, and what its commands print."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from pydantic import Field

from rayroll.config import Config

__all__ = ["PROFILES", "Draw", "Profile", "Script"]


class Draw(Config):
    """A duration: log-normal around its median, with a share of stragglers."""

    median_s: float = Field(default=0.0, ge=0)
    """Half of all are shorter; 0: no time at all."""
    sigma: float = Field(default=0.0, ge=0)
    """Spread of the logarithm; 0.5 puts one in ten above twice the median."""
    straggler_share: float = Field(default=0.0, ge=0, le=1)
    """Share that takes ``straggler_factor`` times as long."""
    straggler_factor: float = Field(default=10.0, ge=1)

    def sample_s(self, random: random.Random) -> float:
        """One of them, in seconds."""
        if self.median_s == 0.0:
            return 0.0
        duration_s = self.median_s * math.exp(random.gauss(0.0, self.sigma))
        return duration_s * (self.straggler_factor if random.random() < self.straggler_share else 1.0)


class Script(Config):
    """What commands that match do. The first script of a profile that matches is taken."""

    match: str
    """Regular expression, searched for in the command's text."""
    exit_code: int = Field(0, ge=0, le=255)
    output: str = ""
    run: Draw | None = None
    """How long they run; None: as the profile says."""
    writes: Mapping[str, str] = Field(default_factory=dict)
    """Files they leave: absolute path to text."""


class Profile(Config):
    """A node, as far as it can be told from outside."""

    pull: Draw = Draw()
    """First sandbox of an image; later ones find it there."""
    create: Draw = Draw()
    boot: Draw = Draw()
    hello: Draw = Draw()
    transport: Draw = Draw()
    """Of a message and its answer together."""
    spawn: Draw = Draw()
    run: Draw = Draw()
    drain: Draw = Draw()
    destroy: Draw = Draw()
    create_failure: float = Field(default=0.0, ge=0, le=1)
    """Share of creates that fail."""
    hello_failure: float = Field(default=0.0, ge=0, le=1)
    """Share of sandboxes whose runner ends before it says hello."""
    death_per_command: float = Field(default=0.0, ge=0, le=1)
    """Share of commands in the middle of which the sandbox is gone."""
    stream_break_per_command: float = Field(default=0.0, ge=0, le=1)
    """Share of commands in the middle of which the stream breaks; the sandbox lives, and can be attached to again."""
    scripts: tuple[Script, ...] = ()
    """Asked before the small shell that knows echo, true, false, exit, sleep, pwd and cat. Other commands succeed and
    print nothing."""
    solve_share: float = Field(default=1.0, ge=0, le=1)
    """Share of sandboxes in which the task's tests pass, for commands that run ``/tests/test.sh``."""


PROFILES: dict[str, Profile] = {
    "instant": Profile(),
    # A container on a quiet two-core machine: see docs/substrates/docker.md for what was measured.
    "docker-like": Profile(
        pull=Draw(median_s=8.0, sigma=0.5),
        create=Draw(median_s=0.02, sigma=0.3),
        boot=Draw(median_s=0.28, sigma=0.2),
        hello=Draw(median_s=0.002, sigma=0.3),
        transport=Draw(median_s=0.0003, sigma=0.3),
        spawn=Draw(median_s=0.0008, sigma=0.3),
        run=Draw(median_s=0.05, sigma=1.0),
        drain=Draw(median_s=0.0002, sigma=0.3),
        destroy=Draw(median_s=0.08, sigma=0.3),
    ),
    # The shape of real tool calls: most take milliseconds, a few percent take most of the time.
    "heavy-tail": Profile(
        create=Draw(median_s=0.3, sigma=0.5, straggler_share=0.02, straggler_factor=30),
        boot=Draw(median_s=0.3, sigma=0.5),
        transport=Draw(median_s=0.002, sigma=0.5, straggler_share=0.01, straggler_factor=50),
        spawn=Draw(median_s=0.001, sigma=0.3),
        run=Draw(median_s=0.1, sigma=1.5, straggler_share=0.03, straggler_factor=40),
        drain=Draw(median_s=0.0005, sigma=0.5),
        destroy=Draw(median_s=0.1, sigma=0.5),
    ),
    # Everything that can go wrong, often enough to be seen in a short run.
    "flaky": Profile(
        create=Draw(median_s=0.01, sigma=0.5),
        run=Draw(median_s=0.005, sigma=1.0),
        create_failure=0.05,
        hello_failure=0.05,
        death_per_command=0.01,
        stream_break_per_command=0.02,
    ),
}
