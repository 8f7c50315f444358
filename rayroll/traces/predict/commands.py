"""What a shell command would do, read off its text: programs in their order, subcommands, flags, paths, its shape.

No shell: quotes, pipes, lists, loops, heredocs and what stands before a program are understood as far as it takes to
tell ``git status`` from ``git push``. Any text is read as something; nothing raises.

>>> read("cd /src && timeout 60 python3 -m pytest -q tests/test_a.py | tail").main
Part(program='pytest', sub='', flags=('-q',), paths=('tests/test_a.py',), words=1)
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Command", "Part", "read"]

MOST_CHARS = 4000
"""Of a longer command its beginning decides."""
MOST_PARTS = 16

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1([^\n]*)\n(?:.*?\n)??\s*\2[ \t]*(?=\n|\)|$)", re.S)
_COMMENT = re.compile(r"(?m)^\s*#.*$")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|>>|>\||[<>])&?\d*|&>>?")
_TOKEN = re.compile(
    r"\\\n|"
    + _REDIRECTION.pattern
    + r"|(?:[^\s;&|()<>'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\$\()+|&&|\|\||[;&|()\n'\"]",
    re.S,
)
_ENDS = frozenset(("&&", "||", ";", "&", "|", "\n", "(", ")"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_SYNTAX = frozenset(("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!", "{", "}", "esac"))
# What stands before a program, and how many words of its own it takes besides options.
_BEFORE = dict.fromkeys(
    ("sudo", "doas", "env", "time", "nohup", "exec", "command", "nice", "ionice", "stdbuf", "xargs", "npx", "uvx"), 0
)
_BEFORE["timeout"] = 1
_BEFORE_RUN = frozenset(("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "conda"))  # followed by "run"
_WITH_VALUE = {
    "sudo": {"-u", "-g"},
    "timeout": {"-s", "-k"},
    "nice": {"-n"},
    "ionice": {"-c", "-n"},
    "env": {"-u", "-C"},
    "xargs": {"-n", "-P", "-I", "-L", "-d", "-s", "-E", "-a"},
    "stdbuf": {"-i", "-o", "-e"},
    "git": {"-C", "-c", "--git-dir", "--work-tree"},
    "make": {"-C", "-f", "-j"},
    "docker": {"-H", "--context", "-c"},
    "kubectl": {"-n", "--namespace", "--context"},
    "npm": {"--prefix", "-w"},
    "cargo": {"--manifest-path"},
}
# Programs whose first word says what they do.
_SUBS = """
    git pip pip3 npm yarn pnpm bun cargo go docker podman kubectl helm terraform make just uv poetry conda apt apt-get
    brew gh aws gcloud az systemctl rustup dotnet gradle mvn bazel ninja cmake tox nox pre-commit alembic rails bundle
    rake composer php artisan deno turbo nx lerna hatch pdm rye rayroll ray modal wandb huggingface-cli dvc sbt mix
"""
_HAS_SUB = frozenset(_SUBS.split())
_RUN_WHAT = frozenset(
    ("run", "run-script", "exec", "x", "compose", "remote", "stash", "submodule", "workspace", "tool")
)
_SHELLS = frozenset(("bash", "sh", "zsh", "dash"))
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*$")
# What hardly ever takes long: the part that does the work is looked for among the others first.
_LOOKS = """
    cd pushd popd set export source . true false : umask ulimit unset echo printf test [ [[ ls cat head tail wc cut tr
    sort uniq grep egrep rg sed awk tee pwd mkdir touch cp mv rm ln chmod chown read local return exit shift trap date
    basename dirname realpath readlink which type whoami hostname env sleep kill wait column nl less file stat diff for
    case select function declare alias xargs find du
"""
_LIGHT = frozenset(_LOOKS.split())
_NUMBER = re.compile(r"\d+")
_PATH = re.compile(r"[^\s=:]*(?:/|\.[A-Za-z]\w{0,5}$)|[.]{1,2}$|~")


@dataclass(frozen=True, slots=True)
class Part:
    """One program of a command and what it was given."""

    program: str
    """Without its folder; ``python -m X`` is X."""
    sub: str
    """``status`` of ``git status``, ``run:build`` of ``npm run build``, ``-c`` or ``-`` of an interpreter; or empty."""
    flags: tuple[str, ...]
    """Sorted, without values; numbers are 0."""
    paths: tuple[str, ...]
    words: int
    """How many arguments are no flags."""


@dataclass(frozen=True, slots=True)
class Command:
    """A whole command."""

    main: Part | None
    """The part that takes the time, as far as can be told: the first that is more than a look. None: there is none."""
    programs: tuple[str, ...]
    """Each part's program and subcommand, in order, neighbours that are alike once."""
    shape: str
    """The command with numbers, texts and names replaced: what differs only there has one shape."""


@lru_cache(maxsize=1024)
def read(text: str) -> Command:
    """Read a command."""
    parts, shape = _parts(text)
    heavy = next((part for part in parts if part.program not in _LIGHT), None)
    # Of nothing but looks the one that walks a tree.
    main = heavy or next((part for part in parts if part.program in ("find", "du", "xargs", "sleep")), None)
    programs: list[str] = []
    for part in parts:
        name = f"{part.program} {part.sub}" if part.sub else part.program
        if not programs or programs[-1] != name:
            programs.append(name)
    first = next((part for part in parts if part.program not in ("cd", "export", "set", "source", ".")), None)
    return Command(main or first or (parts[0] if parts else None), tuple(programs), shape)


def _parts(text: str, depth: int = 0) -> tuple[list[Part], str]:
    text = text[:MOST_CHARS]
    if "<<" in text:
        text = _HEREDOC.sub(r"<<H \3", text)
    if "#" in text:
        text = _COMMENT.sub("", text)
    parts: list[Part] = []
    shapes: list[str] = []
    words: list[str] = []
    for token in [*_TOKEN.findall(text), "\n"]:
        if token not in _ENDS:
            if token != "\\\n":
                words.append(token)
            continue
        if words and len(parts) < MOST_PARTS:
            found, shape = _part(words, depth)
            parts += found
            shapes.append(shape)
        shapes.append(token)
        words = []
    return parts, " ".join(shapes).strip()


def _part(words: list[str], depth: int) -> tuple[list[Part], str]:
    at, wrapper, skip = 0, "", 0
    while at < len(words):
        word = words[at]
        if _ASSIGNMENT.match(word) or word in _SYNTAX:
            at += 1
        elif _REDIRECTION.fullmatch(word) or word in _WITH_VALUE.get(wrapper, ()):
            at += 2
        elif wrapper and word.startswith("-"):
            at += 1
        elif skip:
            skip, at = skip - 1, at + 1
        else:
            name = posixpath.basename(_plain(word).rstrip("/")) or "?"
            if name in _BEFORE_RUN and "run" in words[at + 1 : at + 3]:
                wrapper, at = "env", words.index("run", at) + 1
            elif name in _BEFORE and at + 1 < len(words):
                wrapper, skip, at = name, _BEFORE[name], at + 1
            else:
                return _program(name, words[at + 1 :], depth)
    return ([Part(wrapper, "", (), (), 0)], wrapper) if wrapper else ([], "")


def _program(name: str, rest: list[str], depth: int) -> tuple[list[Part], str]:
    if name in _SHELLS and depth < 2:
        for at, word in enumerate(rest[:-1]):
            if word in ("-c", "-lc", "-ec", "-xc"):
                return _parts(_plain(rest[at + 1]), depth + 1)
    sub = ""
    if _PYTHON.match(name):
        name = "python"
        if "-m" in rest[:-1]:
            at = rest.index("-m")
            if all(word.startswith("-") for word in rest[:at]):
                name, rest = _plain(rest[at + 1]).partition(".")[0] or "?", rest[at + 2 :]
    if name in ("python", "node", "perl", "ruby", "php"):
        sub = next((flag for flag in ("-c", "-e", "-") if flag in rest[:3]), "")
    flags: set[str] = set()
    paths: list[str] = []
    shape = [name]
    count = 0
    values = _WITH_VALUE.get(name, ())
    is_value = False
    for word in rest[:64]:
        if is_value:
            is_value = False
            continue
        if _REDIRECTION.fullmatch(word):
            # Where output goes tells little of how long it takes; a file that comes in is an argument.
            is_value = (">" in word and "&" not in word[-2:]) or "<<" in word
            shape.append(word)
            continue
        if word.startswith("-") and len(word) > 1:
            flag = _NUMBER.sub("0", word.partition("=")[0])[:40]
            flags.add(flag)
            shape.append(flag)
            is_value = word in values
            continue
        plain = _plain(word)
        if not count and not sub and name in _HAS_SUB and plain:
            sub = plain[:40]
        elif count == 1 and name in _HAS_SUB and sub in _RUN_WHAT:
            sub = f"{sub}:{plain[:40]}"
        elif _PATH.match(plain.partition("::")[0]) and len(plain) < 200 and " " not in plain:
            paths.append(plain)
            shape.append(_kind(plain))
        else:
            shape.append("0" if plain.isdigit() else "w")
        count += 1
    if sub:
        shape.insert(1, sub)
    return [Part(name, sub, tuple(sorted(flags)), tuple(paths[:8]), count)], " ".join(shape)


def _kind(path: str) -> str:
    folder, _, name = path.rpartition("/")
    extension = posixpath.splitext(name.partition("::")[0])[1][:8]
    test = "::" if "::" in name else ""
    return f"/{min(folder.count('/') + bool(folder), 4)}{extension}{test}"


def _plain(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return word[1:-1]
    return word.replace("'", "").replace('"', "").replace("\\", "")
