"""Ending commands: timeouts that reach every child, background jobs that hold nothing up, orphans, cancellation."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from rayroll.errors import RayrollError
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Capability, check, expect, same

PATIENCE_S = 15.0
"""How long after its timeout a command may take to come back."""


def new_mark() -> str:
    """A number of seconds that no other process sleeps for: its name in every list of processes."""
    return f"9{secrets.randbelow(10**8):08}"


@check(source="B01")
async def a_timeout_ends_the_command_with_its_children_and_keeps_its_output(lab: Lab) -> None:
    """Three times: it comes back in time, says what limit it was, and keeps what was printed before; none survive."""
    mark = new_mark()
    for _ in range(3):
        async with asyncio.timeout(1 + PATIENCE_S):
            r = await lab.box.sh(f"echo before; sleep {mark} & sleep {mark}", timeout_s=1)
        same((r.timed_out, r.limit, r.output), (True, "total", "before\n"), "the result")
    same(await lab.box.running(mark), 0, "the number of survivors")
    same((await lab.box.sh("echo alive")).output, "alive\n", "what the next command prints")


@check(source="B01", tools=("python3",))
async def a_timeout_reaches_what_python_started(lab: Lab) -> None:
    """A Popen child of a Python child of the shell, as test runners start them."""
    mark = new_mark()
    code = f"import subprocess, time; subprocess.Popen(['sleep', '{mark}']); time.sleep({mark})"
    r = await lab.box.sh(f'echo before; python3 -c "{code}"', timeout_s=1)
    same((r.timed_out, r.output), (True, "before\n"), "the result")
    same(await lab.box.running(mark), 0, "the number of survivors")


@check(source="B01", needs=(Capability.INTRUDER,))
async def a_timeout_reaches_what_hides(lab: Lab) -> None:
    """A daemon without session, environment and open files, deaf to every polite signal; orphans of orphans."""
    mark = new_mark()
    intruder = await lab.intruder(lab.box)
    script = (
        f"{intruder} linger {mark}; (trap '' TERM HUP INT; env -i sleep {mark} &) ; ((sleep {mark} &) &); "
        f"(trap '' HUP; exec sleep {mark}) >/dev/null 2>&1 & echo started; sleep {mark}"
    )
    command = asyncio.create_task(lab.box.sh(script, timeout_s=2, grace_s=0.1))
    while await lab.box.running(mark) < 6:  # the five, and the shell
        expect(not command.done(), "all of them run until the timeout")
    r = await command
    same((r.timed_out, r.output), (True, "started\n"), "the result")
    same(await lab.box.running(mark), 0, "the number of survivors")


@check(source="B01", needs=(Capability.INTRUDER,))
async def a_timeout_wins_against_a_storm_of_forks(lab: Lab) -> None:
    """Forty lines of processes that replace themselves every millisecond, each successor in a new session."""
    mark = new_mark()
    async with lab.fresh(pids=8192) as live:
        script = f"{await lab.intruder(live)} storm {mark} {live.path('trace')}; sleep {mark}"
        r = await live.sh(script, timeout_s=1, grace_s=0.1)
        expect(r.timed_out, "it is ended by its timeout", result=r)
        same(await live.running(mark), 0, "the number of survivors")
        trace = await live.client.read_file(live.path("trace"))
        expect(len(trace) > 80, "it raged until then", processes=len(trace))
        same(await live.client.read_file(live.path("trace")), trace, "the trace a moment later")


@check(source="B01")
async def a_command_that_ignores_term_is_killed_after_its_grace(lab: Lab) -> None:
    """TERM first, so that it can say goodbye; then KILL, which it cannot ignore."""
    mark = new_mark()
    polite = await lab.box.sh(
        "trap 'echo bye; exit 4' TERM; echo hi; while :; do sleep 0.02; done", timeout_s=0.8, grace_s=5
    )
    said = [line for line in polite.output.splitlines() if line != "Terminated"]  # the shell, about its child
    same((polite.timed_out, said), (True, ["hi", "bye"]), "what a command prints that handles TERM")
    deaf = await lab.box.sh(f"trap '' TERM INT; sleep {mark}; echo survived", timeout_s=0.8, grace_s=0.2)
    same((deaf.timed_out, deaf.output, deaf.exit_code), (True, "", 137), "the result of one that ignores it")
    same(await lab.box.running(mark), 0, "the number of survivors")


@check(source="B01")
async def a_timed_out_command_keeps_its_last_words(lab: Lab) -> None:
    """What it printed just before the limit is in the result, with and without a line end."""
    r = await lab.box.sh("i=0; while :; do printf $i,; i=$((i+1)); sleep 0.01; done", timeout_s=2)
    numbers = r.output.rstrip(",").split(",")
    same(numbers, [str(i) for i in range(len(numbers))], "the numbers counted")
    expect(len(numbers) > 5, "most of them arrived", count=len(numbers))


@check(source="B01")
async def silence_can_be_limited_apart(lab: Lab) -> None:
    """``idle_timeout_s`` ends a command that prints nothing for so long, and spares one that goes on printing."""
    quiet = await lab.box.sh("echo hi; sleep 30", idle_timeout_s=1)
    same((quiet.timed_out, quiet.limit, quiet.output), (True, "idle", "hi\n"), "the result of silence")
    busy = await lab.box.sh("for i in 1 2 3 4 5 6; do echo $i; sleep 0.25; done", idle_timeout_s=1)
    same((busy.timed_out, busy.exit_code), (False, 0), "the result of one that goes on printing")


@check(source="B01")
async def a_timeout_in_one_command_leaves_the_others_alone(lab: Lab) -> None:
    """Its neighbours, and background jobs that earlier commands left, live on."""
    mark = new_mark()
    await lab.box.sh(f"sleep {mark} >/dev/null 2>&1 &")
    neighbour = asyncio.create_task(lab.box.sh("sleep 0.8; echo fine"))
    r = await lab.box.sh("sleep 30", timeout_s=0.2)
    expect(r.timed_out, "it is ended by its timeout", result=r)
    same((await neighbour).output, "fine\n", "what the neighbour prints")
    same(await lab.box.running(mark), 1, "the number of background jobs")


@check(source="B02")
async def a_background_job_does_not_hold_its_command(lab: Lab) -> None:
    """The job has the command's output open and lives on; the command is over with code 0."""
    mark = new_mark()
    r = await lab.box.sh(f"sleep {mark} & echo started")
    same((r.output, r.exit_code, r.timed_out), ("started\n", 0, False), "the result")
    same(await lab.box.running(mark), 1, "the number of jobs that live on")
    await lab.box.client.kill_all()
    same(await lab.box.running(mark), 0, "the number of jobs after kill_all")


@check(source="B02")
async def a_background_job_may_go_on_printing(lab: Lab) -> None:
    """It neither dies of a closed pipe nor shows up in the output of a later command, and its file grows."""
    log = lab.box.path("log")
    r = await lab.box.sh(
        f"(i=0; while :; do i=$((i+1)); echo tick $i; echo tick $i >&2; echo $i > {log}.n; mv {log}.n {log}; "
        "sleep 0.01; done) & echo started"
    )
    expect("started" in r.output.splitlines(), "what the command itself prints is there", output=r.output)
    later = await lab.box.sh(f"while [ ! -s {log} ] || [ $(cat {log}) -lt 20 ]; do sleep 0.02; done; echo seen")
    same(later.output, "seen\n", "what the next command prints")


@check(source="B02")
async def a_server_in_the_background_outlives_its_command(lab: Lab) -> None:
    """A job that left its session can be talked to by later commands."""
    pipe = lab.box.path("pipe")
    await lab.box.sh(
        f"mkfifo {pipe}; "
        f"setsid sh -c 'while read line; do echo got $line > {pipe}.out; done < {pipe}' >/dev/null 2>&1 &"
    )
    r = await lab.box.sh(f"echo hello > {pipe}; while [ ! -s {pipe}.out ]; do sleep 0.02; done; cat {pipe}.out")
    same(r.output, "got hello\n", "what the server answers")


@check()
async def a_cancelled_call_ends_its_command(lab: Lab) -> None:
    """The caller that gives up leaves no command running behind."""
    mark = new_mark()
    call = asyncio.create_task(lab.box.sh(f"sleep {mark}"))
    while not await lab.box.running(mark):
        expect(not call.done(), "the command goes on until it is cancelled")
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    async with asyncio.timeout(PATIENCE_S):
        while await lab.box.running(mark):
            pass


@check()
async def kill_all_leaves_no_process_and_says_so_to_those_who_wait(lab: Lab) -> None:
    """Commands under way end with the code of a kill, never 0; jobs are gone; the sandbox goes on."""
    mark = new_mark()
    await lab.box.sh(f"sleep {mark} & setsid sleep {mark} & ((sleep {mark} >/dev/null 2>&1 &) &)")
    waiting = [asyncio.create_task(lab.box.sh(f"echo hi; sleep {mark}; echo no")) for _ in range(3)]
    while await lab.box.running(mark) < 3 + 3 * 2:  # the jobs, and a shell and a sleep for each command
        expect(not any(w.done() for w in waiting), "the commands go on until they are killed")
    same(await lab.box.client.kill_all(), 3, "the number of requests under way")
    same([(r.output, r.exit_code) for r in await asyncio.gather(*waiting)], [("hi\n", 137)] * 3, "the results")
    same(await lab.box.running(mark), 0, "the number of survivors")
    same((await lab.box.sh("echo next")).output, "next\n", "what the next command prints")


@check(source="B14", limit_s=180)  # 1,800 processes, which a CPU in software takes a minute for on a busy machine
async def orphans_are_reaped(lab: Lab) -> None:
    """Three times 600 processes whose parents are gone: no zombie is left to fill the process limit."""
    for _ in range(3):
        r = await lab.box.sh("i=0; while [ $i -lt 600 ]; do (sleep 0 &); i=$((i+1)); done", timeout_s=50)
        expect(not r.timed_out, "it ends", result=r)
    r = await lab.box.sh(
        "n=1; i=0; while [ $n -ne 0 ] && [ $i -lt 40 ]; do i=$((i+1)); sleep 0.05; "
        "n=$(grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l); done; echo $n"
    )
    if await lab.lacks(Capability.OWN_PIDS):
        return  # the node's own zombies are in that count
    same(int(r.output), 0, "the number of zombies two seconds later")


@check(source="B14", needs=(Capability.PID_LIMIT,), is_slow=True)
async def a_fork_bomb_stays_in_its_sandbox(lab: Lab) -> None:
    """It is ended by its timeout, or costs its own sandbox; the neighbour answers meanwhile and afterwards."""
    async with lab.fresh(pids=128) as bombed:
        bomb = asyncio.create_task(bombed.sh("bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=1.5))
        while not bomb.done():
            same((await lab.box.sh("echo alive", carry=False)).output, "alive\n", "what the neighbour prints meanwhile")
        try:
            r = await bomb
            expect(r.timed_out or r.exit_code != 0, "the bomb does not simply succeed", result=r)
            await bombed.client.kill_all()
            same((await bombed.sh("echo next")).output, "next\n", "what the same sandbox prints after it")
        except RayrollError as error:
            expect(bombed.client.is_lost, "if the sandbox is lost, it says so", error=error)
    same((await lab.box.sh("echo alive")).output, "alive\n", "what the neighbour prints afterwards")


@check(source="B14", needs=(Capability.PID_LIMIT,))
async def a_full_process_table_is_the_commands_failure(lab: Lab) -> None:
    """When nothing can be forked any more, commands fail with a code; killing still works, and then all is well."""
    async with lab.fresh(pids=48) as live:
        intruder = await lab.intruder(live)
        mark = new_mark()
        full = asyncio.create_task(live.sh(f"{intruder} forks 1000000 hold {mark}"))
        # Where the limit counts the whole sandbox nothing starts at all; where it counts a user, nothing forks.
        tries: list[tuple[int, str]] = []
        while not tries or tries[-1] == (0, "1\n"):
            expect(not full.done(), "the table stays full until somebody makes room", commands=len(tries))
            r = await live.sh(f"{intruder} forks 1", carry=False)
            tries.append((r.exit_code, r.output))
        expect(tries[-1][0] == 126 or tries[-1] == (0, "0\n"), "it fails as what it is", result=tries[-1])
        await live.client.kill_all()
        same((await full).exit_code, 137, "the code of what filled it")
        same((await live.sh("echo x | cat")).output, "x\n", "what a pipe prints once there is room")
