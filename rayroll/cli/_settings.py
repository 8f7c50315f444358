"""``--set KIND.FIELD=VALUE``: fields of substrates' configs, from a command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import typer

from rayroll.errors import ConfigError
from rayroll.substrates import load

__all__ = ["Given", "settings"]

Given: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KIND.FIELD=VALUE",
        help="A field of a substrate's config, such as docker.mirror=10.0.0.5:5000; again for more. "
        "VALUE is JSON where it can be read as such.",
    ),
]


def settings(given: Iterable[str] | None) -> dict[str, Mapping[str, Any]]:
    """Fields by kind, each checked by that kind's config.

    Raises:
        ConfigError: It is not of that form; no such kind, field or value.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        kind, dot, field = name.partition(".")
        if not (equals and kind and dot and field):
            raise ConfigError("--set takes KIND.FIELD=VALUE, such as docker.mirror=10.0.0.5:5000", given=text)
        found.setdefault(kind, {})[field] = _value(value)
    for kind, fields in found.items():
        load(kind).config_type.parse(fields, where=f"--set {kind}")
    return dict(found)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
