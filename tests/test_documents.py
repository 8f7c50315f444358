"""Documents tell the truth: their programs run, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from requirements import check

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("envs/*.md"), *ROOT.glob("cluster/**/*.md")])


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced code of a language in any page: where it is, and the code."""
    found = []
    for page in PAGES:
        for block in re.finditer(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            line = page.read_text()[: block.start()].count("\n") + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", block[1]))
    return found


GROUPS = {"traces", "predict", "vm"}
"""Commands that have commands of their own."""
PROGRAMS = blocks("python")
COMMANDS = [
    (where, line.strip())
    for where, block in blocks("sh")
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize(("where", "program"), PROGRAMS, ids=[where for where, _ in PROGRAMS])
def test_programs_run(where: str, program: str) -> None:
    page = where.partition(":")[0]
    check(Path(page).stem if page.startswith("docs/substrates/") else "local")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("command", [line for _, line in COMMANDS], ids=[where for where, _ in COMMANDS])
def test_commands_name_targets_files_and_options_that_exist(command: str) -> None:
    words = command.split("#")[0].split()
    if words[0] == "make":
        targets = set(re.findall(r"^([\w/.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert {word for word in words[1:] if "=" not in word} <= targets
    elif words[0] == "rayroll":
        end = next(at for at, word in enumerate(words[1:], start=2) if word not in GROUPS)
        known = usage(*words[1:end])
        assert {word.partition("=")[0] for word in words[2:] if word.startswith("--")} <= known
    elif words[:3] == ["ray", "job", "submit"]:
        script, *options = words[words.index("--") + 1 :]
        assert (ROOT / script).stat().st_mode & 0o111, "Ray runs the script itself"
        assert {word for word in options if word.startswith("--")} <= usage("sweep")
    else:
        files = [word.strip('"$()') for word in words if "/" in word and not word.startswith(("http", "-", "'"))]
        assert all((ROOT / name).exists() for name in files if not name.startswith(("/", "~", "."))), files


def usage(*command: str) -> set[str]:
    """Options of one of our commands, from its own help."""
    done = subprocess.run(
        [sys.executable, "-c", "from rayroll.cli import main; main()", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "TERM": "dumb", "PATH": "/usr/bin:/bin"},
    )
    return set(re.findall(r"--[\w-]+", done.stdout))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []
