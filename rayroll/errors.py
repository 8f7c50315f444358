"""What can go wrong, and whose fault it is: the fault decides who retries and who is scored.

RayrollError
├── CallerError            the program that calls rayroll: raised at once, never retried
│   ├── ConfigError        what somebody typed: unknown names, fields, impossible values
│   └── ClosedError        used after close
├── TaskError              the task is broken: it is set aside and named
│   └── GraderError        its tests gave no verdict
├── SandboxFileError       a path in the sandbox is missing, full or forbidden: an agent can cause it
├── SandboxKilledError     the agent ended its own sandbox, such as by eating its memory: scored, never retried
└── InfraFailure           the machine: the only kind that is retried and masked
    ├── SubstrateError     a sandbox could not be made, listed or destroyed
    │   ├── EngineDownError    the engine, cluster or provider does not answer
    │   ├── ImageError         the image is missing, cannot be pulled, or is for another CPU
    │   ├── DiskFullError      no space left where sandboxes live
    │   ├── NoRoomError        the provider has no machine of that kind to give now
    │   └── StartTimeoutError  created, but the runner never said hello
    ├── SandboxLostError   a live sandbox or its runner is gone
    ├── ProtocolError      the two ends of a channel do not understand each other
    └── HostLostError      the Ray actor that owned the env is gone

What an agent can cause (its command fails, times out, eats its memory, kills its sandbox) is no exception:
it is an observation, and ``Failure(fault="policy")`` where it ended the rollout.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Fault = Literal["policy", "infra", "task", "grader", "caller"]

__all__ = [
    "CallerError",
    "ClosedError",
    "ConfigError",
    "DiskFullError",
    "EngineDownError",
    "Failure",
    "Fault",
    "GraderError",
    "HostLostError",
    "ImageError",
    "InfraFailure",
    "NoRoomError",
    "ProtocolError",
    "RayrollError",
    "SandboxFileError",
    "SandboxKilledError",
    "SandboxLostError",
    "StartTimeoutError",
    "SubstrateError",
    "TaskError",
    "unknown_name",
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout ended without a verdict, or with one it did not choose."""

    fault: Fault
    """Whose fault it is. Only ``infra`` is retried and masked; ``policy`` is scored."""
    reason: str
    """One sentence for people."""
    error: str = ""
    """Class name of the error behind it, or a stable word such as ``sandbox_killed``."""


class RayrollError(Exception):
    """Base of every error of this package: a sentence and the facts that belong to it."""

    fault: ClassVar[Fault] = "caller"

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        if not self.facts:
            return self.message
        return f"{self.message} ({', '.join(f'{k}={v!r}' for k, v in self.facts.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword arguments do not survive the default pickling, and these cross Ray.
        return (_rebuild, (type(self), self.message, self.facts))

    def failure(self) -> Failure:
        """The same fact as data, for the record of a rollout."""
        return Failure(fault=self.fault, reason=str(self), error=type(self).__name__)


def _rebuild(cls: type[RayrollError], message: str, facts: dict[str, Any]) -> RayrollError:
    return cls(message, **facts)


class CallerError(RayrollError):
    """The calling program asked for something that cannot be. Raised at once, never retried."""

    fault: ClassVar[Fault] = "caller"


class ConfigError(CallerError):
    """Somebody typed a name, field or value that does not exist or cannot work."""


class ClosedError(CallerError):
    """You closed it, and used it again."""


class TaskError(RayrollError):
    """The task itself is broken: no tests, a bad task.toml, an image that does not build."""

    fault: ClassVar[Fault] = "task"


class GraderError(TaskError):
    """The task's tests ended without a verdict that can be read."""

    fault: ClassVar[Fault] = "grader"


class SandboxFileError(RayrollError):
    """A file operation inside a sandbox was refused by its system; ``facts["errno"]`` says how.

    An agent can cause every one of these (it deletes, fills the disk, takes permissions away), so the fault is the
    policy's.
    """

    fault: ClassVar[Fault] = "policy"

    @property
    def errno(self) -> int:
        """The system's number for it, as in :mod:`errno`."""
        return int(self.facts.get("errno", 0))


class SandboxKilledError(RayrollError):
    """What the agent did ended its sandbox: out of memory, its init stopped. The rollout is over, and it counts."""

    fault: ClassVar[Fault] = "policy"


class InfraFailure(RayrollError):
    """The machine failed, not the agent: retried as a new attempt, masked in training."""

    fault: ClassVar[Fault] = "infra"


class SubstrateError(InfraFailure):
    """A sandbox could not be made, listed or destroyed."""


class EngineDownError(SubstrateError):
    """The engine, cluster or provider does not answer."""


class ImageError(SubstrateError):
    """The image is missing, cannot be pulled, or is made for another CPU."""


class DiskFullError(SubstrateError):
    """No space is left where sandboxes live."""


class NoRoomError(SubstrateError):
    """The provider has no machine of that kind to give now: its capacity, or the account's limit, is used up."""


class StartTimeoutError(SubstrateError):
    """The sandbox was created, but its runner did not say hello in time."""


class SandboxLostError(InfraFailure):
    """A live sandbox, or the runner in it, is gone."""


class ProtocolError(InfraFailure):
    """The two ends of a channel do not understand each other."""


class HostLostError(InfraFailure):
    """The Ray actor that owned the env is gone or does not answer."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name nobody knows, with the nearest known ones first."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return ConfigError(f"unknown {what} {name!r}{hint}", known=names)
