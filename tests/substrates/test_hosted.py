"""What hosted sandboxes have in common, without any provider."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.errors import ConfigError
from rayroll.substrates._hosted import Lifetimes, decoded, encoded, first_command

PROVIDERS_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@given(st.text(max_size=9))
def test_any_short_text_survives_as_a_label(text: str) -> None:
    value = encoded(text)
    assert PROVIDERS_VALUE.fullmatch(value) or text == ""
    assert decoded(value) == text


@pytest.mark.parametrize("text", ["b32.mfrgg", "run-1", "host/7 of 8"])
def test_labels_that_look_like_each_other_stay_apart(text: str) -> None:
    assert decoded(encoded(text)) == text


def test_a_label_that_no_provider_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long"):
        encoded("ü" * 40)


def first_process(folder: Path, patience_s: float) -> subprocess.Popen[bytes]:
    words = [word.replace("/.rayroll", str(folder / "box")) for word in first_command("x", patience_s)]
    return subprocess.Popen(words)


def test_the_first_process_ends_when_the_last_holder_of_its_fifo_has(tmp_path: Path) -> None:
    first = first_process(tmp_path, 20)
    fifo = tmp_path / "box" / "end-x"
    holder = subprocess.Popen(["sh", "-c", f"until [ -p {fifo} ]; do :; done; exec 9>{fifo}; read x"], stdin=-1)
    assert holder.stdin is not None
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.5)
    holder.communicate(b"\n")
    assert first.wait(10) == 0


def test_the_first_process_ends_when_no_runner_comes(tmp_path: Path) -> None:
    assert first_process(tmp_path, 1).wait(10) == 0


async def test_what_is_held_is_renewed_until_it_is_dropped() -> None:
    renewed: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    async def renew(id: str, lasts_s: float) -> bool:
        renewed.put_nowait((id, lasts_s))
        return True

    lifetimes = Lifetimes(renew)
    lifetimes.hold("a", 0.03)
    lifetimes.hold("b", 600)
    for _ in range(3):
        assert await renewed.get() == ("a", 0.03)
    await lifetimes.close()
    await lifetimes.close()


async def test_one_that_is_gone_or_cannot_be_asked_for_holds_up_no_other() -> None:
    renewed: asyncio.Queue[str] = asyncio.Queue()

    async def renew(id: str, lasts_s: float) -> bool:
        renewed.put_nowait(id)
        if id == "broken":
            raise OSError("nobody answers")
        return id != "gone"

    lifetimes = Lifetimes(renew)
    for id in ("gone", "broken", "well"):
        lifetimes.hold(id, 0.03)
    seen = [await renewed.get() for _ in range(9)]
    await lifetimes.close()
    assert seen.count("gone") == 1
    assert seen.count("broken") > 1 < seen.count("well")
