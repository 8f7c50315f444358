"""The page about a trace store: its figures beside what was published, and single sessions that can be zoomed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayroll.errors import ConfigError
from rayroll.report import _format
from rayroll.report._trace_figures import duration, number, words
from rayroll.report._trace_sections import sections
from rayroll.report.trace_charts import COLOURS
from rayroll.traces import statistics
from rayroll.traces.findings import Findings
from rayroll.traces.main_numbers import main
from rayroll.traces.timelines import Timeline

__all__ = ["check_extra", "main_table", "render", "text_of"]

_MOST_ROWS = 60  # of a statistic's table on the page; all are in its CSV
_TEXT: Mapping[str, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}",
    "tokens": number,
    "s": duration,
    "ms": lambda value: duration(value / 1000),
    "share": lambda value: f"{value:.1%}",
    "ratio": _format.ratio,
    "usd": lambda value: f"${value:,.2f}" if value < 1000 else f"${value:,.0f}",
    "hours": _format.hours,
    "tokens/s": lambda value: f"{value:.1f}/s",
}


def check_extra() -> None:
    """Raises ConfigError where what the page needs is not installed; before the work, not after it."""
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise ConfigError(
            "the HTML report needs its extra",
            fix="pip install 'rayroll[traces,report]'; rayroll traces stats needs none",
        ) from None


def text_of(unit: str, value: float | None) -> str:
    """A main number as people read it."""
    return "–" if value is None else _TEXT[unit](value)


def main_table(found: Findings) -> list[dict[str, str]]:
    """The main numbers beside the published ones, one line each; differences only where they mean something."""
    lines = []
    for one, c in main(found.comparisons):
        ours, theirs = text_of(one.unit, c.ours), text_of(one.unit, c.published.value)
        if found.is_public_data:
            line = {"published": theirs, "difference": _signed(c.difference)}
        else:
            line = {"published (other data)": theirs}
        lines.append({"": one.label, "this trace": ours, **line})
    return lines


def _signed(difference: float | None) -> str:
    return "–" if difference is None else f"{difference:+.1%}".replace("-", "−")


def render(found: Findings) -> str:
    """The page as text. It asks for nothing: no font, no script from elsewhere, no request."""
    check_extra()
    import jinja2
    from markupsafe import Markup

    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    shown = [
        {
            "title": section.title,
            "figures": [
                {
                    "title": figure.title,
                    "svg": Markup(figure.svg),
                    "legend": [(colour, words(name)) for name, colour in _legend(figure.legend)],
                    "head": figure.head,
                    "rows": [[cell.split("\n") for cell in row] for row in figure.rows],
                    "definition": figure.definition,
                    "source": figure.source,
                    "note": figure.note,
                    "failed": found.failed.get(figure.statistic, ""),
                }
                for figure in section.figures
            ],
        }
        for section in sections(found)
    ]
    return environment.get_template("traces.html.j2").render(
        headline=_headline(found),
        cards=_cards(found),
        found=found,
        sections=shown,
        main=main_table(found),
        published=[
            {
                **row,
                "ours": _format.plain(row["ours"]),
                "published": _format.plain(row["published"]),
                "difference": _signed(row["difference"]),
            }
            for row in found.published()
        ],
        tables=[_table(found, name) for name in statistics.names()],
        sessions=[f"{line.session}: {line.why}" for line in found.timelines],
        # In a script element nothing but its own end tag is read as markup.
        timelines=Markup(
            json.dumps([_encoded(line) for line in found.timelines], separators=(",", ":")).replace("<", "\\u003c")
        ),
        script=Markup((folder / "timelines.js").read_text(encoding="utf-8")),
    )


def _legend(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, name if name in COLOURS else "other") for name in names]


def _headline(found: Findings) -> str:
    scope = found.row("counts_scope", provider="all") or {}
    agents = [row["provider"] for row in found.statistics["counts_scope"] if row["provider"] != "all"]
    counted = f"{scope.get('steps', 0):,} steps in {scope.get('sessions', 0):,} sessions"
    return f"{counted} of {' and '.join(agents) or 'agents'}"


def _cards(found: Findings) -> list[tuple[str, str, str]]:
    scope = found.row("counts_scope", provider="all") or {}
    tools, tokens = found.row("tools_latency", provider="all"), found.row("tokens_total", provider="all")
    human = found.value("timing_per_session", "share", provider="all", part="human")
    usd = found.row("cost_totals", provider="all")
    hits = found.value("prefix_hit_rate", "hit_rate", provider="all", trigger="all")
    return [
        ("Requests", number(scope.get("requests")), f"in {number(scope.get('sessions'))} sessions"),
        (
            "Tool calls",
            number(scope.get("tool_calls")),
            f"{duration(tools['hours'] * 3600)} of work" if tools else "none timed",
        ),
        ("Waiting for people", _format.percent(human), "of sessions' time"),
        (
            "Input tokens",
            number(tokens["input_tokens"]) if tokens else "–",
            f"{number(tokens['output_tokens'])} of output" if tokens else "",
        ),
        ("Prefix-cache hits", "–" if hits is None else f"{hits:.1%}", "of input tokens"),
        (
            "Cost",
            text_of("usd", usd["total_usd"]) if usd and usd["priced_steps"] else "–",
            f"{_format.percent(usd['priced_share'])} of steps priced" if usd else "",
        ),
    ]


def _table(found: Findings, name: str) -> dict[str, Any]:
    rows = found.statistics[name]
    return {
        "name": name,
        "definition": statistics.definition(name),
        "head": list(rows[0]) if rows else [],
        "rows": [[_format.plain(value) for value in row.values()] for row in rows[:_MOST_ROWS]],
        "more": max(0, len(rows) - _MOST_ROWS),
        "failed": found.failed.get(name, ""),
    }


def _encoded(line: Timeline) -> dict[str, Any]:
    """A timeline as its script reads it: spans are lane, row, start and length in ms, word and note."""
    from rayroll.traces.timelines import LANES

    rows = {name: max((span.row for span in line.spans if span.lane == name), default=-1) + 1 for name in LANES}
    lanes = [name for name in LANES if rows[name]]
    places = {name: place for place, name in enumerate(lanes)}
    said: dict[str, int] = {}
    spans = []
    for span in line.spans:
        named = {"human": "waiting for a person", "idle": "nothing known"}.get(span.what, span.what)
        start, ms = round(span.start_s * 1000), round(span.seconds * 1000, 1)
        spans.append(
            [
                places[span.lane],
                span.row,
                start,
                int(ms) if ms.is_integer() else ms,
                said.setdefault(named, len(said)),
                span.note or 0,
            ]
        )
    facts = line.facts
    told = (
        f"{facts['provider']}, {duration(facts['elapsed_s'])}: {facts['requests']:,} requests, "
        f"{facts['steps']:,} steps, {facts['tool_calls']:,} calls; "
        f"model {duration(facts['generation_s'])}, tools {duration(facts['tool_s'])}, "
        f"people {duration(facts['human_s'])}"
    )
    if line.left_out:
        told += f"; the {line.left_out:,} shortest spans are left out"
    return {
        "ms": round(facts["elapsed_s"] * 1000),
        "facts": told + ".",
        "lanes": [
            [name, {"human": "person", "idle": "nothing known"}.get(name, words(name)), rows[name]] for name in lanes
        ],
        "words": list(said),
        "spans": spans,
    }
