"""A daemon of the test bed: started once, in its own session, and only ever stopped when it is provably ours."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bed.errors import TestbedError
from bed.shell import tail

_POLL_S = 0.05
_PATIENCE_S = 10.0
"""How long a daemon that already runs may take to answer before it is replaced."""
_KILLED_S = 10.0
"""How long the kernel may take to remove a process after SIGKILL: it may be writing to a slow disk."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A long-lived process, recognised by its command line rather than by a pid written down.

    A pid file lies after a reboot, when its number may belong to anybody. The command line does not:
    it carries the path of our own state or run folder, which no other process on the machine names.
    """

    name: str
    marker: str
    """An argument that only this daemon of this test bed has."""
    log: Path
    pid_file: Path | None = None
    """A file of the daemon's own by which it refuses to start while the number in it is a living process's."""

    def pid(self) -> int | None:
        """The running process, or None."""
        for pid, argv in command_lines():
            if Path(argv[0]).name == self.name and self.marker in argv:
                return pid
        return None

    def start(
        self,
        argv: Sequence[str | Path],
        *,
        is_ready: Callable[[], bool],
        deadline_s: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it unless it runs, and wait until it answers.

        Raises:
            TestbedError: It exited, or did not answer in time; the message ends with its log. It is not left running.
        """
        if self.pid() is not None and not within(_PATIENCE_S, is_ready):
            self.stop()  # it runs but is of no use: its socket was deleted, or it hangs
        if self.pid() is not None:
            return
        pid, exit_code = self._launch(argv, env or {}), None

        def has_settled() -> bool:
            nonlocal exit_code
            exit_code = _exit_code(pid)
            return exit_code is not None or (self.pid() is not None and is_ready())

        if within(deadline_s, has_settled) and exit_code is None:
            return
        how = f"did not answer within {deadline_s:.0f} s" if exit_code is None else f"exited with {exit_code}"
        self.stop()
        raise TestbedError(f"{self.name} {how}\n{self._log_tail()}")

    def stop(self, *, grace_s: float = 20.0) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; returns once it is gone."""
        pid = self.pid()
        if pid is not None:
            stop_process(pid, grace_s=grace_s)

    def _launch(self, argv: Sequence[str | Path], env: Mapping[str, str]) -> int:
        words = [str(word) for word in argv]
        assert self.marker in words, "a daemon must be recognisable by its command line"
        if self.pid_file is not None:
            self.pid_file.unlink(missing_ok=True)  # we know that it does not run; the number is somebody else's by now
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.before"))  # how the last one ended can still be read
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        # Not subprocess: its objects want to be waited for, and this process is to outlive us and our terminal.
        # Through env, which then becomes the daemon, for a working folder that keeps nobody from unmounting a disk.
        return os.posix_spawnp(
            "env",
            ["env", "--chdir=/", "--", *words],
            {**os.environ, **env},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), log_flags, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def _log_tail(self) -> str:
        return f"{self.log}:\n{tail(self.log.read_text(errors='replace'))}" if self.log.exists() else ""


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """(pid, argv) of each process; kernel threads and zombies, which have no command line, are left out."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            raw = (entry / "cmdline").read_bytes()
        except OSError:  # it ended while we looked
            continue
        argv = raw.decode(errors="replace").rstrip("\0").split("\0")
        if argv[0]:
            yield int(entry.name), argv


def stop_process(pid: int, *, grace_s: float) -> None:
    """End one process and wait for it. The caller has checked whose it is."""
    try:
        handle = os.pidfd_open(pid)  # from here on the number cannot be reused under us
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not within(grace_s, lambda: _is_gone(pid)):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not within(_KILLED_S, lambda: _is_gone(pid)):
                raise TestbedError(f"process {pid} does not end, not even by SIGKILL")
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _exit_code(child: int) -> int | None:
    """None while it runs."""
    ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold in time; looked at every 50 ms."""
    ends_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends_s:
            return False
        time.sleep(_POLL_S)
    return True


def _is_gone(pid: int) -> bool:
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except FileNotFoundError:
        return True
    # A zombie has ended; its parent (not us, after a restart) is merely slow to collect it.
    return stat.rpartition(")")[2].split()[0] == "Z"
