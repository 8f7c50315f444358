"""What a check is: a claim that every substrate must keep, and what a sandbox must have for it to make sense."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rayroll.errors import unknown_name

if TYPE_CHECKING:
    from rayroll.testing.conformance._lab import Lab

__all__ = ["CHECKS", "Broken", "Capability", "Check", "NotApplicable", "check", "expect", "same", "select"]


class Capability(StrEnum):
    """What a sandbox may or may not have. Each is found out by trying, never by asking the substrate's author."""

    REATTACH = "a broken stream can be opened again"
    ADOPT = "another process can take a sandbox over"
    PAUSE = "a sandbox can be paused"
    SNAPSHOT = "a sandbox's files can be saved"
    OWN_PIDS = "the runner is PID 1 of its own pid namespace"
    OWN_KERNEL = "its kernel is not this node's"
    USERS = "commands can run as another user"
    PID_LIMIT = "the number of processes is limited"
    MEMORY_LIMIT = "memory is limited"
    NETWORK = "a network can be asked for"
    INTRUDER = "the attacking program can be built and runs in it"


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and the function that tries to refute it."""

    name: str
    theme: str
    """Name of the module it is in."""
    claim: str
    """First line of its docstring."""
    function: Callable[[Lab], Awaitable[None]]
    needs: tuple[Capability, ...] = ()
    without: tuple[Capability, ...] = ()
    """It is about sandboxes that lack these."""
    tools: tuple[str, ...] = ()
    """Programs that must be on the sandbox's PATH."""
    source: str = ""
    """The reported failure behind it, by its number in the list of failure cases."""
    limit_s: float = 60.0
    """A check that is not over by then hangs, and that is a finding."""
    begins_early: bool = False
    """It is begun when the lab opens, for it mostly waits, and awaited when its turn comes. Only in fresh sandboxes."""
    is_slow: bool = False
    """Takes seconds of waiting or many sandboxes; ``slow=False`` leaves it out."""


CHECKS: dict[str, Check] = {}
"""Every check by its name, in the order in which they run."""


class Broken(AssertionError):
    """A claim does not hold. Raised by checks, reported as ``broken``."""

    def __init__(self, sentence: str, **facts: Any) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.facts = facts

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={_short(value)}" for name, value in self.facts.items())
        return f"{self.sentence} ({facts})" if facts else self.sentence


class NotApplicable(Exception):
    """The check has found that it makes no sense here; its text says why."""


def expect(claim: object, sentence: str, **facts: Any) -> None:
    """Go on if ``claim`` is true. Unlike ``assert`` it also works under ``python -O`` and without pytest.

    Raises:
        Broken: With the sentence that should have been true, and the facts.
    """
    if not claim:
        raise Broken(sentence, **facts)


def same(actual: object, wanted: object, what: str, **facts: Any) -> None:
    """Go on if both are equal. Raises Broken, which shows both."""
    if actual != wanted:
        raise Broken(f"{what} is {_short(actual)} instead of {_short(wanted)}", **facts)


def check(
    *,
    needs: tuple[Capability, ...] = (),
    without: tuple[Capability, ...] = (),
    tools: tuple[str, ...] = (),
    source: str = "",
    limit_s: float = 60.0,
    begins_early: bool = False,
    is_slow: bool = False,
) -> Callable[[Callable[[Lab], Awaitable[None]]], Callable[[Lab], Awaitable[None]]]:
    """Put a function into the registry. Its name is the claim, its docstring says what is tried."""

    def register(function: Callable[[Lab], Awaitable[None]]) -> Callable[[Lab], Awaitable[None]]:
        name = function.__name__
        assert name not in CHECKS, f"two checks are called {name}"
        claim = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        assert claim, f"{name} has no docstring"
        theme = function.__module__.rpartition(".")[2]
        CHECKS[name] = Check(
            name, theme, claim, function, needs, without, tools, source, limit_s, begins_early, is_slow
        )
        return function

    return register


def select(only: tuple[str, ...] = (), *, slow: bool = True) -> list[Check]:
    """Checks by name or theme, all when none is named.

    Raises:
        ConfigError: No check and no theme has that name.
    """
    themes = {c.theme for c in CHECKS.values()}
    for name in only:
        if name not in CHECKS and name not in themes:
            raise unknown_name("check", name, {*CHECKS, *themes})
    chosen = [c for c in CHECKS.values() if not only or c.name in only or c.theme in only]
    # Those begun early come last, when what they wait for is over.
    return sorted((c for c in chosen if slow or not c.is_slow or c.name in only), key=lambda c: c.begins_early)


def _short(value: object, most: int = 400) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 2 :]} ({len(text)} characters)"
