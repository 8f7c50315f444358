"""Ending commands: with everything they started, whatever that does to stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal

import pytest
from runner.live import children, sandbox, until

pytestmark = pytest.mark.usefixtures("namespaces")


def new_mark() -> str:
    """A number of seconds that nobody else sleeps for."""
    return f"9{secrets.randbelow(10**8):08}"


async def test_a_timeout_ends_children_and_keeps_what_was_printed(shell: str) -> None:
    mark = new_mark()
    async with sandbox(shell=shell) as box:
        for _ in range(3):
            r = await box.sh(f"echo before; sleep {mark} & sleep {mark}; echo no", timeout_s=0.3)
            assert (r.output, r.timed_out, r.limit) == ("before\n", True, "total")
            assert r.exit_code != 0
        assert await box.running(mark) == 0
        assert (await box.sh("echo alive")).output == "alive\n"


async def test_a_timeout_reaches_what_left_its_session_its_parent_and_its_environment() -> None:
    mark = new_mark()
    script = (
        f"setsid sleep {mark} & env -i setsid sleep {mark} & (trap '' TERM HUP INT; exec -a x sleep {mark} &) ; "
        f"((sleep {mark} &) &); nohup sleep {mark} >/dev/null 2>&1 & "
        f"env -i setsid setsid sh -c 'trap \"\" TERM; (env -i setsid sleep {mark} &); sleep {mark}' & "
        f"echo up; sleep {mark}"
    )
    async with sandbox() as box:
        command = asyncio.create_task(box.sh(script, timeout_s=1.0, grace_s=0.1))
        while await box.running(mark) < 8:
            assert not command.done()
        r = await command
        assert (r.output, r.timed_out) == ("up\n", True)
        assert await box.running(mark) == 0


async def test_a_storm_of_forks_is_ended() -> None:
    """Eight lines of processes, each of which starts its successor in a new session and dies."""
    async with sandbox() as box:
        (box.folder / "line").write_text("[ $1 -lt 400 ] || exit; setsid sh /tmp/line $(($1+1)) & exit\n")
        for _ in range(3):
            storm = "for n in 1 2 3 4 5 6 7 8; do sh /tmp/line 1 & done; sleep 60"
            assert (await box.sh(storm, timeout_s=0.5, grace_s=0.05)).timed_out
            assert [await box.running("sh\0/tmp/line") for _ in range(3)] == [0, 0, 0]
        assert (await box.sh("echo next")).output == "next\n"


async def test_a_full_process_table_stops_no_killing() -> None:
    """So many processes are all this user may have: commands fail as what they are, and kill_all makes room."""
    async with sandbox("--rlimit", "nproc=40", shell="dash") as box:
        fill = "i=0; while [ $i -lt 39 ]; do sleep 600 & i=$((i+1)); done; echo > /tmp/full; wait"
        full = asyncio.create_task(box.sh(fill, user="4711", carry=False))
        await until((box.folder / "full").exists)
        # Linux lets a user who has all but one of them become one more, and refuses the one after that.
        more = asyncio.create_task(box.sh("echo > /tmp/more; exec sleep 600", user="4711", carry=False))
        await until((box.folder / "more").exists)
        for _ in range(3):
            r = await box.sh("true", user="4711", carry=False)
            assert (r.exit_code, r.output) == (126, "Resource temporarily unavailable\n")
        await box.client.kill_all()
        assert [(await each).exit_code for each in (full, more)] == [137, 137]
        assert (await box.sh("echo x | cat", user="4711", carry=False)).output == "x\n"


async def test_term_comes_first_and_kill_after_the_grace() -> None:
    async with sandbox() as box:
        polite = await box.sh("trap 'echo bye; exit 9' TERM; sleep 60 & wait", timeout_s=0.3, grace_s=5)
        assert (polite.output, polite.exit_code, polite.timed_out) == ("bye\n", 9, True)
        stubborn = await box.sh("trap '' TERM; echo on; while :; do sleep 0.05; done", timeout_s=0.3, grace_s=0.2)
        assert (stubborn.output, stubborn.exit_code, stubborn.timed_out) == ("on\n", 137, True)
        assert stubborn.timing.run_ns < 0.3e9 + 0.15e9 <= stubborn.timing.run_ns + stubborn.timing.drain_ns


async def test_silence_has_a_limit_of_its_own() -> None:
    async with sandbox() as box:
        quiet = await box.sh("echo hi; sleep 60", idle_timeout_s=0.3)
        assert (quiet.output, quiet.limit) == ("hi\n", "idle")
        busy = await box.sh("for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done", idle_timeout_s=0.5)
        assert (busy.exit_code, busy.timed_out) == (0, False)
        both = await box.sh("while :; do echo x; sleep 0.05; done", idle_timeout_s=5, timeout_s=0.3)
        assert both.limit == "total"


async def test_a_background_job_holds_nothing_up_and_lives_on(shell: str) -> None:
    mark = new_mark()
    async with sandbox(shell=shell) as box:
        r = await box.sh(f"sleep {mark} & echo started")
        assert (r.output, r.exit_code, r.timed_out) == ("started\n", 0, False)
        assert await box.running(mark) == 1
        r = await box.sh("(while :; do echo tick; sleep 0.01; done) & echo started")
        assert "started\n" in r.output
        await box.sh("echo x; sleep 0.1")
        assert (await box.sh("pgrep -c sleep >/dev/null; echo y")).output == "y\n"
        assert await box.client.kill_all() == 0
        assert await box.running(mark) == 0


async def test_a_job_ends_by_itself_and_its_keeper_with_it() -> None:
    async with sandbox() as box:
        for _ in range(5):
            await box.sh("sleep 0.2 &")
        keepers = "grep -ls keeper /proc/[0-9]*/comm | wc -l"
        while int((await box.sh(keepers)).output) > 2:
            pass
        assert (await box.sh("echo alive")).output == "alive\n"


async def test_kill_all_says_how_many_and_ends_all() -> None:
    mark = new_mark()
    async with sandbox() as box:
        await box.sh(f"setsid sleep {mark} & (env -i setsid sleep {mark} &)")
        waiting = [asyncio.create_task(box.sh(f"echo hi; sleep {mark}; echo no")) for _ in range(3)]
        while await box.running(mark) < 2 + 3 * 2:
            assert not any(w.done() for w in waiting)
        assert await box.client.kill_all() == 3
        results = await asyncio.gather(*waiting)
        assert [(r.output, r.exit_code, r.timed_out) for r in results] == [("hi\n", 137, False)] * 3
        left = (await box.sh("ls -d /proc/[0-9]*", carry=False)).output.split()
        assert len(left) <= 4  # the runner, the keeper, the shell, ls


async def test_a_hundred_commands_wait_their_turn_and_kill_all_ends_those_too() -> None:
    mark = new_mark()
    async with sandbox() as box:
        calls = [asyncio.create_task(box.sh(f"sleep {mark}; true", carry=False)) for _ in range(80)]
        while await box.running(mark) < 64 * 2:
            assert not any(call.done() for call in calls)
        assert await box.client.kill_all() == 64
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(getattr(o, "exit_code", 0) == 137 for o in outcomes) == 64
        assert sum("cancelled before it started" in str(o) for o in outcomes) == 16


async def test_a_cancelled_call_ends_its_command() -> None:
    mark = new_mark()
    async with sandbox() as box:
        call = asyncio.create_task(box.sh(f"sleep {mark}"))
        while not await box.running(mark):
            assert not call.done()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        while await box.running(mark):
            pass


async def test_a_killed_keeper_is_no_success_and_nothing_survives() -> None:
    mark = new_mark()
    async with sandbox() as box:
        r = await box.sh(f"sleep {mark} & echo before; kill -9 $PPID; sleep 5; echo after")
        assert (r.output, r.exit_code) == ("before\n", 137)
        assert "killed the process that looks after it" in r.notice
        assert await box.running(mark) == 0
        assert (await box.sh("kill -9 -1; sleep 5")).exit_code == 137
        assert (await box.sh("echo alive")).output == "alive\n"


async def test_a_free_keeper_that_was_killed_costs_nothing() -> None:
    """On one busy processor, where a keeper is given its next order before it gets the time to die."""
    async with sandbox() as box, contextlib.AsyncExitStack() as busy:
        one = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(box.pid, one)
        for _ in range(4):
            loop = await asyncio.create_subprocess_exec("sh", "-c", "while :; do :; done")
            busy.push_async_callback(loop.wait)
            busy.callback(loop.kill)
            os.sched_setaffinity(loop.pid, one)
        await asyncio.gather(box.sh("true"), box.sh("true"))
        for _ in range(20):
            r = await box.sh(
                "for p in $(grep -ls keeper /proc/[0-9]*/comm | cut -d/ -f3); do [ $p = $PPID ] || kill -9 $p; done"
            )
            assert r.exit_code in (0, 1)
            results = await asyncio.gather(*(box.sh(f"echo {i}") for i in range(4)))
            assert [r.output for r in results] == [f"{i}\n" for i in range(4)]


async def test_a_stopped_keeper_goes_on() -> None:
    """While it is free, while its command runs, and when its limit comes."""
    mark = new_mark()
    async with sandbox() as box:
        assert (await box.sh("kill -STOP $PPID; exit 3")).exit_code == 3
        (keeper,) = children(box.pid)
        os.kill(keeper, signal.SIGSTOP)
        assert (await box.sh("exit 4")).exit_code == 4
        r = await box.sh(f"sleep {mark} & kill -STOP $PPID; sleep {mark}", timeout_s=0.3)
        assert r.timed_out
        assert await box.running(mark) == 0
        r = await box.sh("kill -STOP $$", timeout_s=0.3, grace_s=0.1)
        assert (r.timed_out, r.exit_code) == (True, 137)


async def test_pid_1_is_ended_from_outside_only() -> None:
    async with sandbox() as box:
        signals = "TERM INT KILL STOP SEGV HUP QUIT USR1 XCPU XFSZ ALRM PIPE"
        r = await box.sh(f"for s in {signals}; do kill -$s 1; done; echo real; exit 3")
        assert (r.output, r.exit_code) == ("real\n", 3)
        assert (await box.sh("echo alive")).output == "alive\n"
        os.kill(box.pid, signal.SIGTERM)
        assert await box.process.wait() == 0


async def test_orphans_are_reaped() -> None:
    async with sandbox() as box:
        for _ in range(2):
            assert (
                await box.sh("i=0; while [ $i -lt 300 ]; do (sleep 0 &); i=$((i+1)); done", timeout_s=60)
            ).exit_code == 0
        zombies = "grep -ls '^State:.Z' /proc/[0-9]*/status | wc -l"
        while (await box.sh(zombies)).output != "0\n":
            pass
