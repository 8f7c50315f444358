"""The shared fixtures give what they say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rayroll.runner.build import cache_dir
from rayroll.substrates import SandboxSpec, Substrate
from rayroll.testing import open_sandbox


async def test_every_real_substrate_of_this_machine_is_handed_over_open(substrate: Substrate, run_id: str) -> None:
    async with open_sandbox(substrate, SandboxSpec(), run_id=run_id) as live:
        assert (await live.sh("echo hi")).output == "hi\n"
        assert [r.id for r in await substrate.list({"run": run_id})] == [live.ref.id]
    assert await substrate.list({"run": run_id}) == []


async def test_a_sandbox_is_destroyed_when_its_body_raises(local: Substrate, run_id: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_sandbox(local, run_id=run_id):
            raise ZeroDivisionError
    assert await local.list({"run": run_id}) == []


@pytest.mark.ray
def test_one_ray_with_a_fixed_number_of_cpus(ray_cluster: Any) -> None:
    assert ray_cluster.cluster_resources()["CPU"] == 4

    @ray_cluster.remote
    def pid() -> int:
        return os.getpid()

    assert ray_cluster.get(pid.remote()) != os.getpid()


def test_what_is_kept_goes_into_folders_of_the_test(rayroll_home: Path) -> None:
    assert cache_dir().is_relative_to(rayroll_home)
    assert Path.cwd() == rayroll_home
