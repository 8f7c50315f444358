"""A trace as work to be done: its sessions as steps that think and call, at the pace that was asked for.

Times are those of the statistics: a step thinks for its generation span and calls for its tools' effective latencies
(``workload.sql``). What people took between two requests is left out unless asked for. A subagent is a session of its
own, and the call that started it waits in its parent's as long as it did when it was recorded.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from rayroll.errors import ConfigError
from rayroll.policies.replay import MOST_OUTPUT_BYTES, ModelStep, ToolCall
from rayroll.traces.store import Store
from rayroll.types import FileTree, Task

__all__ = ["IMAGE", "Pace", "Session", "Workload", "build", "task_of"]

IMAGE = "debian:bookworm-slim"
"""What stand-ins run on; any image with a shell would do."""
RECORDED_SPARE_S = 120.0
RECORDED_TIMES = 3.0
"""A recorded command may take so many times its recorded duration, and so many seconds beyond, before it is ended."""
MOST_WAIT_S = 7 * 86400.0
_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of a trace is played, and how fast."""

    think_scale: float = 1.0
    """Of the time that models took; 0: none."""
    tool_scale: float = 1.0
    """Of the time that stand-ins take; recorded commands take what they take."""
    human_waits: float = 0.0
    """Of the time that people took before their next message; 0: none."""
    max_call_s: float | None = None
    """No call takes longer: a stand-in is cut to it, a recorded command ended."""
    max_steps: int | None = None
    """Steps of a session, from its first."""

    def __post_init__(self) -> None:
        for name in ("think_scale", "tool_scale", "human_waits"):
            if not 0 <= getattr(self, name) < 1e6:
                raise ConfigError(f"{name} is 0 or more", given=getattr(self, name), fix="1 is the pace of the record")
        if self.max_call_s is not None and not self.max_call_s > 0:
            raise ConfigError("max_call_s is more than 0", given=self.max_call_s, fix="leave it out for no limit")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError("max_steps is 1 or more", given=self.max_steps, fix="leave it out for whole sessions")


@dataclass(frozen=True, slots=True)
class Session:
    """One session to be played."""

    task_id: str
    """Its number in the trace: what reports and rollouts call it."""
    session_id: str
    """As in the trace."""
    provider: str
    steps: tuple[ModelStep, ...]

    @property
    def think_s(self) -> float:
        """Recorded seconds of thinking, at the workload's pace."""
        return sum(step.think_s for step in self.steps)

    @property
    def tool_s(self) -> float:
        """Recorded seconds of its calls, one after another, at the workload's pace."""
        return sum(call.duration_s for step in self.steps for call in step.calls)

    @property
    def recorded_s(self) -> float:
        """What a replay without any overhead would take."""
        return self.think_s + self.tool_s

    @property
    def actions(self) -> int:
        """Calls."""
        return sum(len(step.calls) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions to be played, and what is to be known about them."""

    source: str
    sessions: tuple[Session, ...]
    in_trace: int
    """Sessions of the trace that call something, in the steps that were asked for."""
    without_calls: int
    """Those that do not: nothing of them would run in a sandbox."""
    unknown_calls: int
    """Chosen calls without a known duration, which are played as 0."""
    unknown_thinks: int
    """Chosen steps without a known generation span, likewise."""
    beside: int
    """Chosen calls that ran beside another of their step; a replay runs them one after another."""
    commands: int
    """Chosen calls that are played as their recorded commands."""

    @property
    def actions(self) -> tuple[int, ...]:
        """Calls of each session."""
        return tuple(session.actions for session in self.sessions)

    @property
    def recorded_s(self) -> float:
        """Of all sessions, one after another."""
        return sum(session.recorded_s for session in self.sessions)

    def digest(self) -> str:
        """Equal for equal work: sessions, waits, durations, sizes and commands."""
        return hashlib.sha256(repr(self.sessions).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """In plain values, without anything that is private in a trace."""
        actions = self.actions
        return {
            "digest": self.digest(),
            "sessions": len(self.sessions),
            "of": self.in_trace,
            "actions": {"least": min(actions), "mean": sum(actions) / len(actions), "most": max(actions)},
            "recorded_s": round(self.recorded_s, 3),
            "sessions_without_calls": self.without_calls,
            "calls_without_duration": self.unknown_calls,
            "steps_without_duration": self.unknown_thinks,
            "calls_beside_others": self.beside,
            "recorded_commands": self.commands,
        }

    def sentence(self) -> str:
        """The same for people, in a few lines."""
        actions = self.actions
        told = [
            f"{len(self.sessions)} of {self.in_trace} sessions of {self.source}, with {min(actions)} to {max(actions)} "
            f"calls ({sum(actions) / len(actions):.1f} on average) and {self.recorded_s:,.0f} s to think and call"
        ]
        for what, count in (
            ("sessions without a call, left out", self.without_calls),
            ("calls of unknown duration, which take none", self.unknown_calls),
            ("steps of unknown generation span, which take none", self.unknown_thinks),
            ("calls that ran beside another of their step, and go after it", self.beside),
            ("calls played as their recorded commands, the others as stand-ins", self.commands),
        ):
            if count:
                told.append(f"  {what}: {count}")
        return "\n".join(told)


def build(
    store: Store,
    *,
    source: str,
    sessions: int | None,
    seed: int,
    pace: Pace,
    recorded_commands: bool = False,
) -> Workload:
    """The workload of a store. Raises ConfigError when it has nothing to replay."""
    query = files("rayroll.traces").joinpath("workload.sql").read_text(encoding="utf-8")
    most = pace.max_steps or _ALL
    lanes = store.connection.execute(
        f"""
        SELECT lane, count(name), count(name) FILTER (place <= ?), count(generation_s) + count(call_s)
        FROM ({query}) GROUP BY lane ORDER BY lane
        """,
        [most],
    ).fetchall()
    numbers = {lane: number for number, (lane, *_) in enumerate((one for one in lanes if one[1]), 1)}
    playable = [lane for lane, _, calls, _ in lanes if calls]
    if not playable:
        raise ConfigError(
            f"no session of {source} calls a tool, so there is nothing to replay",
            sessions=len(lanes),
            max_steps=pace.max_steps,
        )
    if not any(timed for *_, timed in lanes):
        raise ConfigError(
            f"{source} has no times: neither how long its models took nor its tools, so there is no pace to replay",
            sessions=len(lanes),
            fix="collect the sessions again; logs have times",
        )
    chosen = sorted(random.Random(seed).sample(playable, min(len(playable), sessions or len(playable))))
    rows = store.connection.execute(
        f"""
        SELECT * FROM ({query}) WHERE place <= ? AND lane IN (SELECT unnest(?))
        ORDER BY lane, place, tool_index
        """,
        [most, chosen],
    )
    columns = [column[0] for column in rows.description or ()]
    records = (dict(zip(columns, values, strict=True)) for values in rows.fetchall())
    counted: dict[str, int] = dict.fromkeys(("unknown_calls", "unknown_thinks", "beside", "commands"), 0)
    made = []
    for lane, of_lane in itertools.groupby(records, lambda row: row["lane"]):
        steps = [list(of_step) for _, of_step in itertools.groupby(of_lane, lambda row: row["step_id"])]
        acted = tuple(_step(of_step, pace, recorded_commands, counted) for of_step in steps)
        made.append(Session(f"trace/{numbers[lane]:05}", lane, steps[0][0]["provider"], acted))
    return Workload(source, tuple(made), len(playable), len(lanes) - len(playable), **counted)


def _step(rows: Sequence[Mapping[str, Any]], pace: Pace, recorded_commands: bool, counted: dict[str, int]) -> ModelStep:
    first = rows[0]
    counted["unknown_thinks"] += first["generation_s"] is None
    think_s = pace.think_scale * (first["generation_s"] or 0.0) + pace.human_waits * (first["wait_s"] or 0.0)
    calls = []
    for row in rows:
        if row["name"] is None:
            continue
        command = row["command"] if recorded_commands else None
        counted["unknown_calls"] += row["call_s"] is None
        counted["beside"] += row["is_beside"]
        counted["commands"] += command is not None
        calls.append(_call(row, pace, command))
    return ModelStep(min(think_s, MOST_WAIT_S), tuple(calls))


def _call(row: Mapping[str, Any], pace: Pace, command: str | None) -> ToolCall:
    call_s = row["call_s"] or 0.0
    # Characters of the record are bytes here: what was not ASCII in it was longer.
    output_bytes = min(row["result_chars"] or 0, MOST_OUTPUT_BYTES)
    limit_s = MOST_WAIT_S if pace.max_call_s is None else pace.max_call_s
    if command is None:
        return ToolCall(min(call_s * pace.tool_scale, limit_s), output_bytes)
    timeout_s = pace.max_call_s or RECORDED_TIMES * call_s + RECORDED_SPARE_S
    return ToolCall(min(call_s, limit_s), output_bytes, command, timeout_s)


def task_of(session: Session, *, image: str = IMAGE, workdir: str = "/workspace") -> Task:
    """A task whose rollout is this session; its tests find nothing to complain about."""
    return Task(
        id=session.task_id,
        instruction="Act the recorded session out.",
        environment=FileTree.from_files({}),
        tests=FileTree.from_files({"test.sh": "echo 1 > /logs/verifier/reward.txt\n"}),
        image=image,
        workdir=workdir,
        # Stand-ins need nothing but a shell: ``local`` may run them on the node's own system.
        host_packages=(),
        memory_mib=512,
        agent_timeout_s=3600.0 + 10 * session.recorded_s + 120.0 * session.actions,
    )
