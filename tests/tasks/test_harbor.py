from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rayroll.tasks import Refused, load_pack
from rayroll.tasks.harbor import write_task
from rayroll.types import FileTree, Task


def read(folder: Path) -> Task:
    pack = load_pack(folder.parent)
    assert pack.refused == ()
    return pack.tasks[0]


def refusal(folder: Path) -> Refused:
    pack = load_pack(folder.parent)
    assert pack.tasks == ()
    return pack.refused[0]


def with_toml(folder: Path, text: str) -> Path:
    (folder / "task.toml").write_text(text)
    return folder


def test_what_is_left_out_has_harbors_defaults(task_folder: Path):
    task = read(task_folder)
    assert (task.instruction, task.workdir, task.image, task.solution) == ("Do it.\n", "/app", None, None)
    assert (task.agent_network, task.grade_network) == (True, True)
    assert (task.grade_timeout_s, task.build_timeout_s) == (600.0, 600.0)
    assert (task.agent_user, task.host_packages) == (None, None)


def test_everything_that_a_task_toml_says_arrives(task_folder: Path):
    (task_folder / "solution").mkdir()
    (task_folder / "solution/solve.sh").write_text("true\n")
    task = read(
        with_toml(
            task_folder,
            """
schema_version = "1.4"
[metadata]
difficulty = "easy"
[metadata.rayroll]
host_packages = ["pytest"]
[agent]
timeout_sec = 12.5
user = 1000
[verifier]
timeout_sec = 34
user = "root"
env = {A = "1"}
[environment]
build_timeout_sec = 56
cpus = 2
memory_mb = 512
storage_mb = 1024
workdir = "/srv"
env = {B = "${NOT_SET:-two}"}
skills_dir = "/skills"
[solution]
env = {C = "3"}
""",
        )
    )
    assert (task.agent_timeout_s, task.agent_user) == (12.5, "1000")
    assert (task.grade_timeout_s, task.grade_user, task.tests_env) == (34.0, "root", {"A": "1"})
    assert (task.build_timeout_s, task.cpus, task.memory_mib, task.disk_mib) == (56.0, 2.0, 512, 1024)
    assert (task.workdir, task.env, task.solution_env) == ("/srv", {"B": "two"}, {"C": "3"})
    assert task.host_packages == ("pytest",)
    assert task.metadata == {"difficulty": "easy", "harbor": {"skills_dir": "/skills"}}
    assert task.solution is not None and task.solution.names() == ["solve.sh"]


@pytest.mark.parametrize(
    ("environment", "agent", "verifier", "networks"),
    [
        ("", "", "", (True, True)),
        ('network_mode = "no-network"', "", "", (False, False)),
        ("allow_internet = false", "", "", (False, False)),
        ("allow_internet = true", "", "", (True, True)),
        ('network_mode = "no-network"\nallow_internet = true', "", "", (False, False)),
        ('network_mode = "public"', 'network_mode = "no-network"', "", (False, True)),
        ('network_mode = "no-network"', "", 'network_mode = "public"', (False, True)),
        ('network_mode = "no-network"', 'network_mode = "public"', "", (True, False)),
        ("", 'network_mode = "allowlist"', "", (False, True)),
    ],
)
def test_the_network_is_decided_per_phase(
    task_folder: Path, environment: str, agent: str, verifier: str, networks: tuple[bool, bool]
):
    text = f"[environment]\n{environment}\n[agent]\n{agent}\n[verifier]\n{verifier}\n"
    task = read(with_toml(task_folder, text))
    assert (task.agent_network, task.grade_network) == networks


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('version = "1.0"\n\n[agent\n', 3, "not TOML"),
        (
            "[agent]\ntimeout_sec = 5\n\n[environment]\ncpus = 0\n",
            5,
            "environment.cpus: Input should be greater than 0",
        ),
        ('[agent]\ntimeout_sec = "long"\n', 2, "agent.timeout_sec: Input should be a valid number"),
        ("[environment]\nallow_internt = false\n", 2, "'environment.allow_internt'; did you mean 'allow_internet'?"),
        ("verifer = {timeout_sec = 3}\n", 1, "unknown field 'verifer'; did you mean 'verifier'?"),
        ('schema_version = "2.0"\n', 1, "schema 2.0 is not one of the 1.x"),
        ('[environment]\nos = "windows"\n', 2, "sandboxes run Linux"),
        ("[environment]\ncpus = 1\ngpus = 1\n", 3, "no accelerators"),
        ('[environment.healthcheck]\ncommand = "true"\n', 1, "health checks"),
        ('[environment]\n[[environment.mcp_servers]]\nname = "x"\n', 2, "MCP servers"),
        ('[verifier]\nenvironment_mode = "separate"\n', 2, "a verifier with an environment of its own"),
        ('[verifier.environment]\ndocker_image = "x"\n', 1, "a verifier with an environment of its own"),
        ('[[steps]]\nname = "first"\n', 1, "several steps"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n', 3, "limited to some hosts"),
        ('[agent]\nallowed_hosts = ["a.org"]\n', 1, "only valid with network_mode"),
        ('[environment]\nmemory = "2 pounds"\n', 1, "expected a size like '2G'"),
        ('[verifier.env]\nKEY = "${TOKEN_FOR_TESTS}"\n', 2, "KEY needs the variable 'TOKEN_FOR_TESTS'"),
        ("[metadata.rayroll]\nhost_package = []\n", 1, "did you mean host_packages?"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_line(task_folder: Path, text: str, line: int, reason: str):
    refused = refusal(with_toml(task_folder, text))
    assert (refused.file.name, refused.line) == ("task.toml", line)
    assert reason in refused.reason


@pytest.mark.parametrize(
    ("file", "content", "line", "reason"),
    [
        ("instruction.md", None, 0, "missing"),
        ("instruction.md", b" \n", 0, "the instruction is empty"),
        ("tests/test.sh", None, 0, "missing"),
        ("environment/Dockerfile", None, 0, "missing"),
        ("environment/Dockerfile", b"FROM x\n\nRUM true\n", 3, "unknown instruction 'RUM'; did you mean RUN?"),
        ("environment/Dockerfile", b"FROM x\nRUN echo \xff\n", 2, "not UTF-8 text"),
        ("environment/docker-compose.yaml", b"services: {}\n", 0, "several containers"),
        ("trajectory.json", b"{}", 0, "earlier trajectory"),
        ("tests/.harborignore", b"x\n", 0, ".harborignore is not supported"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    task_folder: Path, file: str, content: bytes | None, line: int, reason: str
):
    if content is None:
        (task_folder / file).unlink()
    else:
        (task_folder / file).write_bytes(content)
    refused = refusal(task_folder)
    assert (refused.file, refused.line, refused.reason) == (task_folder / file, line, refused.reason)
    assert reason in refused.reason


def test_an_unreadable_dockerfile_is_refused(task_folder: Path):
    (task_folder / "environment/Dockerfile").unlink()
    (task_folder / "environment/Dockerfile").mkdir()
    assert refusal(task_folder).reason.startswith("unreadable: ")


def test_a_ready_image_needs_no_dockerfile(task_folder: Path):
    (task_folder / "environment/Dockerfile").unlink()
    task = read(with_toml(task_folder, '[environment]\ndocker_image = "python:3.11-slim"\n'))
    assert (task.image, bool(task.environment), task.workdir) == ("python:3.11-slim", False, "/")


def test_old_sizes_are_understood(task_folder: Path):
    task = read(with_toml(task_folder, '[environment]\nmemory = "2G"\nstorage = "512M"\n'))
    assert (task.memory_mib, task.disk_mib) == (2048, 512)


def test_unknown_fields_travel_in_the_metadata(task_folder: Path):
    text = 'colour = "red"\n[task]\nname = "me/one"\n[agent]\nfavourite_shell = "fish"\n'
    task = read(with_toml(task_folder, text))
    assert task.metadata == {"harbor": {"task": {"name": "me/one"}, "colour": "red", "agent.favourite_shell": "fish"}}


def test_a_task_reads_only_variables_that_its_pack_names(task_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKEN_FOR_TESTS", "secret")
    with_toml(task_folder, '[verifier.env]\nKEY = "${TOKEN_FOR_TESTS}"\n')
    assert "pass_env" in refusal(task_folder).reason
    pack = 'format = "harbor"\ntasks = "."\npass_env = ["TOKEN_FOR_TESTS"]\n'
    (task_folder.parent / "pack.toml").write_text(pack)
    assert read(task_folder).tests_env == {"KEY": "secret"}


def test_canary_lines_are_not_shown_to_agents(task_folder: Path):
    (task_folder / "instruction.md").write_text("<!-- benchmark canary GUID 1 -->\n# canary 2\n\n# Title\n")
    assert read(task_folder).instruction == "# Title\n"


@pytest.mark.parametrize("name", ["hello_shell", "terminal", "repo_fix"])
def test_a_task_that_is_written_out_and_read_again_is_equal(tmp_path: Path, name: str):
    for task in load_pack(name).tasks[:3]:
        write_task(task, tmp_path / name / task.id.partition("/")[2])
    for again in load_pack(tmp_path / name):
        assert comparable(again) == comparable(load_pack(name).by_id(again.id))


def comparable(task: Task) -> dict[str, Any]:
    # Two archives of equal trees differ in how they were packed; the trees themselves must not.
    return {
        field.name: contents(value) if isinstance(value := getattr(task, field.name), FileTree) else value
        for field in dataclasses.fields(task)
    }


def contents(tree: FileTree) -> dict[str, bytes]:
    import io
    import tarfile

    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(tree.tar)) as archive:
        for member in archive:
            if member.issym():
                found[member.name] = f"-> {member.linkname}".encode()
            elif (file := archive.extractfile(member)) is not None:
                found[f"{member.name} {member.mode:o}"] = file.read()
    return found
