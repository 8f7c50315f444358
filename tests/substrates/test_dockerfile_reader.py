"""What a Dockerfile says about files, read without an engine."""

from __future__ import annotations

import pytest

from rayroll.errors import TaskError
from rayroll.substrates._dockerfile import Copy, bases, read


def test_copies_directories_and_variables_are_read_and_run_is_skipped() -> None:
    recipe = read(
        """# syntax=docker/dockerfile:1
        ARG TAG=3.11
        FROM python:${TAG}-slim AS base
        ENV HOME_DIR=/srv  MODE="a b"
        ENV OLD some words
        WORKDIR $HOME_DIR
        WORKDIR app
        RUN apt-get update && \\
            # a comment between
            apt-get install -y git
        COPY --chmod=755 run.sh /usr/local/bin/
        COPY ["a b.txt", "./"]
        COPY src tests ./
        COPY . .
        USER agent
        CMD ["bash"]
        """
    )
    assert recipe.base == "python:3.11-slim"
    assert recipe.workdir == "/srv/app"
    assert recipe.env == {"HOME_DIR": "/srv", "MODE": "a b", "OLD": "some words"}
    assert recipe.skipped_runs == 1
    assert recipe.copies == [
        Copy(("run.sh",), "/usr/local/bin/", 0o755),
        Copy(("a b.txt",), "/srv/app/"),
        Copy(("src", "tests"), "/srv/app/"),
        Copy((".",), "/srv/app/"),
    ]


def test_a_heredoc_of_run_is_skipped_whole() -> None:
    recipe = read("FROM x\nRUN <<EOF\nCOPY not this\nEOF\nWORKDIR /a\n")
    assert (recipe.copies, recipe.workdir) == ([], "/a")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("FROM a\nFROM b\n", "several stages"),
        ("FROM a\nCOPY --from=b /x /y\n", "COPY --from"),
        ("FROM a\nADD https://example.invalid/x /y\n", "ADD of an archive or an address"),
        ("FROM a\nADD x.tar.gz /y\n", "ADD of an archive or an address"),
        ("FROM a\nCOPY <<EOF /y\nhello\nEOF\n", "COPY with a heredoc"),
    ],
)
def test_what_only_a_build_can_honour_is_refused(text: str, what: str) -> None:
    with pytest.raises(TaskError, match=what):
        read(text)


def test_no_from_and_unknown_instructions_are_refused() -> None:
    with pytest.raises(TaskError, match="no FROM"):
        read("RUN true\n")
    with pytest.raises(TaskError, match="unknown instruction"):
        read("FROM a\nFETCH b c\n")


def test_base_images_are_those_that_are_not_stages_of_its_own() -> None:
    text = "ARG V=1\nFROM --platform=linux/amd64 a:$V AS build\nFROM build AS test\nFROM scratch\nFROM b\nFROM a:1\n"
    assert bases(text) == ["a:1", "b"]
