"""Sessions in real sandboxes: what an agent can do, what it cannot be excused for, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import little
import pytest
from requirements import check

from rayroll import Client, Session, SessionConfig, Task
from rayroll.errors import (
    CallerError,
    ClosedError,
    ConfigError,
    InfraFailure,
    SandboxFileError,
    SandboxKilledError,
    SandboxLostError,
    StartTimeoutError,
    SubstrateError,
    TaskError,
)
from rayroll.session import observation
from rayroll.substrates import load
from rayroll.testing.disturbed import Disturbed, DisturbedConfig
from rayroll.types import ExecResult, FileTree


@contextlib.asynccontextmanager
async def opened(
    kind: str = "local", *, disturbance: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[Client]:
    """A client, and the certainty that its run leaves nothing."""
    substrate = Disturbed(
        DisturbedConfig(inner=kind, inner_config=little.SUBSTRATE_CONFIG[kind], **(disturbance or {}))
    )
    async with Client(substrate, config=SessionConfig(**{"lease_s": 5.0, **config})) as client:
        yield client
    assert await listed(kind, client.run_id) == []


async def listed(kind: str, run_id: str) -> list[Any]:
    """Sandboxes of a run, asked of a substrate object that knows nothing yet."""
    substrate = load(kind)
    async with substrate(substrate.config_type()) as fresh:
        return await fresh.list({"run": run_id})


def disturbed(client: Client) -> Disturbed:
    assert isinstance(client.substrate, Disturbed)
    return client.substrate


@pytest.fixture(params=["local", "docker"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    check(request.param)
    async with opened(request.param) as client:
        yield client


@pytest.fixture
async def session(client: Client) -> AsyncIterator[Session]:
    async with client.open(little.task()) as session:
        yield session


@pytest.fixture(autouse=True)
def needs_local() -> None:
    check("local")


# --- what an agent does ---


async def test_directory_and_exported_variables_carry_over(session: Session) -> None:
    await session.exec("mkdir inner && cd inner && export COLOUR=blue && lost=1")
    assert (await session.exec('echo "$(pwd) $COLOUR [$lost]"')).output == "/app/inner blue []\n"


async def test_nothing_is_started_before_the_first_use(client: Client) -> None:
    session = client.open(little.task())
    assert disturbed(client).created == []
    await session.exec("true")
    assert len(disturbed(client).created) == 1


async def test_commands_may_run_at_the_same_time(session: Session) -> None:
    await session.exec("mkfifo pipe")
    reader, writer = await asyncio.gather(session.exec("cat pipe"), session.exec("echo met > pipe"))
    assert (reader.output, writer.exit_code) == ("met\n", 0)


@pytest.mark.parametrize(
    "command", ["echo \0", "echo \ud800", "#" * ((8 << 20) + 1)], ids=["nul", "surrogate", "9 MiB"]
)
async def test_what_no_shell_could_run_is_an_observation(command: str) -> None:
    async with opened() as client, client.open(little.task()) as session:
        refused = await session.exec(command)
        assert (refused.exit_code, refused.output[:17]) == (126, "rayroll: not run:")
        assert (await session.exec("echo alive")).output == "alive\n"


async def test_a_command_of_5_mib_runs(session: Session) -> None:
    result = await session.exec(f"x='{'é' * (5 << 19)}'; echo ${{#x}}; exit 3")
    assert result.exit_code == 3


async def test_a_limit_ends_the_command_keeps_its_output_and_says_so(session: Session) -> None:
    result = await session.exec("echo before; sleep 100", timeout_s=0.3)
    assert (result.timed_out, result.limit, result.output) == (True, "total", "before\n")
    assert observation(result) == "before\n[ended by its time limit]\n"
    silent = await session.exec("echo before; sleep 100", idle_timeout_s=0.3)
    assert (silent.timed_out, silent.limit) == (True, "idle")
    assert (await session.exec("echo after")).output == "after\n"


async def test_output_beyond_the_cap_is_cut_in_the_middle_and_counted() -> None:
    async with opened(output_cap_bytes=1000) as client, client.open(little.task()) as session:
        result = await session.exec("seq 100000")
        assert (result.truncated, result.output_bytes, len(result.raw)) == (True, 588895, 1000)
        assert result.output.startswith("1\n2\n") and result.output.endswith("99999\n100000\n")


async def test_the_deadline_cuts_commands_and_lets_none_start_later() -> None:
    async with opened() as client, client.open(little.task(), deadline_s=0.4) as session:
        cut = await session.exec("sleep 100", timeout_s=50)
        assert (cut.timed_out, cut.limit) == (True, "total")
        late = await session.exec("echo late")
        assert (late.timed_out, late.exit_code, late.output) == (True, 124, "rayroll: not run: out of time\n")
        assert session.remaining_s < 0


async def test_a_slow_start_does_not_shorten_the_deadline() -> None:
    slow = {"before_create_s": 0.5}
    async with opened(disturbance=slow) as client, client.open(little.task(), deadline_s=0.45) as session:
        assert (await session.exec("echo in time")).output == "in time\n"


async def test_the_task_s_own_deadline_holds_where_none_is_given() -> None:
    async with opened() as client, client.open(little.task(agent_timeout_s=12.5)) as session:
        assert session.remaining_s == 12.5


async def test_files_go_in_and_out_unchanged(session: Session) -> None:
    data = bytes(range(256)) * 1000
    await session.write("data/räw", data, mode=0o640)
    assert await session.read("/data/räw" if session.task.workdir == "/" else "data/räw") == data
    with pytest.raises(SandboxFileError) as error:
        await session.read("no such file")
    assert error.value.errno == 2
    await session.upload("/app/tree", FileTree.from_files({"a/b": "1", "c": "2"}).tar)
    assert FileTree.from_tar(await session.download("/app/tree", exclude=[b"c"])).names() == ["a", "a/b"]


async def test_equal_seeds_are_equal_environments(client: Client) -> None:
    outputs = []
    for _ in range(2):
        async with client.open(little.task(), seed=2**40 + 7) as session:
            outputs.append((await session.exec("echo $RAYROLL_SEED $PYTHONHASHSEED")).output)
    assert outputs == [f"{2**40 + 7} {(2**40 + 7) % 2**32}\n"] * 2


# --- what an agent cannot be excused for ---

HOSTILE = {
    "kills everything": "kill -9 -1",
    "kills its keeper": "kill -9 $PPID; sleep 1",
    "kills the runner": "kill -9 1; kill -TERM 1; sleep 0.1",
    "takes the runner's descriptors": "prlimit --pid 1 --nofile=0:0; prlimit --pid $PPID --nofile=0:0; sleep 0.2",
    "takes the runner's memory": "prlimit --pid 1 --as=1000:1000 --data=0:0 --stack=0:0; sleep 0.2",
    "takes the runner's processes": "prlimit --pid 1 --nproc=0:0; sleep 0.1",
    "takes the runner's time": "prlimit --pid 1 --cpu=1:1; sleep 0.1",
    "slows the runner": "renice 19 -p 1; chrt --idle -p 0 1; true",
    "removes all files": "rm -rf --no-preserve-root / 2>/dev/null; rm -rf /* /.[a-z]* 2>/dev/null",
    "removes every shell": "rm -f /bin/*sh /usr/bin/*sh /bin/busybox",
    "removes its users": "rm -f /etc/passwd /etc/group",
    "removes where it is": "cd /app && rm -rf /app",
    "takes permissions away": "chmod -R 000 /app /etc /tmp /bin 2>/dev/null",
    "fills its environment": (
        "ulimit -s unlimited; big=$(printf %100000s); for i in $(seq 60); do export V$i=$big; done"
    ),
    "fills its memory": "a=x; while :; do a=$a$a; done",
    "fills its processes": "bomb() { bomb | bomb & }; bomb",
    "fills its disk": "head -c 2G /dev/zero > big; ls -l big",
    "closes its streams": "exec 0<&- 1>&- 2>&-",
    "plants a pipe": "rm -rf /logs /tests /app/answer.txt; mkdir -p /logs/verifier; mkfifo /logs/verifier/reward.txt",
    "plants links": "rm -rf /logs /tests; ln -s /nowhere /logs; ln -s /app /tests",
    "plants files": "rm -rf /logs /tests; touch /logs /tests",
    "is no program": "\"'<<EOF ${",
    "prints rubbish": "head -c 100000 /dev/urandom",
    "sets a trap": "trap 'sleep 1' TERM EXIT HUP INT",
}


AS_ROOT = {"removes all files", "removes every shell", "removes its users", "fills its memory", "plants links"}
"""What differs where the agent is root and owns the system: also tried in a container."""


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        pytest.param(kind, command, id=f"{name}-{kind}")
        for name, command in HOSTILE.items()
        for kind in ("local", *(["docker"] if name in AS_ROOT else []))
    ],
)
async def test_nothing_an_agent_does_is_excused(kind: str, command: str) -> None:
    """No other error than its sandbox's end comes out, and the verdict is one: never None, never a retry."""
    check(kind)
    async with opened(kind, exec_timeout_s=3.0) as client, client.open(little.task(disk_mib=100)) as session:
        try:
            first = await session.exec(command)
            second = await session.exec("echo still here")
            assert 0 <= first.exit_code <= 255 and 0 <= second.exit_code <= 255
            grade = await session.grade(fingerprint=True)
        except SandboxKilledError:
            return
        assert grade.reward == 0.0
        assert grade.failure is None or grade.failure.fault == "policy"


async def test_a_working_directory_that_was_removed_is_no_fault_of_the_task() -> None:
    async with opened() as client, client.open(little.task()) as session:
        await session.exec("rm -rf /app")
        grade = await session.grade()
        assert (grade.reward, grade.failure and grade.failure.error) == (0.0, "no_verdict")


async def test_tests_that_the_agent_makes_run_for_ever_count_as_failed() -> None:
    task = little.task(grader="./program; " + little.GRADER, grade_timeout_s=1.0)
    async with opened() as client, client.open(task) as session:
        await session.exec("printf '#!/bin/sh\\nsleep 100\\n' > program; chmod +x program")
        grade = await session.grade()
        assert (grade.reward, grade.failure and grade.failure.error) == (0.0, "grade_timeout")


BAD_VERDICTS = {
    "none": "true",
    "text": "echo pass > reward.txt",
    "nan": "echo nan > reward.txt",
    "infinity": "echo -inf > reward.txt",
    "bytes": "printf '\\377' > reward.txt",
    "empty": ": > reward.txt",
    "too large": "yes 1 | head -c 5000 > reward.txt",
    "folder": "mkdir reward.txt",
    "pipe": "mkfifo reward.txt",
    "no object": "echo '[1]' > reward.json",
    "null": """echo '{"reward": null}' > reward.json""",
    "nested": """echo '{"reward": {"a": 1}}' > reward.json""",
    "deep": "printf '%0100000d' 0 | tr 0 '[' > reward.json",
    "long number": """{ printf '{"reward": 1'; printf '%04000d' 0; echo '}'; } > reward.json""",
    "empty object": "echo '{}' > reward.json",
}


@pytest.mark.parametrize("verdict", BAD_VERDICTS.values(), ids=BAD_VERDICTS.keys())
async def test_tests_without_a_readable_verdict_are_the_grader_s_fault(verdict: str) -> None:
    task = little.task(grader=f"cd /logs/verifier; {verdict}")
    async with opened() as client, client.open(task) as session:
        await session.exec("echo 42 > answer.txt")
        grade = await session.grade()
        assert grade.reward is None
        assert grade.failure is not None and grade.failure.fault == "grader"


async def test_a_verdict_that_found_no_room_is_asked_for_again() -> None:
    """What filled the disk is a neighbour's, and gone by now."""
    once = "[ ! -e full ] || { rm full; echo 'sh: write error: No space left on device' >&2; exit 1; }\n"
    async with opened() as client, client.open(little.task(grader=once + little.GRADER)) as session:
        await session.exec("echo 42 > answer.txt; touch full")
        grade = await session.grade()
        assert (grade.reward, grade.failure) == (1.0, None)


@pytest.mark.parametrize(
    ("verdict", "reward"),
    [
        ("echo 0.25 > reward.txt", 0.25),
        ("echo -1 > reward.txt", -1.0),
        ("""echo '{"reward": 0.5, "style": 1}' > reward.json""", 0.5),
        ("""echo '{"style": 1}' > reward.json""", 1.0),
    ],
)
async def test_both_of_harbor_s_forms_are_a_verdict(verdict: str, reward: float) -> None:
    task = little.task(grader=f"cd /logs/verifier; {verdict}; exit 1")
    async with opened() as client, client.open(task) as session:
        grade = await session.grade()
        assert (grade.reward, grade.failure, grade.details["exit_code"]) == (reward, None, 1)


# --- judging ---


async def test_the_known_fix_passes_and_untouched_fails(client: Client) -> None:
    rewards = []
    for solve in (False, True):
        async with client.open(little.task()) as session:
            if solve:
                assert (await session.solve()).exit_code == 0
                assert (await session.exec("ls /solution")).exit_code != 0
            rewards.append((await session.grade()).reward)
    assert rewards == [0.0, 1.0]


async def test_a_verdict_that_was_forged_before_grading_is_not_read(client: Client) -> None:
    forge = (
        "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > "
        "/logs/verifier/reward.json; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh"
    )
    async with client.open(little.task()) as session:
        await session.exec(forge)
        assert (await session.grade()).reward == 0.0


async def test_a_forger_in_the_background_is_dead_before_the_tests_enter(client: Client) -> None:
    async with client.open(little.task(grader="sleep 0.3;" + little.GRADER)) as session:
        await session.exec("(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &)")
        assert (await session.grade()).reward == 0.0


async def test_what_the_tests_leave_running_cannot_change_the_verdict(client: Client) -> None:
    late = "setsid sh -c 'sleep 0.05; while :; do echo 1 > /logs/verifier/reward.txt; done' >/dev/null 2>&1 &"
    async with client.open(little.task(grader=little.GRADER + late)) as session:
        assert (await session.grade()).reward == 0.0


PLANTED = {
    "BASH_ENV": "echo 'echo 1 > /logs/verifier/reward.txt; exit' > /app/rc; export BASH_ENV=/app/rc ENV=/app/rc",
    "PATH": "printf '#!/bin/sh\\necho 42\\n' > /app/cat; chmod +x /app/cat; export PATH=/app:$PATH",
    "LD_PRELOAD": "export LD_PRELOAD=/app/evil.so",
    "PYTHONPATH": "export PYTHONPATH=/app PYTHONSTARTUP=/app/x.py",
    "function": "cat() { echo 42; }; export -f cat 2>/dev/null; export SHELLOPTS",
    "profile": "for f in ~/.bashrc ~/.profile ~/.bash_profile; do echo 'cat() { echo 42; }' > $f; done",
    "folder": "cd /",
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
async def test_the_tests_run_in_the_environment_the_sandbox_was_born_with(planted: str) -> None:
    async with opened() as client, client.open(little.task(tests_env={"EXTRA": "1"})) as session:
        await session.exec(planted)
        grade = await session.grade()
        assert (grade.reward, grade.failure, grade.report) == (0.0, None, "")


async def test_tests_are_not_there_before_grading_and_nothing_runs_after_it(client: Client) -> None:
    async with client.open(little.task(files={"secret": "42"})) as session:
        assert (await session.exec("ls /tests")).exit_code != 0
        await session.grade()
        for use in (session.exec("cat /tests/secret"), session.write("x", b""), session.solve()):
            with pytest.raises(CallerError, match="graded"):
                await use
        assert await session.read("/tests/secret") == b"42"


async def test_a_verdict_is_final(client: Client) -> None:
    async with client.open(little.task()) as session:
        first, second = await asyncio.gather(session.grade(), session.grade())
        assert first is second


async def test_a_fresh_sandbox_gets_the_work_and_nothing_else() -> None:
    grader = "ls -A /tmp /home /root 2>/dev/null | grep planted && exit; " + little.GRADER
    for kind in ("local", "docker"):
        check(kind)
        async with opened(kind, grade_in="fresh") as client, client.open(little.task(grader=grader)) as session:
            await session.exec("touch /tmp/planted /root/planted ~/planted; echo 42 > answer.txt; mkdir deep")
            grade = await session.grade(fingerprint=True)
            assert (grade.reward, grade.failure) == (1.0, None)
            assert len(disturbed(client).created) == 2


async def test_a_fresh_sandbox_needs_a_working_directory_to_carry_over() -> None:
    async with opened(grade_in="fresh") as client, client.open(little.task(workdir="/")) as session:
        with pytest.raises(TaskError, match="no working directory"):
            await session.grade()


async def test_work_that_cannot_be_carried_over_counts_as_failed() -> None:
    async with opened(grade_in="fresh") as client, client.open(little.task()) as session:
        await session.exec("truncate -s 2G sparse")
        grade = await session.grade()
        assert (grade.reward, grade.failure and grade.failure.error) == (0.0, "no_work")


async def test_equal_work_has_equal_fingerprints_and_other_work_another(client: Client) -> None:
    prints = []
    for command in (
        "echo 42 > answer.txt",
        "echo 4 > x; mv x answer.txt; echo 42 > answer.txt",
        "echo 43 > answer.txt",
    ):
        async with client.open(little.task()) as session:
            await session.exec(command)
            prints.append((await session.grade(fingerprint=True)).details["work"])
    assert prints[0] == prints[1] != prints[2]


async def test_agent_and_grader_run_as_the_task_s_users() -> None:
    check("docker")
    grader = "id -un; " + little.GRADER
    async with opened("docker") as client:
        task = little.task(agent_user="nobody", grade_user="daemon", workdir="/tmp", grader=grader)
        async with client.open(task) as session:
            assert (await session.exec("id -un")).output == "nobody\n"
            await session.write("/tmp/answer.txt", b"42")
            assert (await session.exec("stat -c %U answer.txt")).output == "nobody\n"
            grade = await session.grade()
            assert (grade.reward, grade.report) == (1.0, "daemon\n")


async def test_a_user_that_the_sandbox_cannot_give_is_named_before_the_agent_acts(client: Client) -> None:
    async with client.open(little.task(agent_user="nobody-of-that-name")) as session:
        with pytest.raises(TaskError, match="nobody-of-that-name"):
            await session.exec("true")


async def test_the_network_differs_between_agent_and_grader_where_the_task_says_so() -> None:
    check("docker")
    task = little.task(agent_network=False, grade_network=True, grader="ls /sys/class/net; " + little.GRADER)
    async with opened("docker") as client, client.open(task) as session:
        assert "eth0" not in (await session.exec("ls /sys/class/net")).output
        assert "eth0" in (await session.grade()).report


@pytest.mark.parametrize("grade_in", ["same", "fresh"])
async def test_a_substrate_that_cannot_switch_networks_says_so_before_the_rollout(grade_in: str) -> None:
    task = little.task(grade_network=True, grader="ls /sys/class/net; " + little.GRADER)
    config = SessionConfig(grade_in=grade_in)  # type: ignore[arg-type]
    async with Client("local", substrate_config={"rootfs": "host"}, config=config) as client:
        if grade_in == "same":
            with pytest.raises(ConfigError, match="grade_in='fresh'"):
                client.open(task)
        else:
            async with client.open(task) as session:
                assert len((await session.grade()).report.split()) > 1


async def test_tests_are_not_let_loose_on_the_node_itself() -> None:
    config = {"rootfs": "host", "isolation": "none"}
    async with Client("local", substrate_config=config) as client, client.open(little.task()) as session:
        assert (await session.exec("echo plain")).output == "plain\n"
        with pytest.raises(ConfigError, match="without isolation"):
            await session.grade()


# --- the machine's faults ---


async def test_a_sandbox_that_the_machine_ends_is_an_infra_failure(client: Client) -> None:
    async with client.open(little.task()) as session:
        sandbox = await session.booted()
        running = asyncio.create_task(session.exec("echo begun; sleep 100"))
        if sandbox.ref.kind == "local":
            os.kill(int(sandbox.facts["pid"]), signal.SIGKILL)
        else:
            await asyncio.to_thread(docker_kill, sandbox.ref.id)
        with pytest.raises(SandboxLostError) as lost:
            await running
        assert lost.value.fault == "infra"
        with pytest.raises(SandboxLostError):
            await session.grade()


def docker_kill(container_id: str) -> None:
    import docker

    engine = docker.APIClient(os.environ["DOCKER_HOST"])
    try:
        engine.kill(container_id)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        ("oom", "policy"),
        ("oom: no memory", "policy"),
        ("exit 70", "policy"),
        ("exit 70: no memory", "policy"),
        ("exit 0", "infra"),
        ("exit 137: no room", "infra"),
        ("zoom", "infra"),
        ("", "infra"),
    ],
)
async def test_who_ended_a_sandbox_is_read_off_its_cause_of_death(cause: str, fault: str) -> None:
    async with opened(disturbance={"cause": cause}) as client, client.open(little.task()) as session:
        os.kill(int((await session.booted()).facts["pid"]), signal.SIGKILL)
        with pytest.raises(SandboxKilledError if fault == "policy" else SandboxLostError):
            await session.exec("true")


async def test_an_agent_cannot_end_its_sandbox_by_a_signal(client: Client) -> None:
    async with client.open(little.task()) as session:
        await session.exec("trap : TERM INT; kill -TERM 1; kill -INT 1; kill -KILL 1; kill -TERM -1; sleep 0.2")
        assert (await session.exec("echo alive")).output == "alive\n"


async def test_a_runner_that_says_nothing_is_a_failed_start_and_leaves_nothing() -> None:
    dumb = {"is_dumb": True}
    async with opened(disturbance=dumb, hello_timeout_s=0.3) as client, client.open(little.task()) as session:
        for _ in range(2):  # each time it is asked
            with pytest.raises(StartTimeoutError):
                await session.exec("true")


async def test_a_failed_create_is_told_to_all_who_wait_for_it() -> None:
    async with opened(disturbance={"creates_that_fail": 1}) as client, client.open(little.task()) as session:
        told = await asyncio.gather(*(session.exec("true") for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in told] == [SubstrateError] * 3


# --- cancelling and closing ---


async def test_a_cancelled_command_is_ended_in_the_sandbox(session: Session) -> None:
    running = asyncio.create_task(session.exec("exec sleep 1234"))
    while "sleep 1234" not in (await session.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output.replace(
        "tr '\\0' ' '", ""
    ):
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await session.exec(
        "for i in $(seq 100); do grep -lz '^1234$' /proc/[0-9]*/cmdline || exit 7; sleep 0.05; done"
    )
    assert result.exit_code == 7


@pytest.mark.parametrize("first_action", [False, True])
async def test_a_boot_cancelled_at_any_moment_leaves_nothing(first_action: bool) -> None:
    async with opened(first_action=first_action) as client:
        async with client.open(little.task()) as session:
            await session.exec("true")  # what is made once per node is there
        for number in range(40):
            session = client.open(little.task())
            session.boot()
            await asyncio.sleep(number * 0.002)
            await session.close()
            assert await client.substrate.list({"run": client.run_id}) == []


async def test_closing_behind_a_boot_tells_who_waits_and_cancels_nobody() -> None:
    async with opened(disturbance={"before_create_s": 30.0}) as client:
        session = client.open(little.task())
        waiting = asyncio.create_task(session.exec("true"))
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await session.exec("true")


async def test_one_of_eight_that_fails_while_others_are_starting_leaves_nothing() -> None:
    async with opened(disturbance={"creates_that_fail": 1, "create_s": 0.05}) as client:

        async def one() -> None:
            async with client.open(little.task()) as session:
                await session.exec("true")

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(one())
        assert await client.substrate.list({"run": client.run_id}) == []


async def test_a_second_cancel_does_not_cut_the_cleaning_up_short() -> None:
    async with opened(disturbance={"destroy_s": 0.3}) as client:

        async def one() -> None:
            async with client.open(little.task()) as session:
                await session.exec("sleep 100")

        task = asyncio.create_task(one())
        await little.until(lambda: disturbed(client).created)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.05)
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.substrate.list({"run": client.run_id}) == []


async def test_closing_twice_at_once_waits_for_the_same_end(client: Client) -> None:
    session = client.open(little.task())
    await session.exec("true")
    await asyncio.gather(session.close(), session.close())
    assert await client.substrate.list({"run": client.run_id}) == []
    await session.close()


async def test_a_client_that_closes_takes_its_sessions_along(client: Client) -> None:
    sessions = [client.open(little.task()) for _ in range(3)]
    await sessions[0].exec("true")
    sessions[1].boot()
    await asyncio.gather(client.close(), client.close())
    with pytest.raises(ClosedError):
        client.open(little.task())
    with pytest.raises(ClosedError):
        await sessions[0].exec("true")


async def test_a_sandbox_that_cannot_be_destroyed_is_told_once_and_never_hides_another_error() -> None:
    disturbance = {"destroys_that_fail": 1}
    async with opened(disturbance=disturbance) as client:
        with pytest.raises(SubstrateError, match="told to fail"):
            async with client.open(little.task()) as session:
                await session.exec("true")
        await client.substrate.destroy(disturbed(client).created[0])
    async with opened(disturbance=disturbance) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.open(little.task()) as session:
                await session.exec("true")
                raise ZeroDivisionError
        await client.substrate.destroy(disturbed(client).created[0])


async def test_a_client_that_is_not_open_opens_nothing() -> None:
    with pytest.raises(ClosedError):
        Client("local").open(little.task())


async def test_the_first_action_comes_after_the_cold_start() -> None:
    async with opened(first_action=True) as client, client.open(little.task()) as session:
        await session.booted()
        assert session.cold_start_s is not None and session.first_action_s is not None
        assert 0 < session.cold_start_s < session.first_action_s


def test_an_instance_brings_its_own_config() -> None:
    with pytest.raises(ConfigError):
        Client(Disturbed(DisturbedConfig()), substrate_config={"inner": "local"})


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        (ExecResult("out\n", 0), "out\n"),
        (ExecResult("out", 0, notice="its directory is gone"), "out\n[its directory is gone]\n"),
        (ExecResult("", 143, timed_out=True, limit="idle"), "[ended because it printed nothing for too long]\n"),
    ],
)
def test_an_observation_is_the_output_and_what_no_command_printed(result: ExecResult, seen: str) -> None:
    assert observation(result) == seen


def test_every_failure_of_a_session_has_an_owner() -> None:
    assert {e.fault for e in (SandboxKilledError, SandboxFileError)} == {"policy"}
    assert issubclass(SandboxLostError, InfraFailure)
    assert isinstance(little.task(), Task)


@pytest.mark.parametrize("kind", ["local", "docker"])
async def test_a_kept_sandbox_outlives_its_client_and_then_removes_itself(kind: str) -> None:
    check(kind)
    config = SessionConfig(lease_s=2.0)
    async with Client(kind, substrate_config=little.SUBSTRATE_CONFIG[kind], config=config) as client:
        session = client.open(little.task())
        await session.exec("sleep 1000 &")
        kept = await session.keep(8.0)
        assert kept is not None and kept == await session.keep(8.0)
        with pytest.raises(ClosedError):
            await session.exec("true")
    await little.pause(4.0)  # without a host's word for two leases
    (ref,) = await listed(kind, client.run_id)
    assert ref.is_kept and ref.id == kept.sandbox

    async def is_gone() -> bool:
        return await listed(kind, client.run_id) == []

    await little.until_true(is_gone)


async def test_a_sandbox_that_is_gone_cannot_be_kept() -> None:
    async with opened() as client:
        session = client.open(little.task())
        sandbox = await session.booted()
        os.kill(int(sandbox.facts["pid"]), signal.SIGKILL)
        assert await session.keep(60.0) is None
    async with Client("simulated") as client:
        with pytest.raises(ConfigError, match="cannot keep"):
            await client.open(little.task()).keep(60.0)


async def test_a_session_that_is_over_leaves_next_to_no_cycles() -> None:
    """A host collects seldom: what is left in cycles stays for a thousand sessions."""
    check("local")
    left = []
    async with Client("local", substrate_config=little.SUBSTRATE_CONFIG["local"]) as client:
        for _ in range(3):
            gc.collect()
            gc.disable()
            try:
                async with client.open(little.task()) as session:
                    await session.exec("true")
                    await session.grade()
                del session
                left.append(gc.collect())
            finally:
                gc.enable()
    assert min(left) < 30, "asyncio's own transports are 6 objects of it; a session has 60"
