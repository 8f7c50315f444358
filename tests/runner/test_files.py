"""Files and trees: whole or not at all, below their folder, whatever an agent put in the way."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import os
import struct
import tarfile
from pathlib import Path

import pytest
from runner.live import peer, sandbox, until

from rayroll.errors import SandboxFileError
from rayroll.runner.protocol import FrameType, Tag, number

pytestmark = pytest.mark.usefixtures("namespaces")

NAMES = (
    b"it's",
    b"sp ace",
    b"-rf",
    b"$(touch pwned)",
    b"*",
    b"a\nb",
    "ü".encode(),
    "u\u0308".encode(),
    b"\xff",
    b"x" * 255,
)


def tree(**files: bytes | None) -> bytes:
    """An archive; None is a folder, a value that begins with -> a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            if data is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif data.startswith(b"->"):
                member.type, member.linkname = tarfile.SYMTYPE, data[2:].decode()
            else:
                member.size = len(data)
            archive.addfile(member, io.BytesIO(data or b""))
    return buffer.getvalue()


async def errno_of(work: object) -> int:
    with pytest.raises(SandboxFileError) as caught:
        await work  # type: ignore[misc]
    return caught.value.errno


async def test_odd_names_are_just_names() -> None:
    async with sandbox() as box:
        for i, name in enumerate(NAMES):
            await box.client.write_file(b"/tmp/odd/" + name, b"%d" % i)
        assert [await box.client.read_file(b"/tmp/odd/" + name) for name in NAMES] == [
            b"%d" % i for i in range(len(NAMES))
        ]
        listed = await box.client.list_tree("/tmp/odd")
        assert {e.path for e in listed} == {b"", *NAMES}
        assert [e.path for e in listed] == sorted(e.path for e in listed)
        assert await errno_of(box.client.write_file(b"/tmp/odd/" + b"x" * 256, b"")) == errno.ENAMETOOLONG
        assert not list(box.folder.rglob("pwned"))


@pytest.mark.parametrize("data", [b"", bytes(range(256)), b"a\r\nb", b"\0" * 65537, os.urandom(2_000_001)], ids=len)
async def test_contents_go_both_ways_unchanged(data: bytes) -> None:
    async with sandbox() as box:
        await box.client.write_file("/tmp/f", data)
        assert (box.folder / "f").read_bytes() == data == await box.client.read_file("/tmp/f")


async def test_a_new_file_is_644_and_an_old_one_keeps_mode_and_owner() -> None:
    async with sandbox() as box:
        await box.client.write_file("/tmp/new", b"")
        assert (box.folder / "new").stat().st_mode & 0o7777 == 0o644
        (box.folder / "old").touch()
        os.chown(box.folder / "old", 1000, 2000)
        (box.folder / "old").chmod(0o4750)
        await box.client.write_file("/tmp/old", b"x")
        after = (box.folder / "old").stat()
        assert (after.st_mode & 0o7777, after.st_uid, after.st_gid) == (0o4750, 1000, 2000)
        await box.client.write_file("/tmp/old", b"x", mode=0o600, uid=7, gid=8)
        after = (box.folder / "old").stat()
        assert (after.st_mode & 0o7777, after.st_uid, after.st_gid) == (0o600, 7, 8)


async def test_a_write_that_fails_leaves_what_was_there() -> None:
    async with sandbox(bwrap=["--size", str(1 << 20), "--tmpfs", "/small"]) as box:
        client = box.client
        await client.write_file("/small/kept", b"old")
        for path in ("/small/kept", "/small/new", "/dev/full"):
            assert await errno_of(client.write_file(path, b"x" * (2 << 20))) == errno.ENOSPC
        assert await client.read_file("/small/kept") == b"old"
        assert {e.path for e in await client.list_tree("/small")} == {b"", b"kept"}
        await client.write_file("/small/fits", b"x" * 100_000)


async def test_what_cannot_be_written_or_read_says_why() -> None:
    async with sandbox() as box:
        client = box.client
        (box.folder / "dir").mkdir()
        (box.folder / "file").touch()
        (box.folder / "loop").symlink_to("loop")
        (box.folder / "dangling").symlink_to("nowhere")
        os.mkfifo(box.folder / "pipe")
        for path, number in {
            "dir": errno.EISDIR,
            "file/x": errno.ENOTDIR,
            "loop/x": errno.ELOOP,
            "pipe": errno.ENXIO,
        }.items():
            assert (path, await errno_of(client.write_file(f"/tmp/{path}", b"x"))) == (path, number)
        for path, number in {
            "none": errno.ENOENT,
            "none/none": errno.ENOENT,
            "dangling": errno.ENOENT,
            "dir": errno.EISDIR,
            "loop": errno.ELOOP,
            "file/x": errno.ENOTDIR,
            "pipe": errno.EINVAL,
        }.items():
            assert (path, await errno_of(client.read_file(f"/tmp/{path}"))) == (path, number)
        (box.folder / "big").write_bytes(b"x" * 3000)
        assert await errno_of(client.read_file("/tmp/big", max_bytes=1000)) == errno.EFBIG
        assert await client.read_file("/tmp/big", max_bytes=1000, truncate=True) == b"x" * 1000
        assert (await client.read_file("/proc/self/status")).startswith(b"Name:\trayroll-files")
        assert await errno_of(client.stat("/tmp/none")) == errno.ENOENT
        entry = await client.stat("/tmp/dangling")
        assert (entry.kind, entry.link) == ("link", b"nowhere")


async def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed() -> None:
    async with sandbox() as box:
        (box.folder / "target").write_text("old")
        (box.folder / "link").symlink_to("target")
        await box.client.write_file("/tmp/link", b"new")
        assert (box.folder / "target").read_text() == "old"
        assert not (box.folder / "link").is_symlink()


async def test_an_archive_stays_below_its_folder() -> None:
    async with sandbox() as box:
        outside, root = box.folder / "outside", box.folder / "root"
        outside.mkdir()
        (root / "inside").mkdir(parents=True)
        (root / "out").symlink_to("../outside")
        (root / "absolute").symlink_to("/tmp/outside")
        (root / "in").symlink_to("inside")
        upload = lambda **files: box.client.upload_tree("/tmp/root", tree(**files))  # noqa: E731
        for name in ("..__escaped", "a__..__..__escaped", "out__escaped", "absolute__escaped", "out__deep__escaped"):
            assert await errno_of(upload(**{name: b"x"})) in (errno.EXDEV, errno.ELOOP, errno.ENOTDIR)
        await upload(in__f=b"through a link that stays inside", __tmp__abs=b"absolute names lose their slash")
        assert (root / "inside" / "f").exists() and (root / "tmp" / "abs").exists()
        await upload(out=b"->elsewhere", inside__f=b"again", new=None, new__f=b"x")
        assert (root / "out").readlink() == Path("elsewhere")
        assert not list(box.folder.glob("escaped")) and not list(outside.iterdir())


async def test_without_openat2_no_link_below_the_folder_is_followed() -> None:
    """An old kernel, or a filter: stricter, and the same names arrive."""
    async with sandbox() as box:
        await box.client.upload_tree("/tmp/root", tree(a__b__c__d=b"deep", a__e=b"x", link=b"->a"))
        assert (box.folder / "root/a/b/c/d").read_bytes() == b"deep"
        await box.client.upload_tree("/tmp/root", tree(link__e=b"through"))
        assert (box.folder / "root/a/e").read_bytes() == b"through"


async def test_a_tree_comes_back_as_it_went() -> None:
    async with sandbox() as box:
        await box.client.upload_tree("/tmp/t", tree(a__run=b"x", a__b__f=b"", e=None, l=b"->a/run", x=b"->/nowhere"))
        (box.folder / "t/e").chmod(0o700)
        back = await box.client.download_tree("/tmp/t")
        await box.client.upload_tree("/tmp/copy", back)
        assert await box.client.digest("/tmp/copy") == await box.client.digest("/tmp/t")
        assert (box.folder / "copy/e").stat().st_mode & 0o777 == 0o700
        some = await box.client.list_tree("/tmp/t", exclude=[b"a/b", b"e", b"ru"])
        assert [e.path for e in some] == [b"", b"a", b"a/run", b"l", b"x"]


async def test_a_digest_sees_every_change_but_times() -> None:
    async with sandbox() as box:
        root = box.folder / "d"
        (root / "sub").mkdir(parents=True)
        (root / "f").write_text("x")
        seen = [await box.client.digest("/tmp/d")]
        changes = (
            lambda: (root / "f").write_text("y"),
            lambda: (root / "f").chmod(0o600),
            lambda: os.chown(root / "f", 5, -1),
            lambda: (root / "f").rename(root / "g"),
            lambda: (root / "l").symlink_to("g"),
            lambda: (root / "sub").rmdir(),
            lambda: (root / "sub").touch(),
            lambda: os.mkfifo(root / "p"),
        )
        for change in changes:
            change()
            seen.append(await box.client.digest("/tmp/d"))
        assert len(set(seen)) == len(seen)
        os.utime(root / "g", (1, 1))
        assert await box.client.digest("/tmp/d") == seen[-1]


async def test_a_digest_of_what_cannot_be_seen_whole_is_an_error() -> None:
    """A tree deeper than is looked at could hide anything."""
    async with sandbox() as box:
        deep = "mkdir d; cd d; i=0; while [ $i -lt 300 ]; do mkdir x; cd x; i=$((i+1)); done; touch hidden"
        await box.sh(f"cd /tmp; {deep}", carry=False)
        assert await errno_of(box.client.digest("/tmp/d")) == errno.ENAMETOOLONG
        assert await errno_of(box.client.list_tree("/tmp/d")) == errno.ENAMETOOLONG
        await box.sh("rm -rf /tmp/d")


async def test_remove_takes_what_is_there_and_makes_nothing() -> None:
    async with sandbox() as box:
        await box.sh(
            "mkdir -p deep/a/b target; echo x > deep/a/b/f; ln -s target link; echo k > target/kept", cwd="/tmp"
        )
        for name in ("deep", "link", "none", "none/deeper/still"):
            await box.client.remove(f"/tmp/{name}")
        assert {p.name for p in box.folder.iterdir()} == {"target"}
        assert (box.folder / "target/kept").exists()


async def test_remove_opens_what_an_agent_closed_to_itself() -> None:
    """For root every folder is open; here the runner is the agent's own user."""
    async with sandbox(bwrap=["--unshare-user", "--uid", "1000", "--gid", "1000"]) as box:
        closed = "mkdir -p t/a/b t/c; touch t/a/b/f t/c/f; chmod 000 t/a/b; chmod 400 t/a; chmod 500 t/c"
        assert (await box.sh(f"id -u; {closed}", cwd="/tmp")).output == "1000\n"
        await box.client.remove("/tmp/t")
        assert not (box.folder / "t").exists()


async def test_make_dir_makes_those_above_it_and_sets_the_mode() -> None:
    async with sandbox() as box:
        await box.client.make_dir("/tmp/a/b/c", mode=0o1777)
        assert (box.folder / "a/b/c").stat().st_mode & 0o7777 == 0o1777
        await box.client.make_dir("/tmp/a/b/c/", mode=0o700)
        assert (box.folder / "a/b/c").stat().st_mode & 0o7777 == 0o700
        (box.folder / "link").symlink_to("a")
        await box.client.make_dir("/tmp/link", mode=0o777)
        assert (box.folder / "a").stat().st_mode & 0o7777 == 0o755  # what a link leads to is not ours
        assert await errno_of(box.client.make_dir("/etc/passwd")) == errno.ENOTDIR


async def test_sixty_four_mebibytes_go_both_ways_while_commands_are_answered() -> None:
    data = await asyncio.to_thread(os.urandom, 64 << 20)
    async with sandbox() as box:
        before_kib = box.resident_kib()
        done = asyncio.Event()

        async def beside() -> int:
            n = 0
            while not done.is_set():
                assert (await box.sh(f"echo {n}", carry=False)).output == f"{n}\n"
                n += 1
            return n

        answering = asyncio.create_task(beside())
        await box.client.write_file("/tmp/big", data)
        back = await box.client.read_file("/tmp/big")
        done.set()
        assert await answering > 0
        assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()
        assert box.resident_kib() - before_kib < 4 << 10


async def test_a_cancelled_upload_leaves_no_part() -> None:
    async with sandbox() as box:
        upload = asyncio.create_task(box.client.write_file("/tmp/big", bytes(128 << 20)))
        await until(lambda: bool(list(box.folder.iterdir())))
        upload.cancel()
        await asyncio.gather(upload, return_exceptions=True)
        await until(lambda: not list(box.folder.iterdir()))
        await box.client.write_file("/tmp/big", b"small")


async def test_transfers_that_kill_all_ends_leave_no_part_and_say_so() -> None:
    async with sandbox() as box:
        upload = asyncio.create_task(box.client.write_file("/tmp/big", bytes(128 << 20)))
        await until(lambda: bool(list(box.folder.iterdir())))
        assert await box.client.kill_all() == 1
        assert await errno_of(upload) == errno.EIO
        assert not (box.folder / "big").exists()
        await box.client.write_file("/tmp/big", b"small")


async def test_more_transfers_than_run_at_once_wait_with_their_bytes() -> None:
    async with sandbox() as box:
        await asyncio.gather(*(box.client.write_file(f"/tmp/f{i}", bytes([i]) * 100_000) for i in range(100)))
        assert all((box.folder / f"f{i}").read_bytes() == bytes([i]) * 100_000 for i in range(100))


ENTRIES = {
    "cut in the header": b"f" * 20,
    "cut in the path": struct.pack("<BBHIIIQQQHHI", ord("f"), 0, 100, 0o644, 0, 0, 0, 1, 0, 0, 0, 0) + b"x",
    "cut in the contents": struct.pack("<BBHIIIQQQHHI", ord("f"), 0, 1, 0o644, 0, 0, 0, 99, 0, 0, 0, 0) + b"xyz",
    "a huge size": struct.pack("<BBHIIIQQQHHI", ord("f"), 0, 1, 0o644, 0, 0, 0, 2**64 - 1, 0, 0, 0, 0) + b"xyz",
    "an unknown kind": struct.pack("<BBHIIIQQQHHI", ord("z"), 0, 1, 0o644, 0, 0, 0, 0, 0, 0, 0, 0) + b"x",
    "a name with a NUL": struct.pack("<BBHIIIQQQHHI", ord("f"), 0, 3, 0o644, 0, 0, 0, 0, 0, 0, 0, 0) + b"x\0y",
}


@pytest.mark.parametrize("stream", ENTRIES)
async def test_a_stream_that_is_no_entries_writes_nothing(stream: str) -> None:
    async with peer() as host:
        await host.hello()
        host.send(FrameType.PUT, 1, {Tag.PATH: b"/tmp/put"})
        host.send(FrameType.DATA, 1, ENTRIES[stream])
        host.send(FrameType.END, 1)
        answer = await host.fields(FrameType.ERROR)
        assert answer[Tag.CODE] == b"file" and number(answer, Tag.ERRNO)
        assert [p.name for p in host.box.folder.rglob("*")] in ([], ["put"])


async def test_a_host_that_ignores_the_window_is_stopped() -> None:
    async with peer() as host:
        await host.hello()
        host.send(FrameType.PUT, 2, {Tag.PATH: b"/tmp/slow"})
        head = struct.pack("<BBHIIIQQQHHI", ord("f"), 0, 0, 0o644, 2**32 - 1, 2**32 - 1, 0, 1 << 30, 0, 0, 0, 0)
        host.send(FrameType.DATA, 2, head)
        for _ in range(200):
            host.send(FrameType.DATA, 2, bytes(8 << 20))
            if host.frames:
                break
            await asyncio.sleep(0)
        assert (await host.fields(FrameType.ERROR))[Tag.CODE] == b"file"
        assert host.box.resident_kib() < 64 << 10
