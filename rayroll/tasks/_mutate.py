"""Small wrong turns in Python source, such as people take: found in the syntax tree, made in the text.

Each mutation replaces whole lines, so that its inverse is the same replacement the other way round and comments,
spacing and everything else stay as their author left them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Mutation", "apply", "find"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a source text."""

    kind: str
    """What sort of mistake it is, such as ``comparison``."""
    scope: str
    """Dotted name of the function around it; empty at module level."""
    line: int
    """First line that changes, from 1."""
    old: str
    """The lines as they are, each with its end."""
    new: str
    """The lines as they become; empty where they are dropped."""


_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
}
_CALLS = {
    "all": "any",
    "any": "all",
    "endswith": "startswith",
    "find": "rfind",
    "lower": "upper",
    "lstrip": "rstrip",
    "max": "min",
    "min": "max",
    "partition": "rpartition",
    "rfind": "find",
    "rpartition": "partition",
    "rsplit": "split",
    "rstrip": "lstrip",
    "startswith": "endswith",
    "strip": "lstrip",
    "upper": "lower",
}
_TYPED_ARGUMENTS = {"getattr", "hasattr", "isinstance", "issubclass", "setattr"}
"""Swapping what these take only raises TypeError, and nobody has to look for that."""
_MOST_DROPPED_LINES = 4


def find(source: str) -> list[Mutation]:
    """Every mutation of a source text, in order of place; each still parses."""
    tree = ast.parse(source)
    text = _Text(source)
    found: list[Mutation] = []
    for scope, node in _nodes(tree):
        for kind, (start, end, replacement) in _edits(text, node):
            mutation = text.mutation(kind, scope, start, end, replacement)
            if mutation not in found and _parses(apply(source, mutation)):
                found.append(mutation)
    return sorted(found, key=lambda m: (m.line, m.kind, m.new))


def apply(source: str, mutation: Mutation, *, inverse: bool = False) -> str:
    """Make the change, or take it back.

    Raises:
        ValueError: The lines are not there.
    """
    old, new = (mutation.new, mutation.old) if inverse else (mutation.old, mutation.new)
    lines = _lines(source)
    at = mutation.line - 1
    count = len(_lines(old))
    if "".join(lines[at : at + count]) != old:
        raise ValueError(f"line {mutation.line} does not read as the mutation says")
    return "".join([*lines[:at], new, *lines[at + count :]])


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _lines(source: str) -> list[str]:
    # str.splitlines also ends lines at form feeds and other characters, which Python's parser does not.
    return re.findall(r"[^\n]*\n|[^\n]+", source)


Edit = tuple[int, int, str]
"""Start and end offset in the source's UTF-8 bytes, and what takes their place."""


class _Text:
    """Source text by the coordinates of its syntax tree: lines from 1, columns in bytes."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self.starts = [0]
        for line in _lines(source):
            self.starts.append(self.starts[-1] + len(line.encode()))

    def start(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def between(self, left: ast.expr, right: ast.expr, token: str, replacement: str) -> Iterator[Edit]:
        """Replace the operator between two operands; none when the gap holds a comment or the token twice."""
        start, end = self.end(left), self.start(right)
        gap = self.data[start:end].decode()
        word = r"\s+".join(map(re.escape, token.split()))
        pattern = rf"\b{word}\b" if token[0].isalpha() else word
        hits = list(re.finditer(pattern, gap))
        if len(hits) == 1 and "#" not in gap:
            yield start + hits[0].start(), start + hits[0].end(), replacement

    def whole_lines(self, node: ast.stmt) -> Iterator[Edit]:
        """Drop a statement that has its lines to itself."""
        assert node.end_lineno is not None
        start, end = self.starts[node.lineno - 1], self.starts[node.end_lineno]
        before, after = self.data[start : self.start(node)], self.data[self.end(node) : end]
        alone = not before.strip() and (not after.strip() or after.strip().startswith(b"#"))
        if alone and node.end_lineno - node.lineno < _MOST_DROPPED_LINES:
            yield start, end, ""

    def mutation(self, kind: str, scope: str, start: int, end: int, replacement: str) -> Mutation:
        first = max(i for i, at in enumerate(self.starts) if at <= start)
        last = next(i for i, at in enumerate(self.starts) if at >= end and i > first)
        low, high = self.starts[first], self.starts[last]
        new = (self.data[low:start] + replacement.encode() + self.data[end:high]).decode()
        return Mutation(kind, scope, first + 1, self.data[low:high].decode(), new)


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Nodes inside functions, with the dotted name of the function; annotations and messages of errors left out."""

    def below(node: ast.AST, scope: str, in_function: bool) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{scope}.{child.name}" if scope else child.name
                yield name, child
                yield from below(child, name, True)
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{scope}.{child.name}" if scope else child.name, in_function)
            elif isinstance(child, ast.arguments):
                if in_function:
                    yield scope, child
            elif isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign):
                continue
            else:
                if in_function:
                    yield scope, child
                yield from below(child, scope, in_function)

    return below(tree, "", False)


def _edits(text: _Text, node: ast.AST) -> Iterator[tuple[str, Edit]]:
    for kind, rule in _RULES.items():
        for edit in rule(text, node):
            yield kind, edit


def _comparison(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        token, other = _COMPARISONS[type(node.ops[0])]
        yield from text.between(node.left, node.comparators[0], token, other)


def _off_by_one(text: _Text, node: ast.AST) -> Iterator[Edit]:
    numbers: list[ast.expr | None] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        numbers = [node.left, node.right]
    elif isinstance(node, ast.Slice):
        numbers = [node.lower, node.upper]
    elif isinstance(node, ast.Subscript):
        numbers = [node.slice]
    elif isinstance(node, ast.Compare):
        numbers = [*node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"range", "islice"}:
        numbers = [*node.args]
    for number in numbers:
        if isinstance(number, ast.Constant) and type(number.value) is int:
            yield text.start(number), text.end(number), str(number.value + 1)


def _boolean(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        token, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from text.between(node.values[0], node.values[1], token, other)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield text.start(node), text.start(node.operand), ""
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
        yield text.start(node.value), text.end(node.value), str(not node.value.value)


def _default(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if not isinstance(node, ast.arguments):
        return
    for value in (*node.defaults, *node.kw_defaults):
        if not isinstance(value, ast.Constant):
            continue
        if isinstance(value.value, bool):
            yield text.start(value), text.end(value), str(not value.value)
        elif type(value.value) is int:
            yield text.start(value), text.end(value), str(value.value + 1)
        elif value.value == "":
            yield text.start(value), text.end(value), '" "'


def _dropped(text: _Text, node: ast.AST) -> Iterator[Edit]:
    """A guard or an update that is not there, where its block has others."""
    for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
        if not isinstance(body, list) or len(body) < 2:
            continue
        for statement in body:
            guard = isinstance(statement, ast.If) and not statement.orelse
            if guard or isinstance(statement, ast.AugAssign):
                yield from text.whole_lines(statement)


def _swapped(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return
    first, second = node.args[:2]
    if isinstance(node.func, ast.Name) and node.func.id in _TYPED_ARGUMENTS:
        return
    simple = (ast.Name, ast.Attribute, ast.Subscript)
    if isinstance(first, simple) and isinstance(second, simple) and text.of(first) != text.of(second):
        gap = text.data[text.end(first) : text.start(second)].decode()
        yield text.start(first), text.end(second), text.of(second) + gap + text.of(first)


def _arithmetic(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if any(
            isinstance(side, ast.Constant | ast.JoinedStr) and not _is_int(side) for side in (node.left, node.right)
        ):
            # Text: "%" formats and "+" joins, so the change would only raise TypeError.
            return
        token, other = _ARITHMETIC[type(node.op)]
        yield from text.between(node.left, node.right, token, other)
    elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        token, other = _ARITHMETIC[type(node.op)]
        yield from text.between(node.target, node.value, f"{token}=", f"{other}=")


def _wrong_call(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
        end = text.end(node.func)
        yield end - len(node.func.attr), end, _CALLS[node.func.attr]
    elif isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield text.start(node.func), text.end(node.func), _CALLS[node.func.id]


def _loop(text: _Text, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Break | ast.Continue):
        yield text.start(node), text.end(node), "continue" if isinstance(node, ast.Break) else "break"


def _is_int(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


_RULES: dict[str, Callable[[_Text, ast.AST], Iterator[Edit]]] = {
    "comparison": _comparison,
    "off-by-one": _off_by_one,
    "boolean": _boolean,
    "default": _default,
    "dropped": _dropped,
    "swapped-arguments": _swapped,
    "arithmetic": _arithmetic,
    "wrong-call": _wrong_call,
    "loop": _loop,
}
