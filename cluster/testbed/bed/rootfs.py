"""Root file systems as archives: one of busybox alone, one of the smallest Debian."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path

from bed.carry import SUITE, Carried, debian_mirror
from bed.errors import TestbedError
from bed.place import Place
from bed.shell import run

_BUSYBOX = Path("/bin/busybox")
_BUSYBOX_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n",
    "etc/group": "root:x:0:\nagent:x:1000:\n",
}
_BUSYBOX_FOLDERS = {  # name: (mode, owner)
    "etc": (0o755, 0),
    "home": (0o755, 0),
    "home/agent": (0o755, 1000),
    "root": (0o700, 0),
    "tmp": (0o1777, 0),
    "var": (0o755, 0),
    "var/tmp": (0o1777, 0),
}

_SLIM_FILES = {
    # As in Debian's own slim images.
    "etc/dpkg/dpkg.cfg.d/slim": """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
""",
    "etc/apt/apt.conf.d/10slim": """\
Acquire::Languages "none";
APT::Install-Recommends "false";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
""",
}
_EMPTIED = (
    *("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
)
# The name and the resolver of the machine that made it: the engine gives each container its own.
_OF_THE_MACHINE = ("etc/hostname", "etc/resolv.conf")

DEBIAN_RECIPE = repr((_SLIM_FILES, _EMPTIED, _OF_THE_MACHINE)).encode()
"""What `debian` makes, apart from what is carried into it and from the packages of the day."""


def busybox() -> bytes:
    """Busybox with every applet linked where busybox says that it belongs. The same binary gives the same bytes."""
    if not _BUSYBOX.exists():
        raise TestbedError(f"{_BUSYBOX}: missing (package busybox-static)")
    applets = [applet for applet in run([_BUSYBOX, "--list-full"]).split() if applet != "bin/busybox"]
    parents = {str(folder) for applet in applets for folder in Path(applet).parents if folder != Path()}
    folders = dict.fromkeys(["bin", "dev", "proc", "sys", *parents], (0o755, 0)) | _BUSYBOX_FOLDERS
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, (mode, owner) in sorted(folders.items()):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, mode, owner, owner
            tar.addfile(folder)
        files = {name: (text.encode(), 0o644) for name, text in _BUSYBOX_FILES.items()}
        files["bin/busybox"] = (_BUSYBOX.read_bytes(), 0o755)
        for name, (content, mode) in files.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(content), mode
            tar.addfile(file, io.BytesIO(content))
        for applet in applets:
            link = tarfile.TarInfo(applet)
            link.type, link.linkname = tarfile.SYMTYPE, "/bin/busybox"
            tar.addfile(link)
    return archive.getvalue()


def debian(place: Place, carried: Carried) -> bytes:
    """The smallest Debian that has apt, with the files that let it reach what this machine reaches."""
    packages = place.cache / "debs"
    packages.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.state, prefix="debootstrap-") as name:
        root = Path(name)
        run(["debootstrap", "--variant=minbase", f"--cache-dir={packages}", SUITE, root, debian_mirror()])
        for path, text in _SLIM_FILES.items():
            (root / path).write_text(text)
        for folder in _EMPTIED:
            below: list[str | Path] = ["find", root / folder, "-mindepth", "1"]
            run([*below, "!", "-type", "d", "!", "-name", "copyright", "-delete"])
            run([*below, "-type", "d", "-empty", "-delete"])
        for path in _OF_THE_MACHINE:
            (root / path).unlink(missing_ok=True)
        run(["tar", "-C", root, "-xf", "-"], stdin=carried.as_tar())
        # /dev as well: device nodes in a layer could not be unpacked by an engine without the right to make them.
        left_out = [f"--exclude=./{folder}/*" for folder in ("dev", "proc", "sys")]
        return subprocess.run(
            ["tar", "-C", root, "--numeric-owner", *left_out, "-cf", "-", "."], stdout=subprocess.PIPE, check=True
        ).stdout
