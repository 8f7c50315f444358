"""Commands and transfers as somebody else: their groups, their rights, their own state, and a hostile user table."""

from __future__ import annotations

import errno
import os

import pytest
from runner.live import GROUP, PASSWD, sandbox

from rayroll.errors import CallerError, SandboxFileError

pytestmark = [
    pytest.mark.usefixtures("namespaces"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else"),
]

IDS = {
    "agent": "uid=1000(agent) gid=1000(agent) groups=1000(agent),2000(extra)\n",
    "1000": "uid=1000(agent) gid=1000(agent) groups=1000(agent),2000(extra)\n",
    "agent:extra": "uid=1000(agent) gid=2000(extra) groups=2000(extra)\n",
    "agent:7": "uid=1000(agent) gid=7 groups=7\n",
    "4711": "uid=4711 gid=4711 groups=4711\n",
    "4711:0": "uid=4711 gid=0(root) groups=0(root)\n",
    "nobody": "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)\n",
    "root": "uid=0(root) gid=0(root) groups=0(root)",
}


async def test_a_user_is_a_name_a_number_or_either_with_a_group() -> None:
    async with sandbox() as box:
        for user, wanted in IDS.items():
            assert (user, (await box.sh("id", user=user, carry=False)).output[: len(wanted)]) == (user, wanted)
        for nobody in (
            "no-such",
            "agent:no-such",
            "-1",
            "4294967295",
            "99999999999",
            ":",
            "agent:",
            " 1000",
            "1000x",
            "0x3e8",
        ):
            with pytest.raises(CallerError, match="no such"):
                await box.sh("id", user=nobody)


async def test_home_and_name_are_the_users_and_root_keeps_its_own() -> None:
    async with sandbox(env={"HOME": "/root", "USER": "root"}) as box:
        assert (await box.sh('echo "$HOME $USER $LOGNAME"', user="agent")).output == "/home/agent agent agent\n"
        assert (await box.sh('echo "$HOME $USER"')).output == "/root root\n"
        await box.sh("export HOME=/elsewhere", user="agent")
        assert (await box.sh('echo "$HOME $USER"', user="agent")).output == "/elsewhere agent\n"
        clean = await box.sh('echo "$HOME $USER ${K-none}"', user="agent", clean_env=True)
        assert clean.output == "/home/agent agent none\n"


async def test_what_one_user_exports_does_not_reach_another() -> None:
    """An agent's LD_PRELOAD, PATH and BASH_ENV must not become root's."""
    async with sandbox() as box:
        evil = "export PATH=/evil:$PATH LD_PRELOAD=/evil.so BASH_ENV=/evil K=agent; cd /tmp"
        assert (await box.sh(evil, user="agent")).state_saved
        assert (await box.sh('echo "$K"; pwd', user="agent")).output.endswith("agent\n/tmp\n")
        for other in (None, "nobody", "1000"):
            r = await box.sh('echo "${K-none} ${LD_PRELOAD-none} ${BASH_ENV-none}"; pwd; echo "$PATH"', user=other)
            assert r.output == "none none none\n/\n/usr/bin:/bin\n"


async def test_the_state_of_a_user_costs_no_more_than_roots(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        await box.sh("export A=1; cd /tmp", user="agent")
        for i in range(4):
            r = await box.sh(f"echo $A {i}; pwd", user="agent")
            assert (r.output, r.state_saved) == (f"1 {i}\n/tmp\n", True)
        await box.sh("cd /; unset A", user="agent")
        assert (await box.sh("echo ${A-none}; pwd", user="agent")).output == "none\n/\n"


async def test_more_users_than_are_remembered_run_and_carry_nothing() -> None:
    async with sandbox() as box:
        for uid in range(2000, 2030):
            r = await box.sh("export A=1; id -u", user=str(uid))
            assert r.output == f"{uid}\n"
        assert not r.state_saved
        assert (await box.sh("echo ${A-none}", user="2029")).output == "none\n"
        assert (await box.sh("echo ${A-none}", user="2000")).output == "1\n"


async def test_a_user_is_looked_up_once() -> None:
    """Whoever rewrites the table later decides nothing any more."""
    async with sandbox() as box:
        assert (await box.sh("id -u", user="agent")).output == "1000\n"
        (box.etc / "passwd").write_text("agent:x:0:0::/:/bin/sh\n")
        assert (await box.sh("id -u", user="agent")).output == "1000\n"
        await box.client.write_file("/tmp/f", b"", user="agent")
        assert (box.folder / "f").stat().st_uid == 1000
        (box.etc / "passwd").unlink()
        assert (await box.sh("id -u", user="agent")).output == "1000\n"


@pytest.mark.parametrize("how", ["fifo", "endless", "folder", "absent", "garbage", "socket of a name service"])
async def test_a_hostile_user_table_stops_nothing(how: str) -> None:
    async with sandbox() as box:
        for name in ("passwd", "group"):
            path = box.etc / name
            path.unlink()
            if how == "fifo":
                os.mkfifo(path)
            elif how == "endless":
                path.symlink_to("/dev/zero")
            elif how == "folder":
                path.mkdir()
            elif how == "garbage":
                path.write_bytes(b"\0\n:::::\nagent\nagent:x:1000\n" + b"x" * 100_000 + b"\nagent:x:5000:5000::/h:\n")
            elif how != "absent":
                path.write_text(PASSWD if name == "passwd" else GROUP)
        if how.startswith("socket"):
            await box.sh("mkdir -p /var/run/nscd && mkfifo /var/run/nscd/socket; true")
        if how in ("garbage", "socket of a name service"):
            uid = "5000" if how == "garbage" else "1000"
            assert (await box.sh("id -u", user="agent", timeout_s=10)).output == f"{uid}\n"
        else:
            with pytest.raises(CallerError):
                await box.sh("id -u", user="agent", timeout_s=10)
            with pytest.raises(CallerError):
                await box.client.write_file("/tmp/f", b"", user="agent")
        uid = await box.client.exec(argv=["grep", "^Uid", "/proc/self/status"], user="1234")  # bash waits for a FIFO
        assert uid.output.split()[1] == "1234"


async def test_transfers_have_their_users_rights() -> None:
    async with sandbox() as box:
        (box.folder / "open").mkdir()
        (box.folder / "open").chmod(0o777)
        (box.folder / "closed").mkdir(mode=0o700)
        await box.client.write_file("/tmp/open/f", b"x", user="agent")
        written = (box.folder / "open/f").stat()
        assert (written.st_uid, written.st_gid) == (1000, 1000)
        for refused in (
            box.client.write_file("/tmp/closed/f", b"x", user="agent"),
            box.client.upload_tree("/tmp/closed", b"\0" * 10240, user="agent"),
        ):
            try:
                await refused
            except SandboxFileError as error:
                assert error.errno == errno.EACCES
        assert not list((box.folder / "closed").iterdir())
        (box.folder / "open/out").symlink_to("/tmp/closed")
        with pytest.raises(SandboxFileError):
            await box.client.write_file("/tmp/open/out/f", b"x", user="agent")


async def test_nobody_but_root_becomes_another() -> None:
    async with sandbox(bwrap=["--unshare-user", "--uid", "1000", "--gid", "1000"]) as box:
        assert box.client.greeting.uid == 1000
        assert (await box.sh("id -u", user="agent")).output == "1000\n"
        assert (await box.sh("id -u", user="1000")).output == "1000\n"
        for other in ("root", "0", "nobody", "1000:0"):
            with pytest.raises(CallerError, match="not root here"):
                await box.sh("id", user=other)
            with pytest.raises(CallerError, match="not root here"):
                await box.client.write_file("/tmp/f", b"", user=other)


async def test_setuid_programs_give_nothing() -> None:
    async with sandbox() as box:
        await box.client.write_file("/tmp/id", (await box.client.read_file("/usr/bin/id")), mode=0o4755)
        assert (await box.sh("/tmp/id -u; grep NoNewPrivs /proc/self/status", user="agent")).output.split() == [
            "1000",
            "NoNewPrivs:",
            "1",
        ]
