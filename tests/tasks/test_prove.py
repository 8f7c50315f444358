from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rayroll.errors import TaskError
from rayroll.tasks import Prover
from rayroll.types import FileTree, Task

pytestmark = pytest.mark.local

VERDICT = "mkdir -p /logs/verifier; [ -e /app/done ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt"


def task(test: str = VERDICT, solve: str = "touch /app/done", dockerfile: str = "WORKDIR /app", **more: object) -> Task:
    return Task(
        id="t/one",
        instruction="",
        environment=FileTree.from_files({"Dockerfile": f"FROM x\n{dockerfile}\n", "data/file.txt": "hello\n"}),
        tests=FileTree.from_files({"test.sh": test}),
        solution=FileTree.from_files({"solve.sh": solve}),
        **{"workdir": "/app", "host_packages": (), **more},  # type: ignore[arg-type]
    )


def test_a_sound_task_is_proven(prover: Prover):
    assert prover.prove(task(), rounds=2).reward == 0.0


def test_a_task_that_passes_untouched_is_not(prover: Prover):
    with pytest.raises(TaskError, match="does not fail every time"):
        prover.prove(task(test="echo 1 > /logs/verifier/reward.txt"), rounds=2)


def test_a_task_without_a_verdict_is_not(prover: Prover):
    assert prover.grade(task(test="true")).reward is None
    with pytest.raises(TaskError, match="does not fail every time"):
        prover.prove(task(test="true"), rounds=1)


def test_a_fix_that_does_not_pass_is_told_with_what_the_tests_said(prover: Prover):
    with pytest.raises(TaskError, match="known fix does not pass") as wrong:
        prover.prove(task(test=f"echo still wrong; {VERDICT}", solve="true"), rounds=1)
    assert "still wrong" in wrong.value.facts["output"]


def test_a_fix_that_fails_is_told_with_its_exit_code(prover: Prover):
    with pytest.raises(TaskError, match="known fix itself fails") as wrong:
        prover.prove(task(solve="echo oops; exit 7"), rounds=1)
    assert (wrong.value.facts["exit_code"], wrong.value.facts["output"]) == (7, "oops\n")


def test_a_fix_that_does_not_end_is_ended(prover: Prover):
    with pytest.raises(TaskError, match="known fix itself fails") as wrong:
        prover.prove(task(solve="echo before; sleep 600", agent_timeout_s=0.5), rounds=1)
    assert (wrong.value.facts["exit_code"], wrong.value.facts["output"]) == (124, "before\n")


def test_a_task_without_a_fix_cannot_be_proven(prover: Prover):
    with pytest.raises(TaskError, match="no known fix"):
        prover.prove(dataclasses.replace(task(), solution=None))


def test_a_task_that_needs_its_image_is_left_to_an_engine(prover: Prover):
    with pytest.raises(TaskError, match="only an engine can prove it"):
        prover.grade(task(host_packages=None))


def test_a_task_that_copies_into_system_folders_is_refused(prover: Prover):
    with pytest.raises(TaskError, match="cannot write there"):
        prover.grade(task(dockerfile="COPY data/ /etc/data/"))


def test_copy_workdir_and_env_of_the_dockerfile_hold(prover: Prover):
    dockerfile = "ENV WHO=me\nCOPY data/file.txt /srv/\nCOPY data /app/in/\nWORKDIR /app/work"
    seen = prover.grade(task(test="echo $WHO; cat /srv/file.txt /app/in/file.txt; pwd", dockerfile=dockerfile))
    assert seen.output == "me\nhello\nhello\n/app\n"


def test_the_sandbox_has_no_network_and_nothing_of_the_system_to_write(prover: Prover, tmp_path: Path):
    probe = f"""
    cat /proc/net/dev | tail -n +3 | grep -v ' lo:' && echo network
    touch /usr/rayroll-was-here 2>/dev/null && echo written
    [ -e {tmp_path} ] && echo seen
    [ -e /etc/shadow ] && echo shadow
    env | grep -c RAYROLL_SECRET
    """
    assert prover.grade(task(test=probe)).output == "0\n"


def test_variables_of_the_task_reach_the_fix_and_the_tests(prover: Prover):
    seen = prover.grade(
        task(
            test="echo tests $A $B $C",
            solve="echo fix $A $B $C",
            env={"A": "a"},
            solution_env={"B": "b"},
            tests_env={"C": "c"},
        ),
        solve=True,
    )
    assert seen.output == "fix a b\ntests c\n"
