"""What a virtual machine boots from: a kernel, a small first file system that holds the runner, and two disks.

The image's files are one ext4 disk, read-only and the same file for every machine, so that a node's memory holds them
once. Each machine has a second, empty one for what it changes, and the kernel in it lays the one over the other
(overlayfs). A qcow2 overlay instead would cost a ``qemu-img`` per machine and hold blocks where this holds files; an
empty ext4 disk of any size is a sparse file of some 100 kB, and its size is the sandbox's disk limit.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rayroll.errors import ConfigError, SubstrateError
from rayroll.runner.build import cache_dir
from rayroll.substrates._rootfs import Rootfs, _user, resolved
from rayroll.substrates._spawn import as_user
from rayroll.substrates._system import PATH

__all__ = [
    "DISK",
    "GuestSystem",
    "Kernel",
    "copy_sparse",
    "digest_of",
    "fetch_kernel",
    "find_kernel",
    "make_disk",
    "make_initramfs",
    "make_scratch",
]

DISK = "disk.ext4"
SYSTEM = "system.json"
MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "overlay",
)
"""In this order: each needs those before it."""
KERNEL_PACKAGE = "linux-image-cloud-amd64"
SPARE_SHARE = 1.1
SPARE_MIB = 16
INODES_SPARE = 1024


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of Debian's and its modules."""

    image: Path
    modules: Path
    version: str


@dataclass(frozen=True, slots=True)
class GuestSystem:
    """How the image wants its commands to be run."""

    uid: int
    gid: int
    home: str
    workdir: str
    env: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path) -> GuestSystem:
        """From beside the disk that was made of the image."""
        return cls(**json.loads((folder / SYSTEM).read_text()))


def kernel_folder() -> Path:
    """Where ``fetch_kernel`` unpacks."""
    return cache_dir() / "qemu" / "kernel"


def find_kernel(given: Path | None) -> Kernel | None:
    """The newest kernel in a folder that looks like ``/``: the given one, else RAYROLL_GUEST_KERNEL, what was
    fetched, the node's."""
    named = os.environ.get("RAYROLL_GUEST_KERNEL")
    chosen = given or (Path(named) if named else None)
    for folder in [chosen] if chosen else [kernel_folder(), Path("/")]:
        found = sorted(folder.glob("boot/vmlinuz-*-cloud-amd64"), key=_natural)
        for image in reversed(found):
            version = image.name.removeprefix("vmlinuz-")
            for modules in (folder / "lib/modules" / version, folder / "usr/lib/modules" / version):
                if modules.is_dir() and os.access(image, os.R_OK):
                    return Kernel(image, modules, version)
    return None


def _natural(path: Path) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", path.name)]


def fetch_kernel() -> Kernel:
    """Debian's kernel for cloud machines, by apt, unpacked into the cache and not installed. Blocks.

    Raises:
        SubstrateError: It cannot be had.
    """
    with tempfile.TemporaryDirectory(prefix="rayroll-kernel-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as a user of its own
        depends = _run(["apt-cache", "depends", "--important", KERNEL_PACKAGE], folder)
        package = re.search(r"Depends: (linux-image-\S+)", depends)
        if package is None:
            raise SubstrateError("apt knows no kernel for cloud machines", package=KERNEL_PACKAGE, fix="apt-get update")
        _run(["apt-get", "download", package[1]], folder)
        (archive,) = folder.glob("*.deb")
        target = kernel_folder()
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_name(f"kernel.{os.getpid()}")
        try:
            _run(["dpkg", "-x", str(archive), str(half)], folder)
            if target.exists():
                shutil.rmtree(target)
            half.rename(target)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    kernel = find_kernel(target)
    if kernel is None:
        raise SubstrateError("the kernel's package does not hold one", package=package[1])
    return kernel


def make_initramfs(kernel: Kernel, runner: Path, target: Path) -> None:
    """The runner and the modules it needs to see its disks, as the kernel's first file system.

    Not compressed: it is 2 MB, and an emulated CPU is slow at unpacking.

    Raises:
        ConfigError: The kernel lacks a module.
    """
    found = {path.stem.replace("-", "_"): path for path in kernel.modules.rglob("*.ko")}
    missing = [name for name in MODULES if name not in found]
    if missing:
        raise ConfigError("the guest kernel lacks modules", missing=missing, modules=str(kernel.modules))
    entries: list[tuple[str, int, bytes]] = [
        ("dev", 0o040755, b""),
        ("modules", 0o040755, b""),
        ("runner", 0o100755, runner.read_bytes()),
    ]
    entries += [(f"modules/{i:02}-{name}.ko", 0o100644, found[name].read_bytes()) for i, name in enumerate(MODULES)]
    target.write_bytes(_cpio(entries))


def _cpio(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An archive as the kernel unpacks them ("newc"), with a console for its first process."""
    devices = {"dev/console": (5, 1)}
    parts: list[bytes] = []
    everything = [*entries, ("dev/console", 0o020600, b""), ("TRAILER!!!", 0, b"")]
    for number, (name, mode, content) in enumerate(everything, 1):
        major, minor = devices.get(name, (0, 0))
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % value for value in fields) + name.encode() + b"\0"
        parts += [head, b"\0" * (-len(head) % 4), content, b"\0" * (-len(content) % 4)]
    return b"".join(parts)


def make_disk(rootfs: Rootfs, tree: Path, folder: Path) -> None:
    """An exported image's files as a disk, with how its commands are to be run beside it. Blocks.

    The files were exported once for every substrate, to one user of this node; on the disk they are the image's
    user's. ``mke2fs`` takes owners as it sees them, so it runs where that one user is called so.

    Raises:
        SubstrateError: The disk cannot be made.
    """
    uid, gid, home = _user(rootfs.user, tree)
    env = {"PATH": PATH, "HOME": home, "HOSTNAME": "sandbox", **rootfs.env}
    system = GuestSystem(uid, gid, resolved(tree, home), resolved(tree, rootfs.workdir), env)
    (folder / SYSTEM).write_text(json.dumps(asdict(system)))
    blocks_kib, files = _size(tree)
    size_mib = int((blocks_kib >> 10) * SPARE_SHARE) + SPARE_MIB
    owner = tree.stat()
    disk = folder / DISK
    disk.touch()
    if os.geteuid() == 0:
        os.chown(folder, owner.st_uid, owner.st_gid)
        os.chown(disk, owner.st_uid, owner.st_gid)
    make = [
        *("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "nodiscard", "-m", "0"),
        *("-N", str(files + INODES_SPARE), "-d", str(tree), str(disk), f"{size_mib}M"),
    ]
    inside = ["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}", "--"]
    argv, identity = as_user(owner.st_uid, [*inside, *make])
    _run(argv, folder, **identity)
    disk.chmod(0o444)


def make_scratch(target: Path, size_mib: int) -> None:
    """An empty disk: a sparse file. Blocks. Raises SubstrateError."""
    make = ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1"]
    _run([*make, str(target), f"{size_mib}M"], target.parent)


def copy_sparse(source: Path, target: Path) -> None:
    """A copy that holds no more blocks than the original, shared where the file system can. Blocks."""
    _run(["cp", "--sparse=always", "--reflink=auto", "--", str(source), str(target)], target.parent)


def digest_of(*parts: object) -> str:
    """A name by content: files by theirs, everything else as it prints."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else repr(part).encode()
        digest.update(b"%d\0" % len(content) + content)
    return digest.hexdigest()[:32]


def _size(tree: Path) -> tuple[int, int]:
    """KiB of blocks, and files."""
    blocks = files = 0
    for parent, folders, names in os.walk(tree):
        for name in (*folders, *names):
            files += 1
            blocks += -(-os.lstat(os.path.join(parent, name)).st_size // 4096) * 4  # noqa: PTH118 - hot
    return blocks + files // 2, files


def _run(argv: list[str], folder: Path, **popen: Any) -> str:
    if shutil.which(argv[0]) is None:
        raise SubstrateError(f"there is no {argv[0]} on this node", command=" ".join(argv))
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, **popen)
    if done.returncode:
        raise SubstrateError(f"{argv[0]} failed", output=done.stderr[-2000:].strip(), command=" ".join(argv))
    return str(done.stdout)
