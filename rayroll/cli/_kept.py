"""Which rollouts of earlier runs have a sandbox that waits, found in the results on disk; and the words for it."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from rayroll.cli._results import homes
from rayroll.errors import ConfigError, unknown_name
from rayroll.executor.play import Keep
from rayroll.record import from_line
from rayroll.substrates import load
from rayroll.types import Rollout

__all__ = ["Ledger", "keeping"]

_ID = re.compile(rb'"id":"([^"]+)"')
_KEPT = b'"kept":{'
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_KEPT_S = 30 * 86400.0
_COMPARED = 10_000
"""Ids among which the nearest is looked for."""


class Ledger:
    """All rollouts of some results folders. Only the lines of kept ones are read as a whole."""

    def __init__(self, results: Path | None) -> None:
        """Look through the files.

        Args:
            results: One folder; None: all that ``rayroll run`` and ``sweep`` made by themselves.

        Raises:
            ConfigError: There are no results.
        """
        files = [results / "rollouts.jsonl"] if results is not None else sorted(_files())
        if results is not None and not files[0].exists():
            raise ConfigError(f"{results} holds no results: there is no rollouts.jsonl", fix="say which: --results DIR")
        self.folders = [file.parent for file in files]
        self._lines: dict[str, bytes] = {}
        for file in files:
            with file.open("rb") as lines:
                for line in lines:
                    found = _ID.search(line[:200])
                    if found is not None:
                        self._lines[found[1].decode()] = line if _KEPT in line else b""

    def kept(self) -> list[Rollout]:
        """Those whose sandbox was kept and whose time is not over, the longest first."""
        rollouts = [from_line(line) for line in self._lines.values() if line.endswith(b"\n")]
        now_unix_s = time.time()
        waiting = [r for r in rollouts if r.kept is not None and r.kept.until_unix_s > now_unix_s]
        return sorted(waiting, key=lambda rollout: -rollout.kept.until_unix_s if rollout.kept else 0.0)

    def find(self, id: str) -> Rollout:
        """The kept rollout of that id, or of the only id that begins so.

        Raises:
            ConfigError: There is none, or more than one; or it was not kept, or not for so long.
        """
        ids = [id] if id in self._lines else [known for known in self._lines if known.startswith(id)]
        if len(ids) != 1:
            raise ConfigError(self._why_not(id, ids))
        line = self._lines[ids[0]]
        rollout = from_line(line) if line else None
        if rollout is None or rollout.kept is None:
            raise ConfigError(
                f"rollout {ids[0]} was not kept: its sandbox was destroyed when it ended",
                fix="run with --keep on-failure (or always); --keep-most bounds how many",
            )
        if rollout.kept.until_unix_s <= time.time():
            at = time.strftime("%H:%M", time.localtime(rollout.kept.until_unix_s))
            raise ConfigError(
                f"the sandbox of rollout {rollout.id} is gone: it was kept until {at}",
                fix="run with a longer --keep-for, such as 8h",
            )
        return rollout

    def _why_not(self, id: str, ids: Iterable[str]) -> str:
        several = list(ids)
        if several:
            return f"several rollouts begin with {id!r}: {', '.join(several[:4])}{' ...' if len(several) > 4 else ''}"
        where = ", ".join(str(folder) for folder in self.folders[:3]) or " and ".join(str(f) for f in homes())
        near = difflib.get_close_matches(id, [k for k, _ in zip(self._lines, range(_COMPARED), strict=False)], 3, 0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; give another --results DIR?"
        return f"no rollout {id!r} in {where}{hint}"


def _files() -> Iterable[Path]:
    return (file for folder in homes() for file in folder.glob("*/rollouts.jsonl"))


def keeping(keep: str, keep_for: str, keep_most: int, kinds: Iterable[str]) -> dict[str, Any]:
    """Fields of ``PlayConfig`` for what was typed after --keep, --keep-for and --keep-most.

    Raises:
        ConfigError: One of them is none, or one of these substrates cannot keep a sandbox.
    """
    if keep not in get_args(Keep):
        raise unknown_name("--keep", keep, get_args(Keep))
    for kind in kinds if keep != "never" else ():
        if not load(kind).can_keep():  # before anything is started
            raise ConfigError(f"substrate {kind!r} cannot keep sandboxes", keep=keep)
    return {"keep": keep, "keep_for_s": _seconds(keep_for), "keep_most": keep_most}


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    seconds = float(found[1]) * _UNITS_S[found[2] or "s"] if found else 0.0
    if not 1 <= seconds <= MOST_KEPT_S:
        raise ConfigError("--keep-for takes a time such as 45m, 2h or 1d, of at most 30 days", given=text)
    return seconds
