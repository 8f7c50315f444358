"""How each repo_fix task is made: which line of which package changes, and which of its tests that breaks.

Recipes are lines of JSON, one a task, so that a diff shows tasks and a refusal can name a line. A baseline is the list
of tests that pass in the untouched package: a heading per file, the tests below it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rayroll.tasks._mutate import Mutation

__all__ = ["Recipe", "RecipeError", "read_baseline", "read_recipes", "write_baseline", "write_recipes"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One bug that was made and proven."""

    id: str
    package: str
    version: str
    sha256: str
    """Of the source distribution; empty for a package in this tree."""
    file: str
    kind: str
    scope: str
    line: int
    old: str
    new: str
    failing: tuple[str, ...]
    """Tests that fail with the bug and pass without it, sorted."""
    passing: int
    """How many others pass with and without it."""
    symptom: str
    """What the first failing test says."""

    @property
    def mutation(self) -> Mutation:
        """The change that makes the bug."""
        return Mutation(self.kind, self.scope, self.line, self.old, self.new)


class RecipeError(ValueError):
    """A line that is no recipe."""


def read_recipes(path: Path) -> Iterator[tuple[int, Recipe | RecipeError]]:
    """Every recipe with its line number, from 1."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _recipe(line)


def write_recipes(path: Path, recipes: Iterable[Recipe]) -> None:
    """Replace the file, sorted by id."""
    ordered = sorted(recipes, key=lambda recipe: recipe.id)
    path.write_text("".join(json.dumps(dataclasses.asdict(r), ensure_ascii=False) + "\n" for r in ordered), "utf-8")


def read_baseline(path: Path) -> list[str]:
    """Names of tests, as the package's runner spells them."""
    names: list[str] = []
    heading = ""
    for line in path.read_text("utf-8").split("\n"):
        if line.startswith("  "):
            names.append(heading + line[2:])
        elif line:
            heading = line
    return names


def write_baseline(path: Path, names: Iterable[str]) -> None:
    """The inverse of ``read_baseline``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    heading = ""
    for name in sorted(names):
        # pytest: "file::rest"; unittest: "tests.test_module.Class.rest".
        cut = name.find("::") + 2 if "::" in name else name.rfind(".") + 1
        if name[:cut] != heading:
            heading = name[:cut]
            lines.append(heading)
        lines.append("  " + name[cut:])
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _recipe(line: str) -> Recipe | RecipeError:
    try:
        values = json.loads(line)
        return Recipe(**values | {"failing": tuple(values["failing"])})
    except (ValueError, TypeError, KeyError) as error:
        return RecipeError(f"not a recipe: {error}")
