"""A daemon is found by its command line, and nothing that is not ours is ever stopped. With real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bed.daemon import Daemon
from bed.errors import TestbedError


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    """A program that nobody else runs: a copy of `sleep` with a name of its own."""
    copy = tmp_path / "testbed-sleeper"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", copy)
    yield copy
    Daemon(copy.name, "1001", tmp_path / "log").stop()


def test_a_second_start_finds_the_first(program: Path, tmp_path: Path):
    daemon = Daemon(program.name, "1001", tmp_path / "log")
    daemon.start([program, "1001"], is_ready=lambda: True, deadline_s=5.0)
    pid = daemon.pid()
    daemon.start([program, "1001"], is_ready=lambda: True, deadline_s=5.0)
    assert pid is not None and daemon.pid() == pid
    assert os.getsid(pid) == pid, "it lives in a session of its own"


def test_stop_leaves_the_same_program_of_somebody_else_alone(program: Path, tmp_path: Path):
    daemon = Daemon(program.name, "1001", tmp_path / "log")
    with subprocess.Popen([program, "1002"]) as other:
        daemon.start([program, "1001"], is_ready=lambda: True, deadline_s=5.0)
        daemon.stop()
        assert daemon.pid() is None
        assert other.poll() is None
        other.kill()


def test_a_daemon_that_exits_says_so_with_its_log(tmp_path: Path):
    daemon = Daemon("sh", "echo no such disk; exit 7", tmp_path / "log")
    with pytest.raises(TestbedError, match=r"sh exited with 7(?s:.)*no such disk"):
        daemon.start(["sh", "-c", daemon.marker], is_ready=lambda: False, deadline_s=5.0)


def test_a_daemon_that_does_not_answer_in_time_is_not_left_running(program: Path, tmp_path: Path):
    daemon = Daemon(program.name, "1001", tmp_path / "log")
    with pytest.raises(TestbedError, match="did not answer"):
        daemon.start([program, "1001"], is_ready=lambda: False, deadline_s=0.2)
    assert daemon.pid() is None


def test_a_stale_pid_file_does_not_hinder_a_start(program: Path, tmp_path: Path):
    pid_file = tmp_path / "pid"
    pid_file.write_text(str(os.getpid()))
    daemon = Daemon(program.name, "1001", tmp_path / "log", pid_file)
    daemon.start([program, "1001"], is_ready=lambda: True, deadline_s=5.0)
    assert not pid_file.exists()
