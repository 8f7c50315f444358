"""A metric is a function of finished rollouts with a name, a unit and a sentence; one file here is one theme.

Another package adds a module of metrics through the entry-point group ``rayroll.metrics``.
``python -m rayroll.metrics`` prints the table of all of them (docs/metrics.md).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypeAlias, TypeVar

from rayroll.errors import ConfigError
from rayroll.metrics._distribution import Distribution
from rayroll.projection import Estimate
from rayroll.types import Rollout

__all__ = ["Context", "Distribution", "Metric", "compute", "flat", "metric", "metrics"]

Value: TypeAlias = "float | Distribution | Estimate | Mapping[str, float | Distribution] | None"
Function = TypeVar("Function", bound=Callable[..., Any])

_registry: dict[str, Metric] = {}


@dataclass(frozen=True, slots=True)
class Context:
    """What some metrics need besides the rollouts; they say nothing where it is missing."""

    target_rollouts: int = 1_000_000
    target_actions: float | None = None
    """Actions per rollout of the full run; None: as measured."""
    reference: Sequence[Rollout] = field(default=())
    """Rollouts of the reference substrate under the same conditions, for the slowdown."""
    price_per_slot_hour: float | None = None
    seed: int = 0
    """Of the bootstrap behind intervals."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric."""

    name: str
    """May hold one ``<key>``, which stands for each key of the mapping that the function returns."""
    unit: str
    about: str
    function: Callable[..., Value]
    takes_context: bool
    suffixes: tuple[str, ...]
    """What is appended to the name: quantiles of a distribution, ends of an interval."""

    def __call__(self, rollouts: Sequence[Rollout], context: Context) -> dict[str, float]:
        """Values by full name; empty where there is nothing to say."""
        value = self.function(rollouts, context) if self.takes_context else self.function(rollouts)
        return flat(self.name, value)


def metric(name: str, *, unit: str) -> Callable[[Function], Function]:
    """Register a function of rollouts (and, if it takes a second parameter, of the ``Context``) as a metric.

    It returns a number, a ``Distribution``, an ``Estimate``, a mapping of numbers or distributions where the name holds
    a ``<key>``, or None where the rollouts say nothing. The first line of its docstring is the sentence for people.

    Raises:
        ConfigError: The name is taken.
    """

    def register(function: Function) -> Function:
        if name in _registry:
            raise ConfigError("two metrics of one name", name=name, modules=[function.__module__])
        returns = str(inspect.signature(function).return_annotation)
        suffixes: tuple[str, ...] = ("",)
        if "Distribution" in returns:
            suffixes = tuple(f"/{part}" for part in Distribution.PARTS)
        elif "Estimate" in returns:
            suffixes = ("", "_lo", "_hi")
        _registry[name] = Metric(
            name=name,
            unit=unit,
            about=(inspect.getdoc(function) or "").split("\n")[0],
            function=function,
            takes_context=len(inspect.signature(function).parameters) == 2,
            suffixes=suffixes,
        )
        return function

    return register


def metrics() -> dict[str, Metric]:
    """All metrics by name, built-in and installed, sorted."""
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    for entry in entry_points(group="rayroll.metrics"):
        entry.load()
    return dict(sorted(_registry.items()))


def compute(rollouts: Sequence[Rollout], context: Context | None = None) -> dict[str, float]:
    """Every metric of these rollouts by full name, such as ``action/overhead_s/p95``; what has no value is left out."""
    context = context or Context()
    values: dict[str, float] = {}
    for found in metrics().values():
        values.update(found(rollouts, context))
    return values


def flat(name: str, value: Value) -> dict[str, float]:
    """A metric's value as numbers by full name."""
    if value is None:
        return {}
    if isinstance(value, Distribution):
        return {f"{name}/{part}": number for part, number in value.parts().items()}
    if isinstance(value, Estimate):
        ends = {name: value.hours, f"{name}_lo": value.lo, f"{name}_hi": value.hi}
        return {key: number for key, number in ends.items() if number is not None}
    if isinstance(value, Mapping):
        before, _, after = name.partition("<")
        after = after.partition(">")[2]
        return {k: v for key, inner in value.items() for k, v in flat(f"{before}{key}{after}", inner).items()}
    return {name: value}
