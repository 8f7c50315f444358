"""Traces are replayed from the command line, in real sandboxes; what came of it can be read, and taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.test_commands import rayroll
from requirements import check
from traces.tiny import call, result, session, step, text, user

from rayroll.record import read_rollouts
from rayroll.traces.rows import write_rows
from rayroll.traces.sanitize import sanitize_rows

SECRET = "echo $((40 + 2)) seen"
ROWS = [
    *session(
        "a",
        step(user(0), call(0.1, "Bash", result=0.3, result_chars=700, input={"command": SECRET})),
        step(result(0.3), call(0.35, "Read", result=0.4), call(0.36, "Read", result=0.45)),
        step(result(0.45), text(0.5)),
    ),
    *session("b", step(user(0), call(0.05, "Bash", result=0.15, input={"command": "cd /tmp"}))),
]
HERE = ("--set", "local.rootfs=host")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    write_rows(tmp_path / "ann-rows.jsonl", ROWS)  # type: ignore[arg-type]
    return tmp_path / "ann-rows.jsonl"


def played(folder: Path, *words: str | Path) -> dict[str, Any]:
    done = rayroll(*map(str, words), cwd=folder)
    assert done.returncode == 0, done.stderr
    line: dict[str, Any] = json.loads(done.stdout)
    return {**line, "stderr": done.stderr}


@pytest.mark.ray
@pytest.mark.local
def test_a_replay_plays_every_session_and_says_how_much_longer_it_took(trace: Path) -> None:
    check("local")
    folder = trace.parent
    said = played(folder, "traces", "replay", trace, *HERE, "--concurrency", "2", "--out", "out")
    (cell,) = said["replay"]
    assert (cell["cell"], cell["compared"], cell["recorded_s"]) == ("local-trace-c2", 2, pytest.approx(0.7))
    assert cell["slowdown"]["least"] > 1 and cell["acting_slowdown"]["least"] > 1
    assert cell["replayed_s"] - cell["recorded_s"] == pytest.approx(2 * sum(cell["tax_s"].values()))
    assert 0 < cell["concurrency_reached"] <= 2
    assert "against the recording" in said["stderr"]

    rollouts = {r.task_id: r for r in read_rollouts(folder / "out/rollouts.jsonl")}
    outputs = [step.output_bytes for step in rollouts["trace/00001"].steps]
    assert outputs == [700, 100, 100]
    assert rollouts["trace/00001"].steps[0].timing.run_ns >= 200e6

    for name in ("config.json", "summary.json", "report.html"):
        page = (folder / "out" / name).read_text()
        assert SECRET not in page and "claude:a" not in page and str(folder) not in page
    assert json.loads((folder / "out/replay.json").read_text())["session_ids"]["trace/00002"] == "claude:b"

    again = played(folder, "traces", "replay", trace, *HERE, "--concurrency", "2", "--out", "out")
    assert again["replay"] == said["replay"], "nothing was left to be played"
    write_rows(trace, ROWS[:-1])  # type: ignore[arg-type]
    other = rayroll("traces", "replay", str(trace), *HERE, "--concurrency", "2", "--out", "out", cwd=folder)
    assert (other.returncode, "asks another question" in other.stderr) == (2, True)


@pytest.mark.ray
@pytest.mark.local
def test_recorded_commands_run_in_their_order_where_they_are_shut_in(trace: Path) -> None:
    check("local")
    recorded = ("--commands", "recorded", "--out", "out")
    said = played(trace.parent, "traces", "replay", trace, *HERE, *recorded)
    assert "recorded commands, the others as stand-ins: 2" in said["stderr"]
    rollouts = {r.task_id: r for r in read_rollouts(trace.parent / "out/rollouts.jsonl")}
    first = rollouts["trace/00001"].steps[0]
    assert (first.act.command, first.exit_code, first.output_bytes) == (SECRET, 0, len("42 seen\n"))
    assert SECRET not in (trace.parent / "out/report.html").read_text()


@pytest.mark.ray
@pytest.mark.docker
def test_a_sweep_over_a_trace_compares_substrates_on_its_sessions(trace: Path) -> None:
    check("docker")
    options = ("--substrates", "docker", "--concurrency", "1,2", "--rollouts", "2", "--wandb", "disabled")
    said = played(trace.parent, "sweep", "--workload", f"trace:{trace}", *options, "--out", "out")
    assert [cell["cell"] for cell in said["replay"]] == ["docker-trace-c1", "docker-trace-c2"]
    assert [cell["compared"] for cell in said["replay"]] == [2, 2]
    config = json.loads((trace.parent / "out/config.json").read_text())
    assert config["workload"] == "trace:ann-rows.jsonl"
    assert (config["trace"]["actions"]["most"], config["target_actions"]) == (3, None)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("sweep", "--substrates", "local", "--workload", "tracelap"), "did you mean 'tracelab'"),
        (("sweep", "--substrates", "local", "--workload", "ann-rows.jsonl"), "trace:ann-rows.jsonl"),
        (("sweep", "--substrates", "local", "--workload", "trace:nowhere.jsonl"), "there is no file nowhere.jsonl"),
        (("sweep", "--substrates", "local", "--workload", "tracelab", "--actions", "10"), "--actions"),
        (("sweep", "--substrates", "local", "--max-steps", "3"), "--max-steps: these go with --workload"),
        (("traces", "replay", "ann-rows.jsonl", "--substrate", "dokcer"), "did you mean 'docker'"),
        (("traces", "replay", "ann-rows.jsonl", "--commands", "recoded"), "did you mean 'recorded'"),
        (("traces", "replay", "ann-rows.jsonl", "--think-scale", "-1"), "think_scale is 0 or more"),
        (("traces", "replay", "shared.jsonl", "--commands", "recorded"), "sanitized, or have no inputs"),
        (("traces", "replay", "tracelab", "--commands", "recorded"), "no commands"),
        (
            ("traces", "replay", "ann-rows.jsonl", "--commands", "recorded", "--set", "local.isolation=none"),
            "only where they are shut in",
        ),
        (("traces", "replay", "ann-rows.jsonl", "--commands", "recorded", "--substrate", "simulated"), "nothing runs"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_traceback(words: tuple[str, ...], answer: str, trace: Path) -> None:
    write_rows(trace.parent / "shared.jsonl", sanitize_rows(ROWS))  # type: ignore[arg-type]
    done = rayroll(*words, cwd=trace.parent)
    assert done.returncode == 2
    assert answer in done.stderr
    assert "Traceback" not in done.stderr
