"""Sabotage: a command may ruin its own sandbox, and is told so, or the sandbox is lost: never a hang, never a lie."""

from __future__ import annotations

import asyncio

from rayroll.errors import CallerError, SandboxFileError, SandboxLostError, TaskError
from rayroll.testing.conformance._lab import OTHER_USER, Lab
from rayroll.testing.conformance._registry import Capability, NotApplicable, check, expect, same
from rayroll.testing.conformance.files import refused, small_disk
from rayroll.testing.conformance.forgery import truthful
from rayroll.testing.conformance.kill import PATIENCE_S, new_mark

NEEDS = (Capability.OWN_PIDS,)


@check(needs=NEEDS)
async def kill_minus_one_does_not_end_the_sandbox(lab: Lab) -> None:
    """``kill -9 -1`` takes everything but PID 1, and the command's own keeper with it: code 137, a notice, and on."""
    for signal in ("9", "TERM", "INT", "HUP"):
        r = await lab.box.sh(f"echo before; trap : TERM INT HUP; kill -{signal} -1; echo after")
        expect(r.output.startswith("before\n"), "what it printed is kept", result=r)
        await truthful(lab.box, f"kill -{signal} -1")
    r = await lab.box.sh("kill -9 -1; sleep 1")
    same(r.exit_code, 137, "the exit code")
    expect(r.notice, "the agent is told what it did", result=r)


@check(needs=NEEDS)
async def pid_1_cannot_be_killed_or_stopped_from_inside(lab: Lab) -> None:
    """KILL, STOP, TERM, SEGV and all the rest to PID 1, one after the other."""
    r = await lab.box.sh(
        "for s in KILL STOP TSTP SEGV ABRT BUS ILL FPE QUIT HUP USR1 USR2 ALRM PIPE XCPU TRAP SYS; do "
        "kill -$s 1 2>/dev/null; done; echo real; exit 3"
    )
    same((r.output, r.exit_code), ("real\n", 3), "the result")
    await truthful(lab.box, "signals to PID 1")


@check(needs=NEEDS)
async def term_to_pid_1_is_the_end_or_nothing(lab: Lab) -> None:
    """An init that handles TERM may take it as its order to end; then the sandbox is lost, and says so."""
    async with lab.fresh() as live:
        try:
            r = await live.sh("kill -TERM 1; kill -INT 1; sleep 0.3; echo real; exit 3")
            same((r.output, r.exit_code), ("real\n", 3), "the result")
            await truthful(live, "TERM to PID 1")
        except SandboxLostError:
            expect(live.client.is_lost, "it is lost")


@check(needs=NEEDS)
async def a_command_that_kills_its_keeper_is_no_success(lab: Lab) -> None:
    """``kill -9 $PPID``: the code is that of a kill, the agent is told, nothing survives, the next command runs."""
    mark = new_mark()
    r = await lab.box.sh(f"sleep {mark} & echo before; kill -9 $PPID; sleep 1; echo after")
    expect(r.output.startswith("before\n") and "after" not in r.output, "it ends there", result=r)
    same(r.exit_code, 137, "the exit code")
    expect(r.notice, "the agent is told what it did", result=r)
    same(await lab.box.running(mark), 0, "the number of survivors")
    await truthful(lab.box, "killing the keeper")


@check(needs=NEEDS)
async def a_stopped_keeper_does_not_outlast_the_timeout(lab: Lab) -> None:
    """``kill -STOP $PPID``, also of a process the keeper waits for: back within timeout and patience, as timed out."""
    for script in ("kill -STOP $PPID; echo x; exit 3", "kill -STOP $PPID; sleep 60", "kill -STOP $$"):
        mark = new_mark()
        async with asyncio.timeout(0.5 + 0.5 + PATIENCE_S):
            r = await lab.box.sh(f"sleep {mark} & {script}", timeout_s=0.5)
        expect(r.exit_code != 0, "it is no success", script=script, result=r)
        jobs = (
            0 if r.timed_out else 1
        )  # a keeper that is woken at once lets the command end by itself, and its job live
        same(await lab.box.running(mark), jobs, f"the number of survivors of {script!r}")
        await lab.box.client.kill_all()
        await truthful(lab.box, script)


@check(needs=NEEDS)
async def killing_anothers_keeper_is_seen_by_the_other(lab: Lab) -> None:
    """Two commands at once, one kills whatever looks after the other: that one ends with a kill's code, never 0."""
    victim = asyncio.create_task(lab.box.sh("echo begun; sleep 1; echo done"))
    await lab.box.sh("sleep 0.2", carry=False)
    killer = await lab.box.sh(
        "for p in $(grep -ls keeper /proc/[0-9]*/comm | cut -d/ -f3); do [ $p = $PPID ] || kill -9 $p; done; "
        "sleep 0.2; exit 3",
        carry=False,
    )
    r = await victim
    expect((r.exit_code, r.output) in ((137, "begun\n"), (0, "begun\ndone\n")), "it is killed, or unharmed", result=r)
    expect(killer.exit_code in (3, 137), "the killer's own result is real", result=killer)
    await truthful(lab.box, "killing keepers")


@check()
async def a_transfer_whose_worker_is_killed_fails(lab: Lab) -> None:
    """What moves files inside can be killed by the agent: an error for that file, nothing half-written in its place."""
    path = lab.box.path("big")
    hunter = asyncio.create_task(
        lab.box.sh(
            "i=0; while [ $i -lt 400 ]; do i=$((i+1)); "
            "for p in $(grep -ls rayroll-files /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3); do "
            "kill -9 $p && echo hit && exit; done; done",
            carry=False,
        )
    )
    outcome: object = None
    while not hunter.done() and outcome is None:
        try:
            await lab.box.client.write_file(path, bytes(8 << 20))
        except SandboxFileError as error:
            outcome = error
    if "hit" not in (await hunter).output:
        raise NotApplicable("no process of that name was there to be killed")
    left = await lab.box.client.list_tree(lab.box.folder)
    sizes = {e.path: e.size_bytes for e in left}
    expect(sizes.get(b"big", 8 << 20) == 8 << 20, "nothing half-written is under its name", sizes=sizes)
    await lab.box.client.write_file(path, b"again")
    same(await lab.box.client.read_file(path), b"again", "the file written afterwards")


@check()
async def deleting_what_is_ours_changes_nothing(lab: Lab) -> None:
    """``rm -rf`` of the runner's folder and file, as far as the system lets it: state, files and commands go on."""
    async with lab.fresh() as live:
        await live.sh("rm -rf /.rayroll/* /.rayroll 2>/dev/null; true")
        await live.sh(f"cd {live.folder}; export K=v")
        same((await live.sh('echo "$K $(pwd)"')).output, f"v {live.folder}\n", "what the next command prints")
        await live.client.write_file(live.path("f"), b"x")
        same(await live.client.read_file(live.path("f")), b"x", "a file")
        await truthful(live, "deleting the runner")


@check(needs=NEEDS)
async def deleting_everything_is_not_the_end_of_truth(lab: Lab) -> None:
    """``rm -rf /*`` as far as the system lets it: commands still run, or fail as what they are."""
    async with lab.fresh() as live:
        await live.sh(
            "rm -rf /tmp /home /var /etc /opt /srv /root /bin /sbin /lib* /usr 2>/dev/null; exit 0", timeout_s=40
        )
        try:
            r = await live.client.exec("echo real; exit 3", timeout_s=10)
            expect(
                (r.output, r.exit_code) == ("real\n", 3) or r.exit_code in (126, 127), "it runs, or cannot", result=r
            )
        except (TaskError, CallerError) as error:
            expect(str(error), "without a shell it says so", error=error)
        await live.client.write_file("/tmp/new/f", b"x")
        same(await live.client.read_file("/tmp/new/f"), b"x", "a file in a folder that was deleted")


@check()
async def a_missing_tmp_is_no_obstacle(lab: Lab) -> None:
    """Everything works without /tmp: commands of any length, state, files."""
    async with lab.fresh() as live:
        gone = await live.sh("cd /; rm -rf /tmp 2>/dev/null; [ ! -d /tmp ]", carry=False)
        long = "# " + "x" * 200_000 + "\necho long; exit 3"
        r = await live.sh(long)
        same((r.output, r.exit_code), ("long\n", 3), "the result of a long command", tmp_gone=gone.exit_code == 0)
        await live.sh("export K=v")
        same((await live.sh('echo "$K"')).output, "v\n", "what the next command prints")


@check()
async def a_full_disk_is_no_obstacle_to_commands(lab: Lab) -> None:
    """On a file system that has no byte left, commands, their state and their output go on."""
    folder, _ = await small_disk(lab)
    try:
        await lab.box.sh(f"cat /dev/zero > {folder}/fill 2>/dev/null; true", timeout_s=40)
        r = await lab.box.sh(f"cd {folder}; export K=v; echo x > {folder}/more 2>/dev/null || echo full; exit 3")
        same((r.output, r.exit_code), ("full\n", 3), "the result")
        same((await lab.box.sh('echo "$K $(pwd)"')).output, f"v {folder}\n", "what the next command prints")
        await refused(lab.box.client.write_file(f"{folder}/new", b"x" * 100_000))
    finally:
        await lab.box.client.remove(f"{folder}/fill")
        await lab.box.client.remove(f"{folder}/more")


@check(needs=NEEDS)
async def running_out_of_descriptors_costs_only_the_command(lab: Lab) -> None:
    """A shell that opens all it may, and background jobs that hold pipes by the hundred."""
    r = await lab.box.sh(
        'i=3; while [ $i -lt 200 ]; do eval "exec $i</dev/null" 2>/dev/null || break; i=$((i+1)); done; '
        "echo real; exit 3"
    )
    expect(r.output.endswith("real\n") or r.exit_code != 0, "it ends as what it is", result=r)
    await asyncio.gather(*(lab.box.sh("sleep 60 & echo", carry=False) for _ in range(60)))
    await truthful(lab.box, "sixty background jobs")


@check(needs=NEEDS)
async def hundreds_of_results_do_not_fill_the_runner(lab: Lab) -> None:
    """Four hundred commands, each with 16 kB of output: the runner's own memory stays below 24 MiB."""
    for _ in range(8):
        await asyncio.gather(*(lab.box.sh("head -c 16000 /dev/zero", carry=False) for _ in range(50)))
    status = (await lab.box.client.read_file(f"/proc/{lab.box.client.greeting.pid}/status")).decode()
    rss_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    expect(rss_kib < 24 << 10, "the runner stays small", rss_kib=rss_kib)


@check(needs=(*NEEDS, Capability.USERS))
async def root_inside_cannot_undo_the_runner_as_another_user_either(lab: Lab) -> None:
    """User 1000 of an image that runs as root has no way to the runner's files, and its kills do not reach root."""
    r = await lab.box.sh(
        "rm -rf /.rayroll 2>/dev/null; kill -9 1 $PPID 2>/dev/null; kill -9 -1 2>/dev/null; echo real; exit 3",
        user=OTHER_USER,
        carry=False,
    )
    expect(r.exit_code in (3, 137), "it ends as what it is", result=r)
    await truthful(lab.box, "user 1000")
