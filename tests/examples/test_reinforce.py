"""The training loop that we show: real sandboxes, the real verdict, and returns that rise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reinforce
from requirements import check

REPAIRS = {
    "repo_fix/spanset-03": ("parse_spans", "s/number - 1/number + 1/"),
    "repo_fix/spanset-04": ("__and__", r"s/\[2\]/[1]/"),
    "repo_fix/spanset-05": ("nth", "s/stop + start/stop - start/"),
    "repo_fix/spanset-06": ("__contains__", "s/<=/</"),
    "repo_fix/spanset-07": ("gaps", "s/is not None/is None/"),
    "repo_fix/spanset-08": ("nearest", "s/ and / or /"),
}


@pytest.mark.parametrize(("shift", "mean_return"), [(0, 1.0), (1, 0.0)], ids=["its own", "of another"])
def test_an_edit_repairs_its_own_bug_and_no_other(ray_cluster: Any, shift: int, mean_return: float) -> None:
    check("local")
    policy = reinforce.Policy(reinforce.BUGS, seed=0)
    for row, bug in enumerate(reinforce.BUGS):
        function, edit = REPAIRS[bug]
        policy.logits[row, 0, reinforce.FUNCTIONS.index(function)] = 100
        policy.logits[row, 1, (reinforce.EDITS.index(edit) + shift) % len(reinforce.EDITS)] = 100
    with reinforce.make_envs(16) as envs:
        (record,) = reinforce.train(envs, policy, updates=1, seed=6)  # with which 16 envs draw all six bugs
    assert (record["return"], record["invalid"]) == (mean_return, 0)
    assert {rollout.task_id for rollout in record["rollouts"]} == set(reinforce.BUGS)


def test_the_return_rises(ray_cluster: Any) -> None:
    check("local")
    bugs = reinforce.BUGS[:2]
    with reinforce.make_envs(12, bugs=bugs) as envs:
        curve = list(reinforce.train(envs, reinforce.Policy(bugs, seed=0), updates=16, seed=0))
    returns = [record["return"] for record in curve]
    assert np.mean(returns[-4:]) > np.mean(returns[:4]) + 0.4
