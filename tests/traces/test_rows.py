"""Rows are read from and written to files of lines, plain or compressed, and bad ones cost only themselves."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard
from trace_logs import DATA

from rayroll.errors import ConfigError
from rayroll.traces.rows import read_rows, write_rows

ROWS = DATA / "normalized_rounds.jsonl"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_rows_survive_writing_and_reading(tmp_path: Path, name: str):
    rows = list(read_rows(ROWS))
    assert write_rows(tmp_path / name, rows) == len(rows) == 19
    assert list(read_rows(tmp_path / name)) == rows


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_the_same_rows_are_the_same_bytes(tmp_path: Path, name: str):
    rows = list(read_rows(ROWS))
    for folder in ("a", "b"):
        write_rows(tmp_path / folder / name, rows)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_rows_are_for_their_owners_eyes(tmp_path: Path):
    write_rows(tmp_path / "rows.jsonl", [])
    assert (tmp_path / "rows.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_bad_line_is_told_with_its_number_and_the_rest_is_read(tmp_path: Path):
    first, second, *_ = ROWS.read_bytes().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_bytes(first + b"{\n[1]\n" + b'{"provider":"claude"}\n\n' + second)
    bad: dict[int, str] = {}
    rows = list(read_rows(tmp_path / "rows.jsonl", on_bad=bad.__setitem__))
    assert len(rows) == 2
    assert list(bad) == [2, 3, 4]
    assert "session_id" in bad[4]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_damaged_archive_gives_what_can_be_read(tmp_path: Path, pack):
    packed = pack(ROWS.read_bytes())
    path = tmp_path / f"rows.jsonl.{'gz' if pack is gzip.compress else 'zst'}"
    path.write_bytes(packed[: len(packed) // 2] + b"?" * 100)
    bad: dict[int, str] = {}
    assert len(list(read_rows(path, on_bad=bad.__setitem__))) < 19
    assert bad


def test_a_missing_file_is_said_with_a_way_out(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        list(read_rows(tmp_path / "nothing.jsonl"))
