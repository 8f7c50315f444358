"""The commands as people type them, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from requirements import check


def rayroll(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from rayroll.cli import main; main()", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.qemu
def test_vm_build_says_what_machines_of_an_image_will_start_from(tmp_path: Path) -> None:
    check("qemu")
    done = rayroll("vm", "build", "--image", "busybox:latest", "--memory", "128", "--disk", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert (facts["start"], facts["accelerator"] in ("kvm", "tcg")) == ("snapshot", True)
    assert facts["kernel"] == facts["guest_kernel"]


def test_doctor_names_every_substrate_and_pack(tmp_path: Path) -> None:
    done = rayroll("doctor", "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert {"local", "docker", "simulated"} <= set(facts["substrates"])
    assert {"hello_shell", "terminal", "repo_fix"} <= set(facts["packs"])
    assert all(probe["ok"] or probe["reason"] for probe in facts["substrates"].values())


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("sweep", "--substrates", "dokcer"), "did you mean 'docker'"),
        (("sweep", "--substrates", "local", "--actions", "0"), "actions: needs whole numbers of 1 or more"),
        (("sweep", "--substrates", "local", "--actions", "ten"), "whole numbers"),
        (("sweep", "--substrates", "local", "--rollouts", "-1"), "greater than or equal to 1"),
        (("sweep", "--substrates", "local", "--wandb", "maybe"), "offline, online or disabled"),
        (("sweep", "--substrates", "local", "--pack", "repo_fx"), "repo_fix"),
        (("sweep", "--substrates", "local", "--tasks", "nothing-*"), "no task matches"),
        (("sweep", "--substrates", "local", "--out", "/proc/results"), "choose another --out"),
        (("run", "--pack", "terminal", "--task", "fix_logs"), "did you mean"),
        (("vm", "build", "--kernel-only", "--image", "a", "--context", "."), "either an image or a context"),
        (("run", "--policy", "orakel"), "did you mean 'oracle'"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_traceback(words: tuple[str, ...], answer: str, tmp_path: Path) -> None:
    done = rayroll(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert answer in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_run_plays_a_pack_and_ends_with_one_json_line(tmp_path: Path) -> None:
    check("local")
    done = rayroll("run", "--pack", "hello_shell", "--substrate", "local", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"out": str(tmp_path / "out"), "rollouts": 1, "invalid": 0, "mean_reward": 1.0}
    assert (tmp_path / "out" / "rollouts.jsonl").read_text().count("\n") == 1
