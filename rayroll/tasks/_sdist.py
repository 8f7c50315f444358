"""Source distributions by name, version and hash: fetched once with the user's own pip, kept outside of the tree.

``pip download`` wants the metadata of what it downloads, and for that it would install a build backend and run the
package's build. Here it asks a backend of ours that knows the answer: nothing of the package runs, nothing but the one
file is fetched, and index, proxy, credentials and certificates are whatever the user's pip is configured for.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from rayroll.errors import ConfigError, InfraFailure, TaskError

__all__ = ["cache_dir", "cached", "fetch", "files"]

_BACKENDS = ("setuptools.build_meta", "flit_core.buildapi", "hatchling.build", "poetry.core.masonry.api")
_ANSWERS = """
import os, pathlib, sys

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name, version = os.environ["RAYROLL_SDIST"].split()
    info = pathlib.Path(directory) / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info.name

def build_wheel(*_, **__):
    raise SystemExit("this backend builds nothing")

# setuptools' backend is also asked for under this name, for packages without a pyproject.toml.
__legacy__ = sys.modules[__name__]
"""


def cache_dir() -> Path:
    """Where this package keeps what it can get again: ``$RAYROLL_CACHE_DIR``, else the user's cache folder."""
    given = os.environ.get("RAYROLL_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given).expanduser() if given else Path(base).expanduser() / "rayroll"


def cached(name: str, version: str, sha256: str) -> Path:
    """Where that source distribution lies, or would lie."""
    return cache_dir() / "sdists" / f"{name}-{version}-{sha256[:16]}.tar.gz"


def fetch(name: str, version: str, sha256: str) -> Path:
    """Put that source distribution into the cache, unless it is there.

    Raises:
        ConfigError: pip is not installed.
        InfraFailure: The index does not answer, or what it gave has another hash.
    """
    target = cached(name, version, sha256)
    if target.is_file() and _sha256(target.read_bytes()) == sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rayroll-sdist-", dir=target.parent) as scratch:
        got = _download(Path(scratch), name, version, sha256)
        got.replace(target)
    return target


def files(path: Path, sha256: str) -> dict[str, bytes]:
    """Its regular files by their path below the distribution's own folder.

    Raises:
        TaskError: The file is not the one that the hash names.
    """
    data = path.read_bytes()
    if (actual := _sha256(data)) != sha256:
        raise TaskError("a source distribution in the cache is damaged; delete it", path=str(path), sha256=actual)
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            _, _, name = member.name.partition("/")
            if name and (file := archive.extractfile(member)) is not None:
                found[name] = file.read()
    return found


def _download(scratch: Path, name: str, version: str, sha256: str) -> Path:
    backends, out, wanted = scratch / "backends", scratch / "out", scratch / "wanted.txt"
    for backend in _BACKENDS:
        *packages, module = backend.split(".")
        folder = backends.joinpath(*packages)
        folder.mkdir(parents=True, exist_ok=True)
        for depth in range(1, len(packages) + 1):
            backends.joinpath(*packages[:depth], "__init__.py").touch()
        (folder / f"{module}.py").write_text(_ANSWERS)
    wanted.write_text(f"{name}=={version} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    command += [
        "--use-pep517",
        "--no-build-isolation",
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--dest",
        str(out),
    ]
    env = os.environ | {"PYTHONPATH": str(backends), "RAYROLL_SDIST": f"{name} {version}"}
    ended = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    got = list(out.glob("*.tar.gz")) if out.is_dir() else []
    if ended.returncode != 0 or len(got) != 1:
        said = (ended.stderr or ended.stdout).strip()[-1500:]
        if "No module named pip" in said:
            raise ConfigError(
                "pip is not in this environment; it fetches source distributions", fix="python -m ensurepip"
            )
        raise InfraFailure(f"pip could not fetch the source distribution of {name} {version}", pip=said)
    return got[0]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
