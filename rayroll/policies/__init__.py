"""Who acts: one file is one policy, found by its name or through the entry-point group ``rayroll.policies``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.metadata import entry_points
from typing import Any, Protocol

from rayroll.errors import unknown_name
from rayroll.types import Act, Turn

__all__ = ["Policy", "kinds", "load"]


class Policy(Protocol):
    """Chooses the next command of one rollout. One object serves many rollouts at the same time."""

    async def act(self, turn: Turn) -> Act:
        """Answer one observation.

        Cancelled where the rollout's deadline passes, its sandbox is lost before it could be used, or the run is
        stopped. An error that is raised here ends the run: retries of an endpoint belong inside.

        A policy may also have a method ``last(turn)``, not async: it is shown what the last command of a rollout
        printed where no action follows, because a limit ended it.
        """


def kinds() -> list[str]:
    """Names of all policies, built-in and installed, sorted."""
    return sorted({*_built_in(), *(e.name for e in entry_points(group="rayroll.policies"))})


def load(kind: str) -> type[Policy]:
    """The policy class of that name; its own docstring says how it is made.

    Raises:
        ConfigError: No such policy, with the nearest names.
    """
    if kind in _built_in():
        return _only_policy(importlib.import_module(f"{__name__}.{kind}"))
    for entry in entry_points(group="rayroll.policies"):
        if entry.name == kind:
            found: type[Policy] = entry.load()
            return found
    raise unknown_name("policy", kind, kinds())


def _built_in() -> list[str]:
    return [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]


def _only_policy(module: Any) -> type[Policy]:
    found: list[type[Policy]] = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "act")
    ]
    assert len(found) == 1, f"{module.__name__} must define one policy"
    return found[0]
