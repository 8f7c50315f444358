"""Programs of Debian that tests of the runner look at it with: nothing runs, nothing is to be taken down."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from bed.part import Bed, Part

_PROGRAMS = ("busybox", "clang", "dash", "qemu-aarch64-static", "strace")


class Tools(Part):
    """Each is asked for by tests that are skipped without it."""

    name = "tools"
    packages = (
        *("clang", "libclang-rt-14-dev"),  # sanitizers and libFuzzer
        *("busybox-static", "dash"),  # shells that images come with, beside bash
        "qemu-user-static",  # runs the aarch64 runner
        "strace",  # holds up a system call of another process
    )

    def up(self, bed: Bed) -> None:
        """There is no more to do: the packages are installed before."""

    def is_running(self, bed: Bed) -> bool:
        return all(shutil.which(program) for program in _PROGRAMS)

    def facts(self, bed: Bed) -> Mapping[str, object]:
        return {program: shutil.which(program) or "missing" for program in _PROGRAMS}

    def down(self, bed: Bed) -> None:
        """Packages stay."""


PART = Tools()
