"""Bubblewrap: whether it works here, and the command line that starts a runner in it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayroll.substrates import Probe
from rayroll.substrates._spawn import as_user
from rayroll.substrates._system import System

__all__ = ["Bubblewrap", "find"]

PROBE_TIMEOUT_S = 5.0
NAMESPACES = ("--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "sandbox")


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A bubblewrap that was seen to work for one user of this node."""

    path: str
    version: str
    can_disable_userns: bool

    def argv(
        self,
        system: System,
        folder: Path,
        runner: tuple[Path, str],
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        network: bool,
        info_fd: int,
        block_fd: int,
    ) -> list[str]:
        """The command that starts ``command`` as PID 1.

        Args:
            system: What is mounted into the root.
            folder: The sandbox's own on the node; what no read-only folder covers is written below its ``root``.
            runner: The program on the node, and where it is inside.
            command: What to execute inside.
            env: The whole environment of ``command``.
            network: Share the node's network; otherwise there is only a loopback of its own.
            info_fd: Gets the pid of ``command`` on the node, then is closed.
            block_fd: ``command`` is not executed before this gives a byte or its end.
        """
        argv = [self.path, *NAMESPACES, "--uid", str(system.uid), "--gid", str(system.gid)]
        if network:
            argv.append("--share-net")
        if self.can_disable_userns:
            argv += ["--unshare-user", "--disable-userns"]
        argv += ["--bind", str(folder / "root"), "/"]
        for source, target in system.read_only:
            argv += ["--ro-bind", str(source), target]
        for link_target, path in system.links:
            argv += ["--symlink", link_target, path]
        for name, target in system.private:
            argv += ["--bind", str(folder / name), target]
        argv += ["--proc", "/proc", "--dev", "/dev", "--mqueue", "/dev/mqueue"]
        argv += ["--ro-bind", str(runner[0]), runner[1]]
        argv += ["--info-fd", str(info_fd), "--block-fd", str(block_fd), "--clearenv"]
        for name, value in env.items():
            argv += ["--setenv", name, value]
        return [*argv, "--chdir", system.workdir, "--", *command]


def find(uid: int) -> Bubblewrap | Probe:
    """The bubblewrap of this node, tried out as that user, or why there is none. Blocks for some 20 ms.

    Args:
        uid: The node's user that sandboxes run as.
    """
    if platform.system() != "Linux":
        return Probe(False, "local sandboxes need Linux", "run on a Linux node, or use docker")
    path = shutil.which("bwrap")
    if path is None:
        return Probe(False, "bubblewrap is not installed", "apt-get install bubblewrap  # dnf, apk, pacman: same name")
    try:
        help_text = _run([path, "--help"]).stdout
        version = _run([path, "--version"]).stdout.split()[-1]
        tried = _run([path, *NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--", "/bin/true"], uid)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probe(False, f"bubblewrap does not run: {error}", "reinstall bubblewrap")
    if "--as-pid-1" not in help_text or "--clearenv" not in help_text:
        return Probe(False, f"bubblewrap {version} is too old", "install bubblewrap 0.5 or newer")
    if tried.returncode != 0:
        return Probe(False, f"bubblewrap cannot make namespaces: {tried.stderr.strip()}", _namespace_fix())
    return Bubblewrap(path, version, "--disable-userns" in help_text)


def _run(argv: Sequence[str], uid: int | None = None) -> subprocess.CompletedProcess[str]:
    argv, identity = as_user(os.geteuid() if uid is None else uid, argv)
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False, cwd="/", **identity
    )


def _namespace_fix() -> str:
    for setting, wanted in (
        ("kernel/apparmor_restrict_unprivileged_userns", "0"),
        ("kernel/unprivileged_userns_clone", "1"),
        ("user/max_user_namespaces", "15000"),
    ):
        file = Path("/proc/sys", setting)
        value = file.read_text().strip() if file.exists() else wanted
        if value != wanted and (wanted != "15000" or value == "0"):
            return f"sysctl -w {setting.replace('/', '.')}={wanted}"
    return (
        "allow user namespaces here (in a container: a seccomp profile that permits unshare and mount), or use docker"
    )
