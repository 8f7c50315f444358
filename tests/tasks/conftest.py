from __future__ import annotations

from pathlib import Path

import pytest
from requirements import require

from rayroll.errors import ConfigError
from rayroll.tasks import Prover


@pytest.fixture(scope="session")
def prover() -> Prover:
    try:
        return Prover()
    except ConfigError as missing:
        require("local", str(missing))
        raise


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    """A pack of one sound task in Harbor's format; the task's own folder."""
    folder = tmp_path / "pack" / "one"
    for name, text in {
        "task.toml": 'schema_version = "1.0"\n',
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM busybox:latest\nWORKDIR /app\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
