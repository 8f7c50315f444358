"""The built-in policies: found by name, equal for equal seeds, and what each answers."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import little
import pytest

from rayroll import Act, Turn, policies
from rayroll.errors import ConfigError, TaskError
from rayroll.policies.oracle import OraclePolicy
from rayroll.policies.random import COMMANDS, RandomPolicy
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.types import FileTree


def turn(index: int = 0, *, task: str = "little/write", sample: int = 0) -> Turn:
    return Turn("rollout", task, "Do it.", index, "", sample_index=sample)


def test_policies_are_found_by_name() -> None:
    assert {"bugfix", "oracle", "random", "scripted"} <= set(policies.kinds())
    for kind in policies.kinds():
        assert asyncio.iscoroutinefunction(policies.load(kind).act)
    assert policies.load("scripted") is ScriptedPolicy


def test_an_unknown_policy_comes_with_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        policies.load("randon")


def test_another_package_adds_one_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "polite.py").write_text("class Polite:\n    async def act(self, turn): ...\n")
    info = tmp_path / "polite-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: polite\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rayroll.policies]\npolite = polite:Polite\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "polite" in policies.kinds()
    assert policies.load("polite").__name__ == "Polite"


async def test_a_script_is_played_in_order_and_then_submitted() -> None:
    policy = ScriptedPolicy(["a", "b"])
    assert [await policy.act(turn(index)) for index in range(3)] == [Act("a"), Act("b"), Act(submit=True)]


async def test_a_script_without_an_end_repeats_what_does_nothing() -> None:
    assert await ScriptedPolicy(["a"], submit=False).act(turn(5)) == Act("true")


async def test_scripts_can_be_given_by_task_or_as_a_function() -> None:
    assert await ScriptedPolicy({"little/write": ["a"]}).act(turn()) == Act("a")
    assert await ScriptedPolicy(lambda task_id: [f"echo {task_id}"]).act(turn()) == Act("echo little/write")
    with pytest.raises(ConfigError, match="no script"):
        await ScriptedPolicy({"little/write": ["a"]}).act(turn(task="little/other"))


def test_one_string_is_no_script() -> None:
    with pytest.raises(ConfigError, match="list"):
        ScriptedPolicy("ls -la")


async def test_equal_seeds_draw_equally_in_whatever_order_they_are_asked() -> None:
    turns = [turn(index, sample=sample) for index in range(20) for sample in range(3)]
    first, second = RandomPolicy(5), RandomPolicy(5)
    forwards = [await first.act(t) for t in turns]
    backwards = [await second.act(t) for t in reversed(turns)]
    assert forwards == backwards[::-1]
    assert forwards != [await RandomPolicy(6).act(t) for t in turns]
    assert {act.command for act in forwards if not act.submit} <= set(COMMANDS)
    assert any(act.submit for act in forwards)


def test_random_commands_harm_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for command in COMMANDS:
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, command
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


async def test_the_oracle_applies_the_known_fix_by_a_command_and_submits() -> None:
    task = little.task(solution=FileTree.from_files({"solve.sh": "x" * 20_000}))
    policy = OraclePolicy([task])
    first, second = await policy.act(turn(0)), await policy.act(turn(1))
    assert "/solution/solve.sh" in first.command and second == Act(submit=True)
    assert max(map(len, first.command.splitlines())) <= 4000


def test_the_oracle_needs_a_known_fix() -> None:
    with pytest.raises(TaskError, match="no known fix"):
        OraclePolicy([little.task(solution=None)])
