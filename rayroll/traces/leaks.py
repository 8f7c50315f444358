"""Proof that a trace may be shared: known names, times, numbers, and pseudonyms that the input does not hold.

Two questions are asked of every text that comes out. Is it of a form that a sanitizer makes? Free text, paths and
fields off the list are not. And if it looks like a pseudonym: does a text of the input stand in it? An id that was
passed on does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rayroll.traces import _allowed
from rayroll.traces._seal import SEAL, is_sealed

__all__ = ["Leak", "check"]

MIN_CHARS = 8
"""Shorter texts of the input are not searched for inside pseudonyms, where they would be found by chance."""

_HEX8 = "[0-9a-f]{8}"
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ID = "|".join([_UUID, "call_[0-9A-Za-z]{24}", *(f"{start}[0-9a-f]{{{n}}}" for start, n in _allowed.ID_DIGITS.items())])
_PROVIDER = "|".join([*sorted(_allowed.PROVIDERS), f"provider_{_HEX8}"])
_SESSION = f"(({_PROVIDER}):)?{_UUID}"
_ROUND = f"({_ID})(:[0-9]{{1,6}})?"
_FAMILY = "|".join(map(re.escape, _allowed.TOOL_PREFIXES))
_PSEUDONYMS = {
    "provider": f"provider_{_HEX8}",
    "project": f"project_{_HEX8}",
    "model": f"model_{_HEX8}",
    "tool": f"({_FAMILY})?tool_{_HEX8}|mcp__server_{_HEX8}__tool_{_HEX8}",
    "session": _SESSION,
    "id": _ID,
    "round": _ROUND,
    "trace_key": f"({_PROVIDER}):{_SESSION}:{_ROUND}|id_[0-9a-f]{{24}}",
    "seal": "[0-9a-f]{32}",
}
_FORMS = {kind: re.compile(form) for kind, form in _PSEUDONYMS.items()}
_WORDS = {
    "provider": _allowed.PROVIDERS,
    "tool": _allowed.TOOLS,
    "event_type": {*_allowed.EVENT_TYPES, "other"},
    "source": _allowed.SOURCES,
    "store": _allowed.STORES,
    "status": _allowed.STATUSES,
    "flag word": _allowed.FLAGS,
}
_PATTERNS = {"model": _allowed.MODEL, "time": _allowed.TIME}
_ITEMS = {"events": _allowed.EVENT_FIELDS, "tools": _allowed.TOOL_FIELDS}
_WORD = re.compile(f"[0-9A-Za-z]{{{MIN_CHARS},}}")


@dataclass(frozen=True, slots=True)
class Leak:
    """A place in the sanitized rows where something of the input may stand. It does not repeat what."""

    row: int
    """Which row, from 0."""
    path: str
    """Which field: ``tools[0].tool_name``; an unknown field's own name is not shown."""
    reason: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.path}: {self.reason}"


def check(original_rows: Iterable[Mapping[str, Any]], sanitized_rows: Iterable[Mapping[str, Any]]) -> list[Leak]:
    """Every leak, in order of rows; both streams are read once, side by side, and an empty list is the proof.

    A row that was sanitized before has nothing to give away, and so is not searched for.
    """
    leaks: list[Leak] = []
    words_in: set[str] = set()
    words_out: dict[str, tuple[int, str]] = {}
    for index, (original, clean) in enumerate(itertools.zip_longest(original_rows, sanitized_rows)):
        if original is None or clean is None:
            leaks.append(
                Leak(index, "<row>", f"there is no {'original' if original is None else 'sanitized'} row for it")
            )
        texts = [] if original is None or is_sealed(original) else private_texts(original)
        words_in.update(word for text in texts for word in _WORD.findall(text))
        pseudonyms = []
        for path, kind, value in _leaves(clean or {}):
            reason = _unknown(kind, value)
            if reason:
                leaks.append(Leak(index, path, reason))
            elif isinstance(value, str) and not _is_known(kind, value):
                pseudonyms.append((path, value))
        joined = "\n".join(value for _, value in pseudonyms)
        found = [text for text in texts if text in joined]
        for path, value in pseudonyms:
            if any(text in value for text in found):
                leaks.append(Leak(index, path, "a text of the same row of the input stands in it"))
            else:
                words_out.update((word, (index, path)) for word in _WORD.findall(value) if word not in words_out)
    passed_on = {words_out[word] for word in words_in & words_out.keys()}
    leaks += [Leak(row, path, "a word of another row of the input stands in it") for row, path in passed_on]
    return sorted(leaks, key=lambda leak: (leak.row, leak.path))


def private_texts(row: Any) -> list[str]:
    """The texts of a row, keys among them, that are longer than chance allows and that not everybody knows."""
    return [text for text in _texts(row) if len(text) >= MIN_CHARS and not _is_public(text)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _is_public(text: str) -> bool:
    return text in _PUBLIC or any(pattern.fullmatch(text) for pattern in _PATTERNS.values())


def _leaves(row: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each value that comes out, with its place and the kind that it should be of."""
    for name, value in row.items():
        kind = "seal" if name == SEAL else _allowed.ROW_FIELDS.get(name, "")
        if kind == "flags" and isinstance(value, list):
            yield from ((f"{name}[{index}]", "flag word", item) for index, item in enumerate(value))
            continue
        if kind not in _ITEMS:
            yield name if kind else "<unknown field>", kind, value
            continue
        if not isinstance(value, list):
            yield name, "", value
            continue
        for index, item in enumerate(value):
            where = f"{name}[{index}]"
            if not isinstance(item, Mapping):
                yield where, "", item
                continue
            for key, inner in item.items():
                known = _ITEMS[kind].get(key, "")
                yield f"{where}.{key if known else '<unknown field>'}", known, inner


def _unknown(kind: str, value: Any) -> str | None:
    if not kind:
        return "a field that is not on the list"
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return None if kind == "number" else "a number where a text belongs"
    if not isinstance(value, str):
        return "more than one value"
    form = _FORMS.get(kind)
    if _is_known(kind, value) or (form and form.fullmatch(value)):
        return None
    return "neither a known name nor a pseudonym"


def _is_known(kind: str, value: str) -> bool:
    if kind in _PATTERNS:
        return _PATTERNS[kind].fullmatch(value) is not None
    return value in _WORDS.get(kind, ())


_PUBLIC = {*_allowed.ROW_FIELDS, *_allowed.EVENT_FIELDS, *_allowed.TOOL_FIELDS}.union(*_WORDS.values())
