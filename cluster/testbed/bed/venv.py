"""A virtual environment of a part's own, in the cache."""

from __future__ import annotations

import sys
from pathlib import Path

from bed.shell import run
from bed.steps import Steps

_INSTALL_TIMEOUT_S = 1200.0


def ensure(steps: Steps, folder: Path, package: str, version: str, python: str) -> None:
    """One with `package` in this version and what it needs: made anew for another one, interpreter or folder.

    Its interpreter is also called `python`, by which its processes are told from every other Python on the machine.
    """
    wanted = f"{version} {sys.version_info[:2]} {folder.parent.resolve()}"
    mark = folder / "installed"
    if mark.exists() and mark.read_text() == wanted and (folder / "bin" / python).exists():
        return
    with steps.step(f"{package} {version} and what it needs"):
        # Debian's interpreter: one that a version manager made may be gone when the cache is used again.
        debians = Path("/usr/bin/python3")
        run([str(debians) if debians.exists() else sys.executable, "-m", "venv", "--clear", folder])
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, f"{package}=={version}"], timeout_s=_INSTALL_TIMEOUT_S)
        (folder / "bin" / python).symlink_to("python3")
        mark.write_text(wanted)
