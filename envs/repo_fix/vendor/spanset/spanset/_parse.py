"""The text form: closed ranges and single numbers, separated by commas."""

import re

_ITEM = re.compile(r"\s*(-?\d+)\s*(?:-\s*(-?\d+)\s*)?(?:/\s*(\d+)\s*)?$")


class ParseError(ValueError):
    """Text that is no list of ranges; ``position`` is where the bad item starts."""

    def __init__(self, text, position, reason):
        super().__init__(f"{reason} at position {position}: {text!r}")
        self.text = text
        self.position = position
        self.reason = reason


def parse_spans(text, limit=None):
    """Half-open spans of a text such as ``1-3, 7, 10-20/2``, in the order written.

    ``10-20/2`` means every second number. With ``limit``, numbers at or above it are cut off.
    """
    spans = []
    position = 0
    if not text.strip():
        return spans
    for item in text.split(","):
        found = _ITEM.match(item)
        if found is None:
            raise ParseError(text, position, "expected a number or a range")
        start = int(found.group(1))
        last = start if found.group(2) is None else int(found.group(2))
        if last < start:
            raise ParseError(text, position, "a range runs backwards")
        step = 1 if found.group(3) is None else int(found.group(3))
        if step == 0:
            raise ParseError(text, position, "a step of zero")
        stop = last + 1
        if limit is not None and stop > limit:
            stop = limit
        if step == 1:
            if start < stop:
                spans.append((start, stop))
        else:
            spans.extend((number, number + 1) for number in range(start, stop, step))
        position += len(item) + 1
    return spans


def format_spans(spans, separator=",", dash="-"):
    """The text form of half-open spans."""
    parts = []
    for start, stop in spans:
        if stop - start == 1:
            parts.append(str(start))
        else:
            parts.append(f"{start}{dash}{stop - 1}")
    return separator.join(parts)
