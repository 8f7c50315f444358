"""Harbor's ``task.toml`` (schema 1.x), read strictly: what would change a task's meaning is refused, by line.

Harbor's own models are ``harbor.models.task.config`` (https://harborframework.com/docs/tasks). Harbor ignores fields
that it does not know; so do we, keeping them in the task's metadata, unless one looks like a slip of a known name: an
``allow_internt = false`` that is passed over would put a network into a task that must have none.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayroll.config import Config
from rayroll.errors import ConfigError
from rayroll.tasks._toml_lines import decode_error_line, line_of
from rayroll.types import Task

__all__ = ["TaskToml", "TaskTomlError", "dump", "parse"]

NetworkMode = Literal["public", "no-network", "allowlist"]
Variables = dict[str, str]
Path = tuple[str | int, ...]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([GMK])B?", re.IGNORECASE)
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class TaskTomlError(ValueError):
    """A ``task.toml`` that cannot be honoured, with the line that says so."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class _Section(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class _Network(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_need_their_mode(self) -> _Network:
        if self.allowed_hosts is not None and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self


class _Agent(_Network):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None


class _Environment(_Network):
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    memory: str | None = None
    storage_mb: int | None = Field(default=None, gt=0)
    storage: str | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: Variables = {}
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _old_sizes(cls, values: Any) -> Any:
        """``memory = "2G"`` is how schema 1.0 said ``memory_mb = 2048``."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if not isinstance(size := values.get(old), str):
                continue
            found = _SIZE.fullmatch(size.strip())
            if found is None:
                raise ValueError(f"{old}: expected a size like '2G' or '512M', got {size!r}")
            mib = int(float(found[1]) * _MIB[found[2].upper()])
            if values.setdefault(new, mib) != mib:
                raise ValueError(f"{old} = {size!r} contradicts {new} = {values[new]!r}")
        return values

    @property
    def baseline(self) -> NetworkMode:
        """Network of every phase that names none; Harbor's default is public."""
        if self.network_mode is not None:
            return self.network_mode
        return "public" if self.allow_internet is None or self.allow_internet else "no-network"


class _Verifier(_Network):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: Variables = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[dict[str, Any]] = []


class _Solution(_Section):
    env: Variables = {}


class HostNeeds(Config):
    """``[metadata.rayroll]``: what rayroll reads beyond Harbor's format, where Harbor allows anything."""

    host_packages: tuple[str, ...] | None = None
    """See ``Task.host_packages``."""


class TaskToml(_Section):
    """One task.toml."""

    schema_version: str = "1.0"
    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    verifier: _Verifier = _Verifier()
    agent: _Agent = _Agent()
    environment: _Environment = _Environment()
    solution: _Solution = _Solution()
    source: str | None = None
    artifacts: list[Any] = []
    steps: list[dict[str, Any]] = []
    multi_step_reward_strategy: str | None = None
    host: HostNeeds = Field(default=HostNeeds(), exclude=True)

    @property
    def agent_network(self) -> bool:
        """Whether the agent's commands reach the network."""
        return (self.agent.network_mode or self.environment.baseline) == "public"

    @property
    def grade_network(self) -> bool:
        """Whether the grader reaches the network."""
        return (self.verifier.network_mode or self.environment.baseline) == "public"

    def kept(self) -> dict[str, Any]:
        """What was read and has no place of its own in a Task."""
        extra: dict[str, Any] = {
            **({"task": self.task} if self.task else {}),
            **({"source": self.source} if self.source else {}),
            **({"artifacts": self.artifacts} if self.artifacts else {}),
            **({"skills_dir": self.environment.skills_dir} if self.environment.skills_dir else {}),
            **(self.model_extra or {}),
        }
        for name, section in self._sections():
            extra |= {f"{name}.{key}": value for key, value in (section.model_extra or {}).items()}
        kept = {key: value for key, value in self.metadata.items() if key != "rayroll"}
        return kept | ({"harbor": extra} if extra else {})

    def _sections(self) -> Iterator[tuple[str, _Section]]:
        yield "verifier", self.verifier
        yield "agent", self.agent
        yield "environment", self.environment
        yield "solution", self.solution


def parse(text: str) -> TaskToml:
    """Read a task.toml.

    Raises:
        TaskTomlError: Not TOML, a wrong value, a slip of a known name, or something rayroll cannot honour.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskTomlError(decode_error_line(str(error)), f"not TOML: {error}") from None
    if "version" in values:
        values.setdefault("schema_version", values.pop("version"))
    try:
        parsed = TaskToml.model_validate(values | {"host": _host_needs(values)})
    except ValidationError as error:
        first = error.errors()[0]
        path = first["loc"]
        message = first["msg"].removeprefix("Value error, ")
        raise TaskTomlError(line_of(text, path), f"{'.'.join(map(str, path))}: {message}") from None
    except ConfigError as error:
        raise TaskTomlError(line_of(text, ("metadata", "rayroll")), f"[metadata.rayroll] {error.message}") from None
    for path, reason in _cannot_honour(parsed):
        raise TaskTomlError(line_of(text, path), reason)
    return parsed


def _host_needs(values: Mapping[str, Any]) -> HostNeeds:
    metadata = values.get("metadata")
    needs = metadata.get("rayroll", {}) if isinstance(metadata, dict) else {}
    return HostNeeds.parse(needs if isinstance(needs, dict) else {"host_packages": needs})


def _cannot_honour(toml: TaskToml) -> Iterator[tuple[Path, str]]:
    if toml.schema_version.split(".")[0] != "1":
        yield ("schema_version",), f"schema {toml.schema_version} is not one of the 1.x that rayroll reads"
    if toml.steps or toml.multi_step_reward_strategy:
        yield ("steps",), "tasks in several steps are not supported"
    environment = toml.environment
    if environment.os.lower() != "linux":
        yield ("environment", "os"), f"sandboxes run Linux, not {environment.os!r}"
    if environment.gpus or environment.tpu:
        yield ("environment", "gpus" if environment.gpus else "tpu"), "sandboxes have no accelerators"
    if environment.mcp_servers:
        yield ("environment", "mcp_servers"), "MCP servers are not supported: policies act through a shell"
    if environment.healthcheck:
        yield ("environment", "healthcheck"), "health checks are not supported; start services in the image's setup"
    if toml.verifier.environment_mode == "separate" or toml.verifier.environment is not None:
        field = "environment" if toml.verifier.environment is not None else "environment_mode"
        yield ("verifier", field), "a verifier with an environment of its own is not supported"
    if toml.verifier.collect:
        yield ("verifier", "collect"), "collect hooks are not supported"
    phases: dict[str, _Network] = {"environment": environment, "agent": toml.agent, "verifier": toml.verifier}
    for name, phase in phases.items():
        if phase.network_mode == "allowlist" and phase.allowed_hosts:
            yield (name, "allowed_hosts"), "a network limited to some hosts is not supported; it is all or nothing"
    yield from _slips((), toml)
    for name, section in toml._sections():
        yield from _slips((name,), section)


def _slips(path: Path, section: _Section) -> Iterator[tuple[Path, str]]:
    known = [name for name in type(section).model_fields if name != "host"]
    for name in section.model_extra or ():
        if near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            yield (*path, name), f"unknown field {'.'.join((*map(str, path), name))!r}; did you mean {near[0]!r}?"


def dump(task: Task) -> str:
    """The task.toml of a task."""
    environment: dict[str, Any] = {
        "network_mode": "public" if task.agent_network else "no-network",
        "build_timeout_sec": task.build_timeout_s,
        "cpus": task.cpus,
        "memory_mb": task.memory_mib,
        "storage_mb": task.disk_mib,
        "docker_image": task.image,
        "workdir": task.workdir,
        "env": task.env,
    }
    verifier = {
        "network_mode": "public" if task.grade_network else "no-network",
        "timeout_sec": task.grade_timeout_s,
        "user": task.grade_user,
        "env": task.tests_env,
    }
    metadata = {key: value for key, value in task.metadata.items() if key != "harbor"}
    if task.host_packages is not None:
        metadata["rayroll"] = {"host_packages": task.host_packages}
    tables = {
        "metadata": metadata,
        "agent": {"timeout_sec": task.agent_timeout_s, "user": task.agent_user},
        "environment": environment,
        "verifier": verifier,
        "solution": {"env": task.solution_env},
    }
    lines = ['schema_version = "1.0"']
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_toml(key)} = {_toml(v)}" for key, v in table.items() if v is not None)]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(v)}" for key, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON leaves as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
