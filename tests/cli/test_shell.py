"""`rayroll shell`, as somebody who sits at a terminal has it, in sandboxes that were kept."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import synthetic
from requirements import check

from rayroll.cleanup import sweep
from rayroll.record import to_line
from rayroll.types import Kept

RAYROLL = (sys.executable, "-c", "from rayroll.cli import main; main()")
KINDS = [pytest.param("local", marks=pytest.mark.local), pytest.param("docker", marks=pytest.mark.docker)]


def rayroll(*words: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RAYROLL, *words], cwd=cwd, capture_output=True, check=False, **{"input": b"", **more})


@dataclass(frozen=True)
class Waiting:
    """A rollout whose sandbox waits, and the folder that has results."""

    kind: str
    folder: Path
    id: str
    run_id: str
    sandbox: str


HOST = """
import asyncio, json, sys
from dataclasses import asdict
import little
from rayroll import Client, SessionConfig

async def main(kind):
    config = little.SUBSTRATE_CONFIG[kind]
    async with Client(kind, substrate_config=config, config=SessionConfig(lease_s=10.0)) as client:
        session = client.open(little.task(env={"TOKEN": "hunter2"}))
        await session.exec("echo done > work.txt; sleep 1234567 &")
        print(json.dumps([client.run_id, asdict(await session.keep(1200.0))]))

asyncio.run(main(sys.argv[1]))
"""


def play(kind: str, folder: Path, id: str) -> Waiting:
    """What `rayroll run --keep on-failure` leaves behind, without Ray."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", HOST, kind], capture_output=True, check=True, env=env)
    run_id, kept = json.loads(done.stdout)
    rollout = replace(synthetic.rollout(), id=id, run_id=run_id, reward=0.0, failure=None, seed=7, kept=Kept(**kept))
    line = to_line(rollout)
    assert b"hunter2" not in line
    results = folder / "results" / id
    results.mkdir(parents=True)
    (results / "rollouts.jsonl").write_bytes(line)
    return Waiting(kind, folder, id, run_id, rollout.kept.sandbox if rollout.kept else "")


def remove(waiting: Waiting) -> None:
    asyncio.run(sweep([waiting.kind], run_id=waiting.run_id, also_kept=True))


@pytest.fixture(scope="module", params=KINDS)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    check(request.param)
    waiting = play(request.param, tmp_path_factory.mktemp("kept"), "abcdef")
    yield waiting
    remove(waiting)


class Terminal:
    """Somebody at a terminal of 30 rows and 90 columns."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self._ours, theirs = os.openpty()
        self.resize(30, 90)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *RAYROLL, *words], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern: str) -> str:
        """Wait for it, and forget what came before its end."""
        deadline_s = time.monotonic() + 20
        while (found := re.search(pattern.encode(), self.seen)) is None:
            ready, _, _ = select.select([self._ours], [], [], deadline_s - time.monotonic())
            assert ready, f"{pattern!r} did not come: {self.seen!r}"
            try:
                self.seen += os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                raise AssertionError(f"{pattern!r} did not come: {self.seen!r}") from None
        self.seen = self.seen[found.end() :]
        return found[0].decode()

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def terminal(waiting: Waiting) -> Iterator[Terminal]:
    sitting = Terminal("shell", waiting.id[:5], cwd=waiting.folder)
    try:
        sitting.expect("reward 0.*min left")
        yield sitting
    finally:
        sitting.close()


def test_a_shell_has_a_terminal_of_this_size_which_follows_and_ctrl_c_goes_there(kept: Waiting) -> None:
    with terminal(kept) as sitting:
        sitting.type("stty size; cat work.txt; echo at $PWD, $TOKEN, $RAYROLL_SEED\n")
        sitting.expect("30 90\r\ndone\r\nat /app, hunter2, 7\r\n")
        sitting.resize(40, 100)
        sitting.type("until stty size | grep '40 100'; do sleep 0.1; done\n")
        sitting.expect("40 100\r\n")
        sitting.type("""sh -c 'trap "echo cau""ght; exit" INT; echo st""arted; while :; do sleep 0.1; done'\n""")
        sitting.expect("started")
        sitting.type("\x03")
        sitting.expect("caught")
        sitting.type("cat /proc/[0-9]*/cmdline | tr '\\0' ' '\n")
        sitting.expect("sleep 1234567")
        sitting.type("exit 5\n")
        assert sitting.process.wait() == 5


def test_a_shell_whose_sandbox_is_removed_says_so_and_gives_the_terminal_back(kept: Waiting) -> None:
    short_lived = play(kept.kind, kept.folder, "short-lived")
    with terminal(short_lived) as sitting:
        sitting.type("echo h''ere\n")
        sitting.expect("here\r\n")
        remove(short_lived)
        sitting.expect("the sandbox ended")
        assert sitting.process.wait() == 137
        assert sitting.echoes()
    gone = rayroll("shell", "short-lived", cwd=kept.folder)
    assert gone.returncode == 2 and b"gone before its time" in gone.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_whoever_ends_it_gets_the_terminal_back(kept: Waiting, number: signal.Signals) -> None:
    with terminal(kept) as sitting:
        sitting.type("echo h''ere\n")
        sitting.expect("here\r\n")
        assert not sitting.echoes()
        sitting.process.send_signal(number)
        assert sitting.process.wait() == 143
        assert sitting.echoes()


def test_without_a_terminal_streams_stay_apart_and_the_exit_code_comes_through(kept: Waiting) -> None:
    data = bytes(range(256)) * 4096
    done = rayroll("shell", kept.id, "--", "sh", "-c", "cat; echo oh >&2; exit 7", cwd=kept.folder, input=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (7, True, b"oh\n")


def test_the_list_says_what_waits_and_where(kept: Waiting) -> None:
    listed = rayroll("shell", "--list", "--results", f"results/{kept.id}", cwd=kept.folder).stdout.decode()
    (row,) = (line for line in listed.splitlines() if kept.id in line)
    assert kept.kind in row and "min" in row and "gone" not in row


async def test_gc_leaves_it_alone_until_its_time_is_over(kept: Waiting) -> None:
    assert kept.sandbox not in [ref.id for ref in await sweep([kept.kind], older_than_s=0.0, dry_run=True)]
    gone = await asyncio.to_thread(rayroll, "gc", "--run", kept.run_id, "--dry-run", cwd=kept.folder)
    assert kept.sandbox in gone.stdout.decode()


# what cannot be entered


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of rollouts that were not kept, of one that is elsewhere, and of one whose time is over."""
    there = Kept("local", "x", "another", time.time() + 600, "/bin/sh", "/", place={"folder": str(tmp_path / "none")})
    over = replace(there, until_unix_s=time.time() - 600)
    kept = {"aaaa0": None, "aaaa1": None, "bbbb1": there, "cccc2": over}
    rows = [to_line(replace(synthetic.rollout(), id=id, kept=one)) for id, one in kept.items()]
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(rows))
    return tmp_path


@pytest.mark.local
@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("aaaa0", "rollout aaaa0 was not kept: .*--keep on-failure"),
        ("aaaa", "several rollouts begin with 'aaaa': aaaa0, aaaa1"),
        ("aaab0", "did you mean aaaa0"),
        ("bb", "on another node; .*node='another'"),
        ("cccc2", "is gone: it was kept until .*--keep-for"),
    ],
)
def test_what_cannot_be_entered_is_told_with_a_way_out(results: Path, id: str, answer: str) -> None:
    done = rayroll("shell", id, "--results", str(results), cwd=results)
    assert done.returncode == 2
    assert re.search(answer, done.stderr.decode()), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("shell", "abc", "--results", "."), "no rollouts.jsonl"),
        (("run", "--keep", "on-failur"), "did you mean 'on-failure'"),
        (("run", "--keep", "always", "--keep-for", "soon"), "such as 45m, 2h or 1d"),
        (("run", "--keep", "always", "--substrate", "simulated"), "cannot keep sandboxes"),
    ],
)
def test_bad_words_get_one_sentence(words: tuple[str, ...], answer: str, tmp_path: Path) -> None:
    done = rayroll(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert answer in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_without_anything_kept_it_says_how_to_keep(tmp_path: Path) -> None:
    done = rayroll("shell", cwd=tmp_path)
    assert done.returncode == 0
    assert b"--keep on-failure" in done.stdout
