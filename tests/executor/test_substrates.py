"""The same run on every real substrate: equal work, and a record that says what its times must not be read without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import little
import pytest
from executor.conftest import Opened
from requirements import check

from rayroll import Rollout
from rayroll.executor import PlayConfig
from rayroll.policies.scripted import ScriptedPolicy

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "docker": {},
    "kubernetes": {"request_share": 0.1},
    "qemu": {},
    "opensandbox": {"network": "open"},
    "ec2": {"images": {little.IMAGE: "resolve:ssm:/aws/service/debian/release/12/latest/amd64"}, "poll_s": 0.1},
}
SAID = {
    "docker": set(),
    "kubernetes": {"carrier"},
    "qemu": {"accelerator"},
    "opensandbox": {"network"},
    "ec2": {"instance_type", "endpoint"},
}


async def played_on(kind: str, opened: Opened) -> Rollout:
    check(kind)
    script = ScriptedPolicy(["echo 42 > answer.txt", "cat answer.txt; exit 3"])
    async with opened(kind, substrate_config=dict(CONFIGS[kind])) as executor:
        run = executor.submit([little.task()], script, config=PlayConfig(fingerprint=True))
        (rollout,) = [rollout async for rollout in run.rollouts()]
    assert (rollout.reward, rollout.attempts, rollout.failure) == (1.0, 1, None)
    assert rollout.labels.keys() == {"system"} | SAID[kind]
    return rollout


@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {"docker"}))
async def test_a_run_is_the_same_work_as_on_docker(opened: Opened, kind: str) -> None:
    theirs, ours = await played_on(kind, opened), await played_on("docker", opened)
    assert [step.exit_code for step in theirs] == [step.exit_code for step in ours] == [0, 3]
    assert theirs.work_digest == ours.work_digest != ""
