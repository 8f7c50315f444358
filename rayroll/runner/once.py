"""One command by one call: for providers whose API runs a command line and returns what it printed, and has no stream.

>>> argv = once_argv("/.rayroll/runner", exec_frames("pytest -q"), state_path="/.rayroll/state")
>>> result = read_reply(provider.run(argv).stdout)

There is no lease: the provider's own lifetime of the sandbox is. Background jobs live on between calls.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from rayroll.errors import CallerError, ProtocolError
from rayroll.runner.commands import error_of, exec_payload, exec_result, refusal_of
from rayroll.runner.protocol import FrameType, Parser, decode_fields, encode_frame
from rayroll.types import ExecResult

__all__ = ["ARGUMENT_MOST_BYTES", "exec_frames", "kill_all_frames", "once_argv", "read_killed", "read_reply"]

ARGUMENT_MOST_BYTES = 90 << 10
"""Longest request that fits into an argument: Linux takes 128 KiB, and base64 makes 4 bytes of 3. Write a longer one to
a file in the sandbox and name it."""


def exec_frames(script: str | bytes | None = None, **options: Any) -> bytes:
    """The request for one command; ``options`` are those of ``RunnerClient.exec``."""
    return encode_frame(FrameType.EXEC, 0, 1, exec_payload(script, **options))


def kill_all_frames() -> bytes:
    """The request to end what earlier calls left running."""
    return encode_frame(FrameType.KILL_ALL, 0, 1)


def once_argv(
    runner: str, frames: bytes = b"", *, request_path: str | None = None, state_path: str | None = None
) -> list[str]:
    """The command line that runs one request and prints its reply in base64.

    Args:
        runner: The runner's path in the sandbox.
        frames: The request.
        request_path: A file in the sandbox that holds the request instead.
        state_path: A file in the sandbox that carries directory and exported variables from call to call.

    Raises:
        CallerError: The request is too long for an argument.
    """
    argv = [runner, "once", "--base64"]
    if request_path is not None:
        argv += ["--request-file", request_path]
    elif len(frames) > ARGUMENT_MOST_BYTES:
        raise CallerError("the request is too long for an argument", size_bytes=len(frames), most=ARGUMENT_MOST_BYTES)
    else:
        argv += ["--request", base64.b64encode(frames).decode()]
    return argv if state_path is None else [*argv, "--state", state_path]


def read_reply(printed: str | bytes, *, round_trip_ns: int = 0) -> ExecResult:
    """What the runner printed for ``exec_frames``, as the result of the command.

    Raises:
        ProtocolError: It is no whole reply, so the exit code is not known; that is never taken for 0.
        CallerError, SandboxFileError, TaskError: As ``RunnerClient.exec``.
    """
    return exec_result(*_reply(printed), round_trip_ns)


def read_killed(printed: str | bytes) -> None:
    """The same for ``kill_all_frames``: returns when all of it is dead.

    Raises:
        InfraFailure: Something cannot be killed.
    """
    _reply(printed)


def _reply(printed: str | bytes) -> tuple[dict[int, bytes], bytes]:
    text = printed.encode(errors="replace") if isinstance(printed, str) else printed
    try:
        data = base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise ProtocolError("what the runner printed is not base64", reason=str(error), printed=text[:200]) from None
    output: list[bytes] = []
    for frame in Parser().feed(data):
        if frame.type == FrameType.OUTPUT:
            output.append(frame.payload)
        elif frame.type == FrameType.RESULT:
            return decode_fields(frame.payload), b"".join(output)
        elif frame.type == FrameType.ERROR:
            raise error_of(decode_fields(frame.payload))
        elif frame.type == FrameType.REFUSED:
            raise refusal_of(frame)
    raise ProtocolError("the runner printed no whole reply", size_bytes=len(data))
