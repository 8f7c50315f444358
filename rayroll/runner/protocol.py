"""The frames that a host and a runner exchange; docs/runner-protocol.md is the contract, src/ holds the other end.

A frame is a 12-byte header (payload length, type, a zero byte, epoch, request id; little-endian) and a payload. The
payload of DATA is raw bytes; every other payload is a list of fields: tag (1 byte), length (4 bytes), value.
Numbers are unsigned and 8 bytes long. Pure code: bytes in, frames out, no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from rayroll.errors import ProtocolError

__all__ = [
    "HEADER_BYTES",
    "KEY_BYTES",
    "MAX_PAYLOAD_BYTES",
    "VERSION",
    "WINDOW_BYTES",
    "Flag",
    "Frame",
    "FrameType",
    "Parser",
    "Tag",
    "decode_fields",
    "encode_fields",
    "encode_frame",
    "number",
    "numbers",
]

VERSION = 1
HEADER = struct.Struct("<IBBHI")
HEADER_BYTES = HEADER.size
_FIELD = struct.Struct("<BI")
KEY_BYTES = 16
MAX_PAYLOAD_BYTES = 16 << 20
"""Largest payload either end accepts; a larger one is refused with a reason."""
WINDOW_BYTES = 256 << 10
"""Most DATA bytes unacknowledged in either direction. Above about 1 MiB pending, a stopped client froze the Docker
engine: ``docker kill`` hung for over 25 s; below that it took 0.1 s."""
CHUNK_BYTES = 64 << 10
"""Most bytes in one DATA frame."""


class FrameType(IntEnum):
    """Below 64: host to runner. From 64: runner to host."""

    HELLO = 1
    LEASE = 2
    EXEC = 3
    PUT = 4
    GET = 5
    DIGEST = 6
    KILL_ALL = 7
    CANCEL = 8
    CREDIT = 9
    ACK = 10
    DATA = 11
    END = 12
    SHUTDOWN = 13
    BASELINE = 14
    RESET = 15
    HELLO_OK = 64
    LEASE_OK = 65
    RESULT = 66
    OUTPUT = 67
    WANT = 68
    ERROR = 69
    REFUSED = 70


class Tag(IntEnum):
    """Names of fields."""

    # HELLO, HELLO_OK
    KEY = 1
    NONCE = 2
    VERSION_MIN = 3
    VERSION_MAX = 4
    LEASE_MS = 5
    IDS = 6
    """Request ids, 4 bytes each: in HELLO those without a result yet, in HELLO_OK those of them the runner knows."""
    BUILD = 7
    PID = 8
    UID = 9
    IS_INIT = 10
    SHELL = 11
    MACHINE = 12
    KERNEL = 13
    CWD = 14
    EPOCH = 15
    INSTANCE = 16
    """Random, new with every start of a runner: what was under way in another one is lost, not to be asked again."""
    # EXEC
    SCRIPT = 32
    ARGV = 33
    """NUL-separated; instead of SCRIPT, without a shell."""
    ENV = 34
    """NUL-separated ``NAME=value``, on top of the carried environment."""
    USER = 35
    STDIN = 36
    TIMEOUT_MS = 37
    IDLE_MS = 38
    GRACE_MS = 39
    HEAD_BYTES = 40
    TAIL_BYTES = 41
    FLAGS = 42
    # PUT, GET, DIGEST
    PATH = 64
    MAX_BYTES = 65
    EXCLUDE = 66
    """NUL-separated path prefixes, relative to PATH."""
    # BASELINE
    KEEP = 67
    """NUL-separated absolute path prefixes."""
    # CREDIT, WANT
    BYTES = 72
    # RESULT
    EXIT_CODE = 96
    SIGNAL = 97
    LIMIT = 98
    """0 none, 1 total, 2 idle, 3 cancelled, 4 keeper lost, 5 kill_all."""
    OUTPUT_BYTES = 99
    HEAD_KEPT = 100
    """How many of the OUTPUT bytes are the head; the rest are the tail."""
    STATE_SAVED = 101
    NOTICE = 102
    QUEUED_NS = 103
    SPAWN_NS = 104
    RUN_NS = 105
    DRAIN_NS = 106
    USER_NS = 107
    SYSTEM_NS = 108
    THROTTLED_NS = 109
    MAX_RSS_BYTES = 110
    MEMORY_HITS = 111
    SHA256 = 112
    COUNT = 113
    REPAIRED = 114
    # ERROR, REFUSED
    ERRNO = 128
    REASON = 129
    CODE = 130
    """A stable word; docs/runner-protocol.md lists them."""


class Flag(IntEnum):
    """Bits of Tag.FLAGS."""

    CARRY = 1
    """EXEC: start from the carried directory and variables, and save them afterwards."""
    CLEAN_ENV = 2
    """EXEC: only the variables of this request; nothing is saved afterwards."""
    NO_CONTENT = 4
    """GET: facts of the path itself, no contents, no children."""
    TREE = 8
    """GET: everything below the path."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    type: int
    epoch: int
    request_id: int
    payload: bytes


def encode_frame(type: int, epoch: int, request_id: int, payload: bytes = b"") -> bytes:
    """Header and payload as they go over the channel."""
    return HEADER.pack(len(payload), type, 0, epoch, request_id) + payload


def encode_fields(fields: Mapping[int, int | bytes]) -> bytes:
    """Fields in the order given; ints become 8-byte numbers."""
    parts: list[bytes] = []
    for tag, value in fields.items():
        data = value.to_bytes(8, "little") if isinstance(value, int) else value
        parts += (_FIELD.pack(tag, len(data)), data)
    return b"".join(parts)


def decode_fields(payload: bytes) -> dict[int, bytes]:
    """Fields by tag.

    Raises:
        ProtocolError: The payload is not a list of fields, or has one of them twice.
    """
    fields: dict[int, bytes] = {}
    at = 0
    while at < len(payload):
        if at + 5 > len(payload):
            raise ProtocolError("a field is cut short", at=at)
        tag, size = _FIELD.unpack_from(payload, at)
        at += 5
        if at + size > len(payload):
            raise ProtocolError("a field is longer than its frame", tag=tag, size=size)
        if tag in fields:
            raise ProtocolError("a field comes twice", tag=tag)
        fields[tag] = payload[at : at + size]
        at += size
    return fields


def number(fields: Mapping[int, bytes], tag: int, default: int = 0) -> int:
    """A number field, or ``default`` where it is absent."""
    value = fields.get(tag)
    return default if value is None else int.from_bytes(value, "little")


def numbers(value: bytes) -> list[int]:
    """The 4-byte request ids of Tag.IDS."""
    return [n for (n,) in struct.iter_unpack("<I", value)]


class Parser:
    """Cuts a byte stream into frames, however the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes, yield the frames they complete.

        Raises:
            ProtocolError: A length beyond MAX_PAYLOAD_BYTES; the stream cannot be used any further.
        """
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= HEADER_BYTES:
                size, type, _, epoch, request_id = HEADER.unpack_from(self._buffer, at)
                if size > MAX_PAYLOAD_BYTES:
                    raise ProtocolError("a frame is too large", size=size, most=MAX_PAYLOAD_BYTES)
                if len(self._buffer) - at - HEADER_BYTES < size:
                    return
                at += HEADER_BYTES
                payload = bytes(self._buffer[at : at + size])
                at += size
                yield Frame(type, epoch, request_id, payload)
        finally:
            del self._buffer[:at]
