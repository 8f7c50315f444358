"""Makes the recipes of a repo_fix pack: tries changes in a seeded order and keeps what some tests, but not all, notice.

Everything that is kept was proven in a sandbox: the untouched package is green, the bug turns the same tests red, and
its inverse turns them green again, each as many times in a row as asked for.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rayroll.errors import TaskError, unknown_name
from rayroll.tasks import _mutate, _recipes, _repo_task
from rayroll.tasks._mutate import Mutation
from rayroll.tasks._prove import Prover
from rayroll.tasks._recipes import Recipe
from rayroll.tasks._repo_task import PackageConfig
from rayroll.tasks.repo_fix import RepoFixConfig
from rayroll.types import Task

__all__ = ["Settings", "baseline", "chosen", "make", "prove", "read_config", "recipes"]

MOST_FAILING = 40
MOST_FAILING_SHARE = 0.25
"""Of the package's tests: a bug that breaks more is found at once, wherever it is."""
LEAST_RUN_SHARE = 0.9
"""Of the package's tests: with fewer run at all, the bug only stops an import."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_SCRATCH = re.compile(r"/tmp/tmp\w+/repo/")
_SYMPTOM_LINES = 12

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to search."""

    seed: int = 0
    per_package: int = 8
    rounds: int = 5
    """How many times in a row everything must come out the same."""
    jobs: int = 1
    """Sandboxes at once. Does not change what is found."""
    trial_timeout_s: float = 20.0
    """For one run of a package's tests while searching; a bug that makes them hang is passed over."""


def read_config(pack: Path) -> RepoFixConfig:
    """The pack.toml of a repo_fix pack. Raises ConfigError."""
    where = pack / "pack.toml"
    return RepoFixConfig.parse(tomllib.loads(where.read_text("utf-8")), where=str(where))


def chosen(config: RepoFixConfig, names: Iterable[str]) -> list[PackageConfig]:
    """The packages of those names; all for none. Raises ConfigError."""
    known = {package.name: package for package in config.packages}
    for name in names:
        if name not in known:
            raise unknown_name("package", name, known)
    return [known[name] for name in names] or list(config.packages)


def make(
    pack: Path, packages: Iterable[PackageConfig], settings: Settings, provers: Sequence[Prover], say: Say
) -> None:
    """Write recipes and baselines of these packages into the pack; those of other packages stay.

    The first prover searches; the others, with other interpreters, have a say in which tests can be relied on.
    """
    config = read_config(pack)
    path = pack / config.recipes
    for package in packages:
        files = _repo_task.package_files(pack, package)
        green = baseline(package, files, settings, provers)
        say(f"{package.name} {package.version}: {len(green)} tests pass {settings.rounds} times in a row")
        found = list(recipes(package, files, green, settings, provers[0], say))
        others = _kept(path, package.name) if path.is_file() else []
        _recipes.write_baseline(pack / config.baselines / f"{package.name}.txt", green)
        _recipes.write_recipes(path, [*others, *found])


def baseline(
    package: PackageConfig, files: Mapping[str, bytes], settings: Settings, provers: Sequence[Prover]
) -> list[str]:
    """Names of the tests that pass in the untouched package every time, by every prover, sorted.

    Raises:
        TaskError: None does.
    """
    task = _repo_task.trial(package, files, files)
    runs = [_passed(prover, task)[0] for prover in provers for _ in range(settings.rounds)]
    always = set.intersection(*runs)
    # Parameters that come out of a set are numbered anew in every run, and pytest 7 and 9 name an empty string
    # differently. Some names of such a test are in all runs by chance: none of them can be relied on.
    shaky = {_function(name) for name in set.union(*runs) - always}
    always = {name for name in always if _function(name) not in shaky}
    if not always:
        verdict = provers[0].grade(task)
        raise TaskError("no test of the untouched package passes", package=package.name, output=verdict.output)
    return sorted(always)


def recipes(
    package: PackageConfig,
    files: Mapping[str, bytes],
    green: list[str],
    settings: Settings,
    prover: Prover,
    say: Say,
) -> Iterator[Recipe]:
    """``settings.per_package`` proven bugs, or as many as there are: at most one a function, at most a third a kind."""
    candidates = _candidates(package, files)
    random.Random(f"{settings.seed}/{package.name}/{package.version}").shuffle(candidates)
    scopes: set[tuple[str, str]] = set()
    kinds: Counter[str] = Counter()
    made = tried = 0
    for name, mutation, (passed, messages) in _tried(candidates, package, files, settings, prover):
        tried += 1
        failing = tuple(sorted(set(green) - passed))
        enough = (name, mutation.scope) in scopes or 3 * kinds[mutation.kind] >= settings.per_package
        if enough or not _worth(failing, len(green), len(messages) + len(passed)):
            continue
        recipe = Recipe(
            id=f"{package.name}-{made + 1:02d}",
            package=package.name,
            version=package.version,
            sha256=package.sha256,
            file=name,
            kind=mutation.kind,
            scope=mutation.scope,
            line=mutation.line,
            old=mutation.old,
            new=mutation.new,
            failing=failing,
            passing=len(green) - len(failing),
            symptom=_symptom(messages.get(failing[0], "")),
        )
        try:
            task = _repo_task.build(package, files, green, recipe, task_id=recipe.id)
            before = prover.prove(task, settings.rounds)
        except TaskError as error:
            say(f"  passed over: {error}")
            continue
        if before.report["still_failing"] != list(failing) or before.report["broken"]:
            say(f"  passed over: {name}:{mutation.line} fails in different tests from time to time")
            continue
        made += 1
        scopes.add((name, mutation.scope))
        kinds[mutation.kind] += 1
        say(f"  {recipe.id}: {mutation.kind} in {mutation.scope}, {len(failing)} of {len(green)} tests fail")
        yield recipe
        if made == settings.per_package:
            break
    say(f"  {made} bugs out of {tried} changes tried")


def prove(tasks: Iterable[Task], settings: Settings, prover: Prover) -> Iterator[tuple[Task, TaskError | None]]:
    """Each task with what is wrong with it, in order."""

    def one(task: Task) -> TaskError | None:
        try:
            prover.prove(task, settings.rounds)
        except TaskError as error:
            return error
        return None

    tasks = list(tasks)
    with ThreadPoolExecutor(settings.jobs) as pool:
        yield from zip(tasks, pool.map(one, tasks), strict=True)


Outcome = tuple[set[str], dict[str, str]]
"""Names of the tests that passed; what the others said, by name."""


def _tried(
    candidates: list[tuple[str, Mutation]],
    package: PackageConfig,
    files: Mapping[str, bytes],
    settings: Settings,
    prover: Prover,
) -> Iterator[tuple[str, Mutation, Outcome]]:
    def one(candidate: tuple[str, Mutation]) -> tuple[str, Mutation, Outcome]:
        name, mutation = candidate
        broken = {**files, name: _mutate.apply(files[name].decode(), mutation).encode()}
        task = _repo_task.trial(package, files, broken, tests_timeout_s=settings.trial_timeout_s)
        return name, mutation, _passed(prover, task)

    rest = iter(candidates)
    with ThreadPoolExecutor(settings.jobs) as pool:
        # A few at a time: whoever reads this stops when it has enough.
        while window := list(islice(rest, settings.jobs)):
            yield from pool.map(one, window)


def _candidates(package: PackageConfig, files: Mapping[str, bytes]) -> list[tuple[str, Mutation]]:
    hidden = set(_repo_task.below(files, package.tests))
    names = [n for n in _repo_task.below(files, package.sources) if n.endswith(".py") and n not in hidden]
    return [(name, mutation) for name in names for mutation in _mutate.find(files[name].decode())]


def _passed(prover: Prover, task: Task) -> Outcome:
    report = prover.grade(task).report
    passed = {name for name, outcome in report.get("outcomes", {}).items() if outcome == "passed"}
    return passed, dict(report.get("messages", {}))


def _function(test: str) -> str:
    return test.partition("[")[0]


def _worth(failing: tuple[str, ...], tests: int, run: int) -> bool:
    return 0 < len(failing) <= min(MOST_FAILING, MOST_FAILING_SHARE * tests) and run >= LEAST_RUN_SHARE * tests


def _symptom(message: str) -> str:
    lines = _SCRATCH.sub("", _ADDRESS.sub("0x...", message)).strip().split("\n")
    return "\n".join(lines[:_SYMPTOM_LINES])


def _kept(path: Path, package: str) -> list[Recipe]:
    return [r for _, r in _recipes.read_recipes(path) if isinstance(r, Recipe) and r.package != package]
