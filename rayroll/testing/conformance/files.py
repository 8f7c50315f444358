"""Files: any name, any bytes, any size, whole or not at all, and usable by the command that comes next."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from contextlib import suppress

from rayroll.errors import CallerError, SandboxFileError
from rayroll.testing.conformance._lab import OTHER_USER, Lab
from rayroll.testing.conformance._registry import Capability, NotApplicable, check, expect, same
from rayroll.testing.conformance.output import growth_of
from rayroll.types import FileTree

BIG_BYTES = 64 << 20
NAMES = (
    "it's", "sp ace", "-rf", "$(touch pwned)", "`touch pwned`", "*", "?", "a\nb", "tab\t", "\\", '"', ";touch pwned",
    "u\u0308", "\u00fc", "🙂", "..x", ".hidden", "~", "#x", "!x", "n" * 255, "x" * 250 + ".tar",
)  # fmt: skip


async def refused(work: object) -> SandboxFileError:
    """The error of a file operation that must fail."""
    try:
        await work  # type: ignore[misc]
    except SandboxFileError as error:
        return error
    expect(False, "it is refused")
    raise AssertionError


@check(source="B12")
async def odd_file_names_are_just_names(lab: Lab) -> None:
    """Quotes, newlines, wildcards, shell code, both forms of ü, 255 bytes: written, read, listed; nothing is run."""
    client = lab.box.client
    for name in NAMES:
        await client.write_file(lab.box.path(name), name.encode())
    for name in NAMES:
        same(await client.read_file(lab.box.path(name)), name.encode(), f"the contents of {name!r}")
    listed = {entry.path for entry in await client.list_tree(lab.box.folder)} - {b"", b".here"}
    same(listed, {name.encode() for name in NAMES}, "the names listed")


@check(source="B12")
async def names_that_are_no_text_work(lab: Lab) -> None:
    """A file name is bytes: those that are no UTF-8 come back as they are."""
    for name in (b"\xff\xfe", b"caf\xe9", bytes(range(1, 47)), bytes(range(48, 256))):
        path = lab.box.folder.encode() + b"/" + name
        await lab.box.client.write_file(path, name)
        same(await lab.box.client.read_file(path), name, f"the contents of {name!r}")
        same((await lab.box.client.stat(path)).kind, "file", f"the kind of {name!r}")


@check(source="B12")
async def a_name_too_long_is_refused_by_name(lab: Lab) -> None:
    """256 bytes: the system's own error for that file, and the sandbox stays usable."""
    error = await refused(lab.box.client.write_file(lab.box.path("n" * 256), b"x"))
    same(error.errno, errno.ENAMETOOLONG, "the error number")
    error = await refused(lab.box.client.write_file(lab.box.path("/".join(["d" * 200] * 30)), b"x"))
    same(error.errno, errno.ENAMETOOLONG, "the error number of a path of 6 kB")
    await lab.box.client.write_file(lab.box.path("after"), b"x")


@check(source="B12")
async def a_path_with_a_nul_byte_is_the_callers_error(lab: Lab) -> None:
    """It is refused before it is sent, and not cut short at the NUL."""
    for path in (lab.box.path("a\0b"), b"/tmp/a\0"):
        try:
            await lab.box.client.write_file(path, b"x")
        except CallerError:
            continue
        expect(False, "it is refused", path=path)


@check(source="B13")
async def contents_arrive_unchanged(lab: Lab) -> None:
    """All byte values, CRLF without a last newline, nothing at all, zeros, control bytes: equal both ways."""
    contents = (
        bytes(range(256)) * 16,
        b"a\r\nb",
        b"",
        b"\0",
        b"\0" * 100_000,
        b"\x1a\x04\xff\n\r\n\n",
        os.urandom(65_537),
    )
    for i, data in enumerate(contents):
        await lab.box.client.write_file(lab.box.path(f"f{i}"), data)
        same(await lab.box.client.read_file(lab.box.path(f"f{i}")), data, f"the contents of file {i}")
        r = await lab.box.sh(f"wc -c < f{i}; sha256sum < f{i}", cwd=lab.box.folder)
        size, digest, *_ = r.output.split()
        same((int(size), digest), (len(data), hashlib.sha256(data).hexdigest()), f"what the sandbox sees of file {i}")


@check(source="B13")
async def sixty_four_mebibytes_arrive_unchanged(lab: Lab) -> None:
    """Up and down, with equal digests on both sides, while commands go on being answered."""
    data = await asyncio.to_thread(os.urandom, BIG_BYTES)
    wanted = hashlib.sha256(data).hexdigest()

    async def beside() -> None:
        while not done.is_set():
            same((await lab.box.sh("echo beside", carry=False)).output, "beside\n", "what a command beside it prints")

    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(beside())
        await lab.box.client.write_file(lab.box.path("big"), data)
        inside = (await lab.box.sh("sha256sum < big", cwd=lab.box.folder)).output.split()[0]
        back, grown = await growth_of(lab.box.client.read_file(lab.box.path("big")))
        done.set()
    same(inside, wanted, "the digest inside")
    same(hashlib.sha256(back).hexdigest(), wanted, "the digest of what came back")
    expect(grown < 5 * BIG_BYTES, "a download costs a few times its size at most", grown_mib=grown >> 20)


@check(source="B13")
async def an_uploaded_file_belongs_to_who_works_on_it(lab: Lab) -> None:
    """The command's own user can append to it, and its mode stays, also when it is written again."""
    client, path = lab.box.client, lab.box.path("script")
    await client.write_file(path, b"one\n", mode=0o750)
    r = await lab.box.sh(f"echo two >> {path} && cat {path}")
    same((r.output, r.exit_code), ("one\ntwo\n", 0), "the result of appending")
    same((await client.stat(path)).mode & 0o7777, 0o750, "the mode")
    await lab.box.sh(f"chmod 640 {path}")
    await client.write_file(path, b"three\n")
    same((await client.stat(path)).mode & 0o7777, 0o640, "the mode of a file that is written again")
    await client.write_file(lab.box.path("new"), b"")
    same((await client.stat(lab.box.path("new"))).mode & 0o7777, 0o644, "the mode of a new file")


@check(source="B13", needs=(Capability.USERS,))
async def a_file_can_be_given_to_another_user(lab: Lab) -> None:
    """User 1000 owns it, appends to it, and cannot write what belongs to root."""
    client, path = lab.box.client, lab.box.path("theirs")
    await lab.box.sh(f"chmod 755 {lab.box.folder}")
    await client.write_file(path, b"one\n", uid=int(OTHER_USER), gid=int(OTHER_USER), mode=0o600)
    r = await lab.box.sh(f"id -u; echo two >> {path} && cat {path}", user=OTHER_USER, carry=False)
    same((r.output, r.exit_code), (f"{OTHER_USER}\none\ntwo\n", 0), "the result of appending")
    await client.write_file(path, b"again\n")
    entry = await client.stat(path)
    same((entry.uid, entry.mode & 0o7777), (int(OTHER_USER), 0o600), "owner and mode after root wrote it again")
    await client.write_file(lab.box.path("ours"), b"x", mode=0o600)
    r = await lab.box.sh(f"cat {lab.box.path('ours')} || echo refused", user=OTHER_USER, carry=False)
    expect("refused" in r.output, "another user cannot read what is root's", output=r.output)


@check(source="B13", needs=(Capability.USERS,))
async def an_upload_as_a_user_has_that_users_rights(lab: Lab) -> None:
    """What ``user`` may not write, an upload on their behalf may not write either."""
    await lab.box.sh(
        f"mkdir -p {lab.box.path('open')} {lab.box.path('closed')}; chmod 755 {lab.box.folder}; "
        f"chmod 777 {lab.box.path('open')}; chmod 700 {lab.box.path('closed')}"
    )
    await lab.box.client.write_file(lab.box.path("open/f"), b"x", user=OTHER_USER)
    same((await lab.box.client.stat(lab.box.path("open/f"))).uid, int(OTHER_USER), "the owner")
    error = await refused(lab.box.client.write_file(lab.box.path("closed/f"), b"x", user=OTHER_USER))
    same(error.errno, errno.EACCES, "the error number")


@check(source="B13")
async def a_write_without_space_fails_and_leaves_nothing(lab: Lab) -> None:
    """``/dev/full`` takes no byte: the error says that there is no space, never success."""
    error = await refused(lab.box.client.write_file("/dev/full", b"x" * 4096))
    same(error.errno, errno.ENOSPC, "the error number")


@check(source="B13")
async def a_full_disk_leaves_the_old_file(lab: Lab) -> None:
    """On a small, full file system the write fails, the file of that name is as it was, and no part lies around."""
    folder, spare_bytes = await small_disk(lab)
    client = lab.box.client
    await client.write_file(f"{folder}/kept", b"old")
    try:
        error = await refused(client.write_file(f"{folder}/kept", b"\1" * (spare_bytes + (1 << 20))))
        same(error.errno, errno.ENOSPC, "the error number")
        same(await client.read_file(f"{folder}/kept"), b"old", "the file that was there")
        await refused(client.write_file(f"{folder}/new", b"\1" * (spare_bytes + (1 << 20))))
        names = {entry.path for entry in await client.list_tree(folder)}
        expect(not {n for n in names if n.startswith(b".rr-") or n == b"new"}, "no part lies around", names=names)
        await client.write_file(f"{folder}/small", b"fits")
    finally:
        await client.remove(f"{folder}/kept")
        await client.remove(f"{folder}/small")


async def small_disk(lab: Lab) -> tuple[str, int]:
    """A folder of the shared sandbox on a file system of its own, and its few bytes of space. Else NotApplicable."""
    for folder in ("/dev/shm", "/tmp", "/run", "/home", "/workspace"):
        r = await lab.box.sh(f"[ -w {folder} ] && df -P -k {folder} | tail -1", carry=False)
        fields = r.output.split()
        if r.exit_code == 0 and len(fields) >= 6 and fields[5] == folder and int(fields[3]) <= 256 << 10:
            return folder, int(fields[3]) << 10
    raise NotApplicable("no writable file system of 256 MiB or less is in the sandbox")


@check(source="B13")
async def what_cannot_be_written_says_why(lab: Lab) -> None:
    """A folder in its place, a file where a folder must be, a read-only place, a link that goes round in circles."""
    client = lab.box.client
    await lab.box.sh("mkdir -p dir/sub; echo x > file; ln -s loop loop", cwd=lab.box.folder)
    for name, wanted in (("dir", {errno.EISDIR}), ("file/x", {errno.ENOTDIR}), ("loop/x", {errno.ELOOP})):
        error = await refused(client.write_file(lab.box.path(name), b"x"))
        expect(
            error.errno in wanted, "the error number is the system's", name=name, errno=errno.errorcode.get(error.errno)
        )
        expect(name.split("/")[0] in str(error), "the error names the path", error=error)
    for path in ("/proc/version", "/proc/new"):
        error = await refused(client.write_file(path, b"x"))
        expect(error.errno != 0, "the error has a number", path=path, error=error)


@check(source="B13")
async def what_cannot_be_read_says_why(lab: Lab) -> None:
    """Missing, a folder, too large, without end, a pipe that nobody writes to: an error each, and no hang."""
    client = lab.box.client
    await lab.box.sh(
        "mkdir dir; mkfifo pipe; ln -s nowhere dangling; ln -s loop loop; head -c 3000 /dev/zero > big",
        cwd=lab.box.folder,
    )
    for name, wanted in (
        ("none", errno.ENOENT),
        ("none/none", errno.ENOENT),
        ("dangling", errno.ENOENT),
        ("dir", errno.EISDIR),
        ("loop", errno.ELOOP),
        ("big/x", errno.ENOTDIR),
    ):
        error = await refused(client.read_file(lab.box.path(name)))
        same(errno.errorcode.get(error.errno), errno.errorcode[wanted], f"the error of reading {name!r}")
    error = await refused(client.read_file(lab.box.path("big"), max_bytes=1000))
    same(error.errno, errno.EFBIG, "the error of a file above the limit")
    same(await client.read_file(lab.box.path("big"), max_bytes=1000, truncate=True), b"\0" * 1000, "its beginning")
    for path in ("/dev/zero", lab.box.path("pipe")):
        try:
            async with asyncio.timeout(10):
                data = await client.read_file(path, max_bytes=1000, truncate=True)
        except SandboxFileError:
            continue
        expect(len(data) <= 1000, "no more than the limit is read", path=path)
    same((await lab.box.sh("echo next")).output, "next\n", "what the next command prints")


@check(source="B13")
async def files_without_a_size_can_be_read(lab: Lab) -> None:
    """The kernel says that files of /proc are empty; they are read to their end."""
    data = await lab.box.client.read_file("/proc/self/status")
    expect(data.startswith(b"Name:") and b"Threads:" in data, "the whole file is there", data=data[:200])


@check(source="B13")
async def a_write_is_whole_or_not_at_all(lab: Lab) -> None:
    """A reader beside a hundred overwrites sees one version or the other, never half of one, and never none."""
    client, path = lab.box.client, lab.box.path("f")
    a, b = b"a" * 200_000, b"b" * 200_000
    await client.write_file(path, a)
    watch = asyncio.create_task(
        lab.box.sh(f"while [ ! -e {path}.stop ]; do sha256sum < {path} || echo missing; done | sort -u", timeout_s=40)
    )
    for _ in range(50):
        await client.write_file(path, b)
        await client.write_file(path, a)
    await client.write_file(f"{path}.stop", b"")
    seen = {line.split()[0] for line in (await watch).output.splitlines()}
    expect(seen <= {hashlib.sha256(a).hexdigest(), hashlib.sha256(b).hexdigest()}, "only whole versions", seen=seen)


@check()
async def a_tree_arrives_with_modes_links_and_empty_folders(lab: Lab) -> None:
    """Up and down again: the same names, kinds, modes, targets and contents."""
    client, root = lab.box.client, lab.box.path("tree")
    tree = FileTree.from_files(
        {"a/run.sh": b"#!/bin/sh\necho ran\n", "a/b/c.txt": "ü", "empty": b"", "odd name'$": b"\0"},
        executable=frozenset({"a/run.sh"}),
    )
    await client.upload_tree(root, tree.tar)
    r = await lab.box.sh(
        "a/run.sh; mkdir hollow; ln -s a/b/c.txt link; ln -s /nowhere broken; chmod 700 hollow", cwd=root
    )
    same(r.output, "ran\n", "what an uploaded program prints")
    entries = {e.path.decode(): e for e in await client.list_tree(root)}
    same(entries["hollow"].kind, "dir", "the kind of an empty folder")
    same((entries["link"].link, entries["broken"].link), (b"a/b/c.txt", b"/nowhere"), "the targets of links")
    back = FileTree.from_tar(await client.download_tree(root))
    same({n: back.read(n) for n in tree.names()}, {n: tree.read(n) for n in tree.names()}, "the contents")
    await client.upload_tree(lab.box.path("copy"), back.tar)
    same(await client.digest(lab.box.path("copy")), await client.digest(root), "the digest of a copy of the copy")


@check()
async def an_archive_stays_below_its_folder(lab: Lab) -> None:
    """Names with ``..`` and absolute names write nothing elsewhere; a link in the way is replaced, not followed."""
    client, root = lab.box.client, lab.box.path("root")
    for name in ("../escaped", "a/../../escaped", f"{lab.box.folder}/escaped", "/etc/escaped-rr"):
        with suppress(SandboxFileError, CallerError):
            await client.upload_tree(root, FileTree.from_files({name: b"x"}).tar)
    await lab.box.sh("mkdir -p root; ln -s ../target root/link; echo old > target", cwd=lab.box.folder)
    await client.upload_tree(root, FileTree.from_files({"link": b"new"}).tar)
    r = await lab.box.sh("ls; cat target; ls /etc/escaped-rr 2>/dev/null", cwd=lab.box.folder)
    expect("escaped" not in r.output, "nothing lies beside the folder", output=r.output)
    expect(r.output.endswith("old\n"), "the target of the link is as it was", output=r.output)


@check()
async def a_digest_tells_whether_anything_changed(lab: Lab) -> None:
    """Contents, modes, names, links and kinds count; times do not; putting it back gives the same digest again."""
    root = lab.box.path("d")
    await lab.box.sh("mkdir -p d/sub; echo x > d/f; ln -s f d/l", cwd=lab.box.folder)
    seen = [await lab.box.client.digest(root)]
    for change in ("echo y > d/f", "chmod 600 d/f", "mv d/f d/g", "ln -sf g d/l", "rmdir d/sub", "touch d/sub"):
        await lab.box.sh(change, cwd=lab.box.folder)
        seen.append(await lab.box.client.digest(root))
    same(len(set(seen)), len(seen), "the number of different digests")
    await lab.box.sh("touch -d 2001-01-01 d/g 2>/dev/null || touch -t 200101010000 d/g", cwd=lab.box.folder)
    same(await lab.box.client.digest(root), seen[-1], "the digest after only a time changed")
    await lab.box.sh("rm -r d; mkdir -p d/sub; echo x > d/f; ln -s f d/l", cwd=lab.box.folder)
    same(await lab.box.client.digest(root), seen[0], "the digest of the same tree made again")


@check()
async def remove_takes_whatever_is_there(lab: Lab) -> None:
    """A file, a link but not its target, a deep tree without permissions, nothing at all."""
    client = lab.box.client
    await lab.box.sh(
        "mkdir -p deep/a/b target; echo x > deep/a/b/f; echo x > file; ln -s target link; echo k > target/kept",
        cwd=lab.box.folder,
    )
    for name in ("deep", "file", "link", "none"):
        await client.remove(lab.box.path(name))
    left = {e.path for e in await client.list_tree(lab.box.folder)}
    same(left - {b"", b".here"}, {b"target", b"target/kept"}, "what is left")


@check()
async def twenty_transfers_at_once_do_not_mix(lab: Lab) -> None:
    """Ten uploads and then ten downloads of half a megabyte each, beside each other."""
    data = [os.urandom(500_000 + i) for i in range(10)]
    await asyncio.gather(*(lab.box.client.write_file(lab.box.path(f"f{i}"), d) for i, d in enumerate(data)))
    back = await asyncio.gather(*(lab.box.client.read_file(lab.box.path(f"f{i}")) for i in range(10)))
    same([hashlib.sha256(d).hexdigest() for d in back], [hashlib.sha256(d).hexdigest() for d in data], "the digests")


@check()
async def a_cancelled_transfer_leaves_no_part(lab: Lab) -> None:
    """An upload given up half-way is as if it had not been begun, and the sandbox goes on."""
    path = lab.box.path("big")
    upload = asyncio.create_task(lab.box.client.write_file(path, bytes(32 << 20)))
    while len(await lab.box.client.list_tree(lab.box.folder)) < 3:  # the folder, .here, the part
        if upload.done():
            raise NotApplicable("32 MiB arrived before the upload could be cancelled")
    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)
    async with asyncio.timeout(10):
        while len(await lab.box.client.list_tree(lab.box.folder)) > 2:
            pass
    await lab.box.client.write_file(path, b"small")
    same(await lab.box.client.read_file(path), b"small", "the file written afterwards")
