"""Nodes whose engines have different images: rollouts go where theirs is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import little
import pytest
from hiding_engine import hiding_engine
from nodes import cheap_nodes
from requirements import check, use_testbed

from rayroll import Executor
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.substrates import _endpoint as endpoints

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
use_testbed()


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Ray opens sockets and threads of this process as it likes."""


async def test_rollouts_go_to_the_node_that_has_their_image_though_the_other_has_more_room(tmp_path: Path) -> None:
    check("docker")
    real = endpoints.find(None).url
    if not real.startswith("unix://"):
        pytest.skip("needs an engine on a socket of this machine")
    socket = Path(real.removeprefix("unix://"))

    def is_little(image: dict[str, Any]) -> bool:
        return little.IMAGE in (image["RepoTags"] or ())

    async with hiding_engine(socket, tmp_path, "images", is_little) as other:
        with cheap_nodes(2, env=[{"DOCKER_HOST": real}, {"DOCKER_HOST": other}]):
            async with Executor("docker") as executor:
                await little.until(lambda: len(executor.snapshot().hosts) == 2)
                run = executor.submit([little.task()], ScriptedPolicy(["true"]), samples_per_task=3, max_in_flight=3)
                here = [rollout async for rollout in run.rollouts()]
                common = little.task("common", image="python:3.11-slim")
                run = executor.submit([common], ScriptedPolicy(["true"]), samples_per_task=4, max_in_flight=4)
                anywhere = [rollout async for rollout in run.rollouts()]
    assert all(rollout.valid and rollout.rung == "cached" for rollout in (*here, *anywhere))
    assert len({rollout.host for rollout in here}) == 1
    assert len({rollout.host for rollout in anywhere}) == 2
