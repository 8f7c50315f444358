"""Files of lines, plain or compressed, by the end of their name: ``.gz``, ``.zst``, anything else is plain."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from rayroll.errors import ConfigError

_BUFFER_BYTES = 1 << 20
_PIECE_BYTES = 16 << 10


@contextmanager
def open_read(path: Path, *, offset: int = 0) -> Iterator[IO[bytes]]:
    """The file's bytes, uncompressed; ``offset`` counts uncompressed bytes and is cheap for plain files only."""
    with path.open("rb", buffering=_BUFFER_BYTES) as raw:
        stream: IO[bytes] = raw
        if path.suffix == ".gz":
            # Its own buffer is small: a larger one around it is lost whole where the archive is cut.
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        elif path.suffix == ".zst":
            stream = io.BufferedReader(_ZstdFrames(raw), _BUFFER_BYTES)
        if offset:
            stream.seek(offset)
        yield stream


class _ZstdFrames(io.RawIOBase):
    """Frame after frame, as loggers append them. Unlike the library's reader it gives all that precedes the damage, and
    says so when the last frame is cut off."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._new_frame = _zstandard().ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._packed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._plain:
            # What one piece held is lost if the piece is damaged: small pieces.
            self._packed = self._packed or self._raw.read(_PIECE_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last zstd frame is cut off")
                return 0
            if self._frame is None:
                self._frame = self._new_frame()
            self._plain = memoryview(self._frame.decompress(self._packed))
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(into), len(self._plain))
        into[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count


def check_target(path: Path) -> None:
    """Raises ConfigError where rows cannot be written to a path of that name."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", fix=f"name a file, such as {path / 'rows.jsonl'}")
    if not path.name.endswith((".jsonl", ".jsonl.gz", ".jsonl.zst")):
        raise ConfigError(f"rows cannot be written as {path.name}", fix="end it with .jsonl, .jsonl.gz or .jsonl.zst")


@contextmanager
def open_write(path: Path) -> Iterator[IO[bytes]]:
    """A new file, for its owner's eyes only: traces hold what people typed.

    Raises:
        ConfigError: A folder has that name, its ending is none of rows, or nothing may be written there.
    """
    check_target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", fix="choose another file") from None
    with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as raw:
        if path.suffix == ".gz":
            # No name and no time inside: the same rows are the same bytes.
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        elif path.suffix == ".zst":
            with _zstandard().ZstdCompressor(level=3).stream_writer(raw, closefd=False) as writer:
                yield cast(IO[bytes], writer)
        else:
            yield raw


def damaged() -> tuple[type[Exception], ...]:
    """What reading a file raises when it is broken, or cannot be read."""
    usual = (EOFError, OSError, zlib.error)
    try:
        import zstandard
    except ImportError:
        return usual
    return (*usual, zstandard.ZstdError)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ConfigError("a .zst file needs zstandard", fix="pip install 'rayroll[traces]'") from None
    return zstandard
