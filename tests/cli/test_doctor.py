"""What `rayroll doctor` shows."""

from __future__ import annotations

import pytest

from rayroll.cli.doctor import _show


def test_a_fix_in_brackets_is_shown_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    fix = "pip install 'rayroll[kubernetes]'"
    missing = {"ok": False, "reason": "[Errno 2] no such file", "fix": fix}
    node = dict.fromkeys(("python", "ray", "kernel", "machine", "cpus", "disk_free_gib", "cache"), "")
    _show(
        {
            "node": {**node, "disk_low": False, "wandb_key": False},
            "substrates": {"kubernetes": missing},
            "parts": {"kubernetes": missing},
            "runner": missing,
            "packs": {"repo_fix": {"tasks": 0, "refused": [fix]}},
        }
    )
    shown = capsys.readouterr().out
    assert shown.count(fix) == 4 and shown.count("[Errno 2]") == 2
