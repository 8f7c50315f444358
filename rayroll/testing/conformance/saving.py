"""What some substrates can do with a sandbox as a whole: pause it, save its files."""

from __future__ import annotations

import asyncio
import itertools

from rayroll.errors import InfraFailure
from rayroll.runner.client import RunnerClient
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Capability, check, expect, same
from rayroll.testing.sandboxes import Live

PAUSE_S = 1.5
LET_GO_S = 60.0
"""The lease that a runner is left with."""


async def _pause(live: Live, lab: Lab) -> RunnerClient:
    """Let go, pause, wait, and come back."""
    resume = live.client.resume()
    await live.client.leave(LET_GO_S)
    await lab.substrate.pause(live.ref)
    await asyncio.sleep(PAUSE_S)
    channel = await lab.substrate.resume(live.ref)
    return await RunnerClient.connect(channel, resume=resume, reopen=lambda: lab.substrate.reopen(live.ref))


@check(needs=(Capability.PAUSE,), is_slow=True)
async def a_paused_sandbox_stands_still_and_goes_on_where_it_was(lab: Lab) -> None:
    """A job that notes the time every moment has a gap as long as the pause, goes on after it, and state is carried."""
    async with lab.fresh() as live:
        log = live.path("times")
        await live.sh(
            f"export WORD=kept; while :; do cut -d' ' -f1 /proc/uptime; sleep 0.05; done >{log} 2>/dev/null &"
        )
        client = await _pause(live, lab)
        same((await client.exec('echo "$WORD"; sleep 0.3')).output, "kept\n", "what was exported before")
        times_s = [float(line) for line in (await client.read_file(log)).split()]
        gaps_s = [later - earlier for earlier, later in itertools.pairwise(times_s)]
        expect(max(gaps_s) > 0.8 * PAUSE_S, "the job stood still", longest_gap_s=max(gaps_s))
        expect(gaps_s[-1] < 0.8 * PAUSE_S, "the job went on", last_gap_s=gaps_s[-1])
        await client.close()


@check(needs=(Capability.PAUSE,))
async def a_paused_sandbox_is_destroyed_like_any_other(lab: Lab) -> None:
    """It is listed while it is paused, destroyed without being resumed, and then gone."""
    run_id = f"{lab.run_id}-paused"
    async with lab.fresh(run_id=run_id) as live:
        await live.client.leave(LET_GO_S)
        await lab.substrate.pause(live.ref)
        same([ref.id for ref in await lab.substrate.list({"run": run_id})], [live.ref.id], "what is listed")
        await lab.substrate.destroy(live.ref)
        same(await lab.substrate.list({"run": run_id}), [], "what is listed after destroy")


@check(needs=(Capability.SNAPSHOT,), is_slow=True)
async def sandboxes_start_from_saved_files_each_with_its_own(lab: Lab) -> None:
    """Two from one snapshot: both have the files and none of the processes, and what one changes the other has not."""
    async with lab.fresh() as live:
        folder = "/var/tmp/saved"
        await live.sh(f"mkdir -p {folder} && echo mine >{folder}/file && chmod 640 {folder}/file")
        await live.sh("sleep 987651 >/dev/null 2>&1 &")
        image = await lab.substrate.snapshot(live.ref)
        same(await live.running("987651"), 1, "the number of its jobs after it was saved")
    try:
        async with lab.fresh(image=image, environment=None) as one, lab.fresh(image=image, environment=None) as two:
            for other in (one, two):
                r = await other.sh(f"cat {folder}/file; stat -c %a {folder}/file")
                same(r.output, "mine\n640\n", "the file")
                same(await other.running("987651"), 0, "the number of jobs")
            await one.sh(f"echo changed >{folder}/file")
            same((await two.sh(f"cat {folder}/file")).output, "mine\n", "the file of the other")
    finally:
        await lab.substrate.forget(image)
    await lab.substrate.forget(image)
    try:
        async with lab.fresh(image=image, environment=None):
            pass
    except InfraFailure:
        return
    expect(False, "what was forgotten starts nothing")
