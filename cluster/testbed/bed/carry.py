"""What this machine's apt and pip go through, carried into base images: a build reaches what the machine reaches.

Mirrors, proxies, certificates and pins are found where the clients themselves look for them, and written into an
image as plain configuration. What only means something on this machine (a folder, a loopback proxy) stays behind.
"""

from __future__ import annotations

import configparser
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bed.shell import run

SUITE = "bookworm"
"""The Debian release of all base images, whatever this machine runs."""

_SUITES = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
_PUBLIC_MIRROR = "http://deb.debian.org/debian"
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_OWN_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_CONSTRAINTS = Path("/etc/pip-constraints.txt")
_PIP_OPTIONS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "proxy",
    "timeout",
    "retries",
    "constraint",
)
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""What programs with a bundle of their own (requests, uv) obey, where a machine needs them to."""
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Carried:
    """Files (by absolute path in the image) and environment variables to add to a base image."""

    files: Mapping[Path, bytes]
    env: Mapping[str, str]

    def as_tar(self) -> bytes:
        """The files as an archive to unpack over a root file system; the same input gives the same bytes."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for path, content in sorted(self.files.items()):
                entry = tarfile.TarInfo(str(path).lstrip("/"))
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
        return archive.getvalue()


def from_this_machine(environ: Mapping[str, str]) -> Carried:
    """Read the machine's apt, pip, certificate and proxy settings."""
    files: dict[Path, bytes] = {Path("/etc/apt/sources.list"): _apt_sources().encode()}
    if settings := _apt_settings():
        files[Path("/etc/apt/apt.conf.d/90machine")] = settings.encode()
    if _BUNDLE.exists():
        files[_BUNDLE] = _BUNDLE.read_bytes()
    if _OWN_CERTIFICATES.is_dir():
        # The package ca-certificates makes the bundle anew when a build installs it, out of these as well.
        files |= {path: path.read_bytes() for path in sorted(_OWN_CERTIFICATES.rglob("*.crt"))}
    files |= _pip_files(environ)
    env = {name: environ[name] for name in _PROXIES if name in environ and not _is_local(environ[name])}
    if _BUNDLE in files:
        env |= {name: str(_BUNDLE) for name in _BUNDLE_VARIABLES if name in environ}
    return Carried(files, env)


def debian_mirror() -> str:
    """Where this machine fetches Debian from."""
    return _apt_sources().split()[1]


def _apt_sources() -> str:
    """The machine's own lines for `SUITE`, as apt itself resolves them; foreign repositories are left out."""
    asked = run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Identifier: Packages"])
    known = [line.split() for line in asked.splitlines()]
    lines = [
        f"deb {site} {release} main" for site, release, component in known if component == "main" and release in _SUITES
    ]
    if not any(line.endswith(f" {SUITE} main") for line in lines):
        # Another release of Debian: its mirror has ours as well. Anything else: Debian's own.
        sites = [site for site, _, component in known if component == "main" and site.endswith("/debian")]
        lines = [f"deb {(sites or [_PUBLIC_MIRROR])[0]} {SUITE} main"]
    return "\n".join(sorted(set(lines), key=lambda line: _SUITES.index(line.split()[2]))) + "\n"


def _apt_settings() -> str:
    """How apt fetches (proxies, retries, dates of snapshot mirrors); not what it does with packages."""
    wanted = ("Acquire::Check-", "Acquire::Retries", "Acquire::http::", "Acquire::https::", "Acquire::Proxy")
    lines = [line for line in run(["apt-config", "dump"]).splitlines() if line.startswith(wanted)]
    return "".join(line + "\n" for line in lines if not line.endswith(' "";') and not _is_local(line.split('"')[1]))


def _pip_files(environ: Mapping[str, str]) -> dict[Path, bytes]:
    settings = pip_settings([path.read_text() for path in _pip_configs(environ) if path.is_file()], environ)
    constraints = [Path(name).read_text() for name in settings.pop("constraint", "").split() if Path(name).is_file()]
    carried = {name: _for_everyone(value) for name, value in settings.items() if _for_everyone(value)}
    if constraints:
        carried["constraint"] = str(_CONSTRAINTS)
    if _BUNDLE.exists():
        carried["cert"] = str(_BUNDLE)
    text = "".join(["[global]\n", *(f"{name} = {value}\n" for name, value in sorted(carried.items()))])
    files = {_CONSTRAINTS: "\n".join(constraints).encode()} if constraints else {}
    return files | {Path("/etc/pip.conf"): text.encode()}


def pip_settings(configs: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What decides where pip fetches from: configuration files, the weakest first, then variables, which win."""
    settings: dict[str, str] = {}
    for text in configs:
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        for section in ("global", "install"):
            if parser.has_section(section):
                settings |= {name.replace("_", "-"): value for name, value in parser.items(section)}
    settings |= {option: environ[name] for option, name in _pip_variables().items() if name in environ}
    return {name: value for name, value in settings.items() if name in _PIP_OPTIONS}


def _pip_variables() -> dict[str, str]:
    return {option: "PIP_" + option.upper().replace("-", "_") for option in _PIP_OPTIONS}


def _pip_configs(environ: Mapping[str, str]) -> Iterable[Path]:
    """pip's configuration files, the weakest first, as its documentation orders them."""
    home = Path(environ.get("HOME", "/root"))
    for folder in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep)):
        yield Path(folder, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME", home / ".config"), "pip", "pip.conf")
    if "PIP_CONFIG_FILE" in environ:
        yield Path(environ["PIP_CONFIG_FILE"])


def _for_everyone(value: str) -> str:
    """Those of an option's values that mean the same in a container."""
    return " ".join(word for word in value.split() if not _is_local(word))


def _is_local(value: str) -> bool:
    """Whether it names a folder of this machine or its loopback, which in a container is something else."""
    return value.startswith(("/", "file:")) or "//127." in value or "//localhost" in value or "//[::1]" in value
