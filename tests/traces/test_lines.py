"""Every whole record of a damaged log is read, and what is lost is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rayroll.traces import lines as module
from rayroll.traces.lines import LogLines, Loss

FIRST, SECOND = (
    {"type": "user", "uuid": name, "message": {"content": [{"type": "text", "text": f"« {name} »"}]}} for name in "ab"
)
A, B = (json.dumps(one, separators=(",", ":")).encode() for one in (FIRST, SECOND))


def read(tmp_path: Path, data: bytes, name: str = "log.jsonl") -> tuple[list[dict], list[Loss]]:
    log, losses = tmp_path / name, []
    log.write_bytes(data)
    return list(LogLines(log, on_loss=losses.append)), losses


def test_a_last_line_that_is_cut_off_is_told(tmp_path: Path):
    records, (loss,) = read(tmp_path, A + b"\n" + B[:60])
    assert records == [FIRST]
    assert (loss.line, loss.kept, "cut off" in loss.reason) == (2, False, True)


def test_a_last_line_without_an_end_is_whole(tmp_path: Path):
    assert read(tmp_path, A + b"\n" + B) == ([FIRST, SECOND], [])


@pytest.mark.parametrize("cut", range(1, len(A), 3))
def test_a_record_glued_to_half_of_another_is_kept(tmp_path: Path, cut: int):
    records, (loss,) = read(tmp_path, A[:cut] + B + b"\n" + A + b"\n")
    assert records == [SECOND, FIRST]
    assert (loss.file, loss.line, loss.kept) == (str(tmp_path / "log.jsonl"), 1, False)


def test_two_records_on_one_line_are_both_kept(tmp_path: Path):
    assert read(tmp_path, A + B + b"\n") == ([FIRST, SECOND], [])


def test_pieces_before_between_and_after_whole_records_are_told_apart(tmp_path: Path):
    records, losses = read(tmp_path, A[:50] + B + A[:70] + A + B[:30] + b"\n")
    assert records == [SECOND, FIRST]
    assert [loss.line for loss in losses] == [1, 1, 1]


def test_half_a_surrogate_pair_becomes_a_mark_and_a_whole_one_stays(tmp_path: Path):
    line = rb'{"type":"user","uuid":"a","message":"\ud83d, \ud83d\ude00, \\ud83d"}' + b"\n"
    records, (loss,) = read(tmp_path, line)
    assert records[0]["message"] == "\ufffd, \U0001f600, \\ud83d"
    assert loss.kept


def test_a_byte_that_is_not_utf8_becomes_a_mark(tmp_path: Path):
    records, (loss,) = read(tmp_path, A.replace(b"user", b"us\xb2er") + b"\n" + B + b"\n")
    assert [record["type"] for record in records] == ["us\ufffder", "user"]
    assert (loss.line, loss.kept, "UTF-8" in loss.reason) == (1, True, True)


def test_what_is_kept_can_be_written_as_json(tmp_path: Path):
    odd = (
        rb'{"type":"user","uuid":"a","n":123456789012345678901234567890,"x":NaN,"message":"'
        + b"\xb2\x01"
        + rb'\udc00"}'
    )
    records, _ = read(tmp_path, A[:40] + odd + b"\n")
    assert json.loads(module.orjson.dumps(records[0]))["message"] == "\ufffd\x01\ufffd"


@pytest.mark.parametrize("line", [b"42", b"null", b"[1]", b"{", b"nonsense", b"\xff\xfe", b'{"a":' * 3000])
def test_a_line_that_is_no_record_costs_only_itself(tmp_path: Path, line: bytes):
    records, losses = read(tmp_path, A + b"\n" + line + b"\n" + B + b"\n")
    assert records == [FIRST, SECOND]
    assert [loss.line for loss in losses] == [2]


def test_empty_lines_and_runs_of_nul_are_nothing(tmp_path: Path):
    assert read(tmp_path, b"\n" + A + b"\n  \n" + b"\0" * 4096) == ([FIRST], [])


def test_a_line_beyond_the_limit_is_passed_over_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 1000)
    records, (loss,) = read(tmp_path, A + b"\n" + b"x" * 5_000_000 + b"\n" + B + b"\n")
    assert records == [FIRST, SECOND]
    assert (loss.line, "5,000,001 bytes" in loss.reason) == (2, True)


def test_compressed_logs_are_read_frame_after_frame(tmp_path: Path):
    packed = zstandard.compress(A + b"\n") + zstandard.compress(B + b"\n")
    assert read(tmp_path, packed, "log.jsonl.zst") == ([FIRST, SECOND], [])


def test_an_archive_that_breaks_off_gives_what_is_before(tmp_path: Path):
    packed = zstandard.compress(A + b"\n") + b"not a frame"
    records, (loss,) = read(tmp_path, packed, "log.jsonl.zst")
    assert records == [FIRST]
    assert "from here on" in loss.reason


def test_a_log_that_grew_is_read_on_from_where_it_ended(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(A + b"\n")
    first = LogLines(log)
    assert list(first) == [FIRST]
    log.write_bytes(A + b"\n" + B + b"\n{\n")
    losses: list[Loss] = []
    assert list(LogLines(log, offset=first.offset, line=first.line, on_loss=losses.append)) == [SECOND]
    assert [loss.line for loss in losses] == [3]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([A, B]), max_size=4), st.binary(max_size=40), st.integers(0, 400))
def test_whatever_stands_between_records_nothing_is_fatal_and_whole_lines_are_kept(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], noise: bytes, cut: int
):
    whole = b"".join(one + b"\n" for one in records)
    got, _ = read(tmp_path_factory.mktemp("log"), whole + (noise + A)[:cut])
    assert got[: len(records)] == [json.loads(one) for one in records]
