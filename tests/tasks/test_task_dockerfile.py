from __future__ import annotations

import pytest

from rayroll.tasks import _dockerfile
from rayroll.tasks._dockerfile import DockerfileError


@pytest.mark.parametrize(
    ("text", "workdir"),
    [
        ("FROM x\n", "/"),
        ("FROM x\nWORKDIR /a\nWORKDIR b\nworkdir ../c\n", "/a/c"),
        ('FROM x\nWORKDIR "/with blank"\n', "/with blank"),
        ("FROM x\nENV HOME_OF=/srv\nWORKDIR ${HOME_OF}/app\n", "/srv/app"),
        ("FROM x\nENV OLD form with blanks\nENV A=1 B=/b\nWORKDIR $B\n", "/b"),
        ("FROM x\nARG where=/opt\nWORKDIR $where\n", "/opt"),
        ("FROM x\nWORKDIR ${NOT_SET:-/fallback}\n", "/fallback"),
        ("FROM x\nWORKDIR /\\$literal\n", "/$literal"),
        ("# comment\n\nFROM x\nWORKDIR \\\n# in between\n\n  /joined\n", "/joined"),
        ("# escape=`\nFROM x\nWORKDIR `\n  /windows-like\n", "/windows-like"),
        ("FROM x\nRUN cat <<EOF > f\nWORKDIR /not/this\nEOF\nWORKDIR /this\n", "/this"),
        ("FROM x AS build\nWORKDIR /build\nFROM y\n", "/"),
        ("FROM x AS build\nWORKDIR /build\nFROM y AS other\nWORKDIR /y\nFROM build\n", "/build"),
        ("ARG TAG=1\nFROM --platform=linux/amd64 x:$TAG\nWORKDIR /w\n", "/w"),
    ],
)
def test_commands_start_where_the_last_stage_says(text: str, workdir: str):
    assert _dockerfile.workdir(_dockerfile.parse(text)) == workdir


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "no FROM"),
        ("# only a comment\n", 1, "no FROM"),
        ("\nRUN true\nFROM x\n", 2, "RUN before FROM"),
        ("FROM x\nRUN a \\\n  b\nCOPPY a b\n", 4, "did you mean COPY"),
    ],
)
def test_what_no_engine_would_build_is_refused_by_line(text: str, line: int, reason: str):
    with pytest.raises(DockerfileError, match=reason) as refused:
        _dockerfile.parse(text)
    assert refused.value.line == line


def test_copies_know_their_absolute_targets():
    text = 'FROM x\nCOPY a /a\nWORKDIR /w\nCOPY --chown=me b c .\nCOPY ["d e", "f/"]\n'
    assert _dockerfile.copies(_dockerfile.parse(text)) == [(["a"], "/a"), (["b", "c"], "/w/"), (["d e"], "/w/f/")]


def test_a_copy_that_needs_an_engine_is_refused():
    steps = _dockerfile.parse("FROM x AS y\nFROM z\nCOPY --from=y /a /b\n")
    with pytest.raises(DockerfileError, match="needs an engine"):
        _dockerfile.copies(steps)
