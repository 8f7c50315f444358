"""What people write: frozen, unknown fields refused with the nearest known name, units in the names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from rayroll.errors import ConfigError

__all__ = ["Config"]


class Config(BaseModel):
    """Base of every configuration in this package."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Build from what somebody typed.

        Args:
            values: Field names and values.
            where: What is being configured, for the message (a file, an option).

        Raises:
            ConfigError: Names every wrong field, with its reason and the nearest known names.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            place = f"{where}: " if where else ""
            raise ConfigError(place + "; ".join(cls._sentence(e) for e in error.errors())) from None

    @classmethod
    def _sentence(cls, error: Mapping[str, Any]) -> str:
        name = ".".join(str(part) for part in error["loc"])
        if error["type"] != "extra_forbidden":
            return f"{name}: {error['msg'].removeprefix('Value error, ')}"  # pydantic's words before ours
        near = difflib.get_close_matches(name, cls.model_fields, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(cls.model_fields)}"
        return f"unknown field {name!r}; {hint}"
