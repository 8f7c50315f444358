"""What kind of work a tool call is: the tool's category by its name, and the program that a shell command runs."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["CATEGORIES", "NAMED", "PREFIXES", "category", "command_of", "program"]

# The published counts (facts.json, tools.category_calls) hold by TraceLab's assignment of names, which is kept where
# it surprises too: TaskCreate starts an agent's task, TaskUpdate is planning; what asks the user is other.
_NAMES: Mapping[str, str] = {
    "shell_command": """
        command Bash BashOutput KillBash KillShell exec exec_command write_stdin shell shell_command local_shell
        send_input mcp__ide__executeCode
    """,
    "file_edit": "Edit MultiEdit Write NotebookEdit apply_patch",
    "file_read_search": """
        Read Grep Glob LS view_image SendUserFile
        mcp__filesystem__list_directory mcp__filesystem__directory_tree
    """,
    "planning": """
        TaskUpdate TodoWrite EnterPlanMode ExitPlanMode update_plan create_goal update_goal StructuredOutput
    """,
    "agent_task": """
        Task Agent TaskCreate TaskGet TaskList TaskOutput TaskStop spawn_agent wait_agent close_agent resume_agent
    """,
    "web_lookup": """
        WebFetch WebSearch web_search ToolSearch Skill LSP mcp__ide__getDiagnostics
        mcp__sequential-thinking__sequentialthinking
        list_mcp_resources list_mcp_resource_templates read_mcp_resource _search_branches
    """,
}

PREFIXES: Mapping[str, str] = {"mcp__claude_ai_Notion__": "web_lookup", "mcp__codex_apps__github_": "web_lookup"}
"""Families of tools: how their names begin, and their category."""

CATEGORIES: tuple[str, ...] = (*_NAMES, "other")
"""Every category, the published ones' order."""

_BY_NAME = {name: kind for kind, listed in _NAMES.items() for name in listed.split()}

NAMED = frozenset(_BY_NAME)
"""Tools that have a category by their exact name."""


def category(name: str) -> str:
    """Category of a tool, by its exact name; ``other`` for a name nobody knows."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((kind for prefix, kind in PREFIXES.items() if name.startswith(prefix)), "other")


def command_of(tool_input: Any) -> str | None:
    """The shell command in a tool's input as agents write it: a text, an object (or its JSON) or a list of words."""
    if isinstance(tool_input, str):
        if tool_input.lstrip()[:1] not in ("{", "[", '"'):
            return tool_input if tool_input.strip() else None
        try:
            return command_of(json.loads(tool_input))
        except ValueError:
            return tool_input
    if isinstance(tool_input, Mapping):
        return command_of(tool_input.get("command", tool_input.get("cmd")))
    if isinstance(tool_input, list):
        words = [word for word in tool_input if isinstance(word, str)]
        # Codex's older shell: ["bash", "-lc", "make test"].
        if len(words) >= 3 and posixpath.basename(words[0]) in _SHELLS and words[1] in ("-c", "-lc"):
            return words[2]
        return shlex.join(words) or None
    return None


_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_REDIRECTION = re.compile(r"&>>?|\d*(?:<<<|<<-?|>>|[<>])&?")
_WORD = r"""(?:[^\s;&|()<>'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+"""
_TOKEN = re.compile(rf"\\\n|{_REDIRECTION.pattern}|{_WORD}|&&|\|\||[;&|()\n]", re.S)
_ENDS = frozenset(("&&", "||", ";", "&", "|", "\n", "(", ")"))
# What stands before the program that does the work, and how many words of its own it takes besides options.
_BEFORE = {"sudo": 0, "env": 0, "time": 0, "nohup": 0, "exec": 0, "command": 0, "nice": 0, "stdbuf": 0, "timeout": 1}
_OPTIONS_WITH_VALUE = {"sudo": ("-u", "-g"), "timeout": ("-s", "-k"), "nice": ("-n",), "env": ("-u", "-C")}
_NO_WORK = frozenset(("cd", "pushd", "popd", "set", "export", "source", ".", "true", ":", "umask", "ulimit", "unset"))
_SYNTAX = frozenset(("if", "then", "else", "while", "until", "do", "!", "{"))


def program(command: str) -> str | None:
    """The first program that does work in a shell command, without its folder; None where there is none.

    What only prepares is passed over: comments, assignments, ``cd`` and the like, ``sudo``, ``timeout N``, ``env``.

    >>> program("cd /src && FOO=1 timeout 60 .venv/bin/pytest -q")
    'pytest'
    """
    prepares = None
    for words in _simple_commands(command):
        name = _program_of(words)
        if name is not None and name not in _NO_WORK:
            return name
        prepares = prepares or name
    return prepares


def _simple_commands(command: str) -> Iterator[list[str]]:
    # A long script's first lines decide; its whole text would be scanned for nothing.
    text = re.sub(r"(?m)^\s*#.*$", "", command[:4000])
    words: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _ENDS:
            yield words
            words = []
        elif token != "\\\n":
            words.append(token)
    yield words


def _program_of(words: list[str]) -> str | None:
    left = iter(words)
    wrapper, skip = "", 0  # what stands before the program, and how many of its own words are to come
    for word in left:
        if _ASSIGNMENT.match(word) or word in _SYNTAX:
            continue
        if _REDIRECTION.fullmatch(word) or word in _OPTIONS_WITH_VALUE.get(wrapper, ()):
            next(left, None)  # its file, or its value
        elif wrapper and word.startswith("-"):
            continue
        elif skip:
            skip -= 1
        else:
            name = posixpath.basename(word.strip("'\"").replace("\\", ""))
            if name not in _BEFORE:
                return name or None
            wrapper, skip = name, _BEFORE[name]
    return None
