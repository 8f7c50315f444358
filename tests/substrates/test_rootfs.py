"""An exported image on disk: nothing leaves its folder, links stay inside, and it becomes a system to stand on."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from rayroll.errors import ImageError
from rayroll.substrates import SandboxSpec
from rayroll.substrates._rootfs import Rootfs, image_system, resolved, unpack
from rayroll.substrates._system import layout


def archive(*members: tuple[str, str, str]) -> io.BytesIO:
    """A tar of (kind, name, contents or link target)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for kind, name, text in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o4777
            data = text.encode() if kind == "file" else b""
            member.size = len(data)
            member.type = {
                "file": tarfile.REGTYPE,
                "dir": tarfile.DIRTYPE,
                "link": tarfile.SYMTYPE,
                "hard": tarfile.LNKTYPE,
                "device": tarfile.CHRTYPE,
            }[kind]
            member.linkname = text if kind in ("link", "hard") else ""
            tar.addfile(member, io.BytesIO(data))
    buffer.seek(0)
    return buffer


def test_files_folders_and_links_arrive_without_devices_and_set_user_id_bits(tmp_path: Path) -> None:
    unpack(
        archive(
            ("dir", "usr", ""),
            ("file", "usr/tool", "#!"),
            ("hard", "usr/same", "usr/tool"),
            ("link", "bin", "/usr"),
            ("device", "null", ""),
            ("dir", "etc", ""),
            ("link", "etc/resolv.conf", "/run/resolv.conf"),
        ),
        tmp_path,
        None,
    )
    assert (tmp_path / "usr/tool").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "usr/same").stat().st_ino == (tmp_path / "usr/tool").stat().st_ino
    assert (tmp_path / "bin").readlink() == Path("/usr")
    assert not (tmp_path / "null").exists()
    assert "127.0.0.1 localhost" in (tmp_path / "etc/hosts").read_text()
    assert not (tmp_path / "etc/resolv.conf").is_symlink()


@pytest.mark.parametrize(
    "members",
    [
        [("file", "../out", "x")],
        [("link", "a", ".."), ("file", "a/out", "x")],
        [("link", "a", "/"), ("dir", "a/tmp/out-of-root", "")],
        [("hard", "a", "../../etc/passwd")],
        [("link", "b", "/etc"), ("hard", "a", "b/passwd")],
    ],
)
def test_what_leads_out_of_the_folder_is_refused(tmp_path: Path, members: list[tuple[str, str, str]]) -> None:
    folder = tmp_path / "root"
    folder.mkdir()
    with pytest.raises(ImageError, match="leads out"):
        unpack(archive(*members), folder, None)
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_an_etc_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    folder, outside = tmp_path / "root", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    unpack(archive(("link", "etc", str(outside))), folder, None)
    assert list(outside.iterdir()) == []


def test_links_are_followed_inside_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "srv/app").mkdir(parents=True)
    (tmp_path / "app").symlink_to("/srv/app")
    (tmp_path / "srv/up").symlink_to("../../../..")
    (tmp_path / "loop").symlink_to("loop")
    assert resolved(tmp_path, "/app/x") == "/srv/app/x"
    assert resolved(tmp_path, "/srv/up/srv") == "/srv"
    assert resolved(tmp_path, "/") == "/"
    with pytest.raises(ImageError, match="circles"):
        resolved(tmp_path, "/loop")


def test_writable_folders_are_left_out_and_their_parents_shown_piece_by_piece(tmp_path: Path) -> None:
    for folder in ("usr/src/app", "usr/src/other", "usr/bin", "opt"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "usr/link").symlink_to("bin")
    mounts, links = layout(tmp_path, ["usr", "opt", "none"], {"/usr/src/app"})
    assert [inside for _, inside in mounts] == ["/usr/bin", "/usr/src/other", "/opt"]
    assert links == [("bin", "/usr/link")]


def test_an_image_becomes_a_system_with_private_copies_where_work_happens(tmp_path: Path) -> None:
    tree, own = tmp_path / "tree", tmp_path / "own"
    for folder in ("etc", "usr", "app", "home/dev", "var/tmp", "tests", "proc"):
        (tree / folder).mkdir(parents=True)
    (tree / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\ndev:x:1001:1002::/home/dev:/bin/sh\n")
    (tree / "etc/group").write_text("web:x:33:\n")
    (tree / "app/run.sh").write_text("hi")
    (tree / "app/run.sh").chmod(0o750)
    (tree / "app/evil").symlink_to("/etc/shadow")
    rootfs = Rootfs("sha256:" + "a" * 64, "/app", "dev:web", {"A": "1"})
    system = image_system(rootfs, tree, SandboxSpec(image="x"))
    assert (system.name, system.uid, system.gid, system.home, system.workdir) == (
        "image",
        1001,
        33,
        "/home/dev",
        "/app",
    )
    assert [inside for _, inside in system.read_only] == ["/etc", "/usr", "/var"]
    assert system.private == (("private/var-tmp", "/var/tmp"),)
    assert system.env["A"] == "1" and system.env["HOME"] == "/home/dev"
    (own / "root").mkdir(parents=True)
    assert system.seed is not None
    system.seed(own)
    assert (own / "root/app/run.sh").stat().st_mode & 0o777 == 0o750
    assert (own / "root/app/evil").readlink() == Path("/etc/shadow")
    assert sorted(path.name for path in (own / "root").iterdir()) == ["app", "home", "tests"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [("", (0, 0, "/root")), ("1234", (1234, 0, "/")), ("1234:5", (1234, 5, "/")), ("nobody-there", (0, 0, "/root"))],
)
def test_users_that_the_image_does_not_list(tmp_path: Path, user: str, expected: tuple[int, int, str]) -> None:
    system = image_system(Rootfs("sha256:1", "/", user), tmp_path, SandboxSpec(image="x"))
    assert (system.uid, system.gid, system.home) == expected
