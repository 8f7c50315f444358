"""Sandboxes of rollouts that failed wait for somebody to look into them, for a while and not for ever."""

from __future__ import annotations

from typing import Any

import little
import pytest
from requirements import check

from rayroll.errors import ConfigError
from rayroll.executor import Executor, PlayConfig
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.record import to_line
from rayroll.substrates import Login, load

KINDS = [pytest.param("local", marks=pytest.mark.local), pytest.param("docker", marks=pytest.mark.docker)]
LEASE_S = 3.0
GOOD = "echo 1 > /logs/verifier/reward.txt"


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_that_fail_outlive_their_executor_for_as_long_as_was_said(kind: str) -> None:
    check(kind)
    tasks = [
        little.task("succeeds", GOOD),
        little.task("fails", env={"TOKEN": "hunter2"}),
        little.task("is one too many"),
    ]
    config = PlayConfig(keep="on-failure", keep_for_s=30.0, keep_most=1)
    options: dict[str, Any] = {"substrate_config": little.SUBSTRATE_CONFIG[kind], "session": {"lease_s": LEASE_S}}
    async with Executor(kind, **options) as executor:
        run = executor.submit(tasks, ScriptedPolicy(["echo clue > found.txt"]), max_in_flight=1, config=config)
        rollouts = {rollout.task_id: rollout async for rollout in run.rollouts()}
    failed = rollouts["little/fails"]
    assert [rollout.task_id for rollout in rollouts.values() if rollout.kept] == [failed.task_id]
    assert failed.kept is not None and (failed.kept.substrate, failed.kept.workdir) == (kind, "/app")
    assert b"hunter2" not in to_line(failed)

    await little.pause(2 * LEASE_S)  # leases lapse, reapers sweep
    substrate = load(kind)
    async with substrate(substrate.config_type.parse(failed.kept.place)) as fresh:
        (ref,) = await fresh.list({"run": executor.run_id})
        assert ref.is_kept and ref.id == failed.kept.sandbox
        assert await fresh.sweep({"run": executor.run_id}, older_than_s=0) == ()
        shell = await fresh.shell(ref, Login(failed.kept.shell, ("cat", "found.txt"), failed.kept.workdir))
        assert await shell.read() == (1, b"clue\n")
        assert await shell.exit_code() == 0
        await shell.close()

        async def is_gone() -> bool:
            return await fresh.list({"run": executor.run_id}) == []

        await little.until_true(is_gone)


@pytest.mark.usefixtures("ray_cluster")
async def test_a_substrate_that_cannot_keep_says_so_before_anything_is_played() -> None:
    async with Executor("simulated") as executor:
        with pytest.raises(ConfigError, match="cannot keep"):
            executor.submit([little.task()], ScriptedPolicy([]), config=PlayConfig(keep="always"))
