"""A command's text is read for what would run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.traces.predict.commands import MOST_PARTS, read
from rayroll.traces.predict.features import Call, Session, meaning


@pytest.mark.parametrize(
    ("text", "main"),
    [
        ("git status --short", "git status"),
        ("git -C sub commit -m 'all; of && it'", "git commit"),
        ("cd /src && FOO=1 timeout -s KILL 60 .venv/bin/pytest -q | tail -n 5", "pytest"),
        ("python3.11 -m pytest tests", "pytest"),
        ("python3 -u -m http.server", "http"),
        ("python3 - <<'EOF'\nimport os; os.system('make all')\nEOF", "python -"),
        ("python3 -c 'print(1); print(2)'", "python -c"),
        ("npm run build -- --watch", "npm run:build"),
        ("sudo -u bob env A=1 nice -n 10 make -j4 test", "make test"),
        ("uv run pytest -k x", "pytest"),
        ("bash -lc 'cargo test --release'", "cargo test"),
        ("for i in 1 2 3; do pytest a.py; done", "pytest"),
        ("find . -print0 | xargs -0 sha256sum | sort", "sha256sum"),
        ("ls -la && echo done", "ls"),
        ("ls; find / -name x", "find"),
        ("echo $(git rev-parse HEAD)", "git rev-parse"),
        ("# a comment\npip install -q x", "pip install"),
        ("> out.txt sort big", "sort"),
    ],
)
def test_the_main_program_is_the_one_that_takes_the_time(text: str, main: str) -> None:
    part = read(text).main
    assert part is not None
    assert f"{part.program} {part.sub}".strip() == main


def test_flags_and_paths_are_the_main_programs() -> None:
    part = read("cat notes | python3 -m pytest -q --maxfail=3 tests/test_a.py::test_b -n 8 | tail -n 5").main
    assert part is not None
    assert part.flags == ("--maxfail", "-n", "-q")
    assert part.paths == ("tests/test_a.py::test_b",)


def test_what_differs_in_numbers_and_names_only_has_one_shape() -> None:
    assert read("sed -n '10,20p' src/a.py").shape == read("sed -n '400,500p' lib/b.py").shape
    assert read("sed -n '10,20p' src/a.py").shape != read("sed -i '10,20d' src/a.py").shape


def test_a_heredoc_runs_nothing() -> None:
    assert read("cat > x.sh <<EOF\nmake all\npytest\nEOF\nls").programs == ("cat", "ls")


def test_nothing_runs_in_nothing() -> None:
    assert read(" \n# only this\n").main is None


def test_a_command_of_a_megabyte_is_cut() -> None:
    assert len(read("true; " * 200_000).programs) <= MOST_PARTS
    assert len(read("<<A " * 250_000).shape) < 10_000


SHELL = st.lists(
    st.sampled_from(
        [*"'\"\\$(){}[]|&;<>#-=\n \t", "<<EOF\n", "\nEOF\n", "bash -c ", "sudo ", "timeout 3 ", "a/b.py", "-m", "git "]
    ),
    max_size=60,
).map("".join)


@given(st.one_of(st.text(max_size=300), SHELL))
def test_any_text_is_read_as_something(text: str) -> None:
    read(text)
    assert meaning(Call("Bash", text), Session()).keys[0] == ("all", "")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=20),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=10), x),
        max_leaves=8,
    )
)
def test_any_input_means_something(given_input: object) -> None:
    for tool in ("Bash", "Read", ""):
        assert meaning(Call(tool, given_input), Session(project="p")).main is not None
