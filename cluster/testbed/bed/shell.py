"""One way to run another program: its output is kept, and its failure says what it printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bed.errors import TestbedError

_TAIL_LINES = 25


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout_s: float = 900.0,
) -> str:
    """Run `argv` to its end and return its standard output.

    Args:
        env: Added to this process's environment.

    Raises:
        TestbedError: It could not start, ran out of time, or exited with another code than 0.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(env or {})},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise TestbedError(f"{words[0]}: not installed") from None
    except subprocess.TimeoutExpired as expired:
        said = tail(_text(expired.stdout) + _text(expired.stderr))
        raise TestbedError(f"{' '.join(words)}: not done after {timeout_s:.0f} s\n{said}") from None
    if done.returncode != 0:
        said = tail(_text(done.stdout) + _text(done.stderr))
        raise TestbedError(f"{' '.join(words)}: exit code {done.returncode}\n{said}")
    return _text(done.stdout)


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether `argv` exits with 0; what it prints is dropped."""
    try:
        run(argv)
    except TestbedError:
        return False
    return True


def tail(text: str) -> str:
    """The last lines of an output or a log, indented, for a message."""
    return "\n".join("    " + line for line in text.splitlines()[-_TAIL_LINES:])


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")
