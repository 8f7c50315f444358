"""Files as the runner moves them: a stream of entries, and its translation from and to tar."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rayroll.errors import CallerError, ProtocolError

__all__ = ["KEEP", "Entry", "entries_from_tar", "entries_to_tar", "pack_entries", "unpack_entries"]

KEEP = 0xFFFFFFFF
"""Mode, uid or gid: what is there already, else the default."""

_ENTRY = struct.Struct("<BBHIIIQQQHHI")
_KINDS = {ord("f"): "file", ord("d"): "dir", ord("l"): "link", ord("s"): "special", ord("r"): "remove"}
_CODES = {kind: code for code, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, folder or link of a tree."""

    path: bytes
    """Relative to the request's path; empty for the path itself."""
    kind: str = "file"
    """``file``, ``dir``, ``link``, ``special`` (named only) or ``remove`` (upload only)."""
    data: bytes = b""
    mode: int = KEEP
    uid: int = KEEP
    gid: int = KEEP
    mtime_ns: int = 0
    """0: the time of writing."""
    size_bytes: int = 0
    """Size of the file itself; ``data`` may be less, where the request capped it."""
    link: bytes = b""


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Entries as the runner reads them."""
    parts: list[bytes] = []
    for e in entries:
        head = _ENTRY.pack(
            _CODES[e.kind],
            0,
            len(e.path),
            e.mode,
            e.uid,
            e.gid,
            e.mtime_ns,
            len(e.data),
            e.size_bytes,
            len(e.link),
            0,
            0,
        )
        parts += (head, e.path, e.link, e.data)
    return b"".join(parts)


def unpack_entries(stream: bytes) -> Iterator[Entry]:
    """Entries as the runner sent them.

    Raises:
        ProtocolError: The stream ends inside an entry.
    """
    at = 0
    while at < len(stream):
        if at + _ENTRY.size > len(stream):
            raise ProtocolError("a file entry is cut short", at=at)
        code, _, path_n, mode, uid, gid, mtime_ns, size, full, link_n, _, _ = _ENTRY.unpack_from(stream, at)
        at += _ENTRY.size
        end = at + path_n + link_n + size
        if end > len(stream) or code not in _KINDS:
            raise ProtocolError("a file entry is cut short", at=at)
        path, link = stream[at : at + path_n], stream[at + path_n : at + path_n + link_n]
        data = stream[end - size : end]
        yield Entry(path, _KINDS[code], data, mode, uid, gid, mtime_ns, full, link)
        at = end


def entries_from_tar(tar: bytes) -> Iterator[Entry]:
    """Members of an archive, as entries; owners and times are the sandbox's own, modes are kept.

    A hard link becomes a file of its own. Devices and pipes are left out.

    Raises:
        CallerError: It is no archive, or a hard link in it leads to nothing.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            for member in archive:
                path = member.name.encode(errors="surrogateescape")
                if member.isdir():
                    yield Entry(path, "dir", mode=member.mode)
                elif member.issym():
                    yield Entry(path, "link", link=member.linkname.encode(errors="surrogateescape"))
                elif member.isfile() or member.islnk():
                    file = archive.extractfile(member)
                    assert file is not None
                    yield Entry(path, "file", file.read(), mode=member.mode)
    except (tarfile.TarError, KeyError) as error:
        raise CallerError("the archive cannot be read", reason=str(error), size_bytes=len(tar)) from None


def entries_to_tar(entries: Iterable[Entry]) -> bytes:
    """An archive of the entries; what is neither file, folder nor link is left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for e in entries:
            if not e.path or e.kind == "special":
                continue
            member = tarfile.TarInfo(e.path.decode(errors="surrogateescape"))
            member.mode, member.uid, member.gid, member.mtime = e.mode, e.uid, e.gid, e.mtime_ns // 1_000_000_000
            if e.kind == "dir":
                member.type = tarfile.DIRTYPE
            elif e.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, e.link.decode(errors="surrogateescape")
            else:
                member.size = len(e.data)
            archive.addfile(member, io.BytesIO(e.data))
    return buffer.getvalue()
