"""The folder of a run: made, locked to one question, and found again by a resumed run."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rayroll
from rayroll.errors import ConfigError

__all__ = ["Results", "homes", "in_job", "machine"]


class Results:
    """``config.json``, ``prepare.jsonl``, ``rollouts.jsonl``, ``summary.json`` and ``report.html`` in one folder."""

    def __init__(self, folder: Path, run_id: str, *, resumed: bool) -> None:
        self.folder = folder
        self.run_id = run_id
        self.resumed = resumed
        self.config = folder / "config.json"
        self.prepared = folder / "prepare.jsonl"
        self.rollouts = folder / "rollouts.jsonl"
        self.summary = folder / "summary.json"
        self.report = folder / "report.html"

    @classmethod
    def open(cls, out: Path | None, kind: str, question: Mapping[str, Any]) -> Results:
        """Make the folder, or take up the one that is there.

        Args:
            out: The folder; None: a new one in ``results/``, named by the time; in a submitted job, whose working
                folder goes with it, in ``rayroll-results`` of the user's home on the node it runs on.
            kind: ``sweep`` or ``run``.
            question: What determines the rollouts; kept, and compared when the folder is taken up again.

        Raises:
            ConfigError: It cannot be written, holds something else, or was made for another question.
        """
        # Absolute: Ray removes a job's working folder once its last actor is gone, before the job itself has ended.
        folder = (out or _base() / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".write-{os.getpid()}"
            probe.write_bytes(b"?")
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error.strerror}", fix="choose another --out") from None
        config = folder / "config.json"
        question = json.loads(json.dumps(question))  # as it will be read back
        if config.exists():
            return cls._take_up(folder, config, kind, question)
        others = [p.name for p in folder.iterdir()]
        if others:
            raise ConfigError(f"{folder} is not empty and holds no earlier run", holds=sorted(others)[:5])
        run_id = secrets.token_hex(6)
        values = {"kind": kind, "run_id": run_id, "question": question, **question, "machine": machine()}
        # A half-written config would make the folder useless: written aside, then named.
        aside = folder / "config.json.new"
        aside.write_text(json.dumps(values, indent=2) + "\n")
        aside.rename(config)
        return cls(folder, run_id, resumed=False)

    @classmethod
    def _take_up(cls, folder: Path, config: Path, kind: str, question: Mapping[str, Any]) -> Results:
        try:
            values = json.loads(config.read_text())
            before, run_id, was = values["question"], values["run_id"], values["kind"]
        except (ValueError, KeyError):
            raise ConfigError(f"{config} is no config of an earlier run", fix="choose another --out") from None
        if was != kind:
            raise ConfigError(f"{folder} holds a {was}, not a {kind}", fix="choose another --out")
        changed = sorted(k for k in {*before, *question} if before.get(k) != question.get(k))
        if changed:
            raise ConfigError(
                f"{folder} holds a {kind} that asks another question; give the same options, or another --out",
                **{k: f"{before.get(k)} then, {question.get(k)} now" for k in changed},
            )
        return cls(folder, run_id, resumed=True)


def in_job() -> bool:
    """Whether this process is a submitted job that runs in the working folder that Ray unpacked for it."""
    return "working_dir_files" in Path.cwd().parts


def homes() -> tuple[Path, Path]:
    """Where runs put their folders when nobody says where: here, and in a submitted job."""
    return Path("results"), Path.home() / "rayroll-results"


def _base() -> Path:
    return homes()[in_job()]


def machine() -> dict[str, Any]:
    """What figures depend on, for the record."""
    return {
        "node": platform.node(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": _cpu(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "rayroll": rayroll.__version__,
        "commit": _commit(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str:
    """Of the checkout this package lies in; "" where it does not, or nobody can tell."""
    here = Path(__file__).parent
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""
