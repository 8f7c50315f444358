"""Every task that lies in a pack of Harbor's format: untouched it fails, with its solution it passes."""

from __future__ import annotations

import pytest

from rayroll.tasks import Prover, load_pack, packs
from rayroll.types import Task

pytestmark = pytest.mark.local

TASKS = [task for name in packs() if (pack := load_pack(name)).format == "harbor" for task in pack]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_solution_passes_and_nothing_does_not(task: Task, prover: Prover):
    before = prover.prove(task, rounds=1)
    assert before.reward == 0.0
    assert before.output, "a failed verdict says why"


@pytest.mark.parametrize("name", [name for name in packs() if load_pack(name).format == "harbor"])
def test_no_task_of_these_packs_is_refused(name: str):
    assert load_pack(name).refused == ()
