"""How a rollout is judged: the task's tests in a sandbox, the verdict they leave, and what counts as none."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import math
import os
import tarfile
from collections.abc import Mapping
from typing import Any

from rayroll._live import Live
from rayroll.errors import CallerError, ClosedError, ConfigError, Failure, SandboxFileError, TaskError
from rayroll.runner.client import RunnerClient
from rayroll.timing import Recorder
from rayroll.types import ExecResult, Grade, Task

__all__ = ["TESTS", "VERIFIER_LOGS", "carry_over", "fingerprint", "is_doubtful", "run_tests"]

VERIFIER_LOGS = "/logs/verifier"
TESTS = "/tests"
MOST_WORK_BYTES = 1 << 30
"""Largest working directory that is carried to a fresh sandbox."""
MOST_HASHED_BYTES = 64 << 20
"""Largest working directory that is hashed; it passes through this process's memory."""
_CACHES = {"__pycache__", ".pytest_cache", ".hypothesis", ".git"}
_NO_ROOM, _NO_VERDICT, _TIMEOUT = "no_room", "no_verdict", "grade_timeout"
_ROOM_BYTES = 64 << 10
"""A disk on which that does not fit is full."""


async def run_tests(
    live: Live, task: Task, recorder: Recorder, *, seeds: Mapping[str, str], output_cap_bytes: int
) -> Grade:
    """Bring the tests in, run them with the environment the sandbox was born with, and read their verdict.

    Nothing that the agent started may still run.

    Returns:
        A verdict, or ``reward=None`` with a failure whose cause is not known yet: see ``is_doubtful``.
    """
    if not live.is_isolated:
        raise ConfigError(
            "tests live at /tests and write to /logs, and without isolation these are the node's own folders; "
            "install bubblewrap, or grade on docker",
            task=task.id,
        )
    runner = live.runner
    try:
        for path in (VERIFIER_LOGS, TESTS):
            await runner.remove(path)
        await runner.make_dir(VERIFIER_LOGS, mode=0o777)  # the grader's user may be any
        await runner.upload_tree(TESTS, task.tests.tar)
    except SandboxFileError as error:
        return _no_verdict(_NO_ROOM, f"the tests cannot be put into the sandbox: {error}")
    start_ns = recorder.now_ns()
    try:
        result = await runner.exec(
            argv=[live.born.shell, f"{TESTS}/test.sh"],
            env={**live.born.env, **seeds, **task.tests_env},
            clean_env=True,
            carry=False,
            cwd=live.workdir(task),
            user=task.grade_user,
            timeout_s=task.grade_timeout_s,
            output_cap_bytes=output_cap_bytes,
        )
    except ClosedError:
        raise
    except (CallerError, TaskError, SandboxFileError) as error:  # its working directory or its users are gone
        return _no_verdict(_NO_VERDICT, f"the tests cannot be run in the sandbox: {error}")
    recorder.add_command(start_ns, start_ns + result.timing.round_trip_ns, result.timing, within="grade")
    await runner.kill_all()  # nothing the tests left running may write the verdict now
    return await _verdict(runner, result)


def is_doubtful(grade: Grade) -> bool:
    """There is no verdict, and the agent, the task or the machine may be why: only untouched tests can tell."""
    return grade.failure is not None and grade.failure.error in (_NO_ROOM, _NO_VERDICT, _TIMEOUT)


def _no_verdict(error: str, reason: str, result: ExecResult | None = None) -> Grade:
    details = {} if result is None else _details(result)
    return Grade(None, "" if result is None else result.output, Failure("grader", reason, error), details)


def _details(result: ExecResult) -> dict[str, Any]:
    return {"exit_code": result.exit_code, "timed_out": result.timed_out}


async def _verdict(runner: RunnerClient, result: ExecResult) -> Grade:
    if result.timed_out:
        return _no_verdict(_TIMEOUT, "the tests ran out of time", result)
    try:
        reward, more = await _read_reward(runner)
    except (SandboxFileError, ValueError) as error:
        kind = _NO_VERDICT if await _had_room(runner, result.output) else _NO_ROOM
        return _no_verdict(kind, f"the tests left no readable verdict in {VERIFIER_LOGS}: {error}", result)
    return Grade(reward, result.output, None, {**_details(result), **more})


async def _had_room(runner: RunnerClient, output: str) -> bool:
    """Was the disk not full? Its space may have come back since, so what the tests were told counts too."""
    if os.strerror(errno.ENOSPC) in output:
        return False
    probe = f"{VERIFIER_LOGS}/.room"
    try:
        await runner.write_file(probe, bytes(_ROOM_BYTES))
        await runner.remove(probe)
    except SandboxFileError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


async def _read_reward(runner: RunnerClient) -> tuple[float, dict[str, Any]]:
    """Harbor's two forms: a number in ``reward.txt``, or an object of numbers in ``reward.json``.

    Raises:
        SandboxFileError: Neither is there.
        ValueError: What is there is no finite number.
    """
    try:
        text = await runner.read_file(f"{VERIFIER_LOGS}/reward.txt", max_bytes=4096)
    except SandboxFileError:
        return _from_json(await runner.read_file(f"{VERIFIER_LOGS}/reward.json", max_bytes=1 << 20))
    return _finite(text.decode()), {}


def _from_json(data: bytes) -> tuple[float, dict[str, Any]]:
    try:
        values = json.loads(data)
    except RecursionError:
        raise ValueError("reward.json is nested too deeply") from None
    if not isinstance(values, dict) or not values:
        raise ValueError("reward.json is no object of numbers")
    return _finite(values["reward"] if "reward" in values else next(iter(values.values()))), {"rewards": values}


def _finite(value: Any) -> float:
    try:
        reward = float(value)
    except (TypeError, OverflowError):
        raise ValueError(f"the reward is no number but {type(value).__name__}") from None
    if not math.isfinite(reward):
        raise ValueError(f"the reward {reward} is not finite")
    return reward


async def carry_over(old: Live, new: Live, task: Task) -> None:
    """Replace the task's working directory in one sandbox by what an agent left in another.

    Raises:
        SandboxFileError: It cannot be read, or is larger than ``MOST_WORK_BYTES``.
        TaskError: The task has no working directory of its own.
    """
    workdir = new.workdir(task)
    if workdir == "/":
        raise TaskError("the task has no working directory, so there is nothing to grade in a fresh sandbox")
    await _check_size(old.runner, workdir, MOST_WORK_BYTES)
    work = await old.runner.download_tree(workdir)
    await new.runner.remove(workdir)
    await new.runner.make_dir(workdir)
    await new.runner.upload_tree(workdir, work, user=task.agent_user)


async def _check_size(runner: RunnerClient, path: str, most_bytes: int) -> None:
    size_bytes = sum(entry.size_bytes for entry in await runner.list_tree(path))
    if size_bytes > most_bytes:
        raise SandboxFileError("the working directory is too large", size_bytes=size_bytes, most_bytes=most_bytes)


async def fingerprint(live: Live, task: Task) -> dict[str, str]:
    """Names and contents of the working directory's files, as ``work``; owners, times and caches are not work.

    Empty where it cannot be read or is larger than ``MOST_HASHED_BYTES``: then nothing is proven.
    """
    try:
        await _check_size(live.runner, live.workdir(task), MOST_HASHED_BYTES)
        tree = await live.runner.download_tree(live.workdir(task))
    except SandboxFileError:
        return {}
    return {"work": await asyncio.to_thread(_digest, tree)}


def _digest(tree: bytes) -> str:
    digest = hashlib.sha256()
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        for member in archive:
            if not member.isfile() or _CACHES & set(member.name.split("/")):
                continue
            file = archive.extractfile(member)
            assert file is not None
            digest.update(member.name.encode(errors="surrogateescape") + b"\0" + file.read() + b"\0")
    return digest.hexdigest()
