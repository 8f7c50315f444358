"""What a number needs beside it: the machine, the code, the versions, and how busy it was."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["facts", "load_average"]


def facts() -> dict[str, Any]:
    """Machine, kernel, commit, versions and the command line."""
    return {
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "commit": _commit(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "load_before": load_average(),
    }


def load_average() -> float:
    """Processes that ran or waited, over the last minute."""
    return round(os.getloadavg()[0], 1)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    """Short hash, with ``+`` where the package or the benchmarks differ from it."""
    root = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "rayroll", "benchmarks")
        return git("rev-parse", "--short", "HEAD").strip() + ("+" if changed.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
