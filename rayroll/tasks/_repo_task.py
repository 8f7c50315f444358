"""From a package's files and a recipe to a task: a repository with a bug, hidden tests, and the known fix."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rayroll.config import Config
from rayroll.tasks import _mutate, _sdist
from rayroll.tasks._recipes import Recipe
from rayroll.types import FileTree, Task

__all__ = ["PackageConfig", "below", "build", "package_files", "trial"]

ROOT = "/app"
PYTEST = "9.2.0"
PYTEST_RANGE = "pytest>=7.2,<10"
GRADE_TIMEOUT_S = 180.0
TESTS_TIMEOUT_S = 120.0
"""The grader's own limit, well below the one around it: what hangs is the agent's code, and that is a 0, not a failure
of grading. The slowest package's tests take about 1 s on one core; emulated CPUs are some 20 times slower."""

_DOCKERFILE_PYTEST = f"""\
# First, and the same in every task, so that an engine makes this layer once. An image that has pytest is left as it is.
RUN python3 -c "import pytest" 2>/dev/null || python3 -m pip install --no-cache-dir pytest=={PYTEST}
"""
_TEST_SH = """\
#!/bin/sh
# -I: neither PYTHON* variables nor the current folder decide what is imported.
exec python3 -I -B /tests/check.py
"""
_SOLVE_SH = f"""\
#!/bin/sh
# Takes back the change that broke the package.
exec python3 -I /solution/fix.py /solution/fix.json {ROOT}
"""
_FIX_PY = '''\
"""Replace some lines of one file by others: fix.py FIX.JSON REPOSITORY."""

import json
import pathlib
import sys

fix = json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8"))
path = pathlib.Path(sys.argv[2]) / fix["file"]
text = path.read_bytes().decode()
at = sum(len(line) + 1 for line in text.split("\\n")[: fix["line"] - 1])
assert text.startswith(fix["broken"], at), "the file is not as the task left it"
path.write_bytes((text[:at] + fix["fixed"] + text[at + len(fix["broken"]) :]).encode())
'''


class PackageConfig(Config):
    """``[[packages]]`` in pack.toml: one package that bugs are put into."""

    name: str
    version: str
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """Of the source distribution. Empty: the package lies in the pack, in ``vendor/<name>``."""
    runner: Literal["pytest", "unittest"] = "pytest"
    """What its tests are written for. With unittest a task needs nothing but Python."""
    paths: tuple[str, ...] = ("",)
    """Import path, relative to the repository."""
    sources: tuple[str, ...]
    """Files and folders that bugs may be put into."""
    tests: tuple[str, ...]
    """Files and folders of tests. All of them are run, and enter the sandbox anew for grading."""
    keep: tuple[str, ...] = ()
    """What else the agent gets to see, such as a README. Leave packaging files out: their pytest settings ask for
    plugins that are not there."""
    drop: tuple[str, ...] = ()
    """Left out of all of the above."""


def package_files(pack: Path, package: PackageConfig) -> dict[str, bytes]:
    """The files of a package that its tasks are made of, by path in the repository.

    Raises:
        FileNotFoundError: Its source distribution is not in the cache.
        TaskError: The source distribution in the cache is damaged.
    """
    if package.sha256:
        every = _sdist.files(_sdist.cached(package.name, package.version, package.sha256), package.sha256)
    else:
        root = pack / "vendor" / package.name
        every = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    wanted = (*package.sources, *package.tests, *package.keep)
    dropped = set(below(every, package.drop))
    return {n: every[n] for n in sorted(below(every, wanted)) if n not in dropped and "__pycache__" not in n}


def build(
    package: PackageConfig, files: Mapping[str, bytes], baseline: Iterable[str], recipe: Recipe, *, task_id: str
) -> Task:
    """The task that a recipe describes.

    Args:
        package: Where the files come from.
        files: The untouched package, by path.
        baseline: Tests that pass in it.
        recipe: The bug.
        task_id: Its id.

    Raises:
        ValueError: The recipe does not fit the files.
    """
    if recipe.file not in files:
        raise ValueError(f"{package.name} {package.version} has no file {recipe.file!r}")
    broken = {**files, recipe.file: _mutate.apply(files[recipe.file].decode(), recipe.mutation).encode()}
    fix = {"file": recipe.file, "line": recipe.line, "broken": recipe.new, "fixed": recipe.old}
    return replace(
        trial(package, files, broken, failing=recipe.failing, passing=set(baseline) - set(recipe.failing)),
        id=task_id,
        instruction=_instruction(package, recipe),
        solution=FileTree.from_files(
            {"solve.sh": _SOLVE_SH, "fix.py": _FIX_PY, "fix.json": json.dumps(fix)}, executable=frozenset({"solve.sh"})
        ),
        metadata=_metadata(package, recipe),
    )


def trial(
    package: PackageConfig,
    untouched: Mapping[str, bytes],
    files: Mapping[str, bytes],
    *,
    failing: Iterable[str] = (),
    passing: Iterable[str] = (),
    tests_timeout_s: float = TESTS_TIMEOUT_S,
) -> Task:
    """A task without words: these files, judged by the untouched package's tests.

    Its report tells what became of every test, whether or not it was expected to pass.
    """
    expected = {
        "runner": package.runner,
        "root": ROOT,
        "path": package.paths,
        "tests": package.tests,
        "timeout_s": tests_timeout_s,
        "failing": sorted(failing),
        "passing": sorted(passing),
    }
    pristine = {f"pristine/{name}": untouched[name] for name in below(untouched, package.tests)}
    return Task(
        id=f"trial/{package.name}",
        instruction="",
        environment=FileTree.from_files(
            {"Dockerfile": _dockerfile(package), **{f"repo/{name}": data for name, data in files.items()}}
        ),
        tests=FileTree.from_files(
            {"test.sh": _TEST_SH, "check.py": _check(), "expected.json": json.dumps(expected), **pristine},
            executable=frozenset({"test.sh"}),
        ),
        workdir=ROOT,
        grade_timeout_s=GRADE_TIMEOUT_S,
        host_packages=(PYTEST_RANGE,) if package.runner == "pytest" else (),
    )


def below(names: Iterable[str], roots: Collection[str]) -> list[str]:
    """Those that are one of the roots or lie below one."""
    prefixes = tuple(f"{root}/" for root in roots)
    return [name for name in names if name in roots or name.startswith(prefixes)]


def _dockerfile(package: PackageConfig) -> str:
    path = ":".join(str(Path(ROOT) / entry) for entry in package.paths)
    return (
        "FROM python:3.11-slim\n"
        + (_DOCKERFILE_PYTEST if package.runner == "pytest" else "")
        + f"ENV PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1\nWORKDIR {ROOT}\nCOPY repo/ {ROOT}/\n"
    )


def _instruction(package: PackageConfig, recipe: Recipe) -> str:
    first, more = recipe.failing[0], len(recipe.failing) - 1
    others = "".join(f"* `{name}`\n" for name in recipe.failing[1:6])
    if more > 5:
        others += f"* and {more - 5} more\n"
    run = "python3 -m pytest -q" if package.runner == "pytest" else "python3 -m unittest discover -q -t . -s"
    return (
        f"# {package.name} {package.version}: `{_short(first)}` fails\n\n"
        f"The repository in `{ROOT}` is {package.name} {package.version} with a bug that some change has let in. "
        f"The test `{first}` used to pass and now says:\n\n"
        f"```\n{recipe.symptom}\n```\n\n"
        + (f"These fail as well:\n\n{others}\n" if others else "")
        + f"Find the cause in the library and repair it. Run the tests from `{ROOT}` with "
        f"`{run} {package.tests[0]}`. Leave the tests alone: for the verdict all of them are run from a clean copy, "
        "and all that passed before the bug must pass.\n"
    )


def _short(test: str) -> str:
    return test.rsplit("::", 1)[-1] if "::" in test else test.rsplit(".", 1)[-1]


def _metadata(package: PackageConfig, recipe: Recipe) -> dict[str, Any]:
    return {
        "package": package.name,
        "version": package.version,
        "mutation": recipe.kind,
        "failing": len(recipe.failing),
        "passing": recipe.passing,
    }


@cache
def _check() -> bytes:
    return Path(__file__).with_name("_repo_check.py").read_bytes()
