"""The numbers of the wire are the same in C, in Python and in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rayroll.runner import protocol
from rayroll.runner.protocol import Flag, FrameType, Tag

ROOT = Path(__file__).parents[2]
WIRE = (ROOT / "rayroll/runner/src/wire.h").read_text()
DOCUMENT = (ROOT / "docs/runner-protocol.md").read_text()


def in_c(prefix: str) -> dict[str, int]:
    """Constants of wire.h, by their name without the prefix."""
    found = re.findall(rf"^\s+{prefix}_(\w+) = ([\d <]+),$", WIRE, re.MULTILINE)
    return {name: eval(value, {}) for name, value in found}


def in_document(heading: str) -> dict[str, int]:
    """Names and numbers of the table below a heading."""
    section = DOCUMENT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return {name: int(value) for value, name in re.findall(r"^\| (\d+) \| `(\w+)`", section, re.MULTILINE)}


@pytest.mark.parametrize(
    ("prefix", "ours", "heading"),
    [("F", FrameType, "Frames"), ("T", Tag, "Fields"), ("FLAG", Flag, "Flags")],
)
def test_frames_fields_and_flags(prefix: str, ours: type[FrameType], heading: str) -> None:
    known = {member.name: member.value for member in ours}
    assert in_c(prefix) == known
    assert in_document(heading) == known


def test_limits() -> None:
    limits = in_c("LIMIT")
    assert limits == in_document("Limits")
    assert (limits["TOTAL"], limits["IDLE"]) == (1, 2)


def test_sizes() -> None:
    sizes = in_c("WIRE")
    assert sizes == {
        "VERSION": protocol.VERSION,
        "HEADER": protocol.HEADER_BYTES,
        "KEY": protocol.KEY_BYTES,
        "MAX_PAYLOAD": protocol.MAX_PAYLOAD_BYTES,
        "WINDOW": protocol.WINDOW_BYTES,
        "CHUNK": protocol.CHUNK_BYTES,
    }
    for name in ("MAX_PAYLOAD", "WINDOW", "CHUNK"):
        size = sizes[name]
        assert (f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB") in DOCUMENT


def test_codes() -> None:
    """Every word that the runner gives for an error is listed, and none that it does not give."""
    sources = "".join(path.read_text() for path in (ROOT / "rayroll/runner/src").glob("*.c"))
    given = set(re.findall(r'(?:refuse|refuse_hello|link_error|request_fail)\([^;]*?"([a-z_]+)",', sources))
    given |= set(re.findall(r'\bcode = "([a-z_]+)"', sources))
    given |= {"too_large", "user"}  # chosen by an expression
    section = DOCUMENT.split("## Errors\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == given
