"""A task's root filesystem for local sandboxes: the very image that docker uses, exported once per node.

What a container has as writable layers, a local sandbox has as a private root with the image's folders read-only in it,
and a private copy of the folders where work happens: the working directory and the home.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import posixpath
import secrets
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rayroll.errors import EngineDownError, ImageError
from rayroll.runner.build import cache_dir
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates._endpoint import Endpoint
from rayroll.substrates._engine import Engine, labels_of
from rayroll.substrates._images import Images, tag_of
from rayroll.substrates._shield import finish
from rayroll.substrates._system import PATH, System, layout

__all__ = ["Exporter", "Rootfs", "image_system"]

NOT_MOUNTED = ("proc", "dev", "sys", "tmp", "run", ".dockerenv")
GRADING = ("/tests", "/solution", "/logs")
"""Folders that enter at grading: an image that has one gets a private copy of it."""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
MOST_LINKS = 200
"""Path components and links followed before a path counts as a circle."""
RETRY_ENGINE_S = 30.0
"""Pause before an engine that did not answer is asked again."""


@dataclass(frozen=True, slots=True)
class Rootfs:
    """An exported image."""

    image_id: str
    workdir: str
    user: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def entry(self) -> str:
        """Its name in the cache."""
        return "rootfs-" + self.image_id.removeprefix("sha256:")[:32]


class Exporter:
    """Turns a spec's image into files. Connects to an engine when it is first needed."""

    def __init__(self, cache: Path, host: str | None, mirror: str | None) -> None:
        self._cache = cache
        self._host = host
        self._mirror = mirror
        self._names = cache / ".names"
        """Remembers which image a name stood for, so that what is exported runs without an engine."""
        self._parts: tuple[Engine, Images] | None = None
        self._connecting = asyncio.Lock()
        self._down: tuple[float, EngineDownError] | None = None

    async def resolve(self, spec: SandboxSpec, phases_s: dict[str, float]) -> tuple[Rootfs, bool]:
        """The image of a spec that has one, pulled or built if need be, and whether it was absent.

        Raises:
            EngineDownError: No engine answers, and the image was never exported here.
            ImageError, TaskError: See ``Images.ensure``.
        """
        assert spec.image or spec.environment, "the spec has an image or a Dockerfile"
        name = spec.image or tag_of(spec.environment)  # type: ignore[arg-type]
        known = await asyncio.to_thread(self._recall, name)  # and it is still exported
        if known is not None and spec.image is None:
            return known, False  # named by the contents of its build context: it cannot have changed
        try:
            _, images = await self._opened()
            image, was_absent = await images.ensure(spec, "", phases_s)
        except EngineDownError:
            if known is None:
                raise
            return known, False
        rootfs = Rootfs(image.id, image.workdir, image.user, dict(image.env))
        await asyncio.to_thread(self._remember, name, rootfs)
        return rootfs, was_absent

    @property
    def endpoint(self) -> Endpoint | None:
        """The engine, once it was needed."""
        return self._parts[0].endpoint if self._parts else None

    async def export(self, rootfs: Rootfs, folder: Path, owner: int | None, lease: Lease) -> None:
        """Write the image's files into an empty folder.

        Args:
            rootfs: From ``resolve``.
            folder: Gets them.
            owner: The user they shall belong to; None: this process's.
            lease: Whose labels the container has that the engine exports from.
        """
        engine, _ = await self._opened()
        await finish(engine.call(_export, rootfs.image_id, folder, owner, lease))

    async def close(self) -> None:
        """Let the engine go. Idempotent."""
        if self._parts is not None:
            (engine, _), self._parts = self._parts, None
            await engine.close()

    async def _opened(self) -> tuple[Engine, Images]:
        async with self._connecting:
            if self._down is not None and time.monotonic() < self._down[0]:
                raise self._down[1]
            if self._parts is None:
                try:
                    engine = await Engine.connect(endpoints.find(self._host), threads=4, timeout_s=600.0)
                except EngineDownError as error:
                    self._down = time.monotonic() + RETRY_ENGINE_S, error
                    raise
                images = Images(engine, cache_dir() / "locks", mirror=self._mirror)
                self._parts = engine, images
            return self._parts

    def _recall(self, name: str) -> Rootfs | None:
        with contextlib.suppress(OSError, ValueError, TypeError):
            rootfs = Rootfs(**json.loads(self._file(name).read_bytes()))
            return rootfs if (self._cache / rootfs.entry).exists() else None
        return None

    def _remember(self, name: str, rootfs: Rootfs) -> None:
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(f".{secrets.token_hex(4)}")  # sandboxes of one process start at the same time
        half.write_text(json.dumps(asdict(rootfs)))
        half.replace(file)

    def _file(self, name: str) -> Path:
        return self._names / hashlib.sha256(name.encode()).hexdigest()[:32]


def _export(api: Any, image_id: str, folder: Path, owner: int | None, lease: Lease) -> None:
    container = api.create_container(image_id, ["-"], entrypoint=["-"], labels=labels_of(lease))["Id"]
    try:
        stream = io.BufferedReader(_Chunks(api.export(container, chunk_size=1 << 20)), 1 << 20)
        unpack(stream, folder, owner)
        if owner is not None:
            os.chown(folder, owner, owner)
    finally:
        api.remove_container(container, force=True)


def unpack(stream: io.BufferedIOBase, folder: Path, owner: int | None) -> None:
    """Unpack a root filesystem: no devices, no set-user-id bits, nothing outside of ``folder``.

    Raises:
        ImageError: A name leads out of the folder.
    """
    # Every member is checked here; tarfile's own filters came with Python 3.11.4.
    trusted: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    places = _Places(folder)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            member.name = places.checked(member.name)
            if member.isdev():
                continue
            if member.islnk():
                member.linkname = places.checked(member.linkname)
            # A folder that its owner cannot enter or change could not be removed by a caller who is not root.
            member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o400)
            member.uname = member.gname = ""
            if owner is not None:
                member.uid = member.gid = owner
            if member.issym():
                places.is_link(member.name)
            archive.extract(member, folder, **trusted)
    etc = folder / "etc"
    if etc.is_symlink():
        return
    etc.mkdir(exist_ok=True)
    for name, text in (("hosts", HOSTS), ("resolv.conf", "")):
        # An exported image has them empty, or as links that lead nowhere: the engine mounts its own.
        (etc / name).unlink(missing_ok=True)
        (etc / name).write_text(text)


class _Places:
    """Says whether a name stays in a folder, also by way of links that were unpacked there."""

    def __init__(self, folder: Path) -> None:
        self._top = os.path.realpath(folder)
        self._known = {""}

    def checked(self, name: str) -> str:
        name = posixpath.normpath(name.lstrip("/") or ".")
        parent = posixpath.dirname(name)
        if parent not in self._known:
            place = os.path.realpath(os.path.join(self._top, parent))  # noqa: PTH118 - hot
            if place != self._top and not place.startswith(self._top + "/"):
                raise ImageError("a file of the image leads out of its root filesystem", name=name)
            self._known.add(parent)
        if name == "..":
            raise ImageError("a file of the image leads out of its root filesystem", name=name)
        return name

    def is_link(self, name: str) -> None:
        """A link comes where a folder was: what is known below it no longer holds."""
        if name in self._known:
            self._known = {""}


class _Chunks(io.RawIOBase):
    """A file that reads what an iterator yields."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._rest or next(self._chunks, b"")
        size = min(len(buffer), len(data))
        buffer[:size], self._rest = data[:size], data[size:]
        return size


def image_system(rootfs: Rootfs, tree: Path, spec: SandboxSpec) -> System:
    """An exported image as a local sandbox's system. Blocks.

    Args:
        rootfs: What it was exported from.
        tree: Where its files are.
        spec: Gives the working directory, unless it is ``/``.
    """
    uid, gid, home = _user(rootfs.user, tree)
    workdir = resolved(tree, rootfs.workdir if spec.workdir == "/" else spec.workdir)
    home = resolved(tree, home)
    copies = _outermost(path for path in (workdir, home, *GRADING) if path != "/")
    tops = sorted(path.name for path in tree.iterdir() if path.name not in NOT_MOUNTED)
    read_only, links = layout(tree, tops, copies)
    if spec.network:
        read_only.append((Path("/etc/resolv.conf").resolve(), "/etc/resolv.conf"))

    def seed(folder: Path) -> None:
        for path in copies:
            source = tree / path.lstrip("/")
            target = folder / "root" / path.lstrip("/")
            if source.is_dir() and not source.is_symlink():
                target.mkdir(parents=True, exist_ok=True)
                # cp keeps modes, owners, links and hard links, and shares blocks where the filesystem can.
                subprocess.run(["cp", "-a", "--", f"{source}/.", str(target)], check=True, capture_output=True)

    return System(
        "image",
        tuple(read_only),
        tuple(links),
        # A mount of its own: showing /var piece by piece would take ten mounts.
        private=(("private/var-tmp", "/var/tmp"),) if (tree / "var/tmp").is_dir() else (),
        env={"PATH": PATH, "HOME": home, "HOSTNAME": "sandbox", **rootfs.env},
        workdir=workdir,
        home=home,
        uid=uid,
        gid=gid,
        seed=seed,
    )


def resolved(tree: Path, path: str) -> str:
    """Where a path of the image leads with every link followed inside of the image, not on this node."""
    done, todo = "", path
    for _ in range(MOST_LINKS):
        name, _, todo = todo.lstrip("/").partition("/")
        if not name:
            return done or "/"
        place = posixpath.normpath(f"{done}/{name}")
        here = tree / place.lstrip("/")
        if here.is_symlink():
            target = str(here.readlink())
            todo = f"{target}/{todo}"
            done = "" if target.startswith("/") else done
        else:
            done = place.rstrip("/")
    raise ImageError("the image's links go in circles", path=path)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without those that lie in another."""
    unique = sorted(set(paths))
    return [p for p in unique if not any(p.startswith(other + "/") for other in unique)]


def _user(user: str, tree: Path) -> tuple[int, int, str]:
    """uid, gid and home of an image's USER (``name``, ``uid``, either with ``:group``)."""
    name, _, group = user.partition(":")
    name = name or "root"
    uid, gid, home = (int(name), 0, "/") if name.isdigit() else (0, 0, "/root")
    for line in _lines(tree, "/etc/passwd"):
        fields = line.split(":")
        if len(fields) >= 6 and name in (fields[0], fields[2]):
            uid, gid, home = int(fields[2]), int(fields[3]), fields[5]
            break
    for line in _lines(tree, "/etc/group"):
        fields = line.split(":")
        if group and len(fields) >= 3 and group in (fields[0], fields[2]):
            gid = int(fields[2])
    return uid, int(group) if group.isdigit() else gid, home


def _lines(tree: Path, name: str) -> list[str]:
    try:
        return (tree / resolved(tree, name).lstrip("/")).read_text(errors="replace").splitlines()
    except OSError:
        return []
