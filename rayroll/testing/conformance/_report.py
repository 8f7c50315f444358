"""What came out: one result per check, and a table that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rayroll.testing.conformance._registry import Broken

__all__ = ["Outcome", "Report", "Result"]

Outcome = Literal["held", "broken", "not applicable"]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one check."""

    name: str
    theme: str
    claim: str
    outcome: Outcome
    reason: str = ""
    """Why it is broken, or why it does not apply."""
    seconds: float = 0.0
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """What was raised, where it is broken."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all checks of one substrate."""

    kind: str
    results: Sequence[Result]
    facts: Mapping[str, str] = field(default_factory=dict)
    """Versions and capabilities, as the substrate's probe says them."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Nothing is broken, and something was checked."""
        return not self.broken and any(r.outcome == "held" for r in self.results)

    @property
    def broken(self) -> list[Result]:
        """Claims that do not hold."""
        return [r for r in self.results if r.outcome == "broken"]

    @property
    def not_applicable(self) -> list[Result]:
        """Checks that make no sense here, each with its reason."""
        return [r for r in self.results if r.outcome == "not applicable"]

    def require(self) -> None:
        """Go on if nothing is broken. Raises Broken, which names every broken claim."""
        if not self.ok:
            raise Broken(f"substrate {self.kind!r} does not conform\n{self}")

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file or another process."""
        results = [{k: v for k, v in asdict(r).items() if k != "error"} for r in self.results]
        return {
            "kind": self.kind,
            "ok": self.ok,
            "seconds": self.seconds,
            "facts": dict(self.facts),
            "results": results,
        }

    def __str__(self) -> str:
        lines = [f"{r.outcome:15} {r.theme:11} {r.name}: {r.reason}" for r in (*self.not_applicable, *self.broken)]
        held = sum(r.outcome == "held" for r in self.results)
        lines.append(
            f"{self.kind}: {held} held, {len(self.broken)} broken, {len(self.not_applicable)} not applicable"
            f" of {len(self.results)} checks in {self.seconds:.0f} s"
        )
        return "\n".join(lines)
