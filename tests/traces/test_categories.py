"""A tool call is of one kind of work; a shell command is known by the program that does the work in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayroll.traces.categories import CATEGORIES, category, command_of, program

FACTS = json.loads((Path(__file__).parent / "data" / "facts.json").read_text())["tools"]


def test_the_categories_are_the_published_ones() -> None:
    assert set(CATEGORIES) == set(FACTS["category_calls"]) - {"tag", "columns"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Bash", "shell_command"),
        ("write_stdin", "shell_command"),
        ("command", "shell_command"),  # rayroll's own
        ("apply_patch", "file_edit"),
        ("Grep", "file_read_search"),
        ("TaskUpdate", "planning"),
        ("TaskCreate", "agent_task"),
        ("WebSearch", "web_lookup"),
        ("mcp__codex_apps__github_fetch", "web_lookup"),
        ("AskUserQuestion", "other"),
        ("mcp__somebody__tool", "other"),
        ("bash", "other"),  # names are exact
    ],
)
def test_a_tool_s_category_is_found_by_its_name(name: str, kind: str) -> None:
    assert category(name) == kind


def test_every_tool_with_published_calls_has_a_category_of_its_own() -> None:
    names = [name for provider in ("claude", "codex") for name in FACTS["top_calls"][provider]]
    assert [name for name in names if category(name) == "other"] == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("ls -la", "ls"),
        ("/usr/bin/python3 -m pytest", "python3"),
        ("cd /src && make test", "make"),
        ("cd /src; FOO=1 BAR='a b' ./run.sh --fast", "run.sh"),
        ("PATH=$PATH:/x cargo build", "cargo"),
        ("sudo -u root apt-get update", "apt-get"),
        ("sudo -E env A=1 npm ci", "npm"),
        ("timeout 60 pytest -q", "pytest"),
        ("timeout -k 5 60s python x.py", "python"),
        ("time nice -n 10 make", "make"),
        ("export A=1 && set -e && go test ./...", "go"),
        ("# what follows counts files\nfind . | wc -l", "find"),
        ("cat <<'EOF' > a.txt\nsudo rm\nEOF", "cat"),
        ("(cd sub && git status)", "git"),
        ("if [ -f x ]; then make; fi", "["),
        ("2>/dev/null grep -r x .", "grep"),
        (">out 2>&1 &>all ls", "ls"),
        ("git log \\\n  --oneline", "git"),
        ('"my tool" --x', "my tool"),
        ("cd /src", "cd"),  # nothing else is done
        ("source .venv/bin/activate && python a.py", "python"),
        ("X=1", None),
        ("", None),
        ("   \n# only a comment", None),
    ],
)
def test_the_program_is_the_first_that_does_work(command: str, name: str | None) -> None:
    assert program(command) == name


@pytest.mark.parametrize(
    ("tool_input", "command"),
    [
        ({"command": "ls", "description": "List"}, "ls"),
        ('{"cmd": "ls", "workdir": "/src"}', "ls"),
        ('{"command": ["bash", "-lc", "ls | wc"]}', "ls | wc"),
        (["git", "commit", "-m", "a b"], "git commit -m 'a b'"),
        ("ls -la", "ls -la"),
        ('"ls -la"', "ls -la"),
        ("{ ls; }", "{ ls; }"),  # a group, and no JSON
        ({"chars": "y\n", "session_id": 3}, None),
        ({"command": None}, None),
        (None, None),
        (7, None),
        ("", None),
    ],
)
def test_a_command_is_found_in_each_form_that_agents_write(tool_input: Any, command: str | None) -> None:
    assert command_of(tool_input) == command


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(alphabet="ab '\"\\$&|;()<>=#\n{}-0é", max_size=40))
def test_no_text_breaks_it(command: str) -> None:
    name = program(command)
    assert name is None or name.strip()


def test_a_long_command_takes_no_longer_than_a_short_one() -> None:
    assert program("python - <<'E'\n" + "x = 1\n" * 200_000 + "E") == "python"
