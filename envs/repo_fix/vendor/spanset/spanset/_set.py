"""The set itself."""

from bisect import bisect_right

from spanset._parse import format_spans, parse_spans


class SpanSet:
    """An immutable set of whole numbers. Spans that touch are one span."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, spans=()):
        """``spans`` are pairs of start and stop, in any order; empty ones are left out."""
        starts, stops = [], []
        for start, stop in sorted(spans):
            if start >= stop:
                continue
            if stops and start <= stops[-1]:
                stops[-1] = max(stops[-1], stop)
            else:
                starts.append(start)
                stops.append(stop)
        self._starts = tuple(starts)
        self._stops = tuple(stops)

    @classmethod
    def parse(cls, text, limit=None):
        """From the text form; see ``parse_spans``."""
        return cls(parse_spans(text, limit))

    @classmethod
    def of(cls, numbers):
        """From single numbers."""
        return cls((number, number + 1) for number in numbers)

    def spans(self):
        """Half-open spans, sorted, none touching another."""
        return list(zip(self._starts, self._stops))

    def __iter__(self):
        for start, stop in self.spans():
            yield from range(start, stop)

    def __len__(self):
        return sum(stop - start for start, stop in self.spans())

    def __bool__(self):
        return bool(self._starts)

    def __contains__(self, number):
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def __eq__(self, other):
        if not isinstance(other, SpanSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    def __hash__(self):
        return hash((self._starts, self._stops))

    def __str__(self):
        return format_spans(self.spans())

    def __repr__(self):
        return f"SpanSet.parse({str(self)!r})"

    def __or__(self, other):
        return SpanSet(self.spans() + other.spans())

    def __and__(self, other):
        mine, theirs = self.spans(), other.spans()
        found = []
        i = j = 0
        while i < len(mine) and j < len(theirs):
            start = max(mine[i][0], theirs[j][0])
            stop = min(mine[i][1], theirs[j][1])
            if start < stop:
                found.append((start, stop))
            if mine[i][1] <= theirs[j][1]:
                i += 1
            else:
                j += 1
        return SpanSet(found)

    def __sub__(self, other):
        left = []
        for start, stop in self.spans():
            for cut_start, cut_stop in other.spans():
                if cut_stop <= start:
                    continue
                if cut_start >= stop:
                    break
                if cut_start > start:
                    left.append((start, cut_start))
                start = max(start, cut_stop)
            if start < stop:
                left.append((start, stop))
        return SpanSet(left)

    def __xor__(self, other):
        return (self - other) | (other - self)

    def isdisjoint(self, other):
        """True when no number is in both."""
        return not self & other

    def issubset(self, other):
        """True when every number is in the other as well."""
        return not self - other

    def bounds(self):
        """Smallest number, and one past the largest; None when empty."""
        if not self:
            return None
        return self._starts[0], self._stops[-1]

    def gaps(self, start=None, stop=None):
        """What is missing between ``start`` and ``stop``, by default between the set's own bounds."""
        bounds = self.bounds()
        if bounds is None:
            return SpanSet() if start is None or stop is None else SpanSet([(start, stop)])
        start = bounds[0] if start is None else start
        stop = bounds[1] if stop is None else stop
        return SpanSet([(start, stop)]) - self

    def shift(self, by):
        """Every number moved."""
        return SpanSet((start + by, stop + by) for start, stop in self.spans())

    def grow(self, by):
        """Every span longer by so much at both ends; shorter when negative, and gone when nothing is left."""
        return SpanSet((start - by, stop + by) for start, stop in self.spans())

    def nth(self, index):
        """The number at a place in sorted order; negative places count from the end. Raises IndexError."""
        size = len(self)
        place = index + size if index < 0 else index
        if not 0 <= place < size:
            raise IndexError(f"place {index} of {size}")
        for start, stop in self.spans():
            if place < stop - start:
                return start + place
            place -= stop - start
        raise AssertionError("unreachable: the place was within the size")

    def chunks(self, size):
        """The set cut into sets of at most ``size`` numbers, in order."""
        if size < 1:
            raise ValueError("a chunk holds at least one number")
        room, current = size, []
        for start, stop in self.spans():
            while stop - start >= room:
                current.append((start, start + room))
                yield SpanSet(current)
                start += room
                room, current = size, []
            if start < stop:
                current.append((start, stop))
                room -= stop - start
        if current:
            yield SpanSet(current)

    def nearest(self, number):
        """The member closest to a number, the lower of two; None when empty."""
        best = None
        for start, stop in self.spans():
            candidate = min(max(number, start), stop - 1)
            if best is None or abs(candidate - number) < abs(best - number):
                best = candidate
        return best
