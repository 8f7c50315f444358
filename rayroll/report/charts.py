"""The report's pictures as inline SVG: worker-hours, per-action overhead, one rollout's timeline.

Vega-Lite through vl-convert: one wheel, no network and no JavaScript in the report; log axes, whiskers and Gantt bars
in one grammar; 10-60 kB a picture (plotly.js would be 4 MB in each report). Colours are CSS variables of the page, so
that light and dark both work; the palette is Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayroll.report import _format
from rayroll.report._vega import svg
from rayroll.timing import TIMELINE
from rayroll.types import Rollout

__all__ = [
    "FAMILIES",
    "Bar",
    "Family",
    "family_of",
    "overhead_chart",
    "timeline_bars",
    "timeline_chart",
    "worker_chart",
]


@dataclass(frozen=True, slots=True)
class Family:
    """Phases that share a colour."""

    key: str
    """Also the page's CSS variable: ``--c-<key>``."""
    label: str
    phases: tuple[str, ...]
    label_ink: str = "#000006"
    """Ink of a label on its colour: a sentinel of ``_INKS``."""


FAMILIES: tuple[Family, ...] = (
    Family("env", "the task's commands, as on the reference", ("env", "run", "setup_run", "grade_run")),
    Family("slowdown", "the same commands, slower here", ("slowdown",), "#000007"),
    Family("start", "start: pull, build, create, boot, connect", ("pull", "build", "create", "boot", "connect")),
    Family(
        "action",
        "per action: dispatch, transport, spawn, drain, host, return",
        ("dispatch", "transport", "spawn", "drain", "host", "return"),
        "#000007",
    ),
    Family("task", "set-up and grading around their commands", ("setup", "grade"), "#000007"),
    Family("end", "reset, teardown, other", ("reset", "teardown", "other", "queue"), "#000007"),
    Family("retry", "attempts that the machine spoilt", ("retry",)),
    Family("policy", "waiting for the policy", ("policy",)),
)
_FAMILY_OF = {phase: family for family in FAMILIES for phase in family.phases}

_INKS = {"#000006": "#fff", "#000007": "#111"} | {
    f"#0000{16 + i:02x}": f"var(--c-{family.key})" for i, family in enumerate(FAMILIES)
}
_COLOUR_OF = {family.key: f"#0000{16 + i:02x}" for i, family in enumerate(FAMILIES)}

_PLOT = 540
_NAMES = {"env": "commands", "retry": "spoilt attempts"}


def family_of(phase: str) -> Family:
    """The family that gives a phase its colour."""
    return _FAMILY_OF[phase]


def worker_chart(substrates: Sequence[Mapping[str, Any]], target: str) -> str:
    """One stacked bar of projected worker-hours per substrate, whiskers, n and failures beside it.

    Args:
        substrates: Entries of the summary that have a projection, in the order shown.
        target: What the hours are for, such as ``1,000,000 rollouts of 150 actions``.
    """
    segments, rows = [], []
    widest = max(max(s["worker_hours"]["hi"] or 0, s["worker_hours"]["hours"]) for s in substrates)
    for s in substrates:
        worker, at = s["worker_hours"], 0.0
        for phase, hours in _ordered(s["parts"]):
            family = family_of(phase)
            name = _NAMES.get(phase, phase)
            segments.append(
                {
                    "substrate": s["substrate"],
                    "from": at,
                    "to": at + hours,
                    "middle": at + hours / 2,
                    "colour": _COLOUR_OF[family.key],
                    "ink": family.label_ink,
                    "label": name if _fits(name, at, at + hours, worker, widest) else "",
                    "title": f"{s['substrate']}, {name}: {_format.hours(hours)}, {hours / worker['hours']:.1%}",
                }
            )
            at += hours
        failed = ", ".join(f"{count} {fault}" for fault, count in sorted(s["failures"].items()))
        lo, hi = worker["lo"], worker["hi"]
        interval = "" if lo is None else f"{_format.hours(lo).removesuffix(' h')} to {_format.hours(hi)}"
        rows.append(
            {
                "substrate": s["substrate"],
                "note": _note(s),
                "lo": lo,
                "hi": hi,
                "hours": ("≈ " if worker["extrapolated"] else "") + _format.hours(worker["hours"]),
                "interval": interval,
                "n": f"{s['valid']} of {s['n']} valid",
                "failed": f"failed: {failed}" if failed else "none failed",
            }
        )
    y = {"field": "substrate", "type": "nominal", "sort": None, "axis": None}
    x = {
        "field": "from",
        "type": "quantitative",
        "title": f"worker-hours for {target}",
        "scale": {"domain": [0, widest * 1.02], "nice": False},
        "axis": {"format": ",.0f" if widest >= 100 else "~g", "tickCount": 6},
    }
    colour = {"field": "colour", "type": "nominal", "scale": None}
    whiskers = {"x": {"field": "lo", "type": "quantitative"}, "x2": {"field": "hi"}, "y": y}
    return svg(
        {
            "height": {"step": 52},
            "layer": [
                {
                    "data": {"values": segments},
                    "mark": {"type": "bar", "height": 26, "stroke": "#000004", "strokeWidth": 0.75},
                    "encoding": {
                        "x": x,
                        "x2": {"field": "to"},
                        "y": y,
                        "color": colour,
                        "description": {"field": "title"},
                    },
                },
                {
                    "data": {"values": [s for s in segments if s["label"]]},
                    "mark": {"type": "text", "fontSize": 12, "aria": False},
                    "encoding": {
                        "x": {"field": "middle", "type": "quantitative"},
                        "y": y,
                        "text": {"field": "label"},
                        "color": {"field": "ink", "type": "nominal", "scale": None},
                    },
                },
                _on([r for r in rows if r["lo"] is not None], {"type": "rule", "strokeWidth": 1.5}, whiskers),
                *(
                    _on(
                        [r for r in rows if r["lo"] is not None],
                        {"type": "tick", "thickness": 1.5, "size": 12},
                        {"x": {"field": end, "type": "quantitative"}, "y": y},
                    )
                    for end in ("lo", "hi")
                ),
                *_names(rows, y),
                _text(rows, y, "hours", _PLOT + 18, dy=-7, bold=True),
                _text(rows, y, "interval", _PLOT + 18, dy=9, muted=True),
                _text(rows, y, "n", _PLOT + 158, dy=-7),
                _text(rows, y, "failed", _PLOT + 158, dy=9, muted=True),
            ],
        },
        inks=_INKS,
    )


def overhead_chart(substrates: Sequence[Mapping[str, Any]]) -> str:
    """How per-action overhead is distributed on each substrate, on a log axis, with its quantiles.

    Args:
        substrates: Entries of the summary that have a histogram, in the order shown.
    """
    curves, rows, marks = [], [], []
    for index, s in enumerate(substrates):
        bins, told = s["overhead_histogram"], s["overhead_s"]
        highest = max(b["n"] for b in bins)
        base = index + 0.85
        step = bins[0]["to_s"] / bins[0]["from_s"]
        edges = [(bins[0]["from_s"] / step**0.5, 0)]
        edges += [((b["from_s"] * b["to_s"]) ** 0.5, b["n"]) for b in bins]
        edges += [(bins[-1]["to_s"] * step**0.5, 0)]
        key = "end" if s["is_floor"] else "action"
        curves += [
            {
                "substrate": s["substrate"],
                "at_s": at_s,
                "base": base,
                "top": base - 0.7 * n / highest,
                "colour": _COLOUR_OF[key],
            }
            for at_s, n in edges
        ]
        marks += [
            {
                "at_s": told[q],
                "base": base,
                "top": base - height,
                "title": f"{s['substrate']} {q}: {_format.seconds(told[q])}",
            }
            for q, height in (("p50", 0.78), ("p95", 0.3), ("p99", 0.3))
        ]
        row = {"base": base - 0.18, "substrate": s["substrate"], "note": f"{told['n']:,} actions"}
        rows.append(row | {q: _format.seconds(told[q]) for q in ("p50", "p95", "p99")})
    lowest, highest_s = min(c["at_s"] for c in curves), max(c["at_s"] for c in curves)
    y = {
        "field": "base",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [0, len(substrates)], "reverse": True, "nice": False, "zero": False},
    }
    x = {
        "field": "at_s",
        "type": "quantitative",
        "title": "overhead of one action: sent to full result, minus the command's own run (log scale)",
        "scale": {"type": "log", "domain": [lowest, highest_s], "nice": False},
        "axis": {
            "values": [10.0**e for e in range(-7, 5) if lowest <= 10.0**e <= highest_s]
            + [k * 10.0**e for e in range(-7, 5) for k in (2, 5) if lowest <= k * 10.0**e <= highest_s],
            "labelExpr": "datum.value >= 1 ? format(datum.value, '~g') + ' s' : datum.value >= 0.000999"
            " ? format(datum.value * 1e3, '~r') + ' ms' : format(datum.value * 1e6, '~r') + ' µs'",
            "labelOverlap": "greedy",
        },
    }
    heads = [{"base": 0, **{q: q for q in ("p50", "p95", "p99")}}]
    columns = {"p50": 90, "p95": 185, "p99": 280}
    return svg(
        {
            "height": 62 * len(substrates),
            "layer": [
                {
                    "data": {"values": curves},
                    "mark": {
                        "type": "area",
                        "interpolate": "monotone",
                        "opacity": 0.6,
                        "aria": False,
                    },
                    "encoding": {
                        "x": x,
                        "y": y,
                        "y2": {"field": "top"},
                        "color": {"field": "colour", "type": "nominal", "scale": None},
                        "detail": {"field": "substrate"},
                    },
                },
                {
                    "data": {"values": marks},
                    "mark": {"type": "rule", "color": "#000001", "strokeWidth": 1.5},
                    "encoding": {
                        "x": {"field": "at_s", "type": "quantitative"},
                        "y": y,
                        "y2": {"field": "top"},
                        "description": {"field": "title"},
                    },
                },
                *_names(rows, y),
                *(_text(rows, y, q, _PLOT + at, align="right", bold=q == "p50") for q, at in columns.items()),
                *(_text(heads, y, q, _PLOT + at, align="right", muted=True) for q, at in columns.items()),
            ],
        },
        inks=_INKS,
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase of one rollout's timeline, in seconds from its start."""

    phase: str
    start_s: float
    end_s: float
    what: str = ""


def timeline_bars(rollout: Rollout) -> list[Bar]:
    """A rollout's phases laid end to end in the order they happen, from the durations that its record holds.

    Begins with the slot: the wait for it may be longer than all the rest. What overlapped is not drawn (it is
    ``hidden_s``), and seconds of action phases outside any action (the turn that submits) come after the last one.
    """
    left = {phase: seconds for phase, seconds in rollout.timing.phases.items() if phase != "queue"}
    bars: list[Bar] = []
    at_s = 0.0

    def lay(phase: str, seconds: float, what: str = "") -> None:
        nonlocal at_s
        if seconds > 0:
            bars.append(Bar(phase, at_s, at_s + seconds, what))
            at_s += seconds

    def lay_rest(*phases: str) -> None:
        for phase in phases:
            lay(phase, left.pop(phase, 0.0))

    first_action = TIMELINE.index("policy")
    last_action = TIMELINE.index("return") + 1
    lay_rest(*TIMELINE[:first_action])
    for index, step in enumerate(rollout.steps):
        for phase in TIMELINE[first_action:last_action]:
            seconds = step.phases_s.get(phase, 0.0)
            left[phase] = left.get(phase, 0.0) - seconds
            lay(phase, seconds, f"action {index}")
    lay_rest(*TIMELINE[first_action:last_action])
    lay_rest(*TIMELINE[last_action:])
    return bars


def timeline_chart(rollout: Rollout) -> str:
    """One rollout's phases over time, a row for each phase."""
    bars = timeline_bars(rollout)
    end_s = max((bar.end_s for bar in bars), default=1.0)
    # Below a tenth of a pixel nothing is seen; this bounds the picture of a very long rollout.
    shown = [bar for bar in bars if bar.end_s - bar.start_s > end_s / _PLOT / 10][:4000]
    present = [name for name in TIMELINE if any(bar.phase == name for bar in shown)]
    values = [
        {
            "phase": bar.phase,
            "from": bar.start_s,
            "to": bar.end_s,
            "colour": _COLOUR_OF[family_of(bar.phase).key],
            "title": f"{bar.phase}{f' of {bar.what}' if bar.what else ''}: {_format.seconds(bar.end_s - bar.start_s)}",
        }
        for bar in shown
    ]
    rows = [
        {
            "phase": name,
            "substrate": name,
            "total": _format.seconds(rollout.timing.phases.get(name, 0.0)),
            "share": _format.percent(rollout.timing.phases.get(name, 0.0) / end_s),
        }
        for name in present
    ]
    y = {"field": "phase", "type": "nominal", "sort": present, "axis": None}
    x = {
        "field": "from",
        "type": "quantitative",
        "title": "seconds since the rollout got its slot",
        "scale": {"domain": [0, end_s], "nice": False},
        "axis": {"tickCount": 8},
    }
    return svg(
        {
            "height": {"step": 22},
            "layer": [
                {
                    "data": {"values": values},
                    "mark": {"type": "bar", "height": 13, "strokeWidth": 0.7},
                    "encoding": {
                        "x": x,
                        "x2": {"field": "to"},
                        "y": y,
                        "color": {"field": "colour", "type": "nominal", "scale": None},
                        "stroke": {"field": "colour", "type": "nominal", "scale": None},
                        "description": {"field": "title"},
                    },
                },
                _text(rows, y, "substrate", -12, align="right"),
                _text(rows, y, "total", _PLOT + 90, align="right"),
                _text(rows, y, "share", _PLOT + 160, align="right", muted=True),
            ],
        },
        inks=_INKS,
    )


def _ordered(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    """Parts in the order of their families. A substrate faster than the reference has one shorter bar of commands."""
    shown = dict(parts)
    if shown.get("slowdown", 0.0) < 0:
        shown["env"] += shown.pop("slowdown")
    order = {phase: rank for rank, phase in enumerate(p for family in FAMILIES for p in family.phases)}
    return [(phase, shown[phase]) for phase in sorted(shown, key=order.__getitem__) if shown[phase] > 0]


def _fits(name: str, start: float, end: float, worker: Mapping[str, Any], widest: float) -> bool:
    """Whether a label has room on its segment and the whisker does not run through it."""
    needed = (7 * len(name) + 8) / _PLOT * widest  # about 7 px a letter
    middle = (start + end) / 2
    lo, hi = (worker["lo"], worker["hi"]) if worker["lo"] is not None else (widest, widest)
    return end - start > needed and (middle + needed / 2 < lo or middle - needed / 2 > hi)


def _note(substrate: Mapping[str, Any]) -> str:
    if substrate["is_floor"]:
        return "the floor"
    words = ["reference"] if substrate["is_reference"] else []
    if substrate["rung"] and substrate["rung"] != "cached":
        words.append(substrate["rung"])
    return ", ".join(words)


def _names(rows: Sequence[Mapping[str, Any]], y: Mapping[str, Any]) -> list[dict[str, Any]]:
    noted = [row for row in rows if row.get("note")]
    plain = [row for row in rows if not row.get("note")]
    return [
        _text(noted, y, "substrate", -12, dy=-7, align="right", bold=True),
        _text(plain, y, "substrate", -12, align="right", bold=True),
        _text(noted, y, "note", -12, dy=9, align="right", muted=True),
    ]


def _text(
    rows: Sequence[Mapping[str, Any]],
    y: Mapping[str, Any],
    field: str,
    x: float,
    *,
    dy: float = 0,
    align: str = "left",
    bold: bool = False,
    muted: bool = False,
) -> dict[str, Any]:
    mark = {
        "type": "text",
        "align": align,
        "dy": dy,
        "fontSize": 12 if muted else 13,
        "fontWeight": 600 if bold else 400,
        "color": "#000002" if muted else "#000001",
    }
    return _on(rows, mark, {"x": {"value": x}, "y": y, "text": {"field": field}})


def _on(rows: Sequence[Mapping[str, Any]], mark: Mapping[str, Any], encoding: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": {"values": list(rows)}, "mark": {"color": "#000001", "aria": False, **mark}, "encoding": encoding}
