"""What a report calls things whose names are somebody's own: sessions, plugins' tools, renamed models.

A name that everybody knows (``_allowed``) stays. Any other becomes ``other tool 1``, the same wherever it occurs in one
report and in the order in which it turns up there, so that nothing of it can be guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rayroll.traces._allowed import EVENT_TYPES, MODEL, PROVIDERS, TOOLS
from rayroll.traces.categories import CATEGORIES

__all__ = ["Shield"]

_NEVER: frozenset[str] = frozenset()
_KINDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "session_id": ("session", _NEVER.__contains__),
    "name": ("other tool", {*TOOLS, "all"}.__contains__),
    "model": ("other model", MODEL.fullmatch),
    "provider": ("other provider", {*PROVIDERS, "all"}.__contains__),
    "type": ("other event", {*EVENT_TYPES, "all"}.__contains__),
    "first_event_type": ("other event", EVENT_TYPES.__contains__),
    "series": ("other provider", {*PROVIDERS, *CATEGORIES, "all"}.__contains__),
}
"""Columns whose values come from a trace: what their stand-ins are called, and which values need none."""


class Shield:
    """The stand-ins of one report.

    Args:
        is_open: Names are shown as they are, for the report is its maker's own; sessions are numbered all the same.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self._standins: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def name(self, column: str, value: Any) -> Any:
        """What the value of such a column is called; anything that is no name is itself."""
        if column not in _KINDS or not isinstance(value, str):
            return value
        kind, is_known = _KINDS[column]
        if is_known(value) or (self.is_open and column != "session_id"):
            return value
        if (kind, value) not in self._standins:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._standins[kind, value] = f"{kind} {self._counts[kind]}"
        return self._standins[kind, value]

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows with their names replaced."""
        return [{column: self.name(column, value) for column, value in row.items()} for row in rows]
