"""One process goes on with the session of another that has died."""

from __future__ import annotations

import little
import pytest
from requirements import check

from rayroll import Client
from rayroll.errors import SandboxLostError
from rayroll.runner.client import NUMBERED_FROM


@pytest.mark.parametrize("kind", ["local", "docker"])
async def test_directory_variables_and_results_are_there_and_grading_goes_on(kind: str) -> None:
    check(kind)
    config = little.SUBSTRATE_CONFIG[kind]
    async with Client(kind, substrate_config=config) as first, Client(kind, substrate_config=config) as second:
        dead = first.open(little.task())
        await dead.exec("cd /tmp; export K=v", number=NUMBERED_FROM)
        done = await dead.exec("echo ran >> /tmp/log; echo 42 > /app/answer.txt; exit 3", number=NUMBERED_FROM + 1)
        ticket = dead.ticket()
        assert ticket is not None
        session = await second.take_over(little.task(), ticket, left_s=60.0, under_way=NUMBERED_FROM + 1)
        again = await session.exec("not run", number=NUMBERED_FROM + 1)
        assert (again.exit_code, again.output) == (done.exit_code, done.output)
        assert (await session.exec('echo "$K $(pwd) $(wc -l < log)"')).output == "v /tmp 1\n"
        assert (await session.grade()).reward == 1.0
        await session.close()
    with pytest.raises(SandboxLostError):
        async with Client(kind, substrate_config=config) as late:
            await late.take_over(little.task(), ticket, left_s=60.0)


async def test_a_plain_process_has_no_ticket() -> None:
    check("local")
    local = Client("local", substrate_config={**little.SUBSTRATE_CONFIG["local"], "isolation": "none"})
    async with local as client, client.open(little.task(), trusted=True) as session:
        assert session.ticket() is None
        await session.booted()
        assert session.ticket() is None
