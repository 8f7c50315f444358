"""The node's Python with a task's packages: copied from what is installed, found by name, with working scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rayroll.errors import SubstrateError
from rayroll.substrates import _pytools as pytools


def test_installed_packages_are_copied_with_what_they_require(tmp_path: Path) -> None:
    pytools.build(tmp_path, ("pytest>=7",))
    site = tmp_path / pytools.SITE
    assert {"pytest", "pluggy", "iniconfig"} <= {path.name for path in site.iterdir()}
    found = subprocess.run(
        [tmp_path / "bin" / "python3", "-I", "-c", "import pytest, sys; print(pytest.__file__); print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert found == [str(site / "pytest" / "__init__.py"), str(tmp_path)]


def test_console_scripts_name_the_interpreter_that_sandboxes_have(tmp_path: Path) -> None:
    pytools.build(tmp_path, ("pytest",))
    script = (tmp_path / "bin" / "pytest").read_text().splitlines()
    assert script[0] == "#!/opt/rayroll/bin/python3"
    assert (tmp_path / "bin" / "pytest").stat().st_mode & 0o111


def test_no_packages_give_a_bare_python(tmp_path: Path) -> None:
    pytools.build(tmp_path, ())
    code = "import importlib.util as u; print(u.find_spec('pytest'))"
    python = tmp_path / "bin" / "python3"
    assert subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "None\n"


def test_a_package_that_nobody_has_is_an_error_with_pips_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SubstrateError, match="host_packages could not be installed"):
        pytools.build(tmp_path, ("rayroll-there-is-no-such-package==0.0.1",))


def test_names_depend_on_the_requirements_and_not_on_their_order() -> None:
    assert pytools.name_of(("a", "b")) == pytools.name_of(("b", "a")) != pytools.name_of(("a",))


def test_a_copied_prefix_is_a_working_python(tmp_path: Path) -> None:
    pytools.copy_prefix(tmp_path)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    code = "import json, sqlite3, ssl, asyncio, sys; print(sys.prefix)"
    done = subprocess.run([tmp_path / "bin" / name, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path)
