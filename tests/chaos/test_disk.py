"""A node whose disk is full while rollouts on it are in every phase."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import little
import pytest
from chaos.stage import Stage, all_are_right_or_typed
from executor.conftest import Opened
from requirements import require

from rayroll import Client
from rayroll.errors import DiskFullError
from rayroll.policies.scripted import ScriptedPolicy

CHUNK = b"x" * 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "tmpfs", folder], capture_output=True)
    require("mount", done.stderr.decode().strip() + "; fix: run the tests as root" if done.returncode else None)
    for above in folder.parents:  # sandboxes run as another user
        if above.stat().st_uid == 0 and not above.stat().st_mode & 0o001:
            above.chmod(0o711)
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(CHUNK)


async def test_a_full_disk_gives_no_reward_that_nobody_earned_and_is_over_when_it_is_over(
    opened: Opened, stage: Stage, disk: Path
) -> None:
    filler = disk / ".filler"
    config = {"rootfs": "host", "folder": str(disk)}
    async with opened(disturbance={}, substrate_config=config) as executor:
        rollouts = await stage.play(executor, lambda: asyncio.to_thread(fill, filler))
        # An agent that cannot write sees why, and is judged by what is there: nothing tells whose files fill the node.
        saw_it = [r for r in rollouts if r.reward == 0.0 and any(step.output_bytes for step in r.steps)]
        all_are_right_or_typed([rollout for rollout in rollouts if rollout not in saw_it])
        await asyncio.to_thread(filler.unlink)
        after = executor.submit(stage.tasks(), ScriptedPolicy(["echo 42 > answer.txt"]), namespace="after")
        assert [rollout.reward async for rollout in after.rollouts()] == [1.0] * len(stage.tasks())
    left = [path.name for path in await asyncio.to_thread(lambda: [*disk.iterdir()]) if not path.name.startswith(".")]
    assert left == []


async def test_a_verdict_that_finds_no_room_in_an_untouched_sandbox_either_is_the_machine_s_fault(disk: Path) -> None:
    tests = "cat /dev/zero > /logs/verifier/filler 2>/dev/null; echo 1 > /logs/verifier/reward.txt 2>/dev/null"
    task = little.task(grader=tests)
    config = {"rootfs": "host", "folder": str(disk)}
    async with Client("local", substrate_config=config) as client, client.open(task) as session:
        with pytest.raises(DiskFullError):
            await session.grade()
