"""The sweep: finds what is left of any run on this node, whoever made it, and spares what it was not asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import little
import pytest
from requirements import check

from rayroll import Client, SessionConfig
from rayroll.cleanup import sweep
from rayroll.errors import ConfigError
from rayroll.substrates import SandboxRef

MAKE = """
import asyncio, sys
import little, rayroll

async def main(kind, run_id, owner):
    client = rayroll.Client(kind, substrate_config=little.SUBSTRATE_CONFIG[kind], run_id=run_id, owner=owner)
    async with client, client.open(little.task()) as session:
        await session.exec("true")
        print("up", flush=True)
        await session.exec("sleep 600", timeout_s=600)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def somebody_s_sandbox(kind: str, run_id: str, owner: str = "somebody") -> Iterator[None]:
    """A living sandbox of another process."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, kind, run_id, owner],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            process.kill()


def facts(refs: list[SandboxRef]) -> list[tuple[str, str, str]]:
    return [(ref.kind, ref.run_id, ref.owner) for ref in refs]


@pytest.mark.parametrize("kind", ["local", "docker"])
async def test_a_run_is_removed_whoever_made_it_and_no_other(kind: str, run_id: str) -> None:
    check(kind)
    other = f"{run_id}-other"
    with somebody_s_sandbox(kind, run_id), somebody_s_sandbox(kind, other):
        assert facts(await sweep([kind], run_id=run_id, dry_run=True)) == [(kind, run_id, "somebody")]
        assert facts(await sweep([kind], run_id=run_id)) == [(kind, run_id, "somebody")]
        assert await sweep([kind], run_id=run_id) == []
        assert facts(await sweep([kind], run_id=other)) == [(kind, other, "somebody")]


async def test_owner_and_age_narrow_it_down(run_id: str) -> None:
    check("local")
    with somebody_s_sandbox("local", run_id, "a"), somebody_s_sandbox("local", run_id, "b"):
        assert await sweep(["local"], run_id=run_id, older_than_s=3600) == []
        assert facts(await sweep(["local"], run_id=run_id, owner="b")) == [("local", run_id, "b")]
        assert facts(await sweep(["local"], run_id=run_id, older_than_s=0.0)) == [("local", run_id, "a")]


async def test_a_session_whose_sandbox_was_swept_has_lost_it(run_id: str) -> None:
    check("local")
    config = SessionConfig(lease_s=2.0)
    local = Client("local", substrate_config=little.SUBSTRATE_CONFIG["local"], config=config, run_id=run_id)
    async with local as client, client.open(little.task()) as session:
        await session.exec("true")
        assert len(await sweep(["local", "simulated"], run_id=run_id)) == 1
        with pytest.raises(Exception) as lost:
            await session.exec("true")
        assert getattr(lost.value, "fault", "") == "infra"


async def test_a_kind_that_this_node_cannot_run_has_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    assert await sweep(["docker"], run_id="none") == []


async def test_an_unknown_kind_is_refused_before_anything_is_removed(run_id: str) -> None:
    with pytest.raises(ConfigError, match="did you mean 'docker'"):
        await sweep(["local", "dokcer"], run_id=run_id)
