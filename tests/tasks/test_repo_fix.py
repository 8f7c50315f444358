from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from rayroll.errors import ConfigError
from rayroll.tasks import Prover, _generate, _mutate, _recipes, _repo_task, load_pack
from rayroll.tasks._generate import Settings
from rayroll.tasks._recipes import Recipe
from rayroll.tasks._repo_task import PackageConfig
from rayroll.types import FileTree, Task

ENVS = Path(__file__).resolve().parents[2] / "envs" / "repo_fix"


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pack where nothing was fetched yet, in a folder that a test may change."""
    monkeypatch.setenv("RAYROLL_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "repo_fix"
    shutil.copytree(ENVS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def spanset(pack: Path) -> tuple[PackageConfig, dict[str, bytes], list[str], list[Recipe]]:
    config = _generate.read_config(pack)
    (package,) = _generate.chosen(config, ["spanset"])
    recipes = [r for _, r in _recipes.read_recipes(pack / config.recipes) if isinstance(r, Recipe)]
    return (
        package,
        _repo_task.package_files(pack, package),
        _recipes.read_baseline(pack / config.baselines / "spanset.txt"),
        [recipe for recipe in recipes if recipe.package == "spanset"],
    )


def attempt(task: Task, **files: str) -> Task:
    """The task, with a solution that leaves these files and fixes nothing."""
    lines = [f"mkdir -p $(dirname /app/{name})\ncat > /app/{name} <<'EOF'\n{text}\nEOF" for name, text in files.items()]
    return dataclasses.replace(task, solution=FileTree.from_files({"solve.sh": "\n".join(lines)}))


def test_without_a_network_the_package_in_the_tree_is_enough(pack: Path):
    loaded = load_pack(pack)
    assert {task.metadata["package"] for task in loaded} == {"spanset"}
    assert len(loaded) >= 6
    refused = loaded.refused[0]
    assert (refused.file, refused.line > 0) == (pack / "recipes.jsonl", True)
    assert refused.reason.endswith(f"is not in the cache yet; fetch it with: python {pack}/generate.py fetch")


def test_there_are_at_least_sixty_tasks_from_at_least_six_packages():
    recipes = [recipe for _, recipe in _recipes.read_recipes(ENVS / "recipes.jsonl")]
    assert all(isinstance(recipe, Recipe) for recipe in recipes)
    fetched = [recipe for recipe in recipes if isinstance(recipe, Recipe) and recipe.sha256]
    assert len(recipes) >= 60
    assert len({recipe.package for recipe in fetched}) >= 6
    assert len({(r.package, r.file, r.old, r.new) for r in fetched}) == len(fetched)


def test_the_same_pack_makes_the_same_tasks(pack: Path):
    assert load_pack(pack) == load_pack(pack)


def test_the_agent_sees_the_bug_and_nothing_that_tells_where_it_is(pack: Path):
    _, files, _, recipes = spanset(pack)
    loaded = load_pack(pack)
    for recipe in recipes:
        task = loaded.by_id(recipe.id)
        seen = task.environment.read(f"repo/{recipe.file}").decode()
        assert seen != files[recipe.file].decode()
        assert files[recipe.file].decode() == seen.replace(recipe.new, recipe.old, 1) or recipe.new == ""
        assert set(task.environment.names()) == {"Dockerfile", *(f"repo/{name}" for name in files)}
        for hint in (recipe.file, recipe.scope.split(".")[-1] + "(", recipe.old.strip()):
            assert hint not in task.instruction.replace(recipe.symptom, "")
        assert recipe.failing[0] in task.instruction and recipe.symptom in task.instruction


@pytest.mark.local
def test_bugs_of_the_package_in_the_tree_are_red_before_and_green_after(pack: Path, prover: Prover):
    _, _, baseline, recipes = spanset(pack)
    loaded = load_pack(pack)
    for recipe in recipes:
        before = prover.prove(loaded.by_id(recipe.id), rounds=1)
        assert before.report["still_failing"] == list(recipe.failing)
        assert before.report["broken"] == []
        assert len(baseline) == len(recipe.failing) + recipe.passing


@pytest.mark.local
def test_the_committed_recipes_are_what_their_seed_gives(pack: Path, prover: Prover):
    package, files, baseline, committed = spanset(pack)
    said: list[str] = []
    settings = Settings(seed=0, per_package=8, rounds=1, jobs=2)
    assert _generate.baseline(package, files, settings, [prover]) == baseline
    assert list(_generate.recipes(package, files, baseline, settings, prover, said.append)) == committed
    assert said[-1].startswith("  8 bugs out of ")


@pytest.mark.local
def test_making_one_package_leaves_the_others_alone(pack: Path, prover: Prover):
    before = {r.id: r for _, r in _recipes.read_recipes(pack / "recipes.jsonl") if isinstance(r, Recipe)}
    settings = Settings(seed=5, per_package=1, rounds=1)
    _generate.make(pack, [spanset(pack)[0]], settings, [prover], lambda _: None)
    after = {r.id: r for _, r in _recipes.read_recipes(pack / "recipes.jsonl") if isinstance(r, Recipe)}
    assert {i: r for i, r in after.items() if r.package != "spanset"} == {
        i: r for i, r in before.items() if r.package != "spanset"
    }
    assert [r.id for r in after.values() if r.package == "spanset"] == ["spanset-01"]


@pytest.mark.local
@pytest.mark.parametrize(
    "left_behind",
    [
        {"tests/test_set.py": "import unittest", "tests/test_parse.py": "import unittest"},
        {"unittest.py": "raise SystemExit(0)", "json.py": "raise SystemExit(0)"},
        {"sitecustomize.py": "import os; os._exit(0)", "spanset/../usercustomize.py": "import os; os._exit(0)"},
        {"spanset/__init__.py": "import os; os._exit(0)"},
        {"spanset/__init__.py": "raise SystemExit(0)"},
        {"spanset/__init__.py": "import unittest; raise unittest.SkipTest('no')"},
    ],
)
def test_what_only_looks_like_a_fix_gets_nothing(pack: Path, prover: Prover, left_behind: dict[str, str]):
    task = load_pack(pack).by_id("spanset-01")
    assert prover.grade(attempt(task, **left_behind), solve=True).reward == 0.0


@pytest.mark.local
def test_a_fix_that_breaks_something_else_gets_nothing(pack: Path, prover: Prover):
    loaded = load_pack(pack)
    first, second = (loaded.by_id(name) for name in ("spanset-01", "spanset-03"))
    both = {
        "spanset/_set.py": read_repo(first, "spanset/_set.py"),
        "spanset/_parse.py": read_repo(second, "spanset/_parse.py"),
    }
    assert first.solution is not None
    fixed = FileTree.from_files(
        {
            "solve.sh": attempt_script(both) + first.solution.read("solve.sh").decode().partition("\n")[2],
            "fix.py": first.solution.read("fix.py"),
            "fix.json": first.solution.read("fix.json"),
        }
    )
    verdict = prover.grade(dataclasses.replace(first, solution=fixed), solve=True)
    assert (verdict.reward, verdict.report["still_failing"]) == (0.0, [])
    assert verdict.report["broken"] == json.loads(second.tests.read("expected.json"))["failing"]
    assert "newly failing: " in verdict.output


def read_repo(task: Task, name: str) -> str:
    return task.environment.read(f"repo/{name}").decode().rstrip("\n")


def attempt_script(files: dict[str, str]) -> str:
    return "".join(f"cat > /app/{name} <<'EOF'\n{text}\nEOF\n" for name, text in files.items())


@pytest.mark.local
def test_code_that_never_ends_gets_nothing(pack: Path, prover: Prover):
    package, files, baseline, _ = spanset(pack)
    broken = {**files, "spanset/__init__.py": b"while True: pass\n"}
    task = _repo_task.trial(package, files, broken, failing=baseline[:1], tests_timeout_s=1.0)
    verdict = prover.grade(task)
    assert (verdict.reward, verdict.report["outcomes"]) == (0.0, {})
    assert "did not end within 1 s" in verdict.output


PYTEST_PACKAGE = PackageConfig(name="tiny", version="1", sources=("tiny.py",), tests=("tests",))
PYTEST_FILES = {
    "tiny.py": b"def double(x):\n    return x + x\n",
    "tests/conftest.py": b"import pytest\n\n@pytest.fixture\ndef two():\n    return 2\n",
    "tests/test_tiny.py": (
        b"import pytest, tiny\n\n"
        b"def test_double(two):\n    assert tiny.double(two) == 4\n\n"
        b"@pytest.mark.parametrize('x', [1, 2])\ndef test_many(x):\n    assert tiny.double(x) == 2 * x\n\n"
        b"@pytest.mark.skip\ndef test_skipped():\n    assert False\n\n"
        b"@pytest.mark.xfail\ndef test_expected():\n    assert False\n"
    ),
}


@pytest.mark.local
def test_tests_for_pytest_are_told_by_name(prover: Prover):
    verdict = prover.grade(_repo_task.trial(PYTEST_PACKAGE, PYTEST_FILES, PYTEST_FILES))
    assert verdict.report["outcomes"] == {
        "tests/test_tiny.py::test_double": "passed",
        "tests/test_tiny.py::test_many[1]": "passed",
        "tests/test_tiny.py::test_many[2]": "passed",
        "tests/test_tiny.py::test_skipped": "skipped",
        "tests/test_tiny.py::test_expected": "skipped",
    }


@pytest.mark.local
@pytest.mark.parametrize(
    "left_behind",
    [
        {"conftest.py": "collect_ignore_glob = ['*']"},
        {"tests/conftest.py": "import os; os._exit(0)"},
        {"pytest.ini": "[pytest]\naddopts = -k nothing"},
        {"pytest.py": "raise SystemExit(0)"},
        {"_pytest/__init__.py": "raise SystemExit(0)"},
        {"tests/test_tiny.py": "def test_double(): pass"},
    ],
)
def test_pytest_settings_of_the_agent_are_not_read(prover: Prover, left_behind: dict[str, str]):
    broken = {**PYTEST_FILES, "tiny.py": b"def double(x):\n    return x * x\n"}
    failing = ["tests/test_tiny.py::test_many[1]"]
    passing = ["tests/test_tiny.py::test_double", "tests/test_tiny.py::test_many[2]"]
    task = _repo_task.trial(PYTEST_PACKAGE, PYTEST_FILES, broken, failing=failing, passing=passing)
    verdict = prover.grade(attempt(task, **left_behind), solve=True)
    assert (verdict.reward, verdict.report["still_failing"], verdict.report["broken"]) == (0.0, failing, [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"package": "spansat"}, "pack.toml has no package 'spansat'"),
        ({"version": "0.9"}, "made for spanset 0.9"),
        ({"passing": 1}, "does not agree with baselines/spanset.txt"),
        ({"old": "x = 1\n"}, "does not read as the mutation says"),
        ({"file": "gone.py"}, "has no file 'gone.py'"),
    ],
)
def test_a_recipe_that_fits_nothing_is_refused_alone_and_by_line(pack: Path, change: dict[str, object], reason: str):
    _, _, _, recipes = spanset(pack)
    wrong = dataclasses.asdict(dataclasses.replace(recipes[0], id="wrong")) | change
    path = pack / "recipes.jsonl"
    path.write_text("not json\n" + json.dumps(wrong) + "\n" + json.dumps(dataclasses.asdict(recipes[1])) + "\n")
    loaded = load_pack(pack)
    assert [task.id for task in loaded] == [f"repo_fix/{recipes[1].id}"]
    by_line = {refused.line: refused for refused in loaded.refused}
    assert by_line[1].reason.startswith("not a recipe: ")
    assert by_line[2].task_id == "repo_fix/wrong" and reason in by_line[2].reason


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path):
    names = ["a/test_x.py::test_1[a b]", "a/test_x.py::T::test_2", "b.test_y.T.test_3", "b.test_y.U.test_4"]
    _recipes.write_baseline(tmp_path / "new" / "x.txt", names)
    assert _recipes.read_baseline(tmp_path / "new" / "x.txt") == sorted(names)


def test_an_unknown_package_is_answered_with_the_nearest(pack: Path):
    with pytest.raises(ConfigError, match="unknown package 'tools'; did you mean 'toolz'"):
        _generate.chosen(_generate.read_config(pack), ["tools"])


@pytest.mark.local
def test_a_fetched_package_is_proven_where_it_is_in_the_cache(prover: Prover):
    loaded = load_pack("repo_fix")
    task = next((task for task in loaded if task.metadata["package"] == "inflection"), None)
    if task is None:
        pytest.skip(next(r.reason for r in loaded.refused if "/inflection-" in r.task_id))
    assert prover.prove(task, rounds=1).report["broken"] == []


@pytest.mark.local
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def double(x):\n    return x + x", "def double(x):\n    return x - x"),
        ("# été\r\ndef double(x):\r\n    return x + x\r\n", "# été\r\ndef double(x):\r\n    return x - x\r\n"),
        ("def double(x):\n    if x < 0:\n        raise ValueError\n    return x\n", "def double(x):\n    return x\n"),
    ],
    ids=["no line end", "Windows line ends and several bytes", "dropped lines"],
)
def test_the_known_fix_restores_every_byte(prover: Prover, before: str, after: str):
    (mutation,) = [m for m in _mutate.find(before) if _mutate.apply(before, m) == after]
    recipe = Recipe("r", "tiny", "1", "", "tiny.py", "k", "s", mutation.line, mutation.old, mutation.new, ("t",), 0, "")
    task = _repo_task.build(PYTEST_PACKAGE, {**PYTEST_FILES, "tiny.py": before.encode()}, ["t"], recipe, task_id="r")
    tests = FileTree.from_files({"test.sh": "od -An -v -tx1 /app/tiny.py"})
    seen = prover.grade(dataclasses.replace(task, tests=tests), solve=True)
    assert bytes.fromhex(seen.output) == before.encode()
