"""Which files of the kernel get which limits, on trees that look like its two versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rayroll.substrates._cgroup import Cgroups, Limits

LIMITS = Limits(memory_mib=512, pids=100, cpus=1.5)


def test_version_one_has_a_folder_per_controller(tmp_path: Path) -> None:
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller).mkdir()
    cgroups = Cgroups.detect(tmp_path)
    assert cgroups is not None and cgroups.version == 1
    cgroups.create("box", LIMITS)
    cgroups.enter("box", 1234)
    read = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert read == {
        "memory/rayroll/box/memory.limit_in_bytes": str(512 << 20),
        "memory/rayroll/box/cgroup.procs": "1234",
        "pids/rayroll/box/pids.max": "100",
        "pids/rayroll/box/cgroup.procs": "1234",
        "cpu/rayroll/box/cpu.cfs_period_us": "100000",
        "cpu/rayroll/box/cpu.cfs_quota_us": "150000",
        "cpu/rayroll/box/cgroup.procs": "1234",
    }
    assert set(cgroups.paths("box")) == {str(tmp_path / c / "rayroll" / "box") for c in ("memory", "pids", "cpu")}


def test_version_two_has_one_folder(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids cpu")
    cgroups = Cgroups.detect(tmp_path)
    assert cgroups is not None and cgroups.version == 2
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    cgroups.create("box", LIMITS)
    box = tmp_path / "rayroll" / "box"
    assert {p.name: p.read_text() for p in box.iterdir()} == {
        "memory.max": str(512 << 20),
        "pids.max": "100",
        "cpu.max": "150000 100000",
    }
    assert cgroups.paths("box") == (str(box),)


def test_an_oom_kill_is_seen_in_either_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("")
    cgroups = Cgroups.detect(tmp_path)
    assert cgroups is not None
    cgroups.create("box", LIMITS)
    assert not cgroups.killed_for_memory("box")
    (tmp_path / "rayroll" / "box" / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert cgroups.killed_for_memory("box")


def test_without_the_needed_controllers_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    assert Cgroups.detect(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0 or Cgroups.detect() is None, reason="needs root and writable cgroups")
def test_the_kernel_takes_the_limits() -> None:
    cgroups = Cgroups.detect()
    assert cgroups is not None
    name = f"test-{os.getpid()}"
    cgroups.create(name, LIMITS)
    try:
        values = {
            p.name: p.read_text().strip() for folder in cgroups.paths(name) for p in Path(folder).glob("pids.max")
        }
        assert values == {"pids.max": "100"}
    finally:
        for folder in cgroups.paths(name):
            Path(folder).rmdir()
