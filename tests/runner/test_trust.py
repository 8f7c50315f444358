"""What an agent tries against the runner, as the same user and as root inside: it gets nothing, and hears the truth."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from runner.live import binary, children, sandbox

from rayroll.errors import SandboxLostError

pytestmark = pytest.mark.usefixtures("namespaces")

SAME_USER = ["--unshare-user", "--uid", "1000", "--gid", "1000"]
REACH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
got = []
for pid in map(int, sys.argv[1:]):
    for name in "environ maps mem auxv stack syscall io pagemap fd/0 fd/1 fd/3 fd/4 cwd root exe".split():
        path = f"/proc/{pid}/{name}"
        try:
            if name in ("cwd", "root", "exe"): os.readlink(path)
            else:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                if name != "mem": os.read(fd, 1)  # of `mem`, opening is the access
            got.append(path)
        except OSError: pass
    if libc.ptrace(0x4206, pid, 0, 0) == 0: got.append(f"seize {pid}")
    if libc.ptrace(16, pid, 0, 0) == 0: got.append(f"attach {pid}")
    handle = os.pidfd_open(pid)
    for fd in range(16):
        if libc.syscall(438, handle, fd, 0) >= 0: got.append(f"getfd {pid} {fd}")
print(got)
"""


@pytest.mark.parametrize("user", ["root", "same"])
async def test_neither_runner_nor_keeper_can_be_reached(user: str) -> None:
    async with sandbox(bwrap=SAME_USER if user == "same" else ["--cap-add", "ALL"]) as box:
        await box.client.write_file("/tmp/reach.py", REACH.encode())
        r = await box.sh("python3 /tmp/reach.py 1 $PPID")
        assert (r.output, r.exit_code) == ("[]\n", 0)
        r = await box.sh("sleep 60 & python3 /tmp/reach.py $!")
        assert "mem" in r.output  # the same attack on an ordinary process


async def test_root_inside_has_no_capability_that_reaches_us() -> None:
    dropped = {1 << n for n in (16, 17, 19, 21, 38, 39)}  # module, rawio, ptrace, admin, perfmon, bpf
    async with sandbox(bwrap=["--cap-add", "ALL"]) as box:
        lines = (await box.sh("grep ^Cap /proc/self/status")).output.splitlines()
        for line in lines:
            value = int(line.split()[1], 16)
            assert not any(value & bit for bit in dropped), line
        effective = int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)
        assert effective & (1 << 0 | 1 << 6 | 1 << 7)  # chown, setgid, setuid: what tasks need stays


async def test_only_three_streams_and_our_bookkeeping_reach_a_command() -> None:
    async with sandbox() as box:
        plain = await box.client.exec(argv=["ls", "/proc/self/fd"])
        assert plain.output.split() == ["0", "1", "2", "3"]  # 3 is the listing itself
        shell = await box.sh("ls /proc/self/fd", carry=False)
        assert shell.output.split() == ["0", "1", "2", "3"]
        carried = await box.sh("ls /proc/self/fd")
        assert set(carried.output.split()) <= {"0", "1", "2", "3", *map(str, range(209, 217))}


async def test_the_start_up_file_that_all_share_cannot_be_changed() -> None:
    async with sandbox() as box:
        r = await box.sh("(echo 'echo PLANTED' > /proc/self/fd/211) 2>/dev/null || echo sealed")
        assert "sealed" in r.output
        assert (await box.sh("echo clean")).output == "clean\n"


async def test_names_that_the_agent_planted_are_not_taken() -> None:
    async with sandbox() as box:
        for name in ("sh", "bash", "dash", "env", "runner", "id", "tar"):
            await box.client.write_file(f"/tmp/bin/{name}", b"#!/bin/sh\necho PLANTED\n", mode=0o755)
        await box.sh("export PATH=/tmp/bin:.:$PATH; cd /tmp/bin")
        assert (await box.sh("echo real; exit 3")).output == "real\n"
        await box.client.write_file("/tmp/data", b"real")
        assert await box.client.read_file("/tmp/data") == b"real"


LIMITS = {
    "descriptors": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "processes": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_limits_taken_from_the_runner_never_make_a_result_wrong(limit: str) -> None:
    """Linux lets any process of the same user do that (prlimit): commands may fail, what is told about them is so."""
    async with sandbox(bwrap=SAME_USER) as box:
        await box.sh("true")
        for pid in (box.pid, *children(box.pid)):
            resource.prlimit(pid, LIMITS[limit], (0, 0))
        for i in range(4):
            r = await box.sh(f"echo {i}; exit 9", timeout_s=5)
            assert (r.output, r.exit_code) == (f"{i}\n", 9) or r.exit_code in (126, 127, 137, 139), r
        await box.client.close(shutdown=True)
        assert await box.process.wait() == 0


async def test_without_descriptors_the_lease_still_ends_everything() -> None:
    """poll(2) would fail where more are open than the limit says; the runner must neither spin nor live on."""
    async with sandbox(bwrap=SAME_USER, lease_s=0.8) as box:
        await box.sh("sleep 600 &")
        resource.prlimit(box.pid, resource.RLIMIT_NOFILE, (0, 0))
        box.client._send = lambda *_: None  # type: ignore[assignment]
        assert await box.process.wait() == 0


@pytest.mark.skipif("RAYROLL_SANITIZED_RUNNER" in os.environ, reason="the sanitizers need memory of their own")
async def test_no_memory_is_the_end_and_not_a_half_reply() -> None:
    async with sandbox(bwrap=SAME_USER) as box:
        resource.prlimit(box.pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
        resource.prlimit(box.pid, resource.RLIMIT_DATA, (0, 0))
        with pytest.raises(SandboxLostError):
            for _ in range(100):
                assert (await box.sh("head -c 4000000 /dev/zero; exit 9", output_cap_bytes=8 << 20)).exit_code in (
                    9,
                    126,
                )


async def test_a_program_that_cannot_be_read_runs_and_carries_all_the_same(tmp_path: Path) -> None:
    """Mode 0111: not dumpable from its first instruction on, and the helper runs by a descriptor that cannot read."""
    program = tmp_path / "runner"
    shutil.copy(binary(), program)
    program.chmod(0o111)
    async with sandbox(runner=program, bwrap=SAME_USER) as box:
        assert (await box.sh("export A=1; cd /tmp")).state_saved
        assert (await box.sh('echo "$A $(pwd)"')).output == "1 /tmp\n"
        assert "denied" in (await box.sh("cat /.rayroll/runner; cat /proc/self/fd/213")).output


async def test_signals_that_others_ignore_do_not_end_the_runner() -> None:
    async with sandbox(bwrap=SAME_USER) as box:
        for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU):
            os.kill(box.pid, number)
        assert (await box.sh("echo alive; for s in HUP PIPE XFSZ XCPU; do kill -$s $PPID; done; exit 4")).exit_code == 4
        ignored = (await box.sh("grep SigIgn /proc/self/status; grep SigBlk /proc/self/status")).output.split()
        assert {int(ignored[1], 16), int(ignored[3], 16)} == {0}


async def test_what_the_node_ignored_a_command_does_not() -> None:
    """nohup and Python start children with signals ignored; a command begins as from a login."""
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGRTMIN + 3)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    try:
        async with sandbox() as box:
            assert int((await box.sh("grep SigIgn /proc/self/status")).output.split()[1], 16) == 0
            assert (await box.sh("sh -c 'kill -QUIT $$'")).exit_code == 131
            assert (await box.sh("sh -c 'kill -USR1 $$'")).exit_code == 138
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in ignored[1:]:
            signal.signal(number, signal.SIG_DFL)


async def test_commands_go_before_the_runner_when_memory_runs_out() -> None:
    async with sandbox() as box:
        r = await box.sh("sleep 0.05; cat /proc/self/oom_score_adj; cat /proc/1/oom_score_adj")
        mine, ours = map(int, r.output.split())
        assert mine == 1000 > ours
