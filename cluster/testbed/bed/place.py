"""Where the test bed keeps its things: what lasts in the state folder, what dies with the machine in the run folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """The two folders everything of the test bed lies in, so that deleting them forgets it."""

    state: Path
    """Survives `down` and reboots: image store, caches, chosen ports."""
    run: Path
    """Sockets, pid files and the env file of the parts that run now."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Place:
        return cls(
            state=Path(environ.get("RAYROLL_TESTBED_DIR", "/var/lib/rayroll-testbed")).absolute(),
            run=Path(environ.get("RAYROLL_TESTBED_RUN_DIR", "/run/rayroll-testbed")).absolute(),
        )

    @property
    def cache(self) -> Path:
        """What is costly to make and safe to carry to another machine, for example as a CI cache."""
        return self.state / "cache"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def env_file(self) -> Path:
        return self.run / "env.sh"

    def make(self) -> None:
        for folder in (self.state, self.run, self.cache, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    def delete(self) -> None:
        """Forget everything. The folders themselves stay where they cannot go: one may be a disk mounted there."""
        for folder in (self.state, self.run):
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            with suppress(OSError):
                folder.rmdir()

    def recorded(self, name: str) -> str | None:
        """A choice made by an earlier `up`, such as a port or a subnet."""
        return self._choices().get(name)

    def record(self, name: str, value: str) -> str:
        choices = self._choices() | {name: value}
        self._choices_file.write_text(json.dumps(choices, indent=1, sort_keys=True) + "\n")
        return value

    def loopback_port(self, name: str) -> int:
        """A free port on 127.0.0.1, the same one as last time while nobody else has taken it.

        Ask only when the daemon that will listen there is down: its own port would count as taken.
        """
        recorded = self.recorded(name)
        if recorded is not None and _is_free(int(recorded)):
            return int(recorded)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        self.record(name, str(port))
        return port

    @property
    def _choices_file(self) -> Path:
        return self.state / "choices.json"

    def _choices(self) -> dict[str, str]:
        if not self._choices_file.exists():
            return {}
        choices: dict[str, str] = json.loads(self._choices_file.read_text())
        return choices


def disk_used_bytes(folder: Path) -> int:
    """Blocks on disk below `folder`; what is mounted there (the files of a running container) does not count."""
    total = 0
    own_device = folder.lstat().st_dev if folder.exists() else 0
    for parent, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            try:
                found = Path(parent, name).lstat()
            except FileNotFoundError:  # it went while we looked
                continue
            if found.st_dev == own_device:
                total += found.st_blocks * 512
            elif name in folders:
                folders.remove(name)
    return total


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
