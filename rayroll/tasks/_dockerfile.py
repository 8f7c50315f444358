"""A Dockerfile as a list of steps: enough to refuse a broken one by line and to know where commands start.

Building is the substrate's; this reads text only. https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import difflib
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["DockerfileError", "Step", "copies", "environment", "parse", "workdir"]

# fmt: off
_KNOWN = frozenset({
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD",
    "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
})
# fmt: on
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S)\s*$", re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_VARIABLE = re.compile(r"\\(.)|\$\{(\w+)(?::([-+])([^}]*))?\}|\$(\w+)")


class DockerfileError(ValueError):
    """A Dockerfile that no engine would build."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction."""

    name: str
    """In capitals."""
    value: str
    """What follows it, continuation lines joined; the text of here-documents is left out."""
    line: int


def parse(text: str) -> list[Step]:
    """The steps of a Dockerfile.

    Raises:
        DockerfileError: An instruction that does not exist, or none that says what to start from.
    """
    steps = list(_steps(text))
    started = False
    for step in steps:
        if step.name not in _KNOWN:
            near = difflib.get_close_matches(step.name, _KNOWN, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise DockerfileError(step.line, f"unknown instruction {step.name!r}{hint}")
        started = started or step.name == "FROM"
        if not started and step.name != "ARG":
            raise DockerfileError(step.line, f"{step.name} before FROM")
    if not started:
        raise DockerfileError(1, "no FROM: nothing says which image to start from")
    return steps


def workdir(steps: list[Step]) -> str:
    """Where commands start in the last stage; ``/`` where only the base image knows."""
    return _last_stage(steps)[0]


def environment(steps: list[Step]) -> dict[str, str]:
    """Variables that the last stage sets."""
    return _last_stage(steps)[1]


def copies(steps: list[Step]) -> list[tuple[list[str], str]]:
    """Sources and absolute destination of every COPY; a destination that names a folder ends in ``/``.

    Raises:
        DockerfileError: A COPY that needs an engine (from another stage, or from a here-document).
    """
    found: list[tuple[list[str], str]] = []
    for at, step in enumerate(steps):
        if step.name != "COPY":
            continue
        words = _words(step)
        sources = [w for w in words if not w.startswith("--")]
        if any(w.startswith("--from") for w in words) or "<<" in step.value or len(sources) < 2:
            raise DockerfileError(step.line, "this COPY needs an engine")
        *sources, target = sources
        base = workdir(steps[:at])
        folder = target.endswith("/") or target in {".", "./"} or len(sources) > 1
        found.append((sources, posixpath.normpath(posixpath.join(base, target)) + ("/" if folder else "")))
    return found


def _last_stage(steps: list[Step]) -> tuple[str, dict[str, str]]:
    folder, env, args, stages = "/", dict[str, str](), dict[str, str](), dict[str, tuple[str, dict[str, str]]]()
    stage = ""
    for step in steps:
        if step.name == "FROM":
            stages[stage] = (folder, env)
            words = [w for w in step.value.split() if not w.startswith("--")]
            folder, env = stages.get(words[0].lower(), ("/", {})) if words else ("/", {})
            env = dict(env)
            stage = words[2].lower() if len(words) == 3 else ""
        elif step.name == "ARG":
            name, _, default = step.value.partition("=")
            args[name.strip()] = _expand(default.strip().strip("\"'"), args)
        elif step.name == "ENV":
            env |= {k: _expand(v, {**args, **env}) for k, v in _pairs(step)}
        elif step.name == "WORKDIR":
            folder = posixpath.normpath(
                posixpath.join(folder, _expand(step.value.strip().strip("\"'"), {**args, **env}))
            )
    return folder, env


def _pairs(step: Step) -> Iterator[tuple[str, str]]:
    words = _words(step)
    if words and "=" not in words[0]:
        # The old form: ENV NAME the rest of the line.
        name, _, value = step.value.strip().partition(" ")
        yield name, value.strip()
        return
    for word in words:
        name, _, value = word.partition("=")
        yield name, value


def _words(step: Step) -> list[str]:
    if step.value.lstrip().startswith("["):
        try:
            return [str(word) for word in json.loads(step.value)]
        except ValueError:
            raise DockerfileError(step.line, f"{step.name}: not a JSON list of words") from None
    try:
        return shlex.split(step.value)
    except ValueError as error:
        raise DockerfileError(step.line, f"{step.name}: {error}") from None


def _expand(value: str, variables: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        literal, braced, operator, word, plain = match.groups()
        if literal is not None:
            return literal
        known = variables.get(braced or plain, "")
        if operator == "-":
            return known or word
        if operator == "+":
            return word if known else ""
        return known

    return _VARIABLE.sub(replacement, value)


def _steps(text: str) -> Iterator[Step]:
    lines = text.splitlines()
    escape = "\\"
    # Parser directives count only before anything else.
    for line in lines:
        if not line.startswith("#"):
            break
        if directive := _ESCAPE.match(line):
            escape = directive[1]
    at = 0
    while at < len(lines):
        first = at
        line = lines[at].strip()
        at += 1
        if not line or line.startswith("#"):
            continue
        while line.endswith(escape):
            line = line[:-1]
            # Comments and empty lines inside a continued instruction are dropped, as the engine drops them.
            while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
                at += 1
            if at == len(lines):
                break
            line += " " + lines[at].strip()
            at += 1
        name, _, value = line.partition(" ")
        if name.upper() in {"RUN", "COPY", "ADD"}:
            for _, word in _HEREDOC.findall(value):
                while at < len(lines) and lines[at].strip() != word:
                    at += 1
                at += 1
        yield Step(name.upper(), value.strip(), first + 1)
