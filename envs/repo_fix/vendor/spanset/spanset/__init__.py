"""Sets of whole numbers as sorted half-open spans."""

from spanset._parse import ParseError, format_spans, parse_spans
from spanset._set import SpanSet

__all__ = ["ParseError", "SpanSet", "format_spans", "parse_spans"]
