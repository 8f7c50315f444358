"""A shell in a local sandbox: nsenter into the runner's namespaces, limits and root, as the sandbox's user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from rayroll.errors import SandboxLostError
from rayroll.substrates import Login
from rayroll.substrates._leftovers import Remains
from rayroll.substrates._process_shell import program

__all__ = ["way_in"]

NAMESPACES = ("--user", "--mount", "--pid", "--ipc", "--uts", "--net")
# Its limits first, as long as the node's cgroups can be seen. A full or missing one leaves the shell outside.
ENTER_LIMITS = 'while [ "$1" != -- ]; do echo $$ 2>/dev/null > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
# Inside: nsenter itself runs without the sandbox's variables, one of which could be LD_PRELOAD.
SET_VARIABLES = 'while [ "$1" != -- ]; do export "$1"; shift; done; shift; exec "$@"'


def way_in(remains: Remains, login: Login) -> list[str]:
    """The command that starts a program in a sandbox. Blocks.

    Raises:
        SandboxLostError: It is gone.
    """
    process = Path("/proc", str(remains.pid))
    try:
        # One user is all that a sandbox has.
        uid = (process / "uid_map").read_text().split()[0]
        gid = (process / "gid_map").read_text().split()[0]
        born = (process / "environ").read_bytes()
    except (OSError, IndexError):
        raise SandboxLostError("the sandbox is gone", id=remains.id) from None
    env = {**_variables(born), **login.env}
    assignments = [f"{name}={value}" for name, value in env.items() if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)]
    identity = ["--setuid", uid, "--setgid", gid] if os.geteuid() == 0 else ["--preserve-credentials"]
    target = ["--target", str(remains.pid), *NAMESPACES, f"--root=/proc/{remains.pid}/root"]
    return [
        *(program("sh"), "-c", ENTER_LIMITS, "sh", *remains.cgroups, "--"),
        *(program("setpriv"), "--no-new-privs", program("nsenter"), *target, *identity, "--"),
        *(login.shell, "-c", SET_VARIABLES, "sh", *assignments, "--", *login.command),
    ]


def _variables(block: bytes) -> Mapping[str, str]:
    entries = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0") if entry)
    return {name: value for name, _, value in entries}
