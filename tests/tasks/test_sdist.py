from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from rayroll.errors import InfraFailure, TaskError
from rayroll.tasks import _sdist

SETUP = """\
import pathlib
pathlib.Path({marker!r}).touch()
raise SystemExit("the build was run")
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only index pip knows, with one source distribution that may not be built."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("RAYROLL_CACHE_DIR", str(tmp_path / "cache"))
    with tarfile.open(folder / "tiny_thing-1.2.tar.gz", "w:gz") as archive:
        for name, text in {
            "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.2\n",
            "setup.py": SETUP.format(marker=str(tmp_path / "built")),
            "tiny_thing/__init__.py": "x = 1\n",
        }.items():
            member = tarfile.TarInfo(f"tiny_thing-1.2/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return folder


def sha256(index: Path) -> str:
    return hashlib.sha256((index / "tiny_thing-1.2.tar.gz").read_bytes()).hexdigest()


def test_a_source_distribution_is_fetched_by_pip_and_nothing_of_it_runs(index: Path, tmp_path: Path):
    got = _sdist.fetch("tiny-thing", "1.2", sha256(index))
    assert got == _sdist.cached("tiny-thing", "1.2", sha256(index))
    assert _sdist.files(got, sha256(index))["tiny_thing/__init__.py"] == b"x = 1\n"
    assert not (tmp_path / "built").exists()
    assert [p.name for p in got.parent.iterdir()] == [got.name]


def test_what_is_cached_is_not_fetched_again(index: Path):
    digest = sha256(index)
    _sdist.fetch("tiny-thing", "1.2", digest)
    (index / "tiny_thing-1.2.tar.gz").unlink()
    assert _sdist.fetch("tiny-thing", "1.2", digest).is_file()


def test_another_hash_is_refused_and_nothing_is_kept(index: Path):
    with pytest.raises(InfraFailure, match=r"could not fetch .* tiny-thing 1\.2") as refused:
        _sdist.fetch("tiny-thing", "1.2", "0" * 64)
    assert "HASH" in refused.value.facts["pip"].upper()
    assert not _sdist.cached("tiny-thing", "1.2", "0" * 64).exists()


def test_a_damaged_file_in_the_cache_is_named(index: Path):
    digest = sha256(index)
    path = _sdist.fetch("tiny-thing", "1.2", digest)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TaskError, match="damaged"):
        _sdist.files(path, digest)
