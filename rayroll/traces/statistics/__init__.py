"""One statistic is one SQL file beside this one: a SELECT over the store, under the comment that defines it.

The report, replay and predict all ask here, so that a number has one definition. A new statistic is a new file. Its
leading comment lines are its definition and where that comes from; a line ``-- $ttl_s = 300.0: what it means`` among
them is a parameter and its default (JSON).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rayroll.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    import duckdb

__all__ = ["compute", "definition", "names", "parameters", "sql"]

_PARAMETER = re.compile(r"--\s*\$(\w+)\s*=\s*(\S+?)\s*(?::\s.*)?$")


@cache
def names() -> tuple[str, ...]:
    """Every statistic there is, in alphabetical order."""
    found = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".sql") for name in found if name.endswith(".sql")))


@cache
def sql(name: str) -> str:
    """The statistic's whole file.

    Raises:
        ConfigError: There is none of that name.
    """
    if name not in names():
        raise unknown_name("statistic", name, names())
    return files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def definition(name: str) -> str:
    """What the number means and who defined it so, as one line of prose."""
    return " ".join(line[2:].strip() for line in _head(name) if not _PARAMETER.match(line))


def parameters(name: str) -> dict[str, Any]:
    """The statistic's parameters and their defaults."""
    matches = (_PARAMETER.match(line) for line in _head(name))
    return {match[1]: json.loads(match[2]) for match in matches if match}


def compute(connection: duckdb.DuckDBPyConnection, name: str, **given: Any) -> list[dict[str, Any]]:
    """The statistic over a store's ``connection``: its rows, each column by its name.

    Args:
        connection: Of an open ``Store``.
        name: One of ``names()``.
        **given: Parameters that differ from their defaults, such as ``ttl_s=60``.

    Raises:
        ConfigError: Neither the statistic nor a parameter is known.
    """
    known = parameters(name)
    for parameter in given:
        if parameter not in known:
            raise ConfigError(f"statistic {name!r} has no parameter {parameter!r}", known=sorted(known))
    return rows(connection, sql(name), known | given)


def rows(connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of any query, each column by its name."""
    cursor = connection.execute(query, dict(values))
    columns = [column[0] for column in cursor.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def _head(name: str) -> list[str]:
    lines = []
    for line in sql(name).splitlines():
        if not line.startswith("--"):
            break
        lines.append(line)
    return lines
