"""A part of the test bed: something real that tests need, which can be set up, looked at and taken down by itself."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bed.errors import TestbedError
from bed.place import Place
from bed.steps import Steps

_FOLDER = Path(__file__).parent.parent / "parts"


@dataclass(frozen=True, slots=True)
class Bed:
    """What a part gets to work with."""

    place: Place
    steps: Steps
    environ: Mapping[str, str]


class Part(ABC):
    """One file in `parts/`. Each method may be called in any state, as often as one likes."""

    name: str
    needs: Sequence[str] = ()
    """Names of parts that must be up before this one, and go down after it."""
    packages: Sequence[str] = ()
    """Debian packages."""

    @abstractmethod
    def up(self, bed: Bed) -> None:
        """Set it up as far as it is not, whatever an earlier life left behind; returns when it can be used.

        Raises:
            TestbedError: This machine does not let it.
        """

    @abstractmethod
    def is_running(self, bed: Bed) -> bool:
        """Whether it can be used now: it was asked, and answered."""

    @abstractmethod
    def facts(self, bed: Bed) -> Mapping[str, object]:
        """Versions, sockets, images, bytes on disk ...: what tells a person or a program what is there, as JSON values.

        Asked for in any state; what only a running part can tell is left out when it does not run.
        """

    @abstractmethod
    def down(self, bed: Bed) -> None:
        """Stop what `up` started, and nothing else. What is costly to make stays in the state folder."""

    def exports(self, bed: Bed) -> Mapping[str, str]:
        """Environment variables by which tests find it; asked for only while it runs."""
        return {}


def all_parts() -> dict[str, Part]:
    """Every part there is, by name, in an order in which they can be set up."""
    names = sorted(path.stem for path in _FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return in_order(names, {name: _load(name) for name in names})


def in_order(names: Iterable[str], known: Mapping[str, Part]) -> dict[str, Part]:
    """`names` and all that they need, needs first.

    Raises:
        TestbedError: A name that no part has.
    """
    ordered: dict[str, Part] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        if name not in known:
            raise TestbedError(f"unknown part (name={name!r}, known={sorted(known)})")
        for need in known[name].needs:
            add(need)
        ordered[name] = known[name]

    for name in names:
        add(name)
    return ordered


def _load(name: str) -> Part:
    part = importlib.import_module(f"parts.{name}").PART
    assert isinstance(part, Part) and part.name == name, f"parts/{name}.py must end in PART = ..., named {name!r}"
    return part
