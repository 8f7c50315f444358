"""A command's request and its answer as values: what is refused before it is sent, and how text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.errors import (
    CallerError,
    InfraFailure,
    ProtocolError,
    RayrollError,
    SandboxFileError,
    TaskError,
)
from rayroll.runner.commands import encoded, error_of, exec_payload, exec_result, milliseconds, refusal_of
from rayroll.runner.protocol import Flag, Frame, FrameType, Tag, decode_fields, encode_fields, number


def fields_of(*args: object, **options: object) -> dict[int, bytes]:
    return decode_fields(exec_payload(*args, **options))  # type: ignore[arg-type]


def result_of(raw: bytes, total: int, head: int, **more: int) -> object:
    reply = decode_fields(
        encode_fields(
            {Tag.EXIT_CODE: 0, Tag.OUTPUT_BYTES: total, Tag.HEAD_KEPT: head, **{Tag[k]: v for k, v in more.items()}}
        )
    )
    return exec_result(reply, raw, 7)


def test_a_request_says_all_that_was_asked() -> None:
    fields = fields_of(
        "echo ü",
        cwd="/tmp",
        env={"A": "1", "B": ""},
        user="agent",
        stdin=b"\0",
        timeout_s=1.5,
        idle_timeout_s=0.0001,
        output_cap_bytes=7,
    )
    assert (fields[Tag.SCRIPT], fields[Tag.CWD], fields[Tag.ENV]) == ("echo ü".encode(), b"/tmp", b"A=1\0B=\0")
    assert (fields[Tag.USER], fields[Tag.STDIN]) == (b"agent", b"\0")
    numbers = [number(fields, t) for t in (Tag.TIMEOUT_MS, Tag.IDLE_MS, Tag.GRACE_MS, Tag.HEAD_BYTES, Tag.TAIL_BYTES)]
    assert numbers == [1500, 1, 500, 4, 3]
    assert number(fields, Tag.FLAGS) == Flag.CARRY


def test_no_limit_is_zero_and_a_tiny_one_is_not() -> None:
    assert (milliseconds(None), milliseconds(0), milliseconds(1e-9), milliseconds(2)) == (0, 1, 1, 2000)


def test_arguments_are_separated_by_what_none_of_them_holds() -> None:
    assert fields_of(argv=["a b", b"\xff", ""])[Tag.ARGV] == b"a b\0\xff\0\0"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"script": "x", "argv": ["x"]},
        {"script": "a\0b"},
        {"argv": ["a", "b\0"]},
        {"script": "x", "cwd": "/\0"},
        {"script": "x", "user": "a\0"},
        {"script": "x", "env": {"": "1"}},
        {"script": "x", "env": {"A=B": "1"}},
        {"script": "x", "env": {"A": "\0"}},
        {"script": "x", "env": {"A": "x" * 131_070}},
        {"script": "\ud800"},
    ],
)
def test_what_cannot_be_is_refused_before_it_is_sent(wrong: dict[str, object]) -> None:
    with pytest.raises(CallerError):
        exec_payload(**wrong)  # type: ignore[arg-type]


def test_the_longest_variable_that_linux_takes_is_taken() -> None:
    assert len(fields_of("x", env={"A": "x" * 131_069})[Tag.ENV]) == 131_072


def test_bytes_that_are_no_text_survive_as_names() -> None:
    assert encoded(b"\xff".decode(errors="surrogateescape"), "path") == b"\xff"


def test_a_result_without_an_exit_code_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(ProtocolError, match="without an exit code"):
        exec_result({}, b"", 0)


def test_limits_that_are_not_time_are_not_timeouts() -> None:
    for limit, (timed_out, name) in {
        0: (False, ""),
        1: (True, "total"),
        2: (True, "idle"),
        3: (False, ""),
        4: (False, ""),
        5: (False, ""),
    }.items():
        r = result_of(b"", 0, 0, LIMIT=limit)
        assert (r.timed_out, r.limit) == (timed_out, name)  # type: ignore[attr-defined]


@given(st.text(), st.integers(0, 50), st.integers(0, 50))
def test_a_cut_through_a_character_leaves_it_out(text: str, head: int, tail: int) -> None:
    whole = text.encode(errors="ignore")
    head, tail = min(head, len(whole)), min(tail, max(0, len(whole) - head - 1))
    if head + tail >= len(whole):
        return
    raw = whole[:head] + whole[len(whole) - tail :]
    r = result_of(raw, len(whole), head)
    before, mark, after = r.output.partition("\n[... ")  # type: ignore[attr-defined]
    assert mark and r.truncated and r.raw == raw  # type: ignore[attr-defined]
    if "\ufffd" not in text:
        assert "\ufffd" not in r.output  # type: ignore[attr-defined]
    assert whole.decode().startswith(before) and whole.decode().endswith(after.partition("left out ...]\n")[2])


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_cut_into_some_text(raw: bytes, head: int) -> None:
    r = result_of(raw, len(raw) + 10, min(head, len(raw)))
    assert "10 of" in r.output  # type: ignore[attr-defined]


def test_errors_know_whose_fault_they_are() -> None:
    kinds: dict[str, type[RayrollError]] = {
        "file": SandboxFileError,
        "shell": TaskError,
        "user": CallerError,
        "arguments": CallerError,
        "busy": CallerError,
        "cancelled": CallerError,
        "unkillable": InfraFailure,
        "something newer": ProtocolError,
    }
    for code, kind in kinds.items():
        error = error_of(decode_fields(encode_fields({Tag.CODE: code.encode(), Tag.ERRNO: 28, Tag.REASON: b"why"})))
        assert type(error) is kind and "why" in str(error)


def test_a_refusal_for_a_version_names_both_sides() -> None:
    payload = encode_fields({Tag.CODE: b"version", Tag.REASON: b"no", Tag.VERSION_MIN: 3, Tag.VERSION_MAX: 5})
    assert refusal_of(Frame(FrameType.REFUSED, 1, 0, payload)).facts == {
        "code": "version",
        "epoch": 0,
        "runner": [3, 5],
        "host": [1, 1],
    }
