"""What may be claimed of the cost of a step: a median over rounds of a figure that compares arms within the round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from _arms import Burst
from _stats import Gate, at_least, below, quantile

__all__ = ["CLAIMS", "FLOOR", "Cell", "Claim", "gates", "p50_ms", "steps_per_s"]

FLOOR = "host"
"""Fork and exec on this node, without a sandbox."""


@dataclass(slots=True)
class Cell:
    """Everything measured at one number of environments and one size of output."""

    envs: int
    output_bytes: int
    rounds: list[dict[str, Burst]] = field(default_factory=list)
    floors_s: list[dict[str, list[float]]] = field(default_factory=list)
    """Per round, ``[p50, p95]`` of ``runner bench`` in the sandboxes of a runner's arm and on the ``host``."""


def p50_ms(burst: Burst) -> float:
    """Median latency in milliseconds."""
    return quantile(burst.latencies_s, 0.5) * 1e3


def steps_per_s(burst: Burst) -> float:
    """Steps of all environments per second of wall time."""
    return len(burst.latencies_s) / burst.wall_s


Floors = Mapping[str, Sequence[float]]


def _ratio(upper: Burst, lower: Burst, _: Floors) -> float:
    return p50_ms(upper) / p50_ms(lower)


def _minus(upper: Burst, lower: Burst, _: Floors) -> float:
    return p50_ms(upper) - p50_ms(lower)


def _throughput(upper: Burst, lower: Burst, _: Floors) -> float:
    return steps_per_s(upper) / steps_per_s(lower)


class Claim(NamedTuple):
    """What is to hold for the median over rounds of a figure within the round; small outputs."""

    name: str
    holds: Callable[[str, float, Sequence[float] | None], Gate]
    limit: float
    arms: tuple[str, ...]
    figure: Callable[..., float]
    envs: int = 1

    @property
    def is_about(self) -> set[str]:
        """Substrates and baselines, as they are asked for."""
        return {arm.removeprefix("runner-").removeprefix("rayroll-") for arm in self.arms}


CLAIMS = (
    Claim(
        "runner-docker over twice the floor and 1 ms", below, 1.0, ("runner-docker",),
        lambda runner, floors: p50_ms(runner) / (2e3 * floors["runner-docker"][0] + 1.0),
    ),
    Claim("docker-exec over runner-docker", at_least, 20.0, ("docker-exec", "runner-docker"), _ratio),
    Claim("runner-docker over held-shell", below, 1.1, ("runner-docker", "held-shell"), _ratio),
    Claim("rayroll-docker minus runner-docker, ms", below, 2.0, ("rayroll-docker", "runner-docker"), _minus),
    Claim("docker-exec over rayroll-docker", at_least, 10.0, ("docker-exec", "rayroll-docker"), _ratio),
    Claim("rayroll-docker over swe-rex", below, 1.0, ("rayroll-docker", "swe-rex"), _ratio),
    Claim(
        "steps/s of rayroll-docker over docker-exec, 32 envs", at_least, 15.0, ("rayroll-docker", "docker-exec"),
        _throughput, envs=32,
    ),
    # The SDK's call does less: no durations from inside, no carried state, no caps.
    Claim("opensandbox-sdk over runner-opensandbox", at_least, 1.0, ("opensandbox-sdk", "runner-opensandbox"), _ratio),
    Claim("pod-exec over runner-kubernetes", at_least, 20.0, ("pod-exec", "runner-kubernetes"), _ratio),
    Claim(
        "runner-kubernetes minus the host's floor, ms", below, 4.0, ("runner-kubernetes",),
        lambda runner, floors: p50_ms(runner) - floors[FLOOR][0] * 1e3,
    ),
    Claim("ssh-exec over runner-ec2", at_least, 5.0, ("ssh-exec", "runner-ec2"), _ratio),
    Claim("ssh-cli over runner-ec2", at_least, 5.0, ("ssh-cli", "runner-ec2"), _ratio),
)  # fmt: skip


def gates(cells: Sequence[Cell], asked: Collection[str]) -> list[Gate]:
    """The claims about substrates and baselines that were asked for; what could not be measured is no pass."""
    by_envs = {cell.envs: cell for cell in cells if not cell.output_bytes}

    def rounds(claim: Claim) -> list[float] | None:
        cell = by_envs.get(claim.envs)
        if cell is None or any(arm not in bursts for bursts in cell.rounds for arm in claim.arms):
            return None
        return [
            claim.figure(*(bursts[arm] for arm in claim.arms), floors)
            for bursts, floors in zip(cell.rounds, cell.floors_s, strict=True)
        ]

    return [claim.holds(claim.name, claim.limit, rounds(claim)) for claim in CLAIMS if claim.is_about <= {*asked}]
