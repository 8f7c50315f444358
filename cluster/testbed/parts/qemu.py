"""QEMU and a kernel for its guests: packages, one of them only unpacked; nothing runs, nothing to take down."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bed.errors import TestbedError
from bed.part import Bed, Part
from bed.place import Place
from bed.shell import run

_PROGRAMS = ("qemu-system-x86_64", "mke2fs", "unshare", "setpriv")
_KERNEL = "linux-image-cloud-amd64"


class Qemu(Part):
    """What virtual machines of this node are started with."""

    name = "qemu"
    packages = ("qemu-system-x86", "e2fsprogs", "util-linux")

    def up(self, bed: Bed) -> None:
        if _kernel(bed.place) is None:
            with bed.steps.step(f"qemu: unpack {_KERNEL}"):
                _unpack(_folder(bed.place))

    def is_running(self, bed: Bed) -> bool:
        return all(shutil.which(program) for program in _PROGRAMS) and _kernel(bed.place) is not None

    def facts(self, bed: Bed) -> Mapping[str, object]:
        programs = {program: shutil.which(program) or "missing" for program in _PROGRAMS}
        return {**programs, "kernel": str(_kernel(bed.place)), "kvm_device": Path("/dev/kvm").exists()}

    def down(self, bed: Bed) -> None:
        """Packages stay, and what was unpacked."""

    def exports(self, bed: Bed) -> Mapping[str, str]:
        return {"RAYROLL_GUEST_KERNEL": str(_folder(bed.place))}


def _folder(place: Place) -> Path:
    return place.cache / "guest-kernel"


def _kernel(place: Place) -> Path | None:
    return next(iter(sorted(_folder(place).glob("boot/vmlinuz-*"))), None)


def _unpack(target: Path) -> None:
    """Installing it would make a first file system for this machine, which it will never boot."""
    depends = run(["apt-cache", "depends", "--important", _KERNEL])
    package = re.search(r"Depends: (linux-image-\S+)", depends)
    if package is None:
        raise TestbedError(f"apt knows no kernel called {_KERNEL}; run apt-get update")
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        run(["sh", "-c", 'cd "$1" && apt-get -q download "$2"', "sh", name, package[1]])
        (archive,) = Path(name).glob("*.deb")
        run(["dpkg", "-x", archive, Path(name) / "tree"])
        shutil.rmtree(target, ignore_errors=True)
        (Path(name) / "tree").rename(target)


PART = Qemu()
