"""The values that cross processes: folders as equal bytes whatever their names, and records that do not change."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import stat
import tarfile
import time
from pathlib import Path

import little
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll import types
from rayroll.types import Act, CommandTiming, FileTree, Rollout, Step, Timing

NAMES = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda name: name not in (".", "..", "__pycache__") and len(name.encode()) < 200
)


@given(st.dictionaries(NAMES, st.binary(max_size=100), max_size=6))
def test_files_come_out_of_a_tree_as_they_went_in(files: dict[str, bytes]) -> None:
    tree = FileTree.from_files(files)
    assert {name: tree.read(name) for name in tree.names()} == files
    assert FileTree.from_tar(tree.tar) == tree
    assert bool(tree) == bool(files)


def a_folder(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "sub" / "data").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("sub/data")
    (root / os.fsdecode(b"not-utf8-\xff")).write_text("x")
    return root


def test_equal_folders_are_equal_bytes_whenever_and_by_whomever_they_were_made(tmp_path: Path) -> None:
    first, second = a_folder(tmp_path / "a"), a_folder(tmp_path / "b")
    os.utime(second / "sub" / "data", (0, time.time() - 1e6))
    (second / "sub" / "data").chmod(0o600)
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "x.pyc").write_text("")
    assert FileTree.from_dir(first) == FileTree.from_dir(second)
    (second / "sub" / "data").write_bytes(b"other")
    assert FileTree.from_dir(first).digest != FileTree.from_dir(second).digest


def test_a_folder_that_is_linked_hard_is_the_same_as_its_copy(tmp_path: Path) -> None:
    for name in ("copied", "linked"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one").write_text("same")
    (tmp_path / "copied" / "two").write_text("same")
    (tmp_path / "linked" / "two").hardlink_to(tmp_path / "linked" / "one")
    assert FileTree.from_dir(tmp_path / "copied") == FileTree.from_dir(tmp_path / "linked")
    assert FileTree.from_dir(tmp_path / "linked").read("two") == b"same"


def test_what_is_neither_file_nor_folder_nor_link_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    assert FileTree.from_dir(tmp_path).names() == ["file"]


def test_a_tree_extracts_with_its_links_and_modes(tmp_path: Path) -> None:
    tree = FileTree.from_dir(a_folder(tmp_path / "a"))
    tree.extract(tmp_path / "out")
    assert (tmp_path / "out" / "link").readlink() == Path("sub/data")
    assert (tmp_path / "out" / "link").read_bytes() == bytes(range(256))
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) == 0o755


def hostile(**fields: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo()
        for name, value in fields.items():
            setattr(member, name, value)
        archive.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "tar",
    [
        hostile(name="../escaped", size=1),
        hostile(name="/escaped-absolutely", size=1),
        hostile(name="a/../../escaped", size=1),
        hostile(name="link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        hostile(name="link", type=tarfile.SYMTYPE, linkname="../../escaped"),
        hostile(name="link", type=tarfile.LNKTYPE, linkname="../escaped"),
        hostile(name="device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    ],
    ids=["parent", "absolute", "through", "link out", "relative link out", "hard link out", "device"],
)
def test_a_hostile_archive_writes_nothing_outside(tar: bytes, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    try:
        FileTree.from_tar(tar).extract(target)
    except tarfile.TarError:
        pass
    else:
        # Python's filter makes an absolute name relative instead of refusing it.
        assert [path.name for path in target.rglob("*")] == ["escaped-absolutely"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert not Path("/escaped-absolutely").exists()


@pytest.mark.parametrize("name", ["no such", "sub"])
def test_reading_what_is_no_file_is_a_key_error(name: str, tmp_path: Path) -> None:
    tree = FileTree.from_dir(a_folder(tmp_path / "a"))
    with pytest.raises(KeyError):
        tree.read(name)


VALUES = [
    little.task(),
    Act("ls", tokens=[1, 2]),
    CommandTiming(queued_ns=1, spawn_ns=2, run_ns=3, drain_ns=4, round_trip_ns=20),
    Timing(1.0, 0.5, 0.3, 0.2, 0.0, {"other": 1.0}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_frozen_and_survive_pickling(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        value.id = "other"  # type: ignore[attr-defined]


def test_every_public_dataclass_is_frozen_and_slotted() -> None:
    for name in types.__all__:
        cls = getattr(types, name)
        if dataclasses.is_dataclass(cls):
            assert cls.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
            assert hasattr(cls, "__slots__") and cls.__doc__, name
            undocumented = [f.name for f in dataclasses.fields(cls) if f.name.endswith(("time", "timeout", "size"))]
            assert not undocumented, "a name without its unit"


def test_the_busy_time_of_a_command_is_what_its_runner_measured() -> None:
    assert VALUES[2].busy_ns == 10  # type: ignore[attr-defined]


def test_a_rollout_is_a_sequence_of_its_steps() -> None:
    step = Step(Act("ls"), 0, False, False, 0, "", CommandTiming(), {})
    rollout = Rollout("id", "run", "task", "local", 1.0, True, VALUES[3], steps=(step, step))  # type: ignore[arg-type]
    assert list(rollout) == [step, step]
