"""The attacking program, built for a sandbox's CPU with the runner's own toolchain and kept in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import platform
import subprocess
import tempfile
from pathlib import Path

from rayroll.errors import ConfigError
from rayroll.runner.build import cache_dir, compiler

__all__ = ["program", "program_path"]

SOURCE = Path(__file__).with_name("intruder.c")
FLAGS = ("-std=c11", "-Os", "-static", "-Wall", "-Wextra", "-Werror")


@functools.cache
def program(machine: str) -> bytes:
    """The program for a CPU (``x86_64``, ``aarch64``). Blocks, for seconds when it is built first.

    Raises:
        ConfigError: Nothing here can build it.
    """
    return program_path(machine).read_bytes()


def program_path(machine: str | None = None) -> Path:
    """Where the program for a CPU is, built if need be; None: for this node's own. Raises as ``program``."""
    machine = machine or platform.machine()
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    target = cache_dir() / "testing" / f"intruder-{digest}-{machine}"
    if not target.exists():
        _build(machine, target)
    return target


def _build(machine: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        made = Path(folder, target.name)
        command = [*compiler(machine), *FLAGS, "-o", str(made), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError("the attacking program does not build", output=done.stderr[-2000:])
        made.rename(target)
