"""Local sandboxes for real: what they can see, do and leave behind."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from requirements import needs

from rayroll.errors import (
    ClosedError,
    ConfigError,
    SandboxLostError,
    StartTimeoutError,
    SubstrateError,
    TaskError,
)
from rayroll.runner.build import runner_path
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, Sandbox, SandboxSpec
from rayroll.substrates import _leftovers as leftovers
from rayroll.substrates.local import LocalConfig, LocalSubstrate
from rayroll.types import FileTree

pytestmark = pytest.mark.local
needs_local = needs("local")

NETWORK = str(Path("/proc/self/ns/net").readlink())
RUN = f"run-{secrets.token_hex(4)}"  # somebody else may run the same tests on this machine
NAP = f"{random.randrange(10_000, 99_999)}.5"
LEASE = Lease(RUN, "host-1", 10.0)
PROJECT = FileTree.from_files(
    {
        "Dockerfile": "FROM python:3.11-slim\nRUN pip install pytest\nENV MODE=test\nWORKDIR /usr/src/app\nCOPY . .\n",
        "calc.py": "def add(a, b):\n    return a + b\n",
        "test_calc.py": "import calc\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n",
    }
)


@pytest.fixture
async def local() -> AsyncIterator[LocalSubstrate]:
    async with LocalSubstrate(LocalConfig(rootfs="host")) as substrate:
        yield substrate


@asynccontextmanager
async def running(
    local: LocalSubstrate, spec: SandboxSpec | None = None, lease: Lease = LEASE
) -> AsyncIterator[tuple[Sandbox, RunnerClient]]:
    sandbox = await local.create(spec or SandboxSpec(), lease)
    try:
        client = await RunnerClient.connect(
            sandbox.channel, lease_s=lease.duration_s, reopen=lambda: local.reopen(sandbox.ref)
        )
        try:
            yield sandbox, client
        finally:
            await client.close()
    finally:
        await local.destroy(sandbox.ref)


async def output(client: RunnerClient, script: str) -> str:
    return (await client.exec(script, timeout_s=60)).output


# what is inside


async def test_commands_are_an_unprivileged_user_in_namespaces_of_their_own(local: LocalSubstrate) -> None:
    async with running(local) as (sandbox, client):
        assert client.greeting.is_init and client.greeting.uid == 1000
        assert (await output(client, "id -un; cat /proc/1/comm; hostname")).split() == ["agent", "runner", "sandbox"]
        status = await output(client, "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status")
        assert status.split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
        assert sandbox.system == "host" and sandbox.rung == "cached" and sandbox.root == "/"
        assert set(sandbox.phases_s) == {"create", "boot"}


async def test_secrets_of_the_node_cannot_be_seen(local: LocalSubstrate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYROLL_TEST_SECRET", "hunter2")
    async with running(local) as (_, client):
        assert "No such file" in await output(client, "cat /etc/shadow")
        assert "No such file" in await output(client, f"ls {Path(__file__).parent}")
        assert "hunter2" not in await output(client, "env; cat /proc/1/environ; cat /proc/*/environ 2>&1")
        assert await output(client, "ls /home; ls -A /tmp; ls -A ~") == "agent\n"
        assert "state.json" not in await output(client, "find / -name state.json -not -path '/proc/*' 2>/dev/null")


async def test_a_variable_enters_only_when_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYROLL_TEST_OPEN", "yes")
    config = LocalConfig(rootfs="host", pass_env=("RAYROLL_TEST_OPEN", "RAYROLL_NOT_SET"))
    spec = SandboxSpec(env={"OWN": "1"})
    async with LocalSubstrate(config) as local, running(local, spec) as (_, client):
        assert await output(client, "echo $RAYROLL_TEST_OPEN $OWN ${RAYROLL_NOT_SET-unset}") == "yes 1 unset\n"


async def test_system_folders_are_read_only_and_the_rest_is_private(local: LocalSubstrate) -> None:
    async with running(local) as (_, client), running(local) as (_, other):
        assert (await client.exec("touch /usr/x")).exit_code == 1
        assert (await client.exec("mkdir -p /tests /srv/a && echo hi > /tests/a && echo hi > /tmp/a")).exit_code == 0
        assert (await other.exec("ls /tests /tmp/a")).exit_code == 2
    assert not exists("/tests/a") and not exists("/tmp/a")


async def test_there_is_no_network_but_a_loopback_of_its_own(local: LocalSubstrate) -> None:
    async with running(local) as (_, client):
        assert (await output(client, "grep -c : /proc/net/dev; grep -o 'lo:' /proc/net/dev")).split() == ["1", "lo:"]
    async with running(local, SandboxSpec(network=True)) as (_, client):
        assert await output(client, "readlink /proc/self/ns/net") == NETWORK + "\n"


async def test_more_user_namespaces_cannot_be_made(local: LocalSubstrate) -> None:
    async with running(local) as (_, client):
        assert (await client.exec("unshare -U true")).exit_code != 0


async def test_the_tasks_files_and_the_nodes_python_are_there(local: LocalSubstrate) -> None:
    spec = SandboxSpec(environment=PROJECT, host_packages=("pytest>=7",))
    async with running(local, spec) as (sandbox, client):
        result = await client.exec(
            "pwd; echo $MODE; python3 -m pytest -q -p no:cacheprovider; pytest --version", timeout_s=60
        )
        assert result.output.split()[:2] == ["/usr/src/app", "test"]
        assert "1 passed" in result.output and "pytest 8" in result.output.replace("pytest 9", "pytest 8")
        assert (await client.exec("rm -rf /usr/src/app && mkdir /usr/src/app")).exit_code == 0
        assert (await client.exec("touch /opt/rayroll/bin/python3")).exit_code == 1
        assert sandbox.system == "host" and "build" in sandbox.phases_s


async def test_a_copy_into_the_nodes_own_folders_is_refused(local: LocalSubstrate) -> None:
    environment = FileTree.from_files({"Dockerfile": "FROM x\nCOPY a /usr/bin/a\n", "a": ""})
    with pytest.raises(TaskError, match="node's own system"):
        await local.create(SandboxSpec(environment=environment, host_packages=()), LEASE)


async def test_a_task_without_host_packages_needs_its_image(local: LocalSubstrate) -> None:
    with pytest.raises(ConfigError, match="rootfs='image'"):
        await local.create(SandboxSpec(environment=PROJECT), LEASE)


# limits


async def test_the_processes_of_a_sandbox_are_counted(local: LocalSubstrate) -> None:
    async with running(local, SandboxSpec(pids=30)) as (_, client):
        result = await client.exec("for i in $(seq 60); do sleep 5 & done; echo done", timeout_s=30)
        assert "Resource temporarily unavailable" in result.output
    async with running(local) as (_, neighbour):
        assert await output(neighbour, "echo alive") == "alive\n"


async def test_a_file_cannot_grow_beyond_the_disk_limit(local: LocalSubstrate) -> None:
    async with running(local, SandboxSpec(disk_mib=1)) as (_, client):
        result = await client.exec("head -c 3000000 /dev/zero > big; echo $?; wc -c < big")
        assert result.output.split()[-2:] == ["153", str(1 << 20)]


async def test_memory_beyond_the_limit_is_taken_from_the_command(local: LocalSubstrate) -> None:
    async with running(local, SandboxSpec(memory_mib=64)) as (_, client):
        result = await client.exec("head -c 200M /dev/zero | tail -c 150M | wc -c", timeout_s=60)
        assert str(150 << 20) not in result.output
        assert await output(client, "echo alive") == "alive\n"


# streams, leases and the end


async def test_a_closed_channel_can_be_opened_again(local: LocalSubstrate) -> None:
    async with running(local) as (sandbox, client):
        await client.exec("cd /tmp; export A=1")
        sandbox.channel.close()
        assert await output(client, "pwd; echo $A") == "/tmp\n1\n"
        assert client.reattached == 1


async def test_a_lease_that_nobody_renews_frees_everything(local: LocalSubstrate) -> None:
    sandbox = await local.create(SandboxSpec(), Lease(RUN, "host-1", 0.3))
    receiver = Ended()
    sandbox.channel.start(receiver)
    await receiver.ended.wait()
    await until(lambda: is_gone(local, sandbox))
    assert await local.cause_of_death(sandbox.ref) == "exit 0"
    with pytest.raises(SandboxLostError):
        await local.reopen(sandbox.ref)


async def test_a_killed_sandbox_is_lost_and_says_why(local: LocalSubstrate) -> None:
    async with running(local) as (sandbox, client):
        command = asyncio.ensure_future(client.exec("sleep 60"))
        await client.exec("true")
        os.kill(int(sandbox.facts["pid"]), signal.SIGKILL)
        with pytest.raises(SandboxLostError):
            await command
        assert await local.cause_of_death(sandbox.ref) == "exit 137"
        await until(lambda: is_gone(local, sandbox))


async def test_destroying_ends_every_process_and_may_be_repeated(local: LocalSubstrate) -> None:
    async with running(local) as (sandbox, client):
        await client.exec(f"setsid sleep {NAP} & (trap '' TERM; sleep {NAP}) & env -i sleep {NAP} &")
        folder = leftovers.base_dir() / sandbox.ref.id
        assert exists(str(folder))
    await local.destroy(sandbox.ref)
    assert not exists(str(folder))
    assert NAP not in processes()
    assert await local.list({"run": RUN}) == []


async def test_another_process_can_list_and_destroy_it(local: LocalSubstrate) -> None:
    async with running(local) as (sandbox, client):
        async with LocalSubstrate(LocalConfig()) as other:
            (found,) = await other.list({"run": RUN, "owner": "host-1"})
            assert found == sandbox.ref and found.state == "running" and found.lease_s == 10.0
            await other.destroy(found)
        with pytest.raises(SandboxLostError):
            await client.exec("true")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rayroll-test-") as name:  # pytest's own is closed to other users
        Path(name).chmod(0o711)
        yield Path(name)


async def test_a_create_cancelled_at_any_moment_leaves_no_folder_and_no_process(folder: Path) -> None:
    async with LocalSubstrate(LocalConfig(rootfs="host", folder=folder)) as local:
        for _ in range(25):
            creating = asyncio.ensure_future(local.create(SandboxSpec(), Lease(RUN + "-c", "host-1", 60.0)))
            await asyncio.sleep(random.uniform(0.0, 0.04))  # any moment will do; this one is drawn
            creating.cancel()
            try:
                sandbox = await creating
            except asyncio.CancelledError:
                continue
            await local.destroy(sandbox.ref)
        assert await local.list({}) == []
    assert str(folder) not in processes()
    assert names(folder) == [".bin"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a plain user's sandboxes run as the user itself")
async def test_a_folder_that_sandboxes_cannot_reach_is_refused(folder: Path) -> None:
    config = LocalConfig(folder=folder / "inner")
    await asyncio.to_thread(folder.chmod, 0o700)
    with pytest.raises(ConfigError, match="cannot be reached"):
        await LocalSubstrate(config).open()


async def test_a_create_that_takes_too_long_is_undone() -> None:
    async with LocalSubstrate(LocalConfig(create_timeout_s=0.001)) as local:
        with pytest.raises(StartTimeoutError):
            await local.create(SandboxSpec(), Lease(RUN + "-t", "host-1", 5.0))
        assert await local.list({"run": RUN + "-t"}) == []


async def test_what_bubblewrap_says_is_in_the_error(local: LocalSubstrate) -> None:
    sandbox = await local.create(SandboxSpec(workdir="/proc/none"), Lease(RUN + "-b", "host-1", 5.0))
    receiver = Ended()
    sandbox.channel.start(receiver)
    await receiver.ended.wait()
    assert "/proc/none" in await local.cause_of_death(sandbox.ref)


async def test_thirty_at_once_start_and_run(local: LocalSubstrate) -> None:
    async def one(number: int) -> str:
        async with running(local) as (_, client):
            return await output(client, f"echo {number}")

    assert await asyncio.gather(*(one(n) for n in range(30))) == [f"{n}\n" for n in range(30)]


async def test_it_must_be_open() -> None:
    with pytest.raises(ClosedError):
        await LocalSubstrate(LocalConfig()).create(SandboxSpec(), LEASE)


# without isolation


async def test_a_plain_process_must_be_asked_for() -> None:
    async with LocalSubstrate(LocalConfig(isolation="none")) as local:
        spec = SandboxSpec(environment=PROJECT, host_packages=("pytest",))
        async with running(local, spec) as (sandbox, client):
            assert not client.greeting.is_init
            assert sandbox.root.startswith(str(leftovers.base_dir()))
            assert await output(client, "pwd; ls") == f"{sandbox.root}/usr/src/app\nDockerfile\ncalc.py\ntest_calc.py\n"
            await client.exec(f"setsid sleep {NAP} &")
    assert NAP not in processes()


async def test_without_bubblewrap_only_trusted_commands_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    async with LocalSubstrate(LocalConfig(rootfs="host")) as local:
        assert "bubblewrap is not installed" in (await local.probe()).reason
        with pytest.raises(SubstrateError, match="isolation='none'"):
            await local.create(SandboxSpec(), LEASE)


# as somebody else


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a plain user")
def test_a_plain_user_can_do_the_same() -> None:
    python = plain_python()
    folder = Path(f"/tmp/rayroll-test-plain-{os.getpid()}")
    folder.mkdir(mode=0o755)
    try:
        runner = folder / "cache" / "runner"
        runner.mkdir(parents=True)
        (runner / runner_path().name).write_bytes(runner_path().read_bytes())
        (runner / runner_path().name).chmod(0o755)
        subprocess.run(["chown", "-R", "60001:60001", folder], check=True)
        done = subprocess.run(
            ["setpriv", "--reuid=60001", "--regid=60001", "--clear-groups", "--", python, "-c", PLAIN],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "RAYROLL_CACHE_DIR": str(folder / "cache"),
                "PYTHONPATH": os.pathsep.join(path for path in (str(Path.cwd()), *sys.path) if path),
            },
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout.splitlines()
        assert said[0].split() == ["agent", "rlimits"], done.stderr
        assert said[1].startswith("['77', '65536', ") and str(80 << 20) not in said[1]
        assert said[2] == "0"
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


PLAIN = """
import asyncio
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.local import LocalConfig, LocalSubstrate

async def main():
    async with LocalSubstrate(LocalConfig(rootfs="host")) as local:
        sandbox = await local.create(SandboxSpec(pids=77, memory_mib=64), Lease("r", "o", 5.0))
        client = await RunnerClient.connect(sandbox.channel)
        print((await client.exec("id -un")).output.strip(), (await local.probe()).facts["limits"])
        print((await client.exec("ulimit -u; ulimit -d; head -c 99M /dev/zero | tail -c 80M | wc -c")).output.split())
        await client.close()
        await local.destroy(sandbox.ref)
        print(len(await local.list({})))

asyncio.run(main())
"""


def plain_python() -> str:
    """A Python of this version that everybody may execute, or a skip."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        check = "import os, sys; sys.exit(not os.access(sys.executable, os.X_OK))"
        command = ["setpriv", "--reuid=60001", "--regid=60001", "--clear-groups", "--", python, "-c", check]
        if Path(python).exists() and subprocess.run(command, capture_output=True, cwd="/", check=False).returncode == 0:
            return python
    pytest.skip(f"no {version} that another user could execute")


# helpers


def processes() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def exists(path: str) -> bool:
    return Path(path).exists()


class Ended:
    """A receiver that waits for the end of its stream."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()


async def is_gone(local: LocalSubstrate, sandbox: Sandbox) -> bool:
    return sandbox.ref not in await local.list({})


async def until(condition: Callable[[], Awaitable[bool]], patience_s: float = 20.0) -> None:
    async with asyncio.timeout(patience_s):
        while not await condition():  # noqa: ASYNC110 - what it waits for is another process's doing
            await asyncio.sleep(0.02)
