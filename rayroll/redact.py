"""What looks secret stays at home: a copy of a configuration that may be logged, shown or uploaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["REDACTED", "redacted"]

REDACTED = "<redacted>"

_SECRET_WORDS = {"auth", "authorization", "credential", "credentials", "passwd", "password", "secret", "token"}
_SECRET_MAPPINGS = {"env", "environ", "environment", "headers", "tests_env"}


def redacted(values: Any) -> Any:
    """A copy without text under a telling name, environments and headers, and logins inside addresses."""
    if isinstance(values, Mapping):
        return {key: REDACTED if _is_secret(str(key), value) else redacted(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [redacted(value) for value in values]
    if isinstance(values, str):
        return re.sub(r"(?<=://)[^/@\s]+@", f"{REDACTED}@", values)
    return values


def _is_secret(name: str, value: Any) -> bool:
    words = re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())
    if not isinstance(value, str):
        return name.lower() in _SECRET_MAPPINGS and isinstance(value, Mapping)
    return bool(_SECRET_WORDS.intersection(words)) or "".join(words).endswith("key")
