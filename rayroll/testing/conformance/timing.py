"""Timing: what the runner says about a command's time is true, whatever else goes on."""

from __future__ import annotations

import asyncio
import re

from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Capability, check, expect, same
from rayroll.types import CommandTiming

AT_ONCE = 64
"""How many commands a runner runs at the same time; the next one waits."""
BUSY = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done"


def total_s(timing: CommandTiming) -> float:
    """CPU seconds."""
    return (timing.user_ns + timing.system_ns) / 1e9


def counted_by_the_shell_s(times: str) -> float:
    """CPU seconds of a shell and its children, from what its ``times`` printed."""
    return sum(60 * int(m) + float(s) for m, s in re.findall(r"(\d+)m([\d.]+)s", times))


@check(source="B27")
async def durations_are_never_negative_and_fit_into_the_round_trip(lab: Lab) -> None:
    """Queued, spawn, run and drain are each at least 0, together at most the round trip, and a command takes time."""
    for script in ("true", "sleep 0.05", "exit 3", "sleep 0.05 &", "yes | head -c 100000", "kill -9 $$"):
        t = (await lab.box.sh(script)).timing
        parts = (t.queued_ns, t.spawn_ns, t.run_ns, t.drain_ns, t.user_ns, t.system_ns, t.throttled_ns)
        expect(min(parts) >= 0 and t.run_ns > 0, "no duration is negative, and run is positive", timing=t)
        expect(t.busy_ns <= t.round_trip_ns, "the runner is not busy for longer than the call takes", timing=t)


@check(source="B27")
async def run_is_the_time_that_the_command_took(lab: Lab) -> None:
    """``sleep 0.2``: hardly less, and close to it in one of twenty tries, for the machine may be busy."""
    runs_s: list[float] = []
    while not runs_s or (min(runs_s) > 0.2 * 1.25 and len(runs_s) < 20):
        runs_s.append((await lab.box.sh("sleep 0.2")).timing.run_ns / 1e9)
        expect(
            runs_s[-1] >= 0.2 * 0.9,
            "no run is shorter than its sleep, but for an exec that was seen late",
            runs_s=runs_s,
        )
    expect(min(runs_s) <= 0.2 * 1.25, "the best run is close to its sleep", runs_s=runs_s)


@check()
async def cpu_seconds_are_those_the_shell_counts(lab: Lab) -> None:
    """A busy loop costs what ``times`` says, and no more than the time it ran; a sleep costs next to nothing."""
    r = await lab.box.sh(f"{BUSY}; times")
    counted_s = counted_by_the_shell_s(r.output)
    expect(counted_s > 0, "the loop is long enough to be counted", output=r.output)
    ratio = total_s(r.timing) / counted_s
    expect(0.8 <= ratio <= 1.25 or abs(total_s(r.timing) - counted_s) < 0.05, "both counts agree", ratio=ratio)
    expect(total_s(r.timing) <= r.timing.run_ns / 1e9 * 1.1 + 0.02, "one thread uses one CPU", timing=r.timing)
    idle = (await lab.box.sh("sleep 0.3")).timing
    expect(total_s(idle) < 0.5 * idle.run_ns / 1e9, "a sleep uses no CPU", timing=idle)


@check()
async def cpu_seconds_of_children_count(lab: Lab) -> None:
    """What the command started and waited for is its cost, too: a loop in a child of a child."""
    r = await lab.box.sh(f"( ( {BUSY} ) ); sh -c '{BUSY}' | cat; times")
    counted_s = counted_by_the_shell_s(r.output)
    expect(counted_s > 0, "the loops are long enough to be counted", output=r.output)
    expect(total_s(r.timing) > 0.8 * counted_s - 0.05, "a child's CPU time is counted", times=r.output, timing=r.timing)


@check()
async def peak_memory_is_that_of_the_largest_process(lab: Lab) -> None:
    """A process that holds 48 MiB is seen; an ordinary command is far below."""
    small = (await lab.box.sh("true")).timing.max_rss_bytes
    large = (await lab.box.sh("head -c 50331648 /dev/zero | tail -c 50331648 | wc -c")).timing.max_rss_bytes
    expect(0 < small < 40 << 20, "an ordinary command is small", small_mib=small >> 20)
    expect(large > 44 << 20, "a large one is seen", large_mib=large >> 20)


@check(source="B27")
async def the_timeout_starts_with_the_command(lab: Lab) -> None:
    """A command that waits longer than its limit, behind all that may run at once, is not timed out by that."""
    crowd = [asyncio.create_task(lab.box.sh("sleep 6", carry=False)) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)  # they are sent first
    last = await lab.box.sh("sleep 0.05; echo done", timeout_s=2, carry=False)
    await asyncio.gather(*crowd)
    same((last.output, last.timed_out), ("done\n", False), "the result of the last one")
    expect(last.timing.queued_ns >= 2e9, "its wait is booked as queued", timing=last.timing)
    expect(last.timing.run_ns < 2e9, "its wait is not in its run", timing=last.timing)


@check(source="B27")
async def grace_and_killing_are_not_run(lab: Lab) -> None:
    """A command that must be killed ran until its limit; what came after is drain."""
    t = (await lab.box.sh("trap '' TERM; sleep 30", timeout_s=0.5, grace_s=0.5)).timing
    expect(0.49 <= (t.spawn_ns + t.run_ns) / 1e9 < 0.95, "run ends at the limit", timing=t)
    expect(t.drain_ns >= 0.45e9, "the grace is in drain", timing=t)


@check()
async def a_background_job_is_not_run(lab: Lab) -> None:
    """The run ends with the main process; a job of ten seconds that lives on is not in it."""
    r = await lab.box.sh("sleep 10 & sleep 0.1")
    expect(0.099 <= r.timing.run_ns / 1e9 < 5, "run is the main process's", timing=r.timing)


@check(source="B27", needs=(Capability.OWN_KERNEL,))
async def a_clock_set_back_changes_no_duration(lab: Lab) -> None:
    """The wall clock jumps back one hour in the middle of a command: its durations and the lease do not notice.

    Only in a sandbox with a kernel of its own: elsewhere it would be everybody's clock.
    """
    async with lab.fresh(lease_s=10) as live:
        r = await live.sh("date -s @$(($(date +%s) - 3600)) && sleep 0.2; date +%s")
        same(r.exit_code, 0, "the exit code of setting the clock", output=r.output)
        expect(0.19 <= r.timing.run_ns / 1e9 < 5, "run is what it took", timing=r.timing)
        expect(r.timing.busy_ns <= r.timing.round_trip_ns, "busy fits into the round trip", timing=r.timing)
        same((await live.sh("echo alive")).output, "alive\n", "what the next command prints")
