"""Entries as the runner moves them, and their translation from and to tar."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.errors import CallerError, ProtocolError
from rayroll.runner.tree import KEEP, Entry, entries_from_tar, entries_to_tar, pack_entries, unpack_entries

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
names = st.binary(max_size=60).filter(lambda name: b"\0" not in name)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.sampled_from(["file", "dir", "link", "special", "remove"]))
    data = draw(st.binary(max_size=100)) if kind == "file" else b""
    link = draw(names) if kind == "link" else b""
    size_bytes = draw(st.integers(len(data), 2**40)) if kind == "file" else 0
    return Entry(draw(names), kind, data, draw(u32), draw(u32), draw(u32), draw(u64), size_bytes, link)


@given(st.lists(entries(), max_size=8))
def test_entries_round_trip(sent: list[Entry]) -> None:
    assert list(unpack_entries(pack_entries(sent))) == sent


@given(st.lists(entries(), min_size=1, max_size=4), st.data())
def test_a_stream_cut_short_is_an_error_and_never_a_shorter_tree(sent: list[Entry], data: st.DataObject) -> None:
    whole = pack_entries(sent)
    ends = {len(pack_entries(sent[:n])) for n in range(len(sent) + 1)}
    cut = data.draw(st.integers(0, len(whole) - 1).filter(lambda n: n not in ends))
    with pytest.raises(ProtocolError):
        list(unpack_entries(whole[:cut]))


@given(st.binary(max_size=300))
def test_no_bytes_crash_the_reader(stream: bytes) -> None:
    try:
        found = list(unpack_entries(stream))
    except ProtocolError:
        return
    assert all(entry.path is not None for entry in found)


def tree(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, type: bytes = tarfile.REGTYPE, mode: int = 0o644, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = type, mode, to
    return info


def test_an_archive_keeps_modes_and_leaves_owners_and_times_to_the_sandbox() -> None:
    script = member("run.sh", mode=0o755)
    script.uid, script.gid, script.mtime = 7, 8, 9
    assert list(entries_from_tar(tree((script, b"x")))) == [
        Entry(b"run.sh", "file", b"x", mode=0o755, uid=KEEP, gid=KEEP)
    ]


def test_folders_and_links_become_entries_and_devices_do_not() -> None:
    tar = tree(
        (member("d", tarfile.DIRTYPE, 0o700), b""),
        (member("l", tarfile.SYMTYPE, to="../x"), b""),
        (member("n", tarfile.CHRTYPE), b""),
        (member("p", tarfile.FIFOTYPE), b""),
    )
    assert [(e.path, e.kind, e.link) for e in entries_from_tar(tar)] == [(b"d", "dir", b""), (b"l", "link", b"../x")]


def test_a_hard_link_becomes_a_file_of_its_own() -> None:
    tar = tree((member("a"), b"same"), (member("b", tarfile.LNKTYPE, to="a"), b""))
    assert [(e.path, e.data) for e in entries_from_tar(tar)] == [(b"a", b"same"), (b"b", b"same")]


@pytest.mark.parametrize("tar", [b"", b"no archive", tree((member("b", tarfile.LNKTYPE, to="a"), b""))])
def test_what_is_no_archive_is_the_callers_error(tar: bytes) -> None:
    with pytest.raises(CallerError, match="cannot be read"):
        list(entries_from_tar(tar))


@given(st.lists(entries().filter(lambda e: e.path and e.kind in ("file", "dir", "link")), max_size=4))
def test_what_goes_to_an_archive_comes_back(sent: list[Entry]) -> None:
    plain = [e for e in sent if b"/" not in e.path and b"/" not in e.link and e.mtime_ns < 2**62]
    tar = entries_to_tar(plain)
    assert [(e.path, e.kind, e.data, e.link) for e in entries_from_tar(tar)] == [
        (e.path, e.kind, e.data, e.link) for e in plain
    ]


def test_the_root_itself_and_special_files_are_left_out_of_an_archive() -> None:
    tar = entries_to_tar([Entry(b"", "dir", mode=0o755), Entry(b"s", "special"), Entry(b"f", "file", b"x", mode=0o600)])
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        assert archive.getnames() == ["f"]
