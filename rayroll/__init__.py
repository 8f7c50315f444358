"""rayroll: a distributed rollout executor for coding-agent RL that measures, and removes, the infrastructure tax.

Importing registers the Gymnasium ids and does nothing else; what needs Ray is loaded when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as _gym

from rayroll.errors import CallerError as CallerError
from rayroll.errors import ConfigError as ConfigError
from rayroll.errors import Failure as Failure
from rayroll.errors import InfraFailure as InfraFailure
from rayroll.errors import RayrollError as RayrollError
from rayroll.errors import TaskError as TaskError
from rayroll.session import Client as Client
from rayroll.session import Session as Session
from rayroll.session import SessionConfig as SessionConfig
from rayroll.sync import SyncClient as SyncClient
from rayroll.sync import SyncSession as SyncSession
from rayroll.tasks import load_pack as load_pack
from rayroll.tasks import packs as packs
from rayroll.types import Act as Act
from rayroll.types import ExecResult as ExecResult
from rayroll.types import Grade as Grade
from rayroll.types import Rollout as Rollout
from rayroll.types import Task as Task
from rayroll.types import Timing as Timing
from rayroll.types import Turn as Turn

if TYPE_CHECKING:
    from rayroll.env import CodingEnv as CodingEnv
    from rayroll.executor import Executor as Executor
    from rayroll.executor import collect as collect
    from rayroll.executor.remote import connect as connect
    from rayroll.vector import RolloutVectorEnv as RolloutVectorEnv
    from rayroll.vector import make_vec as make_vec

__version__ = "0.1.0"

__all__ = [
    "Act",
    "CallerError",
    "Client",
    "CodingEnv",
    "ConfigError",
    "ExecResult",
    "Executor",
    "Failure",
    "Grade",
    "InfraFailure",
    "RayrollError",
    "Rollout",
    "RolloutVectorEnv",
    "Session",
    "SessionConfig",
    "SyncClient",
    "SyncSession",
    "Task",
    "TaskError",
    "Timing",
    "Turn",
    "collect",
    "connect",
    "load_pack",
    "make_vec",
    "packs",
]

_LAZY = {
    "CodingEnv": "rayroll.env",
    "Executor": "rayroll.executor",
    "RolloutVectorEnv": "rayroll.vector",
    "collect": "rayroll.executor",
    "connect": "rayroll.executor.remote",
    "make_vec": "rayroll.vector",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'rayroll' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


# Real sandboxes have wall clocks, so equal seeds give equal tasks, not equal outputs: nondeterministic.
for _id, _pack in (("Tasks", None), ("HelloShell", "hello_shell"), ("Terminal", "terminal"), ("RepoFix", "repo_fix")):
    _gym.register(
        f"rayroll/{_id}-v0",
        entry_point="rayroll.env:CodingEnv",
        vector_entry_point="rayroll.vector:RolloutVectorEnv",
        nondeterministic=True,
        kwargs={} if _pack is None else {"pack": _pack},
    )
