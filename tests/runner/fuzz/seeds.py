"""Writes the corpora that fuzzing starts from, with the real encoders: ``python tests/runner/fuzz/seeds.py``."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from rayroll.runner.commands import exec_payload
from rayroll.runner.protocol import FrameType, Tag, encode_fields, encode_frame
from rayroll.runner.tree import Entry, pack_entries

KEY = bytes(range(16))
NONCE = bytes(range(100, 116))
HERE = Path(__file__).parent


def frames() -> Iterator[tuple[str, bytes]]:
    """Streams; the first byte chooses how they are cut, and whether a key is needed."""

    def hello(epoch: int) -> bytes:
        fields = {Tag.NONCE: NONCE, Tag.VERSION_MIN: 1, Tag.VERSION_MAX: 1, Tag.LEASE_MS: 1000, Tag.IDS: b"\1\0\0\0"}
        return KEY + encode_frame(FrameType.HELLO, epoch, 0, encode_fields(fields))

    command = encode_frame(FrameType.EXEC, 1, 1, exec_payload("echo hi", env={"A": "1"}, user="agent", stdin=b"x"))
    rest = b"".join(
        encode_frame(kind, 1, 2, payload)
        for kind, payload in (
            (FrameType.LEASE, b""),
            (FrameType.PUT, encode_fields({Tag.PATH: b"/f"})),
            (FrameType.DATA, b"raw"),
            (FrameType.END, b""),
            (FrameType.CREDIT, encode_fields({Tag.BYTES: 100})),
            (FrameType.ACK, b""),
            (FrameType.CANCEL, b""),
            (FrameType.KILL_ALL, b""),
            (FrameType.BASELINE, encode_fields({Tag.KEEP: b"/app\0/etc\0", Tag.MAX_BYTES: 1000})),
            (FrameType.RESET, b""),
            (FrameType.SHUTDOWN, b""),
        )
    )
    yield "command", b"\x0c" + hello(1) + command + rest
    yield "bytewise", b"\x00" + hello(1) + command
    yield "again", b"\x08" + hello(1) + command[:20] + hello(2) + command
    yield "stray", b"\x05" + hello(1) + encode_frame(FrameType.DATA, 7, 1, b"x" * 40)[:30] + hello(3)
    yield (
        "version",
        b"\x0a" + KEY + encode_frame(FrameType.HELLO, 1, 0, encode_fields({Tag.NONCE: NONCE, Tag.VERSION_MIN: 9})),
    )
    yield "trusted", b"\x8b" + encode_frame(FrameType.EXEC, 0, 1, exec_payload(argv=["true"]))
    yield "malformed", b"\x0b" + hello(1) + encode_frame(FrameType.EXEC, 1, 1, b"\x20\xff\xff\xff\xff")


def states() -> Iterator[tuple[str, bytes]]:
    """What `runner state` writes, and what it might."""
    for name, env in {
        "plain": b"A=1\0B=x y\0",
        "empty": b"",
        "twice": b"Z=1\0A=2\0A=3\0",
        "odd": b"junk\0=x\0\0A=\0",
    }.items():
        yield name, struct.pack("<IIII", 0x32535252, 4, len(env), 9) + b"/tmp" + env + b"export A\n"


def puts() -> Iterator[tuple[str, bytes]]:
    """Streams of entries."""
    yield "file", pack_entries([Entry(b"a/b", "file", b"data", mode=0o600)])
    yield "tree", pack_entries([Entry(b"", "dir"), Entry(b"d", "dir", mode=0o755), Entry(b"d/l", "link", link=b"../x")])
    yield "out", pack_entries([Entry(b"out/x", "file", b"data"), Entry(b"out", "remove"), Entry(b"../x", "file", b"y")])
    yield "remove", pack_entries([Entry(b"a", "file", b"1"), Entry(b"a", "remove"), Entry(b"none/x", "remove")])


def main() -> None:
    """One folder for each harness."""
    for harness, seeds in {"frames": frames(), "state": states(), "put": puts()}.items():
        folder = HERE / "corpus" / harness
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds:
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
