"""The runner's binary: found by the hash of its source in the user's cache, else built there.

Nodes find it themselves: a job's working folder carries sources, never build products (``.gitignore`` keeps those
out of ``ray job submit``). One toolchain serves both CPUs: ``ziglang``'s musl targets make a static program of 100 kB
that starts in any Linux image, where the machine's own compiler makes 700 kB and cannot aim at the other CPU.
Wheels carry both binaries (``hatch_build.py``), so that whoever installs one needs no compiler.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rayroll.errors import ConfigError

__all__ = ["MACHINES", "SOURCES", "build", "cache_dir", "compiler", "runner_name", "runner_path", "source_digest"]

MACHINES = ("x86_64", "aarch64")
SOURCES = Path(__file__).parent / "src"
_FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-static",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-strict-aliasing",
    "-ffunction-sections",
)


def cache_dir() -> Path:
    """Where this package keeps what it can make again: ``RAYROLL_CACHE_DIR``, else the user's cache folder."""
    given = os.environ.get("RAYROLL_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given).expanduser() if given else Path(base).expanduser() / "rayroll"


@functools.cache
def source_digest() -> str:
    """Hash of the runner's sources and flags, in hex: the name of the binary made from them."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def runner_name(machine: str) -> str:
    """File name of the runner for a CPU: it changes with the sources, so a stale one is never found."""
    return f"runner-{source_digest()}-{machine}"


def runner_path(machine: str | None = None) -> Path:
    """The runner for a CPU, built if it is not there yet (most of a minute the first time). Blocks.

    Args:
        machine: ``x86_64`` or ``aarch64``; None: this node's own.

    Raises:
        ConfigError: No such CPU, nothing here can build for it, or there is no place to put it.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ConfigError("the runner is built for x86_64 and aarch64 only", machine=machine)
    folder = cache_dir() / "runner"
    name = runner_name(machine)
    for found in (Path(__file__).parent / "bin" / name, folder / name):
        if found.exists():
            return found
    try:
        with _only_one(folder):  # thirty seconds of CPU are spent once, not by every process of a node
            if not (folder / name).exists():
                build(machine, folder / name)
    except OSError as error:
        raise ConfigError(
            "the runner cannot be built into its cache; point RAYROLL_CACHE_DIR at a folder that can be written",
            cache=str(folder),
            reason=str(error),
        ) from error
    return folder / name


def build(machine: str, target: Path, sources: Sequence[Path] | None = None) -> None:
    """Compile the runner. The same sources give the same bytes, wherever they are.

    Args:
        machine: One of ``MACHINES``.
        target: Where it goes, whole or not at all.
        sources: C files; None: the runner's own.

    Raises:
        ConfigError: Nothing here can build for that CPU, or the compiler refuses, with its words.
    """
    files = sorted(SOURCES.glob("*.c")) if sources is None else sources
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        made = Path(folder).absolute() / target.name
        words = (str(path.absolute()) for path in files)
        command = [*compiler(machine), *_FLAGS, f'-DRR_BUILD="{source_digest()}"', "-o", str(made), *words]
        # Not in the caller's directory: Ray unpacks a job's working folder anew while the job stands in it.
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError("the runner does not build", output=done.stderr[-4000:], command=" ".join(command))
        made.chmod(0o755)
        made.rename(target)


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiler(machine: str) -> list[str]:
    """The command that makes static programs for a CPU. Raises ConfigError where there is none."""
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", "-s"]
    native = shutil.which("musl-gcc") or shutil.which("cc")
    if native and machine == platform.machine():
        return [native, "-s"]
    raise ConfigError(
        f"nothing here can build the runner for {machine}; pip install 'rayroll[runner]'", machine=machine
    )
