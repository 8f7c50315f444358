"""What a local sandbox leaves on disk: found by its labels, and removed however an agent arranged it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates._leftovers import Remains


def remains(folder: Path, **fields: object) -> Remains:
    base = Remains(folder.name, "run", "host", 5.0, time.time(), os.getpid(), leftovers.started_at(os.getpid()) or 0)
    made = replace(base, folder=str(folder), **fields)  # type: ignore[arg-type]
    made.make_folder()
    return made


def killed_at(step: int, act: Callable[[], None]) -> bool:
    """Act in a child that dies before the step'th thing it asks of the system; whether there was such a step."""
    pid = os.fork()
    if pid == 0:
        steps = itertools.count()

        def look(event: str, _: object) -> None:
            if event.startswith(("os.", "open", "subprocess.")) and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        act()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_sandboxes_are_found_by_run_and_owner(tmp_path: Path) -> None:
    remains(tmp_path / "a")
    remains(tmp_path / "b", run_id="other")
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "state.json").write_text("{")
    assert [r.id for r in leftovers.find(tmp_path, {"run": "run", "owner": "host"})] == ["a"]
    assert [r.id for r in leftovers.find(tmp_path, {})] == ["a", "b"]
    assert list(leftovers.find(tmp_path, {"colour": "red"})) == []
    assert list(leftovers.find(tmp_path / "none", {})) == []


def test_a_folder_that_lost_its_record_is_found_when_it_is_old_enough(tmp_path: Path) -> None:
    for name in ("young", "old", ".bin"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0) if name != "young" else None)
    (found,) = leftovers.find(tmp_path, {})
    assert (found.id, found.state, found.run_id) == ("old", "dead", "")
    assert list(leftovers.find(tmp_path, {"run": "run"})) == []
    leftovers.remove(found)
    assert not (tmp_path / "old").exists()


@pytest.mark.parametrize("labels", [{"run": "run", "owner": "host"}, {}], ids=["its reaper", "anybody, later"])
def test_whoever_is_killed_while_making_or_removing_a_folder_leaves_one_that_is_found(
    tmp_path: Path, labels: dict[str, str]
) -> None:
    for last_step in itertools.count():
        was_killed = killed_at(last_step, lambda: leftovers.remove(remains(tmp_path / "a")))
        left = sorted(tmp_path.iterdir())
        if not labels:
            for folder in left:
                os.utime(folder, (0, 0))
        found = [*leftovers.find(tmp_path, labels)]
        assert [Path(each.folder) for each in found] == left
        for each in found:
            leftovers.remove(each)
        assert [*tmp_path.iterdir()] == []
        if not was_killed:
            break
    assert last_step > 8


def test_its_state_follows_its_process_and_its_host(tmp_path: Path) -> None:
    made = remains(tmp_path / "a")
    assert made.state == "starting"
    assert replace(made, host_started_at=1).state == "dead"
    assert made.with_process(os.getpid()).state == "running"
    assert replace(made.with_process(os.getpid()), pid_started_at=1).state == "dead"


def test_removing_kills_the_process_and_what_it_started(tmp_path: Path) -> None:
    # Not isolated: asked first, so that it can end what it started.
    script = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        leftovers.remove(remains(tmp_path / "a", isolated=False).with_process(process.pid))
        assert process.wait() == 7
    assert not (tmp_path / "a").exists()


def test_a_process_that_got_the_number_of_a_dead_one_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        made = replace(remains(tmp_path / "a").with_process(process.pid), pid_started_at=1)
        leftovers.remove(made)
        assert process.poll() is None
        process.kill()


def test_a_tree_that_an_agent_arranged_is_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    made = remains(tmp_path / "a")
    root = Path(made.folder) / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "-rf").write_text("")
    (root / "new\nline").write_text("")
    locked = root / "locked"
    (locked / "inner").mkdir(parents=True)
    locked.chmod(0)
    leftovers.remove(made)
    assert not Path(made.folder).exists()
    assert (outside / "precious").read_text() == "kept"


def test_a_thousand_nested_folders_are_removed(tmp_path: Path) -> None:
    made = remains(tmp_path / "a")
    subprocess.run(
        ["sh", "-c", 'cd "$1"; for i in $(seq 1500); do mkdir d && cd d || exit 1; done', "sh", made.folder], check=True
    )
    leftovers.remove(made)
    assert not Path(made.folder).exists()


def test_a_base_folder_that_somebody_else_may_write_to_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    leftovers.make_base(base)
    assert base.stat().st_mode & 0o777 == 0o711
    base.chmod(0o777)
    with pytest.raises(PermissionError):
        leftovers.make_base(base)
    link = tmp_path / "link"
    link.symlink_to(base)
    with pytest.raises(PermissionError):
        leftovers.make_base(link)
