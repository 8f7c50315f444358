"""What a report on traces shows, figure by figure: its picture, its numbers beside what was published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rayroll.report import _format
from rayroll.report._trace_figures import (
    UNDER,
    Figure,
    bars,
    beside,
    curve,
    in_table,
    number,
    series_of,
    shown,
    swept,
    words,
)
from rayroll.report.trace_charts import Axis, range_chart
from rayroll.traces.findings import Findings

__all__ = ["Section", "sections"]


@dataclass(frozen=True, slots=True)
class Section:
    """Figures on one subject."""

    title: str
    figures: Sequence[Figure] = field(default_factory=tuple)


def sections(found: Findings) -> list[Section]:
    """All of them, in the page's order."""
    times: tuple[tuple[str, str, str], ...] = (
        ("session_s", "How long sessions last", "elapsed"),
        ("request_s", "How long requests take", "e2e"),
        ("generation_s", "How long the model takes for a step", "generation_span"),
    )
    return [
        Section(
            "Time", [_time_split(found), *(curve(found, name, title, {"part": part}) for name, title, part in times)]
        ),
        Section("Waiting for people", [curve(found, "human_wait_s", "How long a person is waited for", {})]),
        Section(
            "Tools",
            [
                curve(found, "tool_latency_s", "How long tool calls take, by category", None),
                _bins(found),
                _categories(found),
            ],
        ),
        Section(
            "Tokens",
            [
                *(
                    curve(found, f"{measure}_tokens", f"{measure.capitalize()} of a step", {"measure": measure})
                    for measure in ("prefix", "append", "output")
                ),
                _append_by_prefix(found),
            ],
        ),
        Section("Prefix cache", [_hits(found), *_amplification(found), *_eviction(found), _kv_active(found)]),
        Section("Compaction", [_compaction(found)]),
        Section("Cost", [_cost(found)]),
    ]


def _time_split(found: Findings) -> Figure:
    rows = [
        {
            "group": part,
            "series": row["provider"],
            "value": row["share"],
            "at": ("timing_per_session", "share", {"provider": row["provider"], "part": part}),
        }
        for part in ("human", "generation", "tool")
        for row in found.statistics["timing_per_session"]
        if row["part"] == part
    ]
    return bars(found, "What fills the time of sessions", "timing_per_session", rows, _format.percent)


def _bins(found: Findings) -> Figure:
    rows = [
        {
            "group": row["bin"],
            "series": series,
            "value": row[column],
            "at": ("tools_latency_bins", column, {"provider": "all", "bin": row["bin"]}),
        }
        for row in found.statistics["tools_latency_bins"]
        if row["provider"] == "all"
        for series, column in (("calls", "share_of_calls"), ("time", "share_of_time"))
    ]
    return bars(
        found, "Few long calls take most of the time", "tools_latency_bins", rows, _format.percent, domain_end=1.0
    )


def _categories(found: Findings) -> Figure:
    rows = [
        {
            "group": words(row["category"]),
            "series": row["category"],
            "value": row["hours"],
            "at": ("tools_categories", "hours", {"provider": "all", "category": row["category"]}),
        }
        for row in found.statistics["tools_categories"]
        if row["provider"] == "all"
    ]
    if not found.is_public_data:  # hours are of so much data
        rows = [{k: v for k, v in row.items() if k != "at"} for row in rows]
    figure = bars(found, "Hours of tool calls, by category", "tools_categories", rows, _format.hours)
    return replace(figure, legend=())


def _append_by_prefix(found: Findings) -> Figure:
    title, statistic = "What a step appends, by how much of its input was cached", "append_by_prefix_bin"
    rows, marks = [], []
    for row in found.statistics[statistic]:
        if row["provider"] == "all":
            continue
        quantiles = ", ".join(f"{p} {number(row[p])}" for p in ("p50", "p90", "p99"))
        told = f"{row['provider']}, {row['bin']}: {row['steps']:,} steps, {quantiles}"
        rows.append({"bin": row["bin"], "series": row["provider"], "p50": row["p50"], "p90": row["p90"], "title": told})
        c = shown(found, statistic, "p50", provider=row["provider"], bin=row["bin"])
        if c is not None:
            marks.append(
                {
                    "bin": row["bin"],
                    "series": row["provider"],
                    "value": c.published.value,
                    "title": f"{row['provider']}, {row['bin']}: {beside(found, c, number)}",
                }
            )
    if not any(row["p50"] for row in rows):
        return Figure(title, statistic, "")
    svg = range_chart(rows, "prefix of the step, tokens", Axis("append, tokens: p50, whisker to p90", "log"), marks)
    return Figure(title, statistic, svg, series_of(rows))


def _hits(found: Findings) -> Figure:
    rows = [
        {
            "group": {"all": "all steps", "user": "a user's step", "tool": "a tool's step"}[row["trigger"]],
            "series": row["provider"],
            "value": row["hit_rate"],
            "at": ("prefix_hit_rate", "hit_rate", {"provider": row["provider"], "trigger": row["trigger"]}),
        }
        for row in found.statistics["prefix_hit_rate"]
    ]
    return bars(
        found,
        "Prefix-cache hits, by what the step answers",
        "prefix_hit_rate",
        rows,
        lambda v: "–" if v is None else f"{v:.1%}",
        domain_end=1.0,
    )


def _amplification(found: Findings) -> list[Figure]:
    macro = [
        {
            "group": "by context growth",
            "series": row["provider"],
            "value": row["amplification"],
            "at": ("prefix_amplification_macro", "amplification", {"provider": row["provider"]}),
        }
        for row in found.statistics["prefix_amplification_macro"]
    ]
    groups = {"amplification": "by fresh, step by step", "net_amplification": "by fresh, of the sums"}
    fresh = [
        {
            "group": group,
            "series": row["provider"],
            "value": row[column],
            "at": ("prefix_redundant_prefill", column, {"provider": row["provider"], "trigger": "all"}),
        }
        for column, group in groups.items()
        for row in found.statistics["prefix_redundant_prefill"]
        if row["trigger"] == "all"
    ]
    return [
        bars(found, "Prefill amplification by context growth", "prefix_amplification_macro", macro, _format.ratio),
        bars(found, "Prefill amplification by fresh tokens", "prefix_redundant_prefill", fresh, _format.ratio),
    ]


def _eviction(found: Findings) -> list[Figure]:
    ttl = Axis("an idle cache is held for, log scale", "time")
    return [
        swept(
            found,
            "eviction_curve",
            "Hit rate, if idle caches are given up after a time",
            "eviction_sweep",
            "ttl_s",
            "hit_rate",
            (ttl, Axis("hit rate", "share")),
            "ttl_s",
        ),
        swept(
            found,
            "eviction_curve",
            "What holding idle caches costs, and saves",
            "eviction_sweep",
            "storage_ratio",
            "amplification",
            (Axis("storage ratio R, log scale", "log"), Axis("prefill amplification, log scale", "log")),
            "ttl_s",
        ),
    ]


def _kv_active(found: Findings) -> Figure:
    limit = Axis("longer waits are dropped, log scale", "time")
    return swept(
        found,
        "kv_active_curve",
        "The share of its time that a held KV cache works",
        "kv_active_ratio",
        "limit_s",
        "active_ratio",
        (limit, Axis("active ratio", "share")),
        "limit_s",
    )


def _compaction(found: Findings) -> Figure:
    columns = (
        "sessions",
        "compactions",
        "sessions_with_any_share",
        "avg_compacting",
        "tool_initiated",
    )
    table = []
    for row in found.statistics["compaction"]:
        cells = [row["provider"]]
        for column in columns:
            text = _format.percent if column.endswith("share") else number
            c = shown(found, "compaction", column, provider=row["provider"])
            cells.append(text(row[column]) + (f"\n{in_table(beside(found, c, text))}" if c else ""))
        table.append(cells)
    rows = [
        {
            "group": "sessions that compact",
            "series": row["provider"],
            "value": row["sessions_with_any_share"],
            "at": ("compaction", "sessions_with_any_share", {"provider": row["provider"]}),
        }
        for row in found.statistics["compaction"]
    ]
    heads = ("", *(words(column).replace("sessions with any share", "sessions with any") for column in columns))
    figure = bars(found, "Sessions whose context is compacted", "compaction", rows, _format.percent)
    return replace(figure, head=heads, rows=table, note=UNDER)


def _cost(found: Findings) -> Figure:
    rows = [
        {"group": row["model"] or "no model named", "series": row["provider"], "value": row["total_usd"]}
        for row in found.statistics["cost_by_model"]
        if row["total_usd"] is not None
    ][:14]
    table = [
        [
            row["provider"],
            *(f"${row[c]:,.2f}" for c in ("append_usd", "prefix_usd", "output_usd", "total_usd")),
            _format.percent(row["priced_share"]),
        ]
        for row in found.statistics["cost_totals"]
    ]
    head = ("", "append", "prefix", "output", "all", "steps priced")
    figure = bars(found, "Cost by model", "cost_by_model", rows, lambda v: "–" if v is None else f"${v:,.2f}")
    return replace(figure, head=head, rows=table, note=found.prices.capitalize() + ".")
