"""The runner's binary: found by the hash of its source in the user's cache, else built there.

Nodes find it themselves: a job's working folder carries sources, never build products (``.gitignore`` keeps those
out of ``ray job submit``). One toolchain serves both CPUs: ``ziglang``'s musl targets make a static program of 100 kB
that starts in any Linux image, where the machine's own compiler makes 700 kB and cannot aim at the other CPU.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rayroll.errors import ConfigError

__all__ = ["MACHINES", "cache_dir", "compiler", "runner_path", "source_digest"]

MACHINES = ("x86_64", "aarch64")
_SOURCES = Path(__file__).parent / "src"
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
    for path in sorted(_SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def runner_path(machine: str | None = None) -> Path:
    """The runner for a CPU, built if it is not there yet (most of a minute the first time). Blocks.

    Args:
        machine: ``x86_64`` or ``aarch64``; None: this node's own.

    Raises:
        ConfigError: No such CPU, or nothing here can build for it.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ConfigError("the runner is built for x86_64 and aarch64 only", machine=machine)
    name = f"runner-{source_digest()}-{machine}"
    for folder in (Path(__file__).parent / "bin", cache_dir() / "runner"):
        if (folder / name).exists():
            return folder / name
    return _build(machine, cache_dir() / "runner" / name)


def _build(machine: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(p) for p in _SOURCES.glob("*.c"))
    # A temporary name and a rename: however many processes build at once, none sees half a file.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        made = Path(folder) / target.name
        command = [*compiler(machine), *_FLAGS, f'-DRR_BUILD="{source_digest()}"', "-o", str(made), *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError("the runner does not build", command=" ".join(command), output=done.stderr[-4000:])
        made.chmod(0o755)
        made.rename(target)
    return target


def compiler(machine: str) -> list[str]:
    """The command that makes static programs for a CPU. Raises ConfigError where there is none."""
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", "-s"]
    native = shutil.which("musl-gcc") or shutil.which("cc")
    if native and machine == platform.machine():
        return [native, "-s"]
    raise ConfigError(f"nothing here can build the runner for {machine}; pip install 'rayroll[runner]'")
