from __future__ import annotations

import ast
import bisect
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from rayroll.tasks import _mutate


def lines_after(body: str, kind: str) -> list[str]:
    """What each mutation of that kind makes of a function's body."""
    source = "def f(a, b, items):\n" + textwrap.indent(body, "    ")
    found = [m for m in _mutate.find(source) if m.kind == kind]
    return [textwrap.dedent(m.new).rstrip("\n") for m in found]


@pytest.mark.parametrize(
    ("kind", "body", "becomes"),
    [
        ("comparison", "return a < b\n", ["return a <= b"]),
        ("comparison", "return a is not None\n", ["return a is None"]),
        ("comparison", "return (a) not  in b\n", ["return (a) in b"]),
        ("comparison", "return a < b < items\n", []),
        ("off-by-one", "return items[1:]\n", ["return items[2:]"]),
        ("off-by-one", "return a + 1\n", ["return a + 2"]),
        ("off-by-one", "return 'one' + 'two'\n", []),
        ("boolean", "return a and b\n", ["return a or b"]),
        ("boolean", "return not a\n", ["return a"]),
        ("boolean", "return True\n", ["return False"]),
        ("dropped", "a += 1\nreturn a\n", [""]),
        ("dropped", "if a:\n    return b\nreturn a\n", [""]),
        ("dropped", "if a:\n    return b\nelse:\n    b = 1\nreturn a\n", []),
        ("swapped-arguments", "return g(a, b, items)\n", ["return g(b, a, items)"]),
        ("swapped-arguments", "return isinstance(a, b)\n", []),
        ("arithmetic", "return a - b\n", ["return a + b"]),
        ("arithmetic", "a //= b\n", ["a %= b"]),
        ("arithmetic", "return '%s' % a\n", []),
        ("wrong-call", "return min(a.strip(), b)\n", ["return max(a.strip(), b)", "return min(a.lstrip(), b)"]),
        ("loop", "for a in b:\n    continue\n", ["break"]),
    ],
)
def test_each_kind_of_mistake(kind: str, body: str, becomes: list[str]):
    assert lines_after(body, kind) == becomes


def test_defaults_change_and_annotations_do_not():
    source = "def f(a: int = 1, *, b: 'x < y' = True, c=''):\n    pass\n"
    changed = [m.new for m in _mutate.find(source)]
    assert changed == [
        "def f(a: int = 1, *, b: 'x < y' = False, c=''):\n",
        "def f(a: int = 1, *, b: 'x < y' = True, c=\" \"):\n",
        "def f(a: int = 2, *, b: 'x < y' = True, c=''):\n",
    ]


def test_a_mutation_knows_the_function_around_it():
    source = "class A:\n    def f(self, a, b):\n        def g():\n            return a < b\n        return g\n"
    assert [(m.scope, m.line) for m in _mutate.find(source)] == [("A.f.g", 4)]


def test_places_are_right_behind_characters_of_several_bytes():
    assert lines_after('return "äöü→" + a.strip() + "ß" if a < b else a\n', "comparison") == [
        'return "äöü→" + a.strip() + "ß" if a <= b else a'
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_form_feeds_stay(end: str):
    source = f"\x0c{end}def f(a, b):{end}    x = '\x0b'{end}    return a < b{end}"
    (mutation,) = _mutate.find(source)
    assert _mutate.apply(source, mutation) == source.replace("<", "<=")


@pytest.mark.parametrize("module", [bisect, textwrap])
def test_every_mutation_of_real_code_parses_differs_and_can_be_taken_back(module: ModuleType):
    assert module.__file__ is not None
    source = Path(module.__file__).read_text("utf-8")
    meaning = ast.dump(ast.parse(source))
    found = _mutate.find(source)
    assert len(found) > 10
    for mutation in found:
        changed = _mutate.apply(source, mutation)
        assert ast.dump(ast.parse(changed)) != meaning
        assert _mutate.apply(changed, mutation, inverse=True) == source


def test_a_mutation_of_other_text_is_refused():
    (mutation,) = _mutate.find("def f(a, b):\n    return a < b\n")
    with pytest.raises(ValueError, match="line 2 does not read"):
        _mutate.apply("def f(a, b):\n    return b\n", mutation)
