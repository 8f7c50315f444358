"""The node's own Python with a task's packages, for sandboxes that stand on the node's own system.

A small virtual environment, made once per set of packages and mounted at one path in every sandbox. Packages that the
running environment already has are copied from it, so a task that needs only pytest works without a network; anything
else is installed by pip.
"""

from __future__ import annotations

import hashlib
import importlib.metadata as metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from rayroll.errors import SubstrateError

__all__ = ["MOUNT", "PREFIX", "build", "copy_prefix", "name_of"]

MOUNT = Path("/opt/rayroll")
"""Where the environment is in a sandbox; its scripts name this path."""
PREFIX = Path(sys.base_prefix)
"""Where this Python lives, at the same path inside and outside."""

SITE = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
LAYOUT = "2"
"""Changes when what ``build`` makes does, so that older entries of a cache are not taken for it."""
INSTALL_TIMEOUT_S = 600.0


def name_of(requirements: Iterable[str]) -> str:
    """A name that is equal for equal requirements on the same Python."""
    facts = [LAYOUT, sys.version, str(PREFIX), *sorted(requirements)]
    return "python-" + hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]


def build(folder: Path, requirements: Iterable[str]) -> None:
    """Make the environment in an empty folder. Blocks.

    Raises:
        SubstrateError: A package is neither in the running environment nor installable.
    """
    wanted = sorted(requirements)
    site, binaries = folder / SITE, folder / "bin"
    site.mkdir(parents=True)
    binaries.mkdir()
    python = PREFIX / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    settings = {"home": PREFIX / "bin", "include-system-site-packages": "false", "version": sys.version.split()[0]}
    (folder / "pyvenv.cfg").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    for name in ("python", "python3", python.name):
        (binaries / name).symlink_to(python)
    found = _installed(wanted)
    if found is None:
        _install(wanted, site)
    else:
        for distribution in found:
            _copy(distribution, site)
    _write_scripts(site, binaries)
    # The folder is read-only in sandboxes: without this every pytest there would compile itself anew.
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], capture_output=True, check=False)


def copy_prefix(folder: Path) -> None:
    """Copy this Python's interpreter and standard library into an empty folder. Blocks for a second or two.

    For a Python in a home that other users cannot enter (pyenv as root), while sandboxes run as another user.
    """
    library = SITE.parent
    (folder / "bin").mkdir()
    shutil.copy2(PREFIX / "bin" / library.name, folder / "bin")
    skip = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "turtledemo", "ensurepip", "config-*")
    shutil.copytree(PREFIX / library, folder / library, symlinks=True, ignore=skip)
    for shared in (PREFIX / "lib").glob("libpython*.so*"):
        target = folder / "lib" / shared.name
        if shared.is_symlink():
            target.symlink_to(shared.readlink())
        else:
            shutil.copy2(shared, target)


def _installed(wanted: list[str]) -> list[metadata.Distribution] | None:
    """The distributions of this process's environment that satisfy the requirements and what those require in turn;
    None when one is missing, too old, or not a plain copy of files (an editable install)."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    open_ends = [(Requirement(text), "") for text in wanted]
    while open_ends:
        requirement, extra = open_ends.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            return None
        if not requirement.specifier.contains(distribution.version, prereleases=True) or not _is_plain(distribution):
            return None
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found and not requirement.extras:
            continue
        found[name] = distribution
        for text in distribution.requires or ():
            open_ends += [(Requirement(text), extra) for extra in ("", *requirement.extras)]
    return list(found.values())


def _is_plain(distribution: metadata.Distribution) -> bool:
    return bool(distribution.files) and '"editable": true' not in (distribution.read_text("direct_url.json") or "")


def _copy(distribution: metadata.Distribution, site: Path) -> None:
    for file in distribution.files or ():
        source = Path(str(file.locate()))
        if ".." in file.parts or not source.is_file():
            continue  # scripts, manual pages: outside site-packages
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _install(wanted: list[str], site: Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-warn-script-location",
    ]
    try:
        done = subprocess.run(
            [*pip, "--target", str(site), *wanted],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output, code = f"no answer within {late.timeout:.0f} s", -1
    if code != 0:
        raise SubstrateError(
            "the task's host_packages could not be installed; install them in this environment (pip install ...), "
            "or use rootfs='image'",
            packages=wanted,
            output=output.strip()[-2000:],
        )


def _write_scripts(site: Path, binaries: Path) -> None:
    """One script per console entry point: the installed ones name the interpreter of another environment."""
    for distribution in metadata.distributions(path=[str(site)]):
        for entry in distribution.entry_points.select(group="console_scripts"):
            script = binaries / entry.name
            script.write_text(
                f"#!{MOUNT / 'bin' / 'python3'}\nimport sys\nfrom {entry.module} import {entry.attr.split('.')[0]}\n"
                f"sys.exit({entry.attr}())\n"
            )
            script.chmod(0o755)
