from __future__ import annotations

from pathlib import Path

import pytest

from rayroll.errors import ConfigError, TaskError
from rayroll.tasks import Refused, formats, load_format, load_pack, packs


def test_every_pack_that_comes_along_has_tasks_sorted_by_id():
    assert packs() == ["hello_shell", "repo_fix", "terminal"]
    for name in packs():
        ids = [task.id for task in load_pack(name)]
        assert ids == sorted(set(ids))
        assert all(task_id.startswith(f"{name}/") for task_id in ids)
        assert ids


def test_packs_that_come_along_need_no_network_and_no_image():
    for name in packs():
        for task in load_pack(name):
            assert not task.agent_network and not task.grade_network, task.id
            assert task.host_packages is not None, task.id


def test_a_task_is_found_by_its_whole_id_and_by_its_last_part():
    pack = load_pack("hello_shell")
    assert pack.by_id("hello_shell/greeting") is pack.by_id("greeting") is pack.tasks[0]


def test_an_unknown_task_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown task 'terminal/log-reprt'; did you mean 'terminal/log-report'"):
        load_pack("terminal").by_id("log-reprt")


def test_an_unknown_pack_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown pack 'terminl'; did you mean 'terminal'\?"):
        load_pack("terminl")


def test_a_folder_that_is_not_there_is_said_to_be_missing():
    with pytest.raises(ConfigError, match=r"no such folder './nowhere'"):
        load_pack("./nowhere")


def test_a_folder_of_task_folders_is_a_pack(task_folder: Path):
    pack = load_pack(task_folder.parent)
    assert [task.id for task in pack] == ["pack/one"]


def test_one_task_folder_is_a_pack(task_folder: Path):
    assert [task.id for task in load_pack(str(task_folder))] == ["one/one"]


def test_a_folder_of_something_else_is_no_pack(tmp_path: Path):
    with pytest.raises(ConfigError, match="is no pack"):
        load_pack(tmp_path)


def test_a_broken_task_is_refused_alone(task_folder: Path):
    broken = task_folder.parent / "two"
    (broken / "tests").mkdir(parents=True)
    pack = load_pack(task_folder.parent)
    assert [task.id for task in pack] == ["pack/one"]
    assert pack.refused == (Refused("pack/two", broken / "task.toml", 0, "missing"),)
    assert str(pack.refused[0]) == f"pack/two: {broken / 'task.toml'}: missing"
    with pytest.raises(TaskError, match="'pack/two' was refused: missing"):
        pack.by_id("two")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('format = "harbor"\ndescripton = "x"\n', r"pack.toml: unknown field 'descripton'; did you mean description\?"),
        ('description = "x"\n', r"pack.toml: format: Field required"),
        ('format = "harbour"\n', r"unknown task format 'harbour'; did you mean 'harbor'\?"),
        ('format = "harbor"\ntasks = "task"\n', r"pack.toml: tasks = 'task' is no folder"),
        ('format = "harbor"\nx =\n', r"pack.toml: Invalid value \(at line 2"),
    ],
)
def test_a_wrong_pack_toml_says_what_is_wrong(tmp_path: Path, text: str, message: str):
    (tmp_path / "pack.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_pack(tmp_path)


def test_formats_are_found_by_their_files():
    assert formats() == ["harbor", "repo_fix"]
    assert [load_format(kind).kind for kind in formats()] == formats()


def test_another_package_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    site = tmp_path / "site"
    info = site / "their_tasks-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-tasks\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rayroll.tasks]\ntheirs = their_tasks:Theirs\n")
    (site / "their_tasks.py").write_text(
        "from rayroll.tasks import Refused, TaskFormat\n"
        "class Theirs(TaskFormat):\n"
        "    kind = 'theirs'\n"
        "    def read(self, folder, name, config):\n"
        "        yield Refused(f'{name}/x', folder, 0, 'just a test')\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert formats() == ["harbor", "repo_fix", "theirs"]
    (tmp_path / "pack.toml").write_text('format = "theirs"\n')
    assert [refused.reason for refused in load_pack(tmp_path).refused] == ["just a test"]
