"""The part of a Dockerfile that says where files go: read without an engine, for sandboxes on the node's own system.

RUN is skipped: whoever declared ``host_packages`` promises that they stand in for it. What cannot be honoured without
building (several stages, downloads) is an error, not a guess.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rayroll.errors import TaskError

__all__ = ["Copy", "Recipe", "bases", "read"]


@dataclass(frozen=True, slots=True)
class Copy:
    """One COPY or ADD."""

    sources: tuple[str, ...]
    """Paths in the build context, without a leading slash; may hold ``*``, ``?`` and ``[...]``."""
    target: str
    """Absolute path in the sandbox; ends in ``/`` when it must be a folder."""
    mode: int | None = None


@dataclass(slots=True)
class Recipe:
    """What a Dockerfile asks for, apart from RUN."""

    base: str = ""
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    skipped_runs: int = 0


def read(text: str) -> Recipe:
    """Read a Dockerfile of one stage.

    Raises:
        TaskError: It needs a real build, or is not a Dockerfile.
    """
    recipe = Recipe()
    arguments: dict[str, str] = {}
    stages = 0
    for line_number, keyword, rest in _instructions(text):
        known = {**arguments, **recipe.env}
        match keyword:
            case "FROM":
                stages += 1
                if stages > 1:
                    raise _needs_build("several stages", line_number)
                recipe.base = _expand(rest, known).split()[0]
            case "ARG":
                for word in shlex.split(rest):
                    name, _, default = word.partition("=")
                    arguments[name] = _expand(default, known)
            case "ENV":
                recipe.env.update({name: _expand(value, known) for name, value in _pairs(rest)})
            case "WORKDIR":
                recipe.workdir = posixpath.normpath(posixpath.join(recipe.workdir, _expand(rest, known)))
            case "COPY" | "ADD":
                recipe.copies.append(_copy(keyword, rest, known, recipe.workdir, line_number))
            case "RUN":
                recipe.skipped_runs += 1
            case "USER" | "CMD" | "ENTRYPOINT" | "LABEL" | "EXPOSE" | "VOLUME" | "SHELL" | "STOPSIGNAL":
                pass  # one user, no server: nothing of it applies to commands in a sandbox of one node
            case "HEALTHCHECK" | "MAINTAINER" | "ONBUILD":
                pass
            case _:
                raise TaskError("the Dockerfile has an unknown instruction", instruction=keyword, line=line_number)
    if stages == 0:
        raise TaskError("the Dockerfile has no FROM")
    return recipe


def bases(text: str) -> list[str]:
    """The images that a Dockerfile starts from, in order, without its own stages and ``scratch``."""
    arguments: dict[str, str] = {}
    stages = {"scratch"}
    found: list[str] = []
    for _, keyword, rest in _instructions(text):
        if keyword == "ARG" and not found:
            for word in shlex.split(rest):
                name, _, default = word.partition("=")
                arguments[name] = _expand(default, arguments)
        if keyword == "FROM":
            image, *alias = [word for word in _expand(rest, arguments).split() if not word.startswith("--")]
            if image.lower() not in stages and image not in found:
                found.append(image)
            if len(alias) == 2:
                stages.add(alias[1].lower())
    return found


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, keyword and the rest of each instruction; continued lines joined, comments and heredocs gone."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith("\\"):
            _, more = next(lines, (0, ""))
            if not more.lstrip().startswith("#"):
                whole = whole[:-1].rstrip() + " " + more.strip()
        keyword, _, rest = whole.partition(" ")
        keyword = keyword.upper()
        heredoc = re.search(r"<<-?\s*[\"']?(\w+)[\"']?", rest)
        if heredoc and keyword in ("RUN", "COPY", "ADD"):
            for _, inner in lines:
                if inner.strip() == heredoc[1]:
                    break
        yield number, keyword, rest.strip()


def _copy(keyword: str, rest: str, known: Mapping[str, str], workdir: str, line: int) -> Copy:
    mode = None
    if "<<" in rest:
        raise _needs_build(f"{keyword} with a heredoc", line)
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        name, _, value = option.partition("=")
        if name == "--from":
            raise _needs_build("COPY --from", line)
        if name == "--chmod":
            mode = int(value, 8)
        rest = rest.strip()
    words = [_expand(word, known) for word in (json.loads(rest) if rest.startswith("[") else shlex.split(rest))]
    if len(words) < 2:
        raise TaskError(f"{keyword} needs a source and a target", line=line)
    *sources, target = words
    if keyword == "ADD" and any(
        re.match(r"\w+://|git@", s) or s.endswith((".tar", ".tgz", ".gz", ".xz")) for s in sources
    ):
        raise _needs_build("ADD of an archive or an address", line)
    absolute = posixpath.normpath(posixpath.join(workdir, target))
    if target.endswith(("/", "/.")) or target == "." or len(sources) > 1:
        absolute = absolute.rstrip("/") + "/"
    return Copy(tuple(posixpath.normpath(s.lstrip("/") or ".") for s in sources), absolute, mode)


def _pairs(rest: str) -> list[tuple[str, str]]:
    """``A=1 B="2 3"``, or the old form ``A some words``."""
    if not re.match(r"[\w.-]+=", rest):
        name, _, value = rest.partition(" ")
        return [(name, value.strip())]
    return [(name, value) for name, _, value in (word.partition("=") for word in shlex.split(rest))]


def _expand(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, default = match["plain"] or match["name"], match["default"]
        found = known.get(name, "")
        return found or default or ""

    return re.sub(r"(?<!\\)\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\})", value, text)


def _needs_build(what: str, line: int) -> TaskError:
    return TaskError(
        f"the Dockerfile uses {what}, which only a real build can honour; run it with rootfs='image' or on docker",
        line=line,
    )
