"""A command's request and its answer: values here, fields on the wire."""

from __future__ import annotations

import codecs
import os
import struct
from collections.abc import Iterable, Mapping
from typing import Literal

from rayroll.errors import (
    CallerError,
    InfraFailure,
    ProtocolError,
    RayrollError,
    SandboxFileError,
    TaskError,
)
from rayroll.runner.protocol import VERSION, Flag, Frame, Tag, decode_fields, encode_fields, number
from rayroll.types import CommandTiming, ExecResult

__all__ = ["encoded", "error_of", "exec_payload", "exec_result", "milliseconds", "refusal_of"]

VARIABLE_MOST_BYTES = (128 << 10) - 1
"""Linux: MAX_ARG_STRLEN, its end byte left out."""

_LIMITS: dict[int, Literal["", "total", "idle"]] = {1: "total", 2: "idle"}
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that are not the first of a character."""
_NUMBERS = struct.Struct("<" + "BIQ" * 6)
"""Six number fields at once: tag, length, value."""


def exec_payload(
    script: str | bytes | None = None,
    *,
    argv: Iterable[str | bytes] | None = None,
    cwd: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    clean_env: bool = False,
    carry: bool = True,
    user: str | None = None,
    stdin: bytes = b"",
    timeout_s: float | None = None,
    idle_timeout_s: float | None = None,
    grace_s: float = 0.5,
    output_cap_bytes: int = 128 << 10,
) -> bytes:
    """The payload of EXEC; the arguments are those of ``RunnerClient.exec``.

    Raises:
        CallerError: Neither or both of script and argv, a NUL byte, a variable that Linux does not take.
    """
    if (script is None) == (argv is None):
        raise CallerError("give either a script or argv")
    fields: dict[int, int | bytes] = {}
    if script is not None:
        fields[Tag.SCRIPT] = encoded(script, "script")
    if argv is not None:
        fields[Tag.ARGV] = b"".join(encoded(a, "argv") + b"\0" for a in argv)
    if cwd is not None:
        fields[Tag.CWD] = encoded(cwd, "cwd")
    if env:
        fields[Tag.ENV] = b"".join(_variable(name, value) + b"\0" for name, value in env.items())
    if user is not None:
        fields[Tag.USER] = encoded(user, "user")
    if stdin:
        fields[Tag.STDIN] = stdin
    flags = (Flag.CARRY if carry else 0) | (Flag.CLEAN_ENV if clean_env else 0)
    tail_bytes = output_cap_bytes // 2
    return encode_fields(fields) + _NUMBERS.pack(
        *(Tag.FLAGS, 8, flags),
        *(Tag.TIMEOUT_MS, 8, milliseconds(timeout_s)),
        *(Tag.IDLE_MS, 8, milliseconds(idle_timeout_s)),
        *(Tag.GRACE_MS, 8, milliseconds(grace_s)),
        *(Tag.HEAD_BYTES, 8, output_cap_bytes - tail_bytes),
        *(Tag.TAIL_BYTES, 8, tail_bytes),
    )


def exec_result(reply: Mapping[int, bytes], raw: bytes, round_trip_ns: int) -> ExecResult:
    """A RESULT's fields and the OUTPUT before it.

    Raises:
        ProtocolError: It has no exit code; that is never taken for 0.
    """
    if Tag.EXIT_CODE not in reply:
        raise ProtocolError("a result without an exit code")
    total = number(reply, Tag.OUTPUT_BYTES)
    truncated = total > len(raw)
    limit = number(reply, Tag.LIMIT)
    return ExecResult(
        output=_cut_text(raw, number(reply, Tag.HEAD_KEPT), total) if truncated else raw.decode(errors="replace"),
        exit_code=number(reply, Tag.EXIT_CODE),
        timed_out=limit in _LIMITS,
        limit=_LIMITS.get(limit, ""),
        truncated=truncated,
        output_bytes=total,
        state_saved=number(reply, Tag.STATE_SAVED) != 0,
        notice=reply.get(Tag.NOTICE, b"").decode(errors="replace"),
        raw=raw,
        timing=CommandTiming(
            queued_ns=number(reply, Tag.QUEUED_NS),
            spawn_ns=number(reply, Tag.SPAWN_NS),
            run_ns=number(reply, Tag.RUN_NS),
            drain_ns=number(reply, Tag.DRAIN_NS),
            user_ns=number(reply, Tag.USER_NS),
            system_ns=number(reply, Tag.SYSTEM_NS),
            throttled_ns=number(reply, Tag.THROTTLED_NS),
            max_rss_bytes=number(reply, Tag.MAX_RSS_BYTES),
            memory_limit_hits=number(reply, Tag.MEMORY_HITS),
            round_trip_ns=round_trip_ns,
        ),
    )


def _cut_text(raw: bytes, head_bytes: int, total: int) -> str:
    """Head, a mark, tail; a character that the cut goes through is left out, not replaced."""
    # A decoder that waits for more keeps the beginning of a character to itself.
    head = codecs.getincrementaldecoder("utf-8")("replace").decode(raw[:head_bytes])
    tail = raw[head_bytes:]
    rest = tail.lstrip(_CONTINUATION)
    if len(tail) - len(rest) < 4:  # no character has more bytes than that after its first
        tail = rest
    return f"{head}\n[... {total - len(raw)} of {total} bytes left out ...]\n{tail.decode(errors='replace')}"


def error_of(fields: Mapping[int, bytes]) -> RayrollError:
    """What an ERROR means, and whose fault it is."""
    code = fields.get(Tag.CODE, b"").decode(errors="replace")
    reason = fields.get(Tag.REASON, b"").decode(errors="replace")
    if code == "file":
        return SandboxFileError(reason, errno=number(fields, Tag.ERRNO))
    if code == "shell":
        return TaskError(reason, code=code)
    if code in ("user", "arguments", "busy", "cancelled"):
        return CallerError(reason, code=code)
    if code == "unkillable":
        return InfraFailure(reason, code=code)
    return ProtocolError(reason, code=code)


def refusal_of(frame: Frame) -> ProtocolError:
    """What a REFUSED says."""
    fields = decode_fields(frame.payload)
    code = fields.get(Tag.CODE, b"").decode(errors="replace")
    facts: dict[str, object] = {"code": code, "epoch": number(fields, Tag.EPOCH)}
    if code == "version":
        facts["runner"] = [number(fields, Tag.VERSION_MIN), number(fields, Tag.VERSION_MAX)]
        facts["host"] = [VERSION, VERSION]
    return ProtocolError("the runner refused: " + fields.get(Tag.REASON, b"").decode(errors="replace"), **facts)


def milliseconds(seconds: float | None) -> int:
    """None is 0, which is "no limit" on the wire; anything else is at least 1."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


def encoded(value: str | bytes, what: str) -> bytes:
    """Text as the file system encodes it. Raises CallerError for a NUL byte."""
    try:
        data = os.fsencode(value) if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise CallerError(f"{what} cannot be encoded", position=error.start) from None
    if b"\0" in data:
        raise CallerError(f"{what} holds a NUL byte", position=data.index(b"\0"))
    return data


def _variable(name: str, value: str) -> bytes:
    if not name or "=" in name:
        raise CallerError("a variable's name is empty or holds '='", name=name)
    data = encoded(f"{name}={value}", f"variable {name}")
    if len(data) > VARIABLE_MOST_BYTES:
        raise CallerError("a variable is longer than Linux takes (131071 bytes)", name=name, size_bytes=len(data))
    return data
