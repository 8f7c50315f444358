"""Folders made once per node: by one of many, whole or not at all, and evicted only when nobody holds them."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rayroll.errors import ConfigError
from rayroll.substrates._cache import Store, can_reach, user_cache


def test_an_entry_is_built_once_however_many_want_it(tmp_path: Path) -> None:
    runs: list[Path] = []
    together = threading.Barrier(6)

    def want() -> str:
        together.wait()
        held = Store(tmp_path, 1 << 30, os.geteuid()).hold(
            "tools", lambda folder: (runs.append(folder), _fill(1)(folder))[1]
        )
        try:
            return (held.path / "file").read_text()
        finally:
            held.release()

    with ThreadPoolExecutor(6) as pool:
        results = [future.result() for future in [pool.submit(want) for _ in range(6)]]
    assert len(runs) == 1
    assert results == ["x" * 1024] * 6


def test_a_build_that_fails_leaves_nothing_and_the_next_one_may_succeed(tmp_path: Path) -> None:
    store = Store(tmp_path, 1 << 30, os.geteuid())

    def fail(folder: Path) -> None:
        (folder / "half").write_text("made")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.hold("tools", fail)
    held = store.hold("tools", _fill(1))
    assert [path.name for path in held.path.iterdir()] == ["file"]
    held.release()


def test_what_was_used_longest_ago_is_evicted_unless_somebody_holds_it(tmp_path: Path) -> None:
    store = Store(tmp_path, 300 << 10, os.geteuid())
    held = store.hold("held", _fill(128))
    store.hold("old", _fill(128)).release()
    store.hold("new", _fill(128)).release()
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == {"held", "new"}
    held.release()
    store.hold("newest", _fill(128)).release()
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == {"new", "newest"}


def test_a_closed_folder_above_is_noticed() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own temporary folder is closed to others
        folder = Path(name)
        folder.chmod(0o711)
        assert can_reach(folder / "cache" / "not yet there", 60777)
        folder.chmod(0o700)
        assert not can_reach(folder / "cache" / "not yet there", 60777)
        assert can_reach(folder, os.geteuid())


def test_a_cache_that_sandboxes_cannot_reach_is_refused_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RAYROLL_CACHE_DIR", str(tmp_path / "cache"))
    assert user_cache(60777) == tmp_path / "cache"
    with pytest.raises(ConfigError, match=r"chmod o\+x"):
        Store(user_cache(60777), 1 << 30, 60777).hold("tools", _fill(1))


def _fill(size_kib: int) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        (folder / "file").write_text("x" * (size_kib << 10))

    return build
