"""Puts the runner for both CPUs into wheels, so that whoever installs one needs no compiler.

A source archive carries sources only; an editable install builds when the runner is first needed.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RunnerHook(BuildHookInterface):
    """Runs before a wheel is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build what is not there yet, and name it to the packer."""
        if self.target_name != "wheel" or version == "editable":
            return
        build = _load(Path(self.root))
        folder = Path(self.root, "build", "runner")
        folder.mkdir(parents=True, exist_ok=True)
        for machine in build.MACHINES:
            name = build.runner_name(machine)
            if not (folder / name).exists():
                self.app.display_info(f"building the runner for {machine}")
                build.build(machine, folder / name)
            build_data["force_include"][str(folder / name)] = f"rayroll/runner/bin/{name}"


def _load(root: Path) -> Any:
    """``rayroll.runner.build`` without ``rayroll`` itself, whose dependencies a build environment does not have."""
    package = types.ModuleType("rayroll")
    package.__path__ = [str(root / "rayroll")]
    sys.modules["rayroll"] = package
    import rayroll.runner.build as build

    return build
