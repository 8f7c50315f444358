"""Bug-fix tasks out of real packages: a change that turned some of their own tests red, to be found and undone.

A pack of this format holds recipes, not repositories: the packages come from their source distributions, which are
fetched once (``generate.py fetch``) and kept outside of the tree, and a task is put together from both when the pack is
read, in milliseconds. Packages in the pack's own ``vendor/`` need nothing fetched. Tasks whose source distribution is
not there yet are refused with the command that gets it.

The agent sees the repository with its tests. The verdict runs all of the package's tests from a clean copy
(``_repo_check.py``): 1 if every test that passes in the untouched package passes, else 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from rayroll.errors import TaskError
from rayroll.tasks import PackConfig, Refused, TaskFormat, _recipes, _repo_task
from rayroll.tasks._recipes import Recipe
from rayroll.tasks._repo_task import PackageConfig
from rayroll.types import Task

__all__ = ["PackageConfig", "RepoFix", "RepoFixConfig"]


class RepoFixConfig(PackConfig):
    """``pack.toml`` of a repo_fix pack."""

    recipes: str = "recipes.jsonl"
    """The bugs, one a line, relative to the pack; ``generate.py`` writes it."""
    baselines: str = "baselines"
    """Folder of ``<package>.txt``: the tests that pass in the untouched package."""
    packages: tuple[PackageConfig, ...]
    """What bugs are put into."""


class RepoFix(TaskFormat):
    """Puts tasks together from recipes and packages."""

    kind: ClassVar[str] = "repo_fix"
    config_type: ClassVar[type[PackConfig]] = RepoFixConfig

    def read(self, folder: Path, name: str, config: PackConfig) -> Iterator[Task | Refused]:
        """One task a recipe."""
        assert isinstance(config, RepoFixConfig)
        packages = {package.name: _Package(folder, config, package) for package in config.packages}
        path = folder / config.recipes
        if not path.is_file():
            yield Refused(f"{name}/*", path, 0, "missing; make it with generate.py")
            return
        for line, recipe in _recipes.read_recipes(path):
            if not isinstance(recipe, Recipe):
                yield Refused(f"{name}/line-{line}", path, line, str(recipe))
                continue
            task_id = f"{name}/{recipe.id}"
            if recipe.package not in packages:
                yield Refused(task_id, path, line, f"pack.toml has no package {recipe.package!r}")
                continue
            task = packages[recipe.package].task(recipe, task_id)
            yield task if isinstance(task, Task) else Refused(task_id, path, line, task)


class _Package:
    """A package's files and baseline, read when its first recipe asks."""

    def __init__(self, folder: Path, config: RepoFixConfig, package: PackageConfig) -> None:
        self._folder, self._config, self._package = folder, config, package
        self._read: tuple[dict[str, bytes], list[str]] | None = None
        self._problem = ""

    def task(self, recipe: Recipe, task_id: str) -> Task | str:
        """The task, or why there is none."""
        package = self._package
        if (recipe.version, recipe.sha256) != (package.version, package.sha256):
            return f"made for {package.name} {recipe.version}, but pack.toml names another source; run generate.py make"
        if self._read is None and not self._problem:
            self._load()
        if self._read is None:
            return self._problem
        files, baseline = self._read
        if not set(recipe.failing) <= set(baseline) or len(baseline) - len(recipe.failing) != recipe.passing:
            return f"does not agree with {self._config.baselines}/{package.name}.txt; run generate.py make"
        try:
            return _repo_task.build(package, files, baseline, recipe, task_id=task_id)
        except ValueError as error:
            return str(error)

    def _load(self) -> None:
        package = self._package
        try:
            baseline = _recipes.read_baseline(self._folder / self._config.baselines / f"{package.name}.txt")
        except OSError as error:
            self._problem = f"{self._config.baselines}/{package.name}.txt: {error.strerror}"
            return
        try:
            self._read = _repo_task.package_files(self._folder, package), baseline
        except FileNotFoundError:
            command = f"python {self._folder / 'generate.py'} fetch"
            self._problem = f"{package.name} {package.version} is not in the cache yet; fetch it with: {command}"
        except TaskError as error:
            self._problem = str(error)
