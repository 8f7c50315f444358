"""What a local sandbox stands on: read-only folders, a private root, a user, an environment."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rayroll.errors import TaskError
from rayroll.substrates import SandboxSpec
from rayroll.substrates import _dockerfile as dockerfile
from rayroll.substrates import _pytools as pytools

__all__ = ["AGENT_UID", "PATH", "System", "host_system", "layout", "with_python"]

AGENT_UID = 1000
"""Who commands are, on the node's own system."""
HOME = "/home/agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

TOP_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs under /usr read at run time. Not here: anything that names users, hosts, keys or passwords (shadow,
# sudoers, ssh, ssl/private, fstab, machine-id, pip.conf). Files are copied: every bind costs bubblewrap some 0.3 ms.
ETC_FOLDERS = ("alternatives", "fonts", "pki/tls/certs", "ssl/certs")
ETC_FILES = (
    *("debian_version", "ld.so.cache", "localtime", "mime.types", "os-release", "protocols", "services", "timezone"),
    *("ssl/openssl.cnf", "pki/tls/openssl.cnf", "redhat-release", "alpine-release"),
)
NETWORK_ETC = ("resolv.conf", "hosts")


@dataclass(frozen=True, slots=True)
class System:
    """A root to stand on. Paths on the left are the node's, on the right the sandbox's."""

    name: Literal["image", "host"]
    read_only: tuple[tuple[Path, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Target and path of symbolic links in the root."""
    private: tuple[tuple[str, str], ...] = ()
    """Private folders mounted over read-only ones: name below the sandbox's folder on the node, path inside."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"
    home: str = HOME
    uid: int = AGENT_UID
    gid: int = AGENT_UID
    seed: Callable[[Path], None] | None = None
    """Fills the private folders of one sandbox, given its own folder on the node. Blocks."""


def host_system(spec: SandboxSpec, *, reader_uid: int) -> System:
    """The node's own system: its programs read-only, and what the task's Dockerfile copies.

    Args:
        spec: Its environment's Dockerfile gives COPY, WORKDIR and ENV.
        reader_uid: The user that sandboxes run as, on the node.

    Raises:
        TaskError: The Dockerfile cannot be honoured without an image.
    """
    recipe = dockerfile.read(spec.environment.read("Dockerfile").decode()) if spec.environment else dockerfile.Recipe()
    workdir = recipe.workdir if spec.workdir == "/" else spec.workdir
    read_only, links = layout(Path("/"), TOP_FOLDERS, {workdir})
    folders = [Path("/etc", name) for name in ETC_FOLDERS] + sorted(Path("/etc").glob("java-*"))
    read_only += [(path, str(path)) for path in folders if path.is_dir() and _is_readable(path, reader_uid)]
    system = System(
        "host",
        tuple(read_only),
        tuple(links),
        files=_etc_files(spec.network),
        # LC_CTYPE and not LANG: what Python looks at, and each bash opens one locale file instead of a dozen (0.2 ms).
        env={"PATH": PATH, "HOME": HOME, "USER": "agent", "LC_CTYPE": "C.UTF-8", **recipe.env},
        workdir=workdir,
    )
    environment = spec.environment
    if environment is None or not recipe.copies:
        return system
    taken = [target for _, target in read_only] + [path for _, path in links]
    for copy in recipe.copies:
        _refuse_system_target(copy.target, taken)

    def seed(own: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="rayroll-context-") as folder:
            context = Path(folder, "context")  # its mode is copied along: not the 700 of a temporary folder
            context.mkdir(mode=0o755)
            environment.extract(context)
            for copy in recipe.copies:
                _copy_in(context, copy, own / "root")

    return replace(system, seed=seed)


def with_python(system: System, environment: Path, prefix: Path) -> System:
    """The same with the node's Python and a folder of packages, first on PATH.

    Args:
        system: What it is added to.
        environment: Made by ``pytools.build``.
        prefix: The Python itself on the node, or a readable copy of it.
    """
    mounts = [(environment, str(pytools.MOUNT))]
    if not any(pytools.PREFIX.is_relative_to(target) for _, target in system.read_only):
        mounts.append((prefix, str(pytools.PREFIX)))
    path = f"{pytools.MOUNT / 'bin'}:{system.env.get('PATH', PATH)}"
    # No bytecode into the read-only package folder; site-packages of the user's home must not be picked up.
    return replace(
        system, read_only=(*system.read_only, *mounts), env={**system.env, "PATH": path, "PYTHONNOUSERSITE": "1"}
    )


def layout(
    tree: Path, tops: Iterable[str], writable: Collection[str]
) -> tuple[list[tuple[Path, str]], list[tuple[str, str]]]:
    """Read-only mounts and links that show a tree, but for the writable paths, whose parents become private folders.

    No writable folder is a mount of its own, so it can be removed and made anew like any other.

    Args:
        tree: Its root on the node.
        tops: Names of the top-level entries to show; those that do not exist are left out.
        writable: Absolute paths inside.
    """
    mounts: list[tuple[Path, str]] = []
    links: list[tuple[str, str]] = []

    # No function that calls itself: each would be a cycle, which a host seldom looks for.
    todo = [(tree / name, f"/{name}") for name in tops][::-1]
    while todo:
        path, inside = todo.pop()
        if inside in writable:
            continue
        if path.is_symlink():
            links.append((str(path.readlink()), inside))
        elif path.is_dir() and any(place.startswith(inside + "/") for place in writable):
            todo += [(child, f"{inside}/{child.name}") for child in sorted(path.iterdir(), reverse=True)]
        elif path.is_dir() or path.is_file():
            mounts.append((path, inside))
    return mounts, links


def _is_readable(path: Path, uid: int) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    needed = 0o5 if path.is_dir() else 0o4
    return bool(found.st_mode & (needed << 6 if found.st_uid == uid else needed))


def _etc_files(network: bool) -> dict[str, bytes]:
    files = {}
    for name in ETC_FILES + (NETWORK_ETC if network else ()):
        path = Path("/etc", name)
        if path.is_file() and path.stat().st_mode & 0o004:
            files[str(path)] = path.read_bytes()
    own = {
        "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{AGENT_UID}:{AGENT_UID}:agent:{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "/etc/group": f"root:x:0:\nagent:x:{AGENT_UID}:\nnogroup:x:65534:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    if not network:
        own["/etc/hosts"] = "127.0.0.1 localhost\n::1 localhost\n"
    return files | {name: text.encode() for name, text in own.items()}


def _refuse_system_target(target: str, taken: list[str]) -> None:
    for system_path in taken:
        if (target.rstrip("/") + "/").startswith(system_path + "/"):
            raise TaskError(
                "the Dockerfile copies into a folder of the node's own system; run it with rootfs='image' or on docker",
                target=target,
            )


def _copy_in(context: Path, copy: dockerfile.Copy, root: Path) -> None:
    """Docker's rules: a folder's contents are copied, not the folder; a target that ends in ``/`` is a folder."""
    sources = [path for name in copy.sources for path in _match(context, name)]
    target = root / copy.target.lstrip("/")
    for source in sources:
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            place = target / source.name if copy.target.endswith("/") or target.is_dir() else target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)
            if copy.mode is not None:
                place.chmod(copy.mode)
    _refuse_escapes(target, root)


def _refuse_escapes(target: Path, root: Path) -> None:
    """Links were safe in the build context; moved elsewhere, one could lead the next COPY out of the root."""
    for folder, folders, files in os.walk(target):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
                raise TaskError(
                    "a link of the build context leads out of the sandbox", link=str(path.relative_to(root))
                )


def _match(context: Path, name: str) -> list[Path]:
    if not glob.has_magic(name):
        found = [context / name] if os.path.lexists(context / name) else []
    else:
        found = [context / hit for hit in sorted(glob.glob(name, root_dir=context))]  # noqa: PTH207 - not recursive
    if not found:
        raise TaskError("the Dockerfile copies a file that is not in its build context", source=name)
    return found
