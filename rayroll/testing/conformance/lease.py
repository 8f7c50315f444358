"""The lease: a sandbox outlives its host's last word by that long, and not longer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from rayroll.errors import RayrollError
from rayroll.substrates import Lease
from rayroll.testing.conformance._host import Work, other_host
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import check, expect, same
from rayroll.testing.conformance.kill import new_mark

LEASE_S = 5.0
"""What a sandbox on a busy machine answers within, and not much more, for every check waits for it."""
PATIENCE_S = 15.0
"""How long after its lease a sandbox may take to be gone: an engine has to remove it, on a busy machine."""
REAPER_S = 30.0
"""The same where only the reaper can: it waits a lease, looks, and looks again."""


@check(begins_early=True, is_slow=True)
async def an_idle_sandbox_lives_as_long_as_its_lease_is_renewed(lab: Lab) -> None:
    """Three leases of silence from the caller: the client renews by itself, jobs live on, commands are answered."""
    mark = new_mark()
    async with lab.fresh(lease_s=8) as live:
        await live.sh(f"sleep {mark} >/dev/null 2>&1 &")
        await asyncio.sleep(24)
        same(await live.running(mark), 1, "the number of jobs")
        same(await _states(lab, lab.run_id, live.ref.id), ["running"], "its state")


@check(begins_early=True, is_slow=True)
async def a_sandbox_whose_lease_is_not_renewed_is_gone_one_lease_later(lab: Lab) -> None:
    """The client lets go: not sooner than the lease says, and soon after it, nothing of it runs or is listed."""
    mark = new_mark()
    async with lab.fresh(lease_s=LEASE_S) as live:
        await live.sh(f"sleep {mark} >/dev/null 2>&1 & setsid sleep {mark} >/dev/null 2>&1 &")
        seen = await asyncio.to_thread(_on_this_node, mark)
        await live.client.close()
        start_s = time.monotonic()
        await _until_gone(lab, lab.run_id, live.ref.id, LEASE_S + PATIENCE_S)
        lived_s = time.monotonic() - start_s
        # Renewed a quarter of a lease ago at most.
        expect(lived_s > 0.7 * LEASE_S, "it does not end before its lease does", lived_s=lived_s)
        same(await asyncio.to_thread(_on_this_node, mark), 0, "the number of its processes on this node", before=seen)


@check(begins_early=True, is_slow=True)
async def a_sandbox_that_nobody_ever_spoke_to_ends_too(lab: Lab) -> None:
    """Its host went away between ``create`` and hello."""
    sandbox = await lab.substrate.create(lab.spec, Lease(lab.run_id, "silent", LEASE_S))
    try:
        await _until_gone(lab, lab.run_id, sandbox.ref.id, LEASE_S + PATIENCE_S)
    finally:
        await lab.substrate.destroy(sandbox.ref)


@check(begins_early=True, is_slow=True)
async def a_lease_ends_in_the_middle_of_a_command(lab: Lab) -> None:
    """Endless output into a closed stream, a command that ignores TERM, a large download: none keeps it alive."""
    mark = new_mark()
    async with lab.fresh(lease_s=LEASE_S) as live:
        calls = [
            asyncio.create_task(live.sh(script, timeout_s=None))
            for script in ("yes", f"trap '' TERM HUP INT; sleep {mark}", "cat /dev/zero")
        ]
        await live.sh("true")
        await live.client.close()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            expect(isinstance(outcome, RayrollError), "a call under way raises", outcome=outcome)
        await _until_gone(lab, lab.run_id, live.ref.id, LEASE_S + PATIENCE_S)
        same(await asyncio.to_thread(_on_this_node, mark), 0, "the number of its processes on this node")


@check(begins_early=True, is_slow=True)
async def a_stopped_host_holds_no_sandbox_with_endless_output(lab: Lab) -> None:
    """SIGSTOP to another host during ``yes``: it reads nothing and renews nothing. Gone one lease later."""
    await _stop_a_host(lab, "flood")


@check(begins_early=True, is_slow=True)
async def a_stopped_host_holds_no_sandbox_with_a_file_under_way(lab: Lab) -> None:
    """SIGSTOP during a download of 64 MiB: nothing more than the window is waiting to be read. Gone one lease later."""
    await _stop_a_host(lab, "download")


async def _stop_a_host(lab: Lab, work: Work) -> None:
    mark, run_id = new_mark(), f"{lab.run_id}-{work}"
    async with other_host(lab.substrate, lab.spec, run_id=run_id, lease_s=LEASE_S, work=work, mark=mark) as host:
        await asyncio.sleep(0.3)  # the flood is to be under way
        same([r.state for r in await lab.substrate.list({"run": run_id})], ["running"], "its state before")
        host.stop()
        start_s = time.monotonic()
        await _until_ended(lab, run_id, LEASE_S + PATIENCE_S)
        expect(time.monotonic() - start_s > 0.7 * LEASE_S, "it does not end before its lease does")
        same(await asyncio.to_thread(_on_this_node, mark), 0, "the number of its processes on this node")
        async with lab.fresh() as neighbour:
            same(
                (await neighbour.sh("echo alive")).output, "alive\n", "what a sandbox of another host prints meanwhile"
            )
    # A stopped host cannot clean its own disk, and a live one keeps its reaper waiting; once it is gone all of it goes.
    await _until_none(lab, run_id, LEASE_S + REAPER_S)


@check(begins_early=True, is_slow=True, limit_s=90)
async def a_killed_host_leaves_nothing_one_lease_later(lab: Lab) -> None:
    """SIGKILL to another host with a live sandbox: no hook runs, and still nothing is listed and nothing runs."""
    mark, run_id = new_mark(), f"{lab.run_id}-killed"
    async with lab.fresh() as own:
        async with other_host(lab.substrate, lab.spec, run_id=run_id, lease_s=LEASE_S, work="idle", mark=mark) as host:
            same(len(await lab.substrate.list({"run": run_id})), 1, "the number of its sandboxes")
            await host.kill()
        await _until_none(lab, run_id, LEASE_S + REAPER_S)
        same(await asyncio.to_thread(_on_this_node, mark), 0, "the number of its processes on this node")
        same((await own.sh("echo alive")).output, "alive\n", "what our own sandbox prints")


@check(begins_early=True, is_slow=True, limit_s=120)
async def a_host_killed_while_it_creates_leaves_nothing(lab: Lab) -> None:
    """SIGKILL at four moments of creating: half-made sandboxes are found and removed as well."""
    runs = [f"{lab.run_id}-create-{i}" for i in range(4)]

    async def one(run_id: str, delay_s: float) -> None:
        async with other_host(lab.substrate, lab.spec, run_id=run_id, lease_s=LEASE_S, work="create", mark="0") as host:
            await asyncio.sleep(delay_s)
            await host.kill()

    async with asyncio.TaskGroup() as group:
        for i, run_id in enumerate(runs):
            group.create_task(one(run_id, 0.05 + 0.17 * i))
    for run_id in runs:
        await _until_none(lab, run_id, LEASE_S + REAPER_S)


async def _states(lab: Lab, run_id: str, id: str) -> list[str]:
    return [r.state for r in await lab.substrate.list({"run": run_id}) if r.id == id]


async def _until_gone(lab: Lab, run_id: str, id: str, limit_s: float) -> None:
    """Until one sandbox is not listed any more."""
    deadline_s = time.monotonic() + limit_s
    while states := await _states(lab, run_id, id):
        expect(time.monotonic() < deadline_s, "it is gone after its lease", states=states)
        await asyncio.sleep(0.05)


async def _until_ended(lab: Lab, run_id: str, limit_s: float) -> None:
    """Until nothing of a run is running."""
    deadline_s = time.monotonic() + limit_s
    while "running" in (states := [r.state for r in await lab.substrate.list({"run": run_id})]):
        expect(time.monotonic() < deadline_s, "nothing of it runs after its lease", states=states)
        await asyncio.sleep(0.05)


async def _until_none(lab: Lab, run_id: str, limit_s: float) -> None:
    """Until nothing of a run is listed in any state."""
    deadline_s = time.monotonic() + limit_s
    while left := await lab.substrate.list({"run": run_id}):
        expect(time.monotonic() < deadline_s, "nothing of it is left", left=left)
        await asyncio.sleep(0.1)


def _on_this_node(mark: str) -> int:
    """How many processes that this node can see have the mark. A VM's are not among them, and go with it."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += mark.encode() in path.read_bytes()
        except OSError:
            continue
    return count
