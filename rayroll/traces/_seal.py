"""A sanitized row says that it is one, so that sanitizing it again, with whichever key, changes nothing.

The seal is a digest of the other fields: it holds for no other row, and a row that was changed since is sanitized anew.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from rayroll.traces._allowed import ROW_FIELDS

__all__ = ["SEAL", "digest", "is_sealed"]

SEAL = "sanitized"
"""The field that holds it."""


def digest(row: Mapping[str, Any]) -> str:
    """Of the fields, in whichever order they come."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def is_sealed(row: Mapping[str, Any]) -> bool:
    """Whether a sanitizer made this row, and nothing was changed or added since."""
    seal = row.get(SEAL)
    if not isinstance(seal, str) or not seal.isascii() or not row.keys() <= {*ROW_FIELDS, SEAL}:
        return False
    try:
        return hmac.compare_digest(seal, digest({name: row[name] for name in row if name != SEAL}))
    except (TypeError, ValueError):  # values that are not JSON
        return False
