"""Bytes in, frames out: however they arrive, whatever they are."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.errors import ProtocolError
from rayroll.runner.protocol import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Frame,
    Parser,
    Tag,
    decode_fields,
    encode_fields,
    encode_frame,
    number,
    numbers,
)

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
frames = st.builds(Frame, u8, u16, u32, st.binary(max_size=300))
payloads = st.dictionaries(u8, st.one_of(u64, st.binary(max_size=100)), max_size=8)


def bytes_of(sent: list[Frame]) -> bytes:
    return b"".join(encode_frame(f.type, f.epoch, f.request_id, f.payload) for f in sent)


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 2000), max_size=10))
def test_any_split_of_the_bytes_gives_the_same_frames(sent: list[Frame], cuts: list[int]) -> None:
    data = bytes_of(sent)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parser = Parser()
    got = [frame for start, end in itertools.pairwise(edges) for frame in parser.feed(data[start:end])]
    assert got == sent


@given(st.lists(frames, min_size=1, max_size=3))
def test_single_bytes_give_the_same_frames(sent: list[Frame]) -> None:
    parser = Parser()
    assert [f for byte in bytes_of(sent) for f in parser.feed(bytes([byte]))] == sent


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_no_bytes_crash_the_parser(pieces: list[bytes]) -> None:
    parser = Parser()
    try:
        for piece in pieces:
            for frame in parser.feed(piece):
                assert len(frame.payload) <= MAX_PAYLOAD_BYTES
    except ProtocolError as error:
        assert error.facts["size"] > MAX_PAYLOAD_BYTES


@given(frames, st.binary(max_size=HEADER_BYTES - 1))
def test_a_frame_is_out_before_the_next_has_begun(sent: Frame, rest: bytes) -> None:
    assert next(iter(Parser().feed(bytes_of([sent]) + rest))) == sent


def test_a_frame_too_large_is_refused_by_its_header() -> None:
    header = encode_frame(1, 1, 1)[4:]
    with pytest.raises(ProtocolError, match="too large"):
        list(Parser().feed((MAX_PAYLOAD_BYTES + 1).to_bytes(4, "little") + header))


def test_frames_before_a_bad_one_are_out() -> None:
    good = encode_frame(2, 3, 4, b"x")
    parser, got = Parser(), []
    with pytest.raises(ProtocolError):
        for frame in parser.feed(good + b"\xff" * HEADER_BYTES):
            got.append(frame)
    assert got == [Frame(2, 3, 4, b"x")]


@given(payloads)
def test_fields_round_trip(fields: dict[int, int | bytes]) -> None:
    got = decode_fields(encode_fields(fields))
    assert got == {
        tag: value if isinstance(value, bytes) else value.to_bytes(8, "little") for tag, value in fields.items()
    }
    assert all(number(got, tag) == value for tag, value in fields.items() if isinstance(value, int))


@given(payloads)
def test_fields_keep_their_order(fields: dict[int, int | bytes]) -> None:
    assert list(decode_fields(encode_fields(fields))) == list(fields)


@given(st.binary(max_size=300))
def test_any_payload_is_fields_or_refused(payload: bytes) -> None:
    try:
        fields = decode_fields(payload)
    except ProtocolError:
        return
    assert encode_fields(fields) == payload


@given(payloads.filter(bool), st.data())
def test_a_payload_cut_short_is_refused_or_shorter(fields: dict[int, int | bytes], data: st.DataObject) -> None:
    whole = encode_fields(fields)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with contextlib.suppress(ProtocolError):
        assert len(decode_fields(cut)) < len(fields)


def test_a_field_that_comes_twice_is_refused() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        decode_fields(encode_fields({Tag.CWD: b"/"}) * 2)


@given(st.lists(u32, max_size=20))
def test_request_ids_round_trip(ids: list[int]) -> None:
    assert numbers(b"".join(i.to_bytes(4, "little") for i in ids)) == ids


def test_an_absent_number_is_the_default() -> None:
    assert number({}, Tag.PID) == 0
    assert number({}, Tag.PID, 7) == 7
