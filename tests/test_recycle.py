"""What one agent leaves never reaches the next: its sandbox is as it was at its birth, or is not used again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

import little
import pytest
from requirements import check

from rayroll import Client, Session, SessionConfig, Task
from rayroll.types import FileTree

FILES = {
    "Dockerfile": f"FROM {little.IMAGE}\nWORKDIR /app\nCOPY . /app\n",
    "a.txt": "alpha\n",
    "sub/b.txt": "beta\n",
    "sub/deeper/c.txt": "gamma\n",
}
PORTRAIT = r"""
find / \( -path /proc -o -path /sys {skip} \) -prune -o -type d -printf '%p %y %m %U:%G %T@\n' \
    -o -printf '%p %y %m %U:%G %s %T@ %n %l\n' 2>/dev/null | sort
md5sum /app/*.txt /app/sub/*.txt /app/sub/deeper/*.txt /etc/passwd /etc/hosts 2>&1
perl -e '($t,$d)=qw(user planted); print syscall(250, 10, -4, $t, $d, 0), " $!\n"'
cat /proc/self/mountinfo /proc/sysvipc/* /proc/1/oom_score_adj
grep -v -e pending -e 'Max processes' /proc/1/limits
pwd; umask; ulimit -a; env | grep -v -e ^_= | sort; type planted 2>&1
cat /proc/[0-9]*/comm 2>/dev/null | grep -x -e sleep -e perl -e sh
"""
"""All that another agent could tell by: files with modes, owners and times, mounts, objects, limits, processes."""
NODES = "-o -path /usr -o -path /bin -o -path /sbin -o -path /lib -o -path /lib64"
"""On ``local`` the node's own system, which nobody can write."""


def task() -> Task:
    return little.task(image=None, environment=FileTree.from_files(FILES))


@contextlib.asynccontextmanager
async def recycling(kind: str) -> AsyncIterator[Client]:
    check(kind)
    config = SessionConfig(reset="recycle", lease_s=10.0, output_cap_bytes=4 << 20)
    async with Client(kind, substrate_config=little.SUBSTRATE_CONFIG[kind], config=config) as client:
        yield client


@pytest.fixture(params=["local", "docker"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with recycling(request.param) as client:
        yield client


async def portrait(session: Session) -> list[str]:
    skip = NODES if session._client.substrate.kind == "local" else ""
    result = await session.exec(PORTRAIT.replace("{skip}", skip))
    assert not result.truncated
    lines = re.sub(r"^(/dev/(?:pts|console|tty|null).*)$", "", result.output, flags=re.MULTILINE).splitlines()
    assert len(lines) > 30
    return lines


async def seen_before(client: Client) -> list[str]:
    async with client.open(task()) as session:
        return await portrait(session)


ATTACKS = {
    "plants files wherever it can": "for d in /app /tmp /var/tmp /dev /dev/shm /home /root /usr/lib /usr/local/bin "
    "/etc /opt /var/lib / /dev/mqueue; do echo planted > $d/planted; mkdir -p $d/.deep/er; echo x > $d/.deep/er/x; "
    "done",
    "changes files": "echo evil >> /app/a.txt; echo evil > /app/sub/b.txt; echo 6.6.6.6 x >> /etc/hosts; "
    ": > /etc/passwd",
    "removes files": "rm -rf /app/sub /etc/passwd /etc/group",
    "renames files": "mv /app/sub /app/bus; mv /app/a.txt /tmp/; mv /etc/passwd /etc/elsewhere",
    "removes its directory": "rm -rf /app/* /app/.[a-z]*; cd /; rmdir /app",
    "hides a change behind the old time and size": "touch -r /app/a.txt /tmp/r; printf 'omega\\n' > /app/a.txt; "
    "touch -r /tmp/r /app/a.txt; rm /tmp/r; touch -d @0 /tmp /app",
    "changes modes": "chmod 777 /app /etc; chmod 4755 /app/a.txt; chmod 1 /tmp; chmod 000 /app/sub",
    "closes folders to everybody": "mkdir -p /tmp/closed/in; echo x > /tmp/closed/in/x; "
    "chmod 000 /tmp/closed/in /tmp/closed",
    "changes owners": "chown -R 1000:1000 /app /etc/passwd; chgrp 7 /tmp",
    "puts links in the place of files": "rm -rf /app/sub; ln -s /etc /app/sub; ln -sf /etc/passwd /app/a.txt",
    "swaps kinds": "rm /app/a.txt; mkdir -p /app/a.txt/x; rm -rf /app/sub; mkfifo /app/sub",
    "makes hard links": "ln /app/a.txt /app/second; ln /app/sub/b.txt /tmp/b; echo evil >> /tmp/b",
    "sets an attribute of a file": "perl -e '($p,$n,$v)=qw(/app/a.txt user.evil 1); syscall 188, $p, $n, $v, 1, 0'",
    "makes odd names": "cd /app && mkdir -- -rf && touch -- '-rf/*' $'a\\nb' $'\\xff' && ln -s . loop",
    "makes many files": "mkdir /tmp/many && cd /tmp/many && seq 5000 | xargs touch; cd /app && seq 3000 | xargs touch",
    "installs packages": "cd /usr/lib && mkdir -p python3/dist-packages/evil && echo x > python3/dist-packages/evil/x",
    "leaves processes": "sleep 1000 & setsid sleep 1000 & (setsid -f sleep 1000); nohup sleep 1000 >/dev/null 2>&1 & "
    "unshare -Ur sleep 1000 & unshare -Urpf sleep 1000 & trap '' TERM HUP; sleep 0.2",
    "writes while it is being killed": "for i in 1 2 3 4; do setsid sh -c 'while :; do echo x >> /app/a.txt; "
    "echo y > /tmp/y$$; rm -f /app/sub/b.txt; mkdir -p /app/new; done' & done; sleep 0.2",
    "mounts in namespaces of its own": "unshare -Urm sh -c 'mount -t tmpfs x /app; echo x > /app/inner; sleep 1000' & "
    "mount -t tmpfs x /tmp; mount --bind /etc /app; sleep 0.2",
    "leaves state in its shell": "cd /tmp; export EVIL=1 BASH_ENV=/tmp/rc LD_PRELOAD= PATH=/tmp:$PATH; "
    "planted() { :; }; export -f planted; umask 777; ulimit -n 20",
    "holds a deleted file open": "exec 9> /app/gone; rm /app/gone; sleep 1000 & sleep 0.1",
    "fills memory folders": "head -c 100M /dev/zero > /dev/shm/full; sleep 0.1",
    "leaves message queues": "touch /dev/mqueue/queue",
    "leaves a key": "perl -e '($t,$d,$v)=qw(user planted secret); syscall 248, $t, $d, $v, 6, -4'",
}
ALWAYS_QUARANTINED = {
    "leaves shared memory": "perl -e 'shmget(1234, 100, 01600) or die'",
    "leaves a message queue": "perl -e 'msgget(1234, 01600) or die'",
    "leaves a semaphore": "perl -e 'semget(1234, 1, 01600) or die'",
    "sets an attribute of a folder": "perl -e '($p,$n,$v)=qw(/app user.evil 1); syscall 188, $p, $n, $v, 1, 0'",
    "makes a tree deeper than anybody walks": "cd /tmp; for i in $(seq 300); do mkdir d && cd d; done",
    "has something killed for want of memory": "perl -e '$x = \"a\" x 1000000000'; true",
}
AS_ROOT = {
    "appends to a program": "echo >> /usr/bin/yes",
    "hides a change of a program": "touch -r /usr/bin/yes /tmp/r; "
    "printf '\\1' | dd of=/usr/bin/yes conv=notrunc bs=1 seek=9; touch -r /tmp/r /usr/bin/yes",
    "installs by the package manager": "echo 'Package: evil' >> /var/lib/dpkg/status",
    "links a program elsewhere": "ln /usr/bin/yes /tmp/yes; rm /tmp/yes",
    "limits the runner": "prlimit --pid 1 --nofile=64:64",
    "slows the runner": "renice 19 -p 1",
    "has the runner killed first": "echo 1000 > /proc/1/oom_score_adj",
    "removes everything": "rm -rf --no-preserve-root / 2>/dev/null; true",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_an_agent_that(client: Client, attack: str) -> None:
    before = await seen_before(client)
    async with client.open(task()) as session:
        assert session.rung is None
        await session.exec(attack)
        assert session.rung == "recycled"
    async with client.open(task()) as session:
        assert await portrait(session) == before
        assert session.rung == "recycled", client.pool.stats.reasons
    assert client.pool.stats.recycled == 3


@pytest.mark.parametrize("attack", ALWAYS_QUARANTINED.values(), ids=ALWAYS_QUARANTINED)
async def test_what_cannot_be_undone_is_not_handed_on_when_it(client: Client, attack: str) -> None:
    await assert_quarantined(client, attack)


@pytest.mark.parametrize("attack", AS_ROOT.values(), ids=AS_ROOT)
async def test_what_root_did_is_not_handed_on_when_it(attack: str) -> None:
    async with recycling("docker") as client:
        await assert_quarantined(client, attack)


async def assert_quarantined(client: Client, attack: str) -> None:
    async with client.open(task()) as session:
        await session.exec(attack)
        used = (await session.booted()).ref
    stats = client.pool.stats
    assert (stats.quarantined, stats.recycled, stats.idle) == (1, 0, 0), stats
    async with client.open(task()) as session:
        assert (await session.booted()).ref != used
        assert session.rung == "cached"
    assert client.pool.stats.recycled == 1


async def test_what_one_agent_changed_may_be_changed_by_the_next(client: Client) -> None:
    before = await seen_before(client)
    for word in ("one", "two", "three"):
        async with client.open(task()) as session:
            await session.exec(f"echo {word} > /app/a.txt; rm -rf /app/sub; echo {word} > /app/sub; touch -d @0 /app")
    async with client.open(task()) as session:
        assert await portrait(session) == before
    assert (client.pool.stats.recycled, client.pool.stats.quarantined) == (5, 0)


async def test_tests_and_verdict_of_a_graded_session_are_gone(client: Client) -> None:
    before = await seen_before(client)
    async with client.open(task()) as session:
        await session.exec("echo 42 > answer.txt")
        assert (await session.grade()).reward == 1.0
    async with client.open(task()) as session:
        assert await portrait(session) == before
        assert (await session.grade()).reward == 0.0
        assert session.rung == "recycled"


async def test_each_session_has_its_own_seed_in_the_same_sandbox(client: Client) -> None:
    outputs = []
    for seed in (1, 2, None):
        async with client.open(task(), seed=seed) as session:
            outputs.append((await session.exec("echo [$RAYROLL_SEED $PYTHONHASHSEED]")).output)
    assert outputs == ["[1 1]\n", "[2 2]\n", "[ ]\n"]
    assert client.pool.stats.hits == 2


async def test_the_reset_is_a_phase_of_the_session_that_caused_it(client: Client) -> None:
    async with client.open(task()) as session:
        await session.exec("true")
    assert [span.phase for span in session.recorder.spans].count("reset") == 1
    assert "teardown" not in {span.phase for span in session.recorder.spans}
