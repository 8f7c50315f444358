"""The binary: found by its sources' hash, built once however many ask, the same bytes every time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from rayroll.errors import ConfigError
from rayroll.runner import build

ROOT = Path(__file__).parents[2]
FIND = "from rayroll.runner.build import runner_path; print(runner_path())"


def find(cache: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Another process that looks for the runner."""
    environment = {**os.environ, "RAYROLL_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, "-c", FIND], capture_output=True, text=True, env=environment, check=False)


def test_three_processes_build_at_once_and_none_sees_half_a_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: find(tmp_path), range(3)))
    assert {d.returncode for d in done} == {0}, done[0].stderr
    (path,) = {Path(d.stdout.strip()) for d in done}
    assert (
        subprocess.run([path, "version"], capture_output=True, text=True, check=True).stdout.strip()
        == build.source_digest()
    )
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", path.name]
    assert path.stat().st_mode & stat.S_IXUSR


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b" / "c"
    for folder in (first, second):
        folder.mkdir(parents=True)
        build.build("x86_64", folder / "runner")
    assert (first / "runner").read_bytes() == (second / "runner").read_bytes()
    assert str(ROOT).encode() not in (first / "runner").read_bytes()


def test_it_builds_where_the_callers_directory_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    build.build("x86_64", tmp_path / "runner")
    assert (tmp_path / "runner").stat().st_mode & stat.S_IXUSR


def test_the_digest_is_of_sources_and_flags() -> None:
    assert len(build.source_digest()) == 16
    assert build.source_digest() in str(build.runner_path())


def test_another_cpu_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="riscv64"):
        build.runner_path("riscv64")


def test_a_cache_that_cannot_be_written_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "runner").write_text("a file in its place")
    done = find(tmp_path)
    assert "ConfigError" in done.stderr and str(tmp_path) in done.stderr and "RAYROLL_CACHE_DIR" in done.stderr


def test_without_a_toolchain_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path without programs, and a Python without ziglang."""
    script = "import sys; sys.modules['ziglang'] = None\n" + FIND.replace("runner_path()", "runner_path('aarch64')")
    environment = {
        "RAYROLL_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PATH": "/nowhere",
        "HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert "pip install 'rayroll[runner]'" in done.stderr


def test_a_source_that_does_not_compile_shows_the_compilers_words(tmp_path: Path) -> None:
    (tmp_path / "bad.c").write_text("int main(void) { return nonsense; }")
    with pytest.raises(ConfigError, match="nonsense"):
        build.build("x86_64", tmp_path / "runner", sources=[tmp_path / "bad.c"])
    assert [p.name for p in tmp_path.iterdir()] == ["bad.c"]


def packed(kind: str, folder: Path, root: Path = ROOT) -> Path:
    """A distribution, made as installers make it, in an environment that has the build's requirements already."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.mark.skipif(not find_spec("build") or not find_spec("hatchling"), reason="pip install build hatchling")
def test_a_source_archive_makes_a_wheel_that_carries_both_binaries(tmp_path: Path) -> None:
    archive = packed("sdist", tmp_path / "sdist")
    with tarfile.open(archive) as tar:
        assert not [name for name in tar.getnames() if "/build/" in name or "/bin/runner-" in name]
        tar.extractall(tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    wheel = packed("wheel", tmp_path / "wheel", root)
    with zipfile.ZipFile(wheel) as zipped:
        for machine in build.MACHINES:
            name = build.runner_name(machine)
            assert zipped.read(f"rayroll/runner/bin/{name}") == build.runner_path(machine).read_bytes()
            assert zipped.getinfo(f"rayroll/runner/bin/{name}").external_attr >> 16 & stat.S_IXUSR
