"""The pictures of a report on traces: curves, bars, and ranges by bin, each as inline SVG.

Axes are logarithmic where what they show spans decades. A published value is a diamond, and says on hover what it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rayroll.report._vega import svg

__all__ = ["COLOURS", "Axis", "Mark", "bar_chart", "colour_key", "line_chart", "range_chart"]

COLOURS = (
    *("shell_command", "file_edit", "file_read_search", "planning", "agent_task", "web_lookup", "other"),
    *("all", "claude", "codex", "rayroll", "calls", "time"),
)
"""Series that have a colour of their own on the page: ``--c-<name>``. All else is ``other``."""

_INK_OF = {name: f"#0000{16 + index:02x}" for index, name in enumerate(COLOURS)}
_INKS = {ink: f"var(--c-{name})" for name, ink in _INK_OF.items()}

_WIDTH, _GUTTER, _PLOT = 640, 68, 560
_BAR_GUTTER, _BAR_PLOT = 190, 350

_TIMES = {
    **{10.0**exponent: text for exponent, text in ((-6, "1 µs"), (-5, "10 µs"), (-4, "0.1 ms"), (-3, "1 ms"))},
    **{10.0**exponent: text for exponent, text in ((-2, "10 ms"), (-1, "0.1 s"), (0, "1 s"), (1, "10 s"))},
    **{seconds * 10.0: text for seconds, text in ((6, "1 min"), (60, "10 min"), (360, "1 h"), (3600, "10 h"))},
    **{days * 86400.0: text for days, text in ((4, "4 d"), (40, "40 d"))},
}
_POWERS = {
    10.0**exponent: text
    for exponent, text in zip(
        range(-3, 10),
        ("0.001", "0.01", "0.1", "1", "10", "100", "1k", "10k", "100k", "1M", "10M", "100M", "1G"),
        strict=True,
    )
}


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows."""

    title: str
    kind: Literal["time", "log", "share"]
    """Seconds or numbers on a logarithmic scale, or shares from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A published point."""

    series: str
    x: float
    y: float
    title: str


def colour_key(series: str) -> str:
    """The page's colour of a series."""
    return series if series in _INK_OF else "other"


def _scale(axis: Axis, values: Iterable[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Vega's scale and axis for these values."""
    if axis.kind == "share":
        return {"domain": [0, 1], "nice": False}, {"format": ".0%", "values": [0, 0.25, 0.5, 0.75, 1]}
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    if low == high:
        low, high = low / 3, high * 3
    known = _TIMES if axis.kind == "time" else _POWERS
    if axis.kind == "log" and high < 100 * low:  # powers of ten alone would be one tick, or none
        known = known | {n * power: f"{n * power:g}" for power in _POWERS if power < 1e3 for n in (2, 3, 5)}
    ticks = {value: text for value, text in sorted(known.items()) if low <= value <= high}
    names = ", ".join(f"'{value:.15g}': '{text}'" for value, text in ticks.items())
    scale = {"type": "log", "domain": [low, high], "nice": False, "clamp": True}
    return scale, {"values": list(ticks), "labelExpr": f"({{{names}}})[datum.value]", "labelOverlap": "greedy"}


def line_chart(
    rows: Sequence[Mapping[str, Any]], x: Axis, y: Axis, marks: Sequence[Mark] = (), *, height: int = 240
) -> str:
    """Curves over an axis.

    Args:
        rows: Points with ``series``, ``x`` and ``y``, each series in order. On a log axis 0 is drawn at its lower end.
        x: The lower axis.
        y: The left axis.
        marks: Published points.
        height: Of the plot.
    """
    x_scale, x_axis = _scale(x, _within([row["x"] for row in rows], [mark.x for mark in marks]))
    y_scale, y_axis = _scale(y, [*(row["y"] for row in rows), *(mark.y for mark in marks)])
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": x.title, "scale": x_scale, "axis": x_axis},
        "y": {"field": "y", "type": "quantitative", "title": y.title, "scale": y_scale, "axis": y_axis},
        "color": {"field": "ink", "type": "nominal", "scale": None},
    }
    low = {
        "x": x_scale["domain"][0] if x.kind != "share" else 0.0,
        "y": y_scale["domain"][0] if y.kind != "share" else 0.0,
    }
    points = [
        {
            **{axis: max(row[axis], low[axis]) for axis in ("x", "y")},
            "series": row["series"],
            "ink": _INK_OF[colour_key(row["series"])],
            "place": place,
        }
        for place, row in enumerate(rows)
        if row["x"] is not None and row["y"] is not None
    ]
    told = [{"x": mark.x, "y": mark.y, "ink": _INK_OF[colour_key(mark.series)], "title": mark.title} for mark in marks]
    line = {"type": "line", "interpolate": "linear", "strokeWidth": 2, "aria": False}
    diamond = {
        "type": "point",
        "shape": "diamond",
        "size": 70,
        "filled": True,
        "stroke": "#000004",
        "strokeWidth": 1,
        "opacity": 1,
    }
    layers = [
        {
            "data": {"values": points},
            "mark": line,
            "encoding": {
                **encoding,
                "detail": {"field": "series"},
                "order": {"field": "place", "type": "quantitative"},
            },
        },
        {"data": {"values": told}, "mark": diamond, "encoding": {**encoding, "description": {"field": "title"}}},
    ]
    return svg({"height": height, "layer": layers}, inks=_INKS, width=_WIDTH, gutter=_GUTTER, plot=_PLOT)


def _within(values: Sequence[float], published: Sequence[float]) -> list[float]:
    """What a log axis spans: all but values far below the rest, down to which a curve would be a line at the edge."""
    positive = sorted(value for value in values if value > 0)
    if not positive:
        return [*published]
    least = max(positive[0], positive[len(positive) // 50])
    return [least, positive[-1], *published]


def bar_chart(
    rows: Sequence[Mapping[str, Any]], *, domain_end: float | None = None, marks: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Bars from the left, in groups.

    Args:
        rows: ``group`` (a line of text), ``series`` (its colour), ``value``, ``text`` (beside the bar) and ``title``.
        domain_end: The value of a bar that fills the width; without one the longest does.
        marks: Published values: ``group``, ``series``, ``value``, ``title``.
    """
    values = [row["value"] for row in (*rows, *marks)]
    longest = domain_end or max(values, default=1) or 1
    several = len({row["series"] for row in rows}) > 1
    step = 17 if several else 24
    groups = list(dict.fromkeys(row["group"] for row in rows))
    series = list(dict.fromkeys(row["series"] for row in rows))
    lanes = [
        (group, name)
        for group in groups
        for name in series
        if any((r["group"], r["series"]) == (group, name) for r in rows)
    ]
    place: dict[tuple[str, str], float] = {}
    at = 0.0
    for index, lane in enumerate(lanes):
        at += (8 if several and index and lane[0] != lanes[index - 1][0] else 0) + step
        place[lane] = at - step / 2
    y_scale = {"domain": [0, at + 4], "reverse": True, "nice": False, "zero": False}
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": y_scale}
    x = {
        "field": "value",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, longest], "nice": False, "clamp": True},
    }
    # A text stands right of its bar, and of the published value's diamond where that is further out.
    ends = {(mark["group"], mark["series"]): mark["value"] for mark in marks}
    drawn = [
        {
            **{name: row[name] for name in ("value", "text", "title")},
            "y": place[row["group"], row["series"]],
            "end": max(row["value"], ends.get((row["group"], row["series"]), 0)),
            "ink": _INK_OF[colour_key(row["series"])],
        }
        for row in rows
    ]
    heads = []
    for group in groups:
        own = [place[lane] for lane in lanes if lane[0] == group]
        heads.append({"y": sum(own) / len(own), "text": group})
    told = [
        {**mark, "y": place[mark["group"], mark["series"]]}
        for mark in marks
        if (mark["group"], mark["series"]) in place
    ]
    ink = {"field": "ink", "type": "nominal", "scale": None}
    layers = [
        {
            "data": {"values": drawn},
            "mark": {"type": "bar", "height": step - 5, "cornerRadiusEnd": 2},
            "encoding": {"x": x, "x2": {"datum": 0}, "y": y, "color": ink, "description": {"field": "title"}},
        },
        {
            "data": {"values": drawn},
            "mark": {"type": "text", "align": "left", "dx": 9, "fontSize": 12, "color": "#000001", "aria": False},
            "encoding": {"x": {**x, "field": "end"}, "y": y, "text": {"field": "text"}},
        },
        {
            "data": {"values": heads},
            "mark": {"type": "text", "align": "right", "fontSize": 12, "color": "#000001", "aria": False, "limit": 182},
            "encoding": {"x": {"value": -8}, "y": y, "text": {"field": "text"}},
        },
        {
            "data": {"values": told},
            "mark": {
                "type": "point",
                "shape": "diamond",
                "size": 60,
                "filled": True,
                "color": "#000001",
                "stroke": "#000004",
                "strokeWidth": 1,
                "opacity": 1,
            },
            "encoding": {"x": x, "y": y, "description": {"field": "title"}},
        },
    ]
    return svg({"height": at + 4, "layer": layers}, inks=_INKS, width=_WIDTH, gutter=_BAR_GUTTER, plot=_BAR_PLOT)


def range_chart(
    rows: Sequence[Mapping[str, Any]], x_title: str, y: Axis, marks: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Bars up to p50 and whiskers up to p90, side by side in each bin.

    Args:
        rows: ``bin``, ``series``, ``p50``, ``p90`` and ``title``, bins in order.
        x_title: What the bins are of.
        y: The left axis, a log one: bars begin at its lower end.
        marks: Published p50: ``bin``, ``series``, ``value``, ``title``.
    """
    bins = list(dict.fromkeys(row["bin"] for row in rows))
    values = [value for row in rows for value in (row["p50"], row["p90"]) if value]
    lowest = 10 ** math.floor(math.log10(min([*values, *(mark["value"] for mark in marks)], default=1)))
    y_scale, y_axis = _scale(y, [lowest, *values, *(mark["value"] for mark in marks)])
    series = list(dict.fromkeys(row["series"] for row in rows))
    wide = _PLOT / len(bins)
    each = (wide - 12) / len(series)

    def at(row: Mapping[str, Any]) -> float:
        return bins.index(row["bin"]) * wide + 6 + each * (series.index(row["series"]) + 0.5)

    bars = [
        {
            "x": at(row),
            "low": lowest,
            "p50": max(row["p50"], lowest),
            "p90": max(row["p90"], lowest),
            "title": row["title"],
            "ink": _INK_OF[colour_key(row["series"])],
        }
        for row in rows
        if row["p50"] is not None
    ]
    heads = [{"x": (index + 0.5) * wide, "text": name} for index, name in enumerate(bins)]
    told = [{**mark, "x": at(mark)} for mark in marks if mark["series"] in series]
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [0, _PLOT], "nice": False}}
    ink = {"field": "ink", "type": "nominal", "scale": None}

    def tall(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "title": y.title, "scale": y_scale, "axis": y_axis}

    layers = [
        {
            "data": {"values": bars},
            "mark": {"type": "bar", "width": max(each - 2, 1)},
            "encoding": {
                "x": x,
                "y": tall("p50"),
                "y2": {"field": "low"},
                "color": ink,
                "description": {"field": "title"},
            },
        },
        {
            "data": {"values": bars},
            "mark": {"type": "rule", "strokeWidth": 1.5, "aria": False},
            "encoding": {"x": x, "y": tall("p50"), "y2": {"field": "p90"}, "color": ink},
        },
        {
            "data": {"values": told},
            "mark": {
                "type": "point",
                "shape": "diamond",
                "size": 50,
                "filled": True,
                "color": "#000001",
                "stroke": "#000004",
                "strokeWidth": 1,
                "opacity": 1,
            },
            "encoding": {"x": x, "y": tall("value"), "description": {"field": "title"}},
        },
        {
            "data": {"values": heads},
            "mark": {"type": "text", "fontSize": 11, "color": "#000002", "baseline": "top", "dy": 8, "aria": False},
            "encoding": {"x": x, "y": {"value": 220}, "text": {"field": "text"}},
        },
        {
            "data": {"values": [{"x": _PLOT / 2, "text": x_title}]},
            "mark": {"type": "text", "fontSize": 12, "color": "#000002", "baseline": "top", "dy": 30, "aria": False},
            "encoding": {"x": x, "y": {"value": 220}, "text": {"field": "text"}},
        },
    ]
    return svg(
        {"height": 220, "layer": layers, "padding": {"left": 0, "right": 0, "top": 2, "bottom": 8}},
        inks=_INKS,
        width=_WIDTH,
        gutter=_GUTTER,
        plot=_PLOT,
    )
