"""`runner once`: one command by one call, with state in a file, jobs that live on, and nothing made up."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from runner.live import RUNNER, _with_mark, binary, namespaces

from rayroll.errors import CallerError, ProtocolError, SandboxFileError
from rayroll.runner.once import (
    ARGUMENT_MOST_BYTES,
    exec_frames,
    kill_all_frames,
    once_argv,
    read_killed,
    read_reply,
)
from rayroll.runner.protocol import FrameType, Parser, Tag, encode_fields, encode_frame

pytestmark = pytest.mark.usefixtures("namespaces")


class Provider:
    """A sandbox that is somebody else's, with a call to run a command line in it."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self._shell = process

    async def run(self, argv: list[str], stdin: bytes = b"") -> tuple[int, bytes]:
        """What it printed on standard output, and its code."""
        (self.folder / "in").write_bytes(stdin)
        line = " ".join(f"'{word}'" for word in argv)
        assert self._shell.stdin and self._shell.stdout
        self._shell.stdin.write(f"{line} < /tmp/in > /tmp/out 2> /tmp/err; echo $?\n".encode())
        code = int(await self._shell.stdout.readline())
        return code, (self.folder / "out").read_bytes()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    with tempfile.TemporaryDirectory(prefix="rr-") as temporary:
        argv = [*namespaces(Path("/usr")), "--bind", temporary, "/tmp", "--ro-bind", str(binary()), RUNNER]
        process = await asyncio.create_subprocess_exec(
            *argv, "--", "/bin/sh", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        yield Provider(Path(temporary), process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_command_its_output_and_its_code(provider: Provider) -> None:
    code, printed = await provider.run(once_argv(RUNNER, exec_frames("echo out; echo err >&2; exit 7")))
    r = read_reply(printed)
    assert (code, r.output, r.exit_code) == (0, "out\nerr\n", 7)
    assert r.timing.run_ns > 0


async def test_state_goes_from_call_to_call_in_its_file(provider: Provider) -> None:
    async def sh(script: str) -> str:
        _, printed = await provider.run(once_argv(RUNNER, exec_frames(script), state_path="/tmp/state"))
        r = read_reply(printed)
        assert r.state_saved
        return r.output

    await sh("export K='a b'; cd /usr")
    assert await sh('echo "$K $(pwd)"; unset K') == "a b /usr\n"
    assert await sh('echo "${K-none} $(pwd)"') == "none /usr\n"
    (provider.folder / "state").write_bytes(b"RRS2 junk")
    assert await sh('echo "${K-none} $(pwd)"') == "none /\n"
    assert not list(provider.folder.glob("state.*"))


async def test_frames_may_come_by_standard_input_and_go_as_they_are(provider: Provider) -> None:
    code, printed = await provider.run([RUNNER, "once"], exec_frames("cat; echo done", stdin=b"input"))
    assert code == 0
    frames = list(Parser().feed(printed))
    assert [f.type for f in frames] == [FrameType.OUTPUT, FrameType.RESULT]
    assert frames[0].payload == b"inputdone\n"


async def test_a_long_request_comes_from_a_file(provider: Provider) -> None:
    frames = exec_frames("# " + "x" * 300_000 + "\necho long")
    with pytest.raises(CallerError, match="too long for an argument"):
        once_argv(RUNNER, frames)
    (provider.folder / "request").write_bytes(frames)
    _, printed = await provider.run(once_argv(RUNNER, request_path="/tmp/request"))
    assert read_reply(printed).output == "long\n"
    fits = exec_frames("# " + "x" * (ARGUMENT_MOST_BYTES - 300) + "\necho fits")
    _, printed = await provider.run(once_argv(RUNNER, fits))
    assert read_reply(printed).output == "fits\n"


async def test_more_output_than_a_window_needs_no_credit(provider: Provider) -> None:
    frames = exec_frames("head -c 3000000 /dev/zero", output_cap_bytes=4 << 20)
    _, printed = await provider.run(once_argv(RUNNER, frames))
    assert read_reply(printed).raw == bytes(3_000_000)


async def test_a_timeout_and_an_error_are_what_they_are(provider: Provider) -> None:
    _, printed = await provider.run(once_argv(RUNNER, exec_frames("echo on; sleep 60", timeout_s=0.3)))
    r = read_reply(printed)
    assert (r.output, r.timed_out, r.limit) == ("on\n", True, "total")
    _, printed = await provider.run(once_argv(RUNNER, exec_frames("pwd", cwd="/no/such")))
    with pytest.raises(SandboxFileError, match="/no/such"):
        read_reply(printed)


async def test_a_background_job_lives_on_until_kill_all(provider: Provider) -> None:
    mark = f"9{secrets.randbelow(10**8):08}"
    ticker = "(while :; do echo tick; sleep 0.01; date +%s%N > /tmp/tick; done) &"
    script = f"sleep {mark} & {ticker} env -i setsid sleep {mark} &"
    _, printed = await provider.run(once_argv(RUNNER, exec_frames(script)))
    assert read_reply(printed).exit_code == 0
    await provider.run(once_argv(RUNNER, exec_frames("sleep 0.2")))
    first = (provider.folder / "tick").read_text()
    await provider.run(once_argv(RUNNER, exec_frames("sleep 0.2")))
    assert (provider.folder / "tick").read_text() != first  # it did not die of a pipe that nobody reads
    assert _with_mark(b"sleep\0" + mark.encode()) == 2
    _, printed = await provider.run(once_argv(RUNNER, kill_all_frames()))
    read_killed(printed)
    assert _with_mark(b"sleep\0" + mark.encode()) == 0


async def test_kill_all_reaches_jobs_whose_keeper_dies_first(provider: Provider) -> None:
    mark = f"9{secrets.randbelow(10**8):08}"
    many = f"i=0; while [ $i -lt 100 ]; do setsid sleep {mark} & i=$((i+1)); done"
    _, printed = await provider.run(once_argv(RUNNER, exec_frames(many)))
    assert read_reply(printed).exit_code == 0
    _, printed = await provider.run(once_argv(RUNNER, kill_all_frames()))
    read_killed(printed)
    assert _with_mark(b"sleep\0" + mark.encode()) == 0


async def test_what_is_no_request_ends_at_once(provider: Provider) -> None:
    cases = {
        b"": 0,
        b"short": 0,
        encode_frame(FrameType.EXEC, 0, 1, b"no fields"): 0,
        encode_frame(99, 0, 1): 0,
        b"\xff" * 50: 0,
        encode_frame(FrameType.EXEC, 3, 1, encode_fields({Tag.SCRIPT: b"touch /tmp/ran"})): 0,
    }
    for frames in cases:
        _, printed = await provider.run(once_argv(RUNNER, frames))
        with pytest.raises(ProtocolError):
            read_reply(printed)
    assert not (provider.folder / "ran").exists()
    for argv in (["--request", "%%%"], ["--request-file", "/no/such"], ["--what", "x"], ["--request"]):
        code, printed = await provider.run([RUNNER, "once", *argv])
        assert (code, printed) == (2, b"")


@pytest.mark.parametrize("printed", [b"", "", "not base64!", "QUJD", b"QUJDRA==", "é"])
def test_what_is_no_whole_reply_is_never_a_zero(printed: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        read_reply(printed)


def test_the_commands_line_is_words() -> None:
    assert (
        subprocess.list2cmdline(once_argv("/r", b"x", state_path="/s")) == "/r once --base64 --request eA== --state /s"
    )
