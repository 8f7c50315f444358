"""BASELINE and RESET: a way back to what was, and a refusal where there is none."""

from __future__ import annotations

import asyncio
import errno

import pytest
from runner.live import sandbox, until

from rayroll.errors import SandboxFileError
from rayroll.runner.client import RunnerClient, Tree

pytestmark = pytest.mark.usefixtures("namespaces")

KEEP = ["/tmp"]


async def same_after(client: RunnerClient, script: str, baseline: Tree) -> Tree:
    """Run it, go back, and see the baseline's digest."""
    await client.exec(script)
    found = await client.reset()
    assert found.digest == baseline.digest
    return found


async def test_what_is_there_is_made_again_and_nothing_else_is_left() -> None:
    async with sandbox() as box:
        client = box.client
        await client.exec(
            "cd /tmp; echo one > a; mkdir -p d/e; echo two > d/e/b; ln -s a l; chmod 750 d; touch -d @9 d/e/b"
        )
        facts = "cd /tmp; find . -printf '%p %y %m %T@ %l\\n' | sort; cat a d/e/b"
        before = (await client.exec(facts)).output
        baseline = await client.baseline(KEEP)
        for script in (
            "true",
            "echo x >> /tmp/a; touch -r /tmp/l /tmp/a",
            "rm -rf /tmp/d; echo > /tmp/d",
            "rm -rf /tmp/*; mkdir -p /tmp/n/m; echo x > /tmp/n/m/o",
            "cd /tmp; mv d f; ln -sf d/e/b l; chmod 000 f; mkfifo p",
            "cd /tmp; rm a; ln d/e/b a",
        ):
            await same_after(client, script, baseline)
            assert (await client.exec(facts)).output == before


async def test_an_untouched_sandbox_needs_no_repair_and_counts_what_it_has() -> None:
    async with sandbox() as box:
        baseline = await box.client.baseline()
        found = await box.client.reset()
        assert (found.digest, found.entries, found.repaired) == (baseline.digest, baseline.entries, 0)


async def test_a_change_without_a_copy_is_named() -> None:
    async with sandbox() as box:
        await box.client.exec("echo one > /tmp/a; mkdir /tmp/d")
        await box.client.baseline(["/elsewhere"], most_bytes=0)
        await box.client.exec("echo two > /tmp/a")
        with pytest.raises(SandboxFileError, match=r"not clean: .*there is no copy of /tmp/a") as caught:
            await box.client.reset()
        assert caught.value.errno == errno.EUCLEAN


async def test_copies_are_kept_up_to_their_bound() -> None:
    async with sandbox() as box:
        await box.client.exec("cd /tmp; head -c 1000 /dev/zero > big; echo > small")
        baseline = await box.client.baseline(KEEP, most_bytes=999)
        await same_after(box.client, "rm /tmp/small", baseline)
        await box.client.exec("echo >> /tmp/big")
        with pytest.raises(SandboxFileError, match="there is no copy of /tmp/big"):
            await box.client.reset()


async def test_processes_directory_and_variables_are_forgotten() -> None:
    async with sandbox() as box:
        await box.client.exec("mkdir -p /tmp/d")
        fresh = (await box.client.exec("pwd; env | sort")).output
        baseline = await box.client.baseline(KEEP)
        running = asyncio.create_task(box.client.exec("sleep 100"))
        await same_after(box.client, "cd /tmp/d; export A=1; setsid sleep 100 & sleep 100 &", baseline)
        assert (await running).exit_code == 137
        assert (await box.client.exec("pwd; env | sort")).output == fresh
        assert "sleep" not in (await box.client.exec("cat /proc/[0-9]*/comm")).output


async def test_a_later_baseline_takes_the_place_of_an_earlier_one() -> None:
    async with sandbox() as box:
        await box.client.baseline(KEEP)
        await box.client.exec("echo kept > /tmp/a")
        baseline = await box.client.baseline(KEEP)
        await same_after(box.client, "rm /tmp/a", baseline)
        assert await box.client.read_file("/tmp/a") == b"kept\n"


async def test_without_a_baseline_there_is_no_way_back() -> None:
    async with sandbox() as box:
        with pytest.raises(SandboxFileError, match="there is no baseline"):
            await box.client.reset()


async def test_the_table_cannot_be_reached_from_inside() -> None:
    async with sandbox() as box:
        await box.client.baseline(KEEP)
        assert "baseline" not in (await box.client.exec("ls -l /proc/*/fd/ 2>/dev/null")).output


async def test_a_reset_in_the_way_of_another_ends_it() -> None:
    async with sandbox() as box:
        baseline = await box.client.baseline(KEEP)
        await box.client.exec("cd /tmp && seq 3000 | xargs touch")
        first, last = await asyncio.gather(box.client.reset(), box.client.reset(), return_exceptions=True)
        assert isinstance(first, SandboxFileError)
        assert isinstance(last, Tree)
        assert last.digest == baseline.digest


async def test_a_ping_is_answered() -> None:
    async with sandbox() as box:
        await box.client.ping()
        slow = asyncio.create_task(box.client.exec("sleep 100"))
        await box.client.ping()
        assert not slow.done()
        await box.client.kill_all()
        await until(slow.done)
