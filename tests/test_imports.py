"""Who may know whom: imports point down, Ray and W&B stay in their places, and importing does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rayroll

PACKAGE = Path(rayroll.__file__).parent
LEVELS = {
    0: {"types", "errors", "config", "timing", "projection", "redact", "record"},
    1: {"substrates", "runner", "tasks", "scheduler", "policies", "metrics"},
    2: {"session", "pool", "_live", "_grade", "sync", "spaces", "cleanup", "traces"},
    3: {"env", "_episode"},
    4: {"executor", "sinks", "report"},
    5: {"cli", "adapters", "vector"},
}
"""DESIGN 4, with the parts that each name there has been cut into."""
LEVEL_OF = {name: level for level, names in LEVELS.items() for name in names}
PARTS_OF_ONE = [{"session", "pool", "_live", "_grade", "sync", "cleanup"}, {"cli", "adapters", "vector"}]
"""Modules of one level that are parts of one thing, and so may know each other."""
ALLOWED = {("substrates", "runner"), ("env", "_episode")}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if "__pycache__" not in parts and "_packs" not in parts:
            yield ".".join(("rayroll", *parts)).removesuffix(".__init__"), path


def imports(name: str, path: Path) -> Iterator[tuple[str, bool]]:
    """Every module that a file imports, wherever the import stands, and whether that is at its top level."""
    tree = ast.parse(path.read_text())
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            yield node.module, node in top
            if node.module == "rayroll":
                yield from ((f"rayroll.{alias.name}", node in top) for alias in node.names)


def part(module: str) -> str:
    """``executor`` for ``rayroll.executor.host``."""
    return module.split(".")[1] if "." in module else ""


ALL = list(modules())


def test_every_part_has_a_level() -> None:
    parts = {part(name) for name, _ in ALL} - {"", "testing"}
    assert parts <= set(LEVEL_OF), "give it one here and in DESIGN 4"


def test_imports_point_down() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in ALL
        for imported, _ in imports(name, path)
        if is_wrong(name, imported)
    ]
    assert wrong == []


def is_wrong(name: str, imported: str) -> bool:
    own, other = part(name), part(imported) if imported.startswith("rayroll.") else ""
    if own in ("", "testing"):  # the package itself gathers the public names; testing may import anything
        return False
    if other in ("", own) or other not in LEVEL_OF:
        return other == "testing"
    lower = LEVEL_OF[other] < LEVEL_OF[own]
    both_at_the_bottom = LEVEL_OF[own] == LEVEL_OF[other] == 0
    one_thing = any({own, other} <= parts for parts in PARTS_OF_ONE)
    return not (lower or both_at_the_bottom or one_thing or (own, other) in ALLOWED)


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("ray", {"rayroll.executor"}),
        ("wandb", {"rayroll.sinks.wandb", "rayroll.report"}),
        ("docker", {"rayroll.substrates"}),
        ("typer", {"rayroll.cli"}),
    ],
)
def test_a_library_stays_where_it_belongs(library: str, homes: set[str]) -> None:
    strangers = {
        name
        for name, path in ALL
        for imported, _ in imports(name, path)
        if imported.partition(".")[0] == library and not any(name == h or name.startswith(h + ".") for h in homes)
    }
    assert strangers - {"rayroll.testing"} == set()


def test_traces_never_import_ray() -> None:
    traces = [(name, imported) for name, path in ALL if part(name) == "traces" for imported, _ in imports(name, path)]
    assert not [pair for pair in traces if pair[1].startswith(("ray.", "rayroll.executor")) or pair[1] == "ray"]


HEAVY = [
    "ray",
    "docker",
    "opensandbox",
    "websockets",
    "wandb",
    "typer",
    "jinja2",
    "numpy.random._examples",
    "pandas",
    "kubernetes",
    "boto3",
    "asyncssh",
]
LOOK = """
import os, sys, threading
import gymnasium  # sets a variable for pygame
before = set(os.listdir('.')), threading.active_count(), dict(os.environ)
import rayroll
after = set(os.listdir('.')), threading.active_count(), dict(os.environ)
print(sorted(m for m in sys.modules if m in {heavy!r}), before == after)
"""


def test_importing_brings_nothing_heavy_and_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOOK.replace("{heavy!r}", repr(set(HEAVY)))],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[] True\n", "")


def test_the_public_names_are_few_sorted_and_documented() -> None:
    assert rayroll.__all__ == sorted(rayroll.__all__)
    assert len(rayroll.__all__) < 40
    for name in rayroll.__all__:
        value = getattr(rayroll, name)
        own = (value.__doc__ or "").strip()
        assert own and not own.startswith(f"{name}("), f"{name} has no docstring of its own"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="rayroll"):
        _ = rayroll.no_such_name


def test_every_module_opens_with_a_sentence() -> None:
    firsts = {name: (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0] for name, path in ALL}
    assert [name for name, first in firsts.items() if not first.endswith((".", "?", ":", "!"))] == []
