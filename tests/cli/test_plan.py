"""What a sweep will do is decided before anything starts."""

from __future__ import annotations

from collections import Counter

import pytest

from rayroll.cli._plan import SweepConfig, blocks, cells, choose_tasks
from rayroll.errors import ConfigError
from rayroll.types import FileTree, Task

TASKS = [Task(f"pack/{n}", "", FileTree.from_files({}), FileTree.from_files({})) for n in range(5)]


def config(**values: object) -> SweepConfig:
    return SweepConfig.parse({"substrates": ("local",), **values})


def test_cells_are_every_combination() -> None:
    made = cells(config(substrates=("local", "docker"), actions=(50, 10), concurrency=(1, 8)))
    assert [c.id for c in made[:4]] == ["local-a10-c1", "local-a10-c8", "local-a50-c1", "local-a50-c8"]
    assert len(made) == 8


def test_every_cell_plays_the_same_tasks_as_often() -> None:
    asked = config(actions=(10, 50), rollouts=7, rounds=3)
    played: dict[str, Counter[str]] = {}
    for block in blocks(asked, TASKS):
        played.setdefault(block.cell.id, Counter()).update(task.id for task in block.tasks)
    assert {sum(counts.values()) for counts in played.values()} == {7}
    assert len({tuple(sorted(counts.items())) for counts in played.values()}) == 1


def test_each_round_holds_all_cells_in_an_order_of_the_seed() -> None:
    asked = config(actions=(10, 20, 30, 40), rollouts=4, rounds=2)
    planned = blocks(asked, TASKS)
    assert [b.round for b in planned] == [0] * 8 + [1] * 8
    assert planned == blocks(asked, TASKS)
    assert [b.cell for b in planned] != [b.cell for b in blocks(asked.model_copy(update={"seed": 1}), TASKS)]


def test_rollouts_of_different_blocks_have_different_namespaces() -> None:
    planned = blocks(config(actions=(10, 20), rollouts=6, rounds=3), TASKS)
    assert len({b.namespace for b in planned}) == len(planned)


def test_no_block_is_empty() -> None:
    assert all(b.tasks for b in blocks(config(rollouts=2, rounds=5), TASKS))


def test_tasks_are_drawn_by_the_seed_and_no_more_than_are_played() -> None:
    assert len(choose_tasks(config(rollouts=3), TASKS)) == 3
    assert choose_tasks(config(rollouts=3, seed=4), TASKS) == choose_tasks(config(rollouts=3, seed=4), TASKS)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"actions": (0,)}, "1 or more"),
        ({"actions": (2,)}, "takes 4 or more"),
        ({"concurrency": (-1,)}, "1 or more"),
        ({"rollouts": -3}, "rollouts"),
        ({"substrates": ()}, "at least one"),
        ({"rolouts": 3}, "did you mean rollouts"),
        ({"target_rollouts": 0}, "target_rollouts"),
    ],
)
def test_impossible_questions_are_refused_with_the_reason(values: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        config(**values)


def test_a_trace_has_one_cell_for_each_substrate_and_concurrency() -> None:
    asked = config(workload="tracelab", actions=(2,), concurrency=(1, 4), target_actions=None)
    assert [c.id for c in cells(asked)] == ["local-trace-c1", "local-trace-c4"]
    assert {b.cell.actions for b in blocks(asked, TASKS)} == {2}


def test_what_is_kept_of_a_bug_fix_sweep_does_not_speak_of_traces() -> None:
    """Results of earlier versions can be taken up."""
    assert not {"workload", "trace"} & config().question().keys()
    assert config(workload="tracelab").question()["workload"] == "tracelab"
