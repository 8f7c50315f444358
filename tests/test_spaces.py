"""The space of commands and observations: all real text is in it, and what it samples may be run."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.spaces import UnicodeText

SPACE = UnicodeText(1000)


@given(st.binary(max_size=900))
def test_whatever_a_command_prints_is_in_the_space(raw: bytes) -> None:
    assert raw.decode(errors="replace") in SPACE


@given(st.text(max_size=1000))
def test_any_text_is_in_the_space(text: str) -> None:
    assert text in SPACE


@pytest.mark.parametrize("other", ["x" * 1001, b"ls", None, 3, ["ls"], np.array("ls")])
def test_longer_text_and_anything_else_is_not(other: object) -> None:
    assert other not in SPACE


def test_numpy_s_text_is_text() -> None:
    assert np.str_("ls -la\n") in SPACE


def test_samples_are_few_known_and_harmless() -> None:
    space = UnicodeText(1000)
    space.seed(0)
    samples = {space.sample() for _ in range(200)}
    assert samples == {"true", "pwd", "echo hello", "ls", ":"}
    assert all(sample in space for sample in samples)


def test_equal_seeds_sample_equally() -> None:
    drawn = []
    for _ in range(2):
        space = UnicodeText(10)
        space.seed(7)
        drawn.append([space.sample() for _ in range(20)])
    assert drawn[0] == drawn[1]


def test_it_pickles_small_and_prints_short() -> None:
    assert len(pickle.dumps(SPACE)) < 1000
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
    assert repr(SPACE) == "UnicodeText(1000)"
    assert UnicodeText(10) != SPACE


def test_batches_of_it_are_json() -> None:
    texts = ["", "é\n", "x" * 1000]
    assert SPACE.from_jsonable(json.loads(json.dumps(SPACE.to_jsonable(texts)))) == texts
