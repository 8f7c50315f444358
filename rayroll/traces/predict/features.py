"""What a tool call means, as far as it bears on its time: keys from the most general to the most specific.

A key is something that other calls may share: the tool, the program, the very command. What is known of each is in the
model; what happened before in this session is in the ``Session``, which belongs to whoever asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from rayroll.traces import categories
from rayroll.traces.predict import commands
from rayroll.traces.predict.pace import Pace

__all__ = ["LEVELS", "Call", "Meaning", "Session", "meaning"]

LEVELS: Mapping[str, str] = {
    "all": "any call",
    "tool": "the tool",
    "size": "the tool, and the size of its input by powers of 4",
    "after": "the tool, the tool before it in the session, and the size of that one's result by powers of 8",
    "program": "the first program that does work in a shell command, as the store's column has it",
    "main": "the program that takes the time, and its subcommand",
    "programs": "all programs and subcommands of a command, in order",
    "flags": "that, and the main program's flags",
    "shape": "the command without numbers, names and texts; the fields of any other input, and the file's extension",
    "again": "the main program, and whether and how long ago it ran in this session",
    "where": "the main program, in this project",
    "target": "the main program and the paths it was given",
    "target here": "that, in this project",
    "exact": "the very same input",
    "exact here": "that, in this project",
}
"""What calls are grouped by, the most general first; a level that a call does not have is passed over."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call at the moment it starts."""

    tool: str
    input: Any = None
    """As the agent logged it; None: not known, such as in a sanitized trace."""
    input_chars: int | None = None
    at_s: float | None = None
    """When, by any clock that the session's calls share."""
    program: str | None = None
    """Of a shell command whose input is not known, as a store has it."""


@dataclass(slots=True)
class Session:
    """What a session did so far. One for each session, in the hands of who predicts for it; never in a model file."""

    project: str | None = None
    calls: int = 0
    """How many have ended."""
    last_tool: str = ""
    last_result_chars: int | None = None
    ran: dict[str, float | None] = field(default_factory=dict)
    """When each main program last ended."""
    pace: Pace = field(default_factory=Pace)
    taught: dict[int, list[int]] = field(default_factory=dict)
    """What a model has counted of this session, by key: the pace says the same, and nothing counts twice."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A call's keys, and where it belongs in its session."""

    keys: tuple[tuple[str, str], ...]
    """(level, text), general before specific; the text is private and leaves the process as a hash only."""
    main: str
    exact: str


def meaning(call: Call, session: Session) -> Meaning:
    """What the call means in this session; reads, and changes nothing."""
    tool = call.tool[:200]
    size = _power(call.input_chars, 4)
    keys = [("all", ""), ("tool", tool), ("size", f"{tool}\0{size}")]
    keys.append(("after", f"{tool}\0{session.last_tool}\0{_power(session.last_result_chars, 8)}"))
    command = None
    program = call.program
    kind = categories.category(tool)
    if call.input is not None and kind == "shell_command":
        command = categories.command_of(call.input)
    if command is not None:
        program = categories.program(command)
    if program:
        # By category: Bash, exec_command and our own tool run the same programs.
        keys.append(("program", f"{kind}\0{program}"))
    exact = ""
    if command is not None:
        seen = commands.read(command)
        part = seen.main
        main = f"{part.program} {part.sub}" if part is not None else ""
        programs = "\0".join(seen.programs)
        keys += (("main", main), ("programs", programs))
        if part is not None:
            keys.append(("flags", f"{programs}\0\0{chr(0).join(part.flags)}"))
        keys.append(("shape", seen.shape))
        target = f"{main}\0{chr(0).join(part.paths)}" if part is not None and part.paths else ""
        exact = _digest(command)
    else:
        main = program or tool
        target = ""
        if call.input is not None:
            shape, target = _fields(call.input)
            keys.append(("shape", f"{tool}\0{shape}"))
            target = f"{tool}\0{target}" if target else ""
            exact = _digest(f"{tool}\0{_text(call.input)}")
    keys.append(("again", f"{main}\0{_ago(call, session, main)}"))
    project = session.project
    if project:
        keys.append(("where", f"{project}\0{main}"))
    if target:
        keys.append(("target", target))
        if project:
            keys.append(("target here", f"{project}\0{target}"))
    if exact:
        keys.append(("exact", exact))
        if project:
            keys.append(("exact here", f"{project}\0{exact}"))
    return Meaning(tuple(keys), main, exact or main)


def _power(amount: int | None, base: int) -> str:
    return "" if amount is None else str(int(math.log(max(amount, 0) + 1, base)))


def _ago(call: Call, session: Session, main: str) -> str:
    """Caches are warm the second time, and cold again in a while."""
    if main not in session.ran:
        return "never"
    ended_s = session.ran[main]
    if ended_s is None or call.at_s is None:
        return "before"
    ago_s = call.at_s - ended_s
    return "10 s" if ago_s < 10 else "5 min" if ago_s < 300 else "long"


def _fields(given: Any) -> tuple[str, str]:
    """An input's shape and the file it is about."""
    if isinstance(given, str):
        try:
            given = orjson.loads(given)
        except ValueError:
            return "text", ""
    if not isinstance(given, Mapping):
        return type(given).__name__, ""
    names = [str(name) for name in given]
    file = next((v for n in ("file_path", "path", "notebook_path", "url") if isinstance(v := given.get(n), str)), "")
    _, dot, extension = file.rpartition("/")[2].rpartition(".")
    return f"{' '.join(sorted(names)[:20])}\0{dot}{extension[:10] if dot else ''}", file[:500]


def _text(given: Any) -> str:
    if isinstance(given, str):
        return given
    try:
        return orjson.dumps(given, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return repr(given)


def _digest(text: str) -> str:
    """Short, however long the text is, for a session remembers each."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
