"""Finished work is in the file, whatever happens to the process or the disk."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic

from rayroll.errors import ClosedError, ConfigError, DiskFullError
from rayroll.sinks import SinkWorker
from rayroll.sinks.jsonl import JsonlSink, finished_ids, read_rollouts, to_line

RECORDS = [synthetic.rollout(sample=i, actions=2) for i in range(4)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "rollouts.jsonl"


def test_what_was_added_is_read_back_and_a_second_run_appends(path: Path) -> None:
    for records in (RECORDS[:2], RECORDS[2:]):
        with SinkWorker([JsonlSink(path)]) as worker:
            for record in records:
                worker.put_blocking(record)
    assert list(read_rollouts(path)) == RECORDS
    assert finished_ids(path) == {record.id for record in RECORDS}


def test_a_line_is_in_the_file_when_add_returns(path: Path) -> None:
    sink = JsonlSink(path)
    sink.add(RECORDS[0])
    assert list(read_rollouts(path)) == [RECORDS[0]]
    sink.close()


def test_a_torn_last_line_is_cut_before_the_first_append(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_bytes(to_line(RECORDS[0]) + to_line(RECORDS[1])[:100])
    sink = JsonlSink(path)
    with caplog.at_level(logging.WARNING):
        sink.add(RECORDS[2])
    sink.close()
    assert path.read_bytes() == to_line(RECORDS[0]) + to_line(RECORDS[2])
    assert "cut a torn last line" in caplog.text


def test_a_torn_line_longer_than_a_block_and_a_file_of_nothing_else_are_mended_too(path: Path) -> None:
    path.parent.mkdir()
    huge = to_line(replace(RECORDS[1], node="n" * 200_000))
    for before in (b"", to_line(RECORDS[0])):
        path.write_bytes(before + huge[:-50])
        sink = JsonlSink(path)
        sink.add(RECORDS[2])
        sink.close()
        assert path.read_bytes() == before + to_line(RECORDS[2])


def test_a_last_line_that_lacks_only_its_end_is_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(to_line(RECORDS[0]).rstrip(b"\n"))
    sink = JsonlSink(path)
    sink.add(RECORDS[1])
    sink.close()
    assert list(read_rollouts(path)) == RECORDS[:2]


def test_a_second_writer_is_refused_before_it_writes(path: Path) -> None:
    first, second = JsonlSink(path), JsonlSink(path)
    first.open()
    with pytest.raises(ConfigError, match="another run is writing"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_closing_twice_is_fine_and_adding_afterwards_is_not(path: Path) -> None:
    sink = JsonlSink(path)
    sink.add(RECORDS[0])
    sink.close()
    sink.close()
    with pytest.raises(ClosedError):
        sink.add(RECORDS[1])


def test_a_nearly_full_disk_stops_the_run_while_everything_is_kept(path: Path) -> None:
    worker = SinkWorker([JsonlSink(path, reserve_bytes=2**62)])
    worker.start()
    with pytest.raises(DiskFullError, match="all so far are kept"):
        while True:
            worker.put_blocking(RECORDS[0])
    worker.close(1)
    assert worker.unsaved == []
    assert len(list(read_rollouts(path))) > 0


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import synthetic
from rayroll.sinks.jsonl import JsonlSink
sink = JsonlSink(sys.argv[1], fsync_s=3600)
for i in range(50):
    sink.add(synthetic.rollout(sample=i, actions=2))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing_that_was_added(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), str(Path(synthetic.__file__).parent)])
    assert done.returncode == -signal.SIGKILL
    assert len(list(read_rollouts(path))) == 50


FILLED = """
import sys
sys.path.insert(0, sys.argv[2])
import synthetic
from pathlib import Path
from rayroll.errors import DiskFullError
from rayroll.sinks import SinkWorker
from rayroll.sinks.jsonl import JsonlSink, read_rollouts
path = Path(sys.argv[1]) / "rollouts.jsonl"
worker = SinkWorker([JsonlSink(path, reserve_bytes=0)], max_pending=2)
worker.start()
ballast = path.parent / "ballast"
ballast.write_bytes(bytes(100_000))
handed = 0
try:
    while True:
        worker.put_blocking(synthetic.rollout(sample=handed, actions=20))
        handed += 1
except DiskFullError as error:
    handed += 1
    print(error, file=sys.stderr)
assert path.read_bytes().endswith(b"\\n"), "a torn line was left"
kept_before = len(list(read_rollouts(path)))
ballast.unlink()
worker.close(1)
assert worker.unsaved == []
print(kept_before, handed, len(list(read_rollouts(path))))
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="no small disk: mount namespaces are not allowed here",
)
def test_a_full_disk_is_typed_leaves_whole_lines_and_refused_work_is_written_once_there_is_room(tmp_path: Path) -> None:
    script = f'mount -t tmpfs -o size=600k none "{tmp_path}" && exec "$0" -c "$1" "{tmp_path}" "$2"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, FILLED, str(Path(synthetic.__file__).parent)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "free space there, then resume" in done.stderr
    kept_before, handed, kept = map(int, done.stdout.split())
    assert 0 < kept_before < handed == kept
