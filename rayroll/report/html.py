"""``report.html``: one self-contained page that shows what a run would cost on each substrate, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rayroll.errors import ConfigError
from rayroll.metrics.shares import in_slot_s
from rayroll.report import _format, charts
from rayroll.report.results import Results
from rayroll.report.summary import summarize
from rayroll.types import Rollout

__all__ = ["headline", "machine_line", "render", "write_report"]


def write_report(folder: Path | str) -> Path:
    """Write ``summary.json`` and ``report.html`` into a results folder; returns the page's path.

    Raises:
        ConfigError: It is no results folder, or the extra ``rayroll[report]`` is not installed.
    """
    folder = Path(folder)
    results = Results.load(folder)
    summary = summarize(results)
    (folder / "summary.json").write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    examples = [example for name in results.substrates if (example := results.example(name))]
    page = folder / "report.html"
    page.write_text(render(summary, examples), encoding="utf-8")
    return page


def render(summary: Mapping[str, Any], examples: Sequence[Rollout]) -> str:
    """The page as text.

    Args:
        summary: What ``summarize`` returned or ``summary.json`` holds.
        examples: Rollouts whose timelines are shown, at most one per substrate.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise ConfigError("the HTML report needs its extra: pip install 'rayroll[report]'") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    ordered = by_hours(summary["substrates"])
    projected = [s for s in ordered if s["worker_hours"]]
    acted = [s for s in ordered if s["overhead_histogram"]]
    target = target_line(summary)
    parts = [part for family in charts.FAMILIES for part in family.phases]
    return environment.get_template("report.html.j2").render(
        run_id=summary["run_id"],
        headline=headline(summary),
        machine=machine_line(summary["config"].get("machine")),
        cards=_cards(summary, projected),
        target=target,
        floor=summary["floor"],
        reference=summary["reference"],
        projected=projected,
        worker_svg=Markup(charts.worker_chart(projected, target)) if projected else "",
        overhead_svg=Markup(charts.overhead_chart(acted)) if acted else "",
        families=[
            f for f in charts.FAMILIES if any(p in s["parts"] and s["parts"][p] for s in projected for p in f.phases)
        ],
        part_names=[p for p in parts if any(s["parts"].get(p) for s in projected)],
        part_label=lambda part: {"env": "commands", "retry": "spoilt attempts"}.get(part, part),
        extrapolated=_extrapolated(projected),
        has_cost=all(s["cost"] for s in projected) and bool(projected),
        price=summary["target"]["price_per_slot_hour"],
        ratio=_format.ratio,
        examples=[_example(rollout, Markup) for rollout in _in_order(examples, ordered)],
        cells=_cells(summary, [s["substrate"] for s in ordered]),
        equal_work=equal_work_line(summary["equal_work"]),
        spread_line=spread_line(summary),
        rung_line=_rung_line(ordered),
        labels="; ".join(label_lines(ordered)),
        preparation=[_prepared(group) for group in summary["preparation"]],
        config_json=orjson.dumps(summary["config"], option=orjson.OPT_INDENT_2).decode(),
    )


def by_hours(substrates: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The floor first, then by projected worker-hours; those without a projection last."""
    return sorted(substrates, key=lambda s: (not s["is_floor"], (s["worker_hours"] or {}).get("hours", float("inf"))))


def headline(summary: Mapping[str, Any]) -> str:
    """What the run found, in one sentence."""
    found = summary["spreads"].get("worker_hours")
    if found:
        return f"{found['most']} takes {_format.ratio(found['ratio'])} the worker-hours of {found['least']}"
    projected = [s for s in by_hours(summary["substrates"]) if s["worker_hours"]]
    if not projected:
        return f"None of {summary['rollouts']['n']} rollouts was valid"
    best = next((s for s in projected if not s["is_floor"]), projected[0])
    return f"{best['substrate']} would take {_format.hours(best['worker_hours']['hours'])} for {target_line(summary)}"


def target_line(summary: Mapping[str, Any]) -> str:
    """What is projected: ``1,000,000 rollouts of 150 actions``."""
    actions = summary["target"]["actions"]
    return f"{summary['target']['rollouts']:,} rollouts" + (f" of {actions:g} actions" if actions else " as measured")


def machine_line(machine: Any) -> str:
    """The machine in one line: ``Example CPU @ 2.5 GHz · 2 CPUs · memory 8 GiB · kernel 6.1.0``."""
    if not isinstance(machine, Mapping):
        return str(machine or "machine not recorded")
    told = []
    for name, value in machine.items():
        if value in (None, "", [], {}):
            continue
        words, _, unit = name.rpartition("_")
        if name in ("cpu", "cpu_model", "host", "system", "machine"):
            told.append(str(value))
        elif name in ("cpus", "cores"):
            told.append(f"{value} {'CPUs' if name == 'cpus' else 'cores'}")
        elif words and unit in _UNIT_SUFFIXES:
            told.append(f"{words.replace('_', ' ')} {value} {_UNIT_SUFFIXES[unit]}")
        else:
            told.append(f"{name.replace('_', ' ')} {value}")
    return " · ".join(told)


_UNIT_SUFFIXES = {"gib": "GiB", "mib": "MiB", "gb": "GB", "mb": "MB", "s": "s", "ms": "ms", "mhz": "MHz", "ghz": "GHz"}


def equal_work_line(equal_work: Mapping[str, Any]) -> str:
    """The outcome of comparing work digests, in one sentence."""
    if not equal_work["compared"]:
        return "not compared: no task was done by two substrates"
    if equal_work["equal"]:
        return f"equal: all {equal_work['compared']} comparisons of exit codes, diffs and test outcomes agree"
    who = ", ".join(f"{name} in {count}" for name, count in equal_work["differing"].items())
    return f"NOT equal in some of {equal_work['compared']} comparisons ({who}): {', '.join(equal_work['tasks'])}"


def _cards(summary: Mapping[str, Any], projected: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    cards = []
    spreads = summary["spreads"]
    if "worker_hours" in spreads:
        found = spreads["worker_hours"]
        paired = found.get("paired") or {}
        interval = f"95\u00a0%: {paired['lo']:.3g} to {paired['hi']:.3g}, " if paired.get("lo") else ""
        note = f"worker-hours of {found['most']} over {found['least']}; {interval}{spreads['rung']} starts"
        cards.append({"what": "Spread in hours", "value": _format.ratio(found["ratio"]), "note": note})
    contenders = [s for s in projected if not s["is_floor"]] or projected
    if contenders:
        best = contenders[0]
        hours = best["worker_hours"]["hours"]
        note = f"{best['substrate']}, {target_line(summary)}"
        cards.append({"what": "Fewest hours", "value": _format.hours(hours), "note": note})
        tax = (hours - best["parts"]["env"]) / hours if hours else None
        note = f"infrastructure and slowdown in the worker-hours of {best['substrate']}"
        cards.append({"what": "Its tax", "value": _format.percent(tax), "note": note})
    if "overhead_s" in spreads:
        found = spreads["overhead_s"]
        note = f"p50 overhead, {found['most']} over {found['least']}"
        cards.append({"what": "Spread per action", "value": _format.ratio(found["ratio"]), "note": note})
    counts = summary["rollouts"]
    failed = ", ".join(f"{n} {fault}" for fault, n in sorted(counts["failures"].items())) or "none failed"
    cards.append({"what": "Valid rollouts", "value": f"{counts['valid']:,}", "note": f"of {counts['n']:,}; {failed}"})
    work = summary["equal_work"]
    if work["compared"]:
        value, tone = ("equal", "good") if work["equal"] else ("differs", "bad")
        note = f"{work['compared']} comparisons by digest"
        cards.append({"what": "Work done", "value": value, "note": note, "tone": tone})
    return [{"tone": "", **card} for card in cards]


def _extrapolated(projected: Sequence[Mapping[str, Any]]) -> str:
    bases = {s["worker_hours"]["basis"] for s in projected if s["worker_hours"]["extrapolated"]}
    return "; ".join(sorted(basis.removeprefix("extrapolated ") for basis in bases))


def _in_order(examples: Sequence[Rollout], ordered: Sequence[Mapping[str, Any]]) -> list[Rollout]:
    """The reference's first: it is the tab that is open."""
    rank = {s["substrate"]: (not s["is_reference"], index) for index, s in enumerate(ordered)}
    return sorted(examples, key=lambda rollout: rank[rollout.substrate])


def _example(rollout: Rollout, markup: Any) -> dict[str, Any]:
    timing = rollout.timing
    queue_s = timing.phases.get("queue", 0.0)
    facts = [
        f"{rollout.task_id}, {len(rollout.steps)} actions, {rollout.rung} start",
        f"{_format.seconds(in_slot_s(rollout))} in its slot",
        f"environment {_format.seconds(timing.env_s)}",
        f"infrastructure {_format.seconds(timing.infra_s - queue_s)}",
        f"policy {_format.seconds(timing.policy_s)}",
    ]
    if queue_s:
        facts.append(f"it had waited {_format.seconds(queue_s)} for the slot")
    if timing.hidden_s:
        facts.append(f"{_format.seconds(timing.hidden_s)} more ran hidden behind other phases")
    return {
        "substrate": rollout.substrate,
        "caption": "; ".join(facts) + ".",
        "svg": markup(charts.timeline_chart(rollout)),
    }


def _cells(summary: Mapping[str, Any], order: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    ordered = sorted(summary["cells"], key=lambda c: order.index(c["substrate"]))
    for index, cell in enumerate(ordered):
        values = cell["metrics"]
        cold = [(_format.seconds(values[f"start/cold_s/{rung}/p50"]), rung) for rung in sorted(cell["rungs"])]
        shares = [
            (key, values.get(f"share/{kind}", 0.0))
            for key, kind in (("env", "env"), ("start", "infra"), ("policy", "policy"))
        ]
        rows.append(
            {
                **cell,
                "first": index == 0 or ordered[index - 1]["substrate"] != cell["substrate"],
                "failed": ", ".join(f"{n} {fault}" for fault, n in sorted(cell["failures"].items())),
                "reward": f"{values['rollout/return/mean']:.2f}" if "rollout/return/mean" in values else "–",
                "rollout": _quantiles(values, "timing_s/in_slot", "p50", "p95"),
                "cold": cold,
                "overhead": _quantiles(values, "action/overhead_s", "p50", "p95", "p99"),
                "tax": _format.seconds(values.get("timing_s/tax/mean")),
                "shares": shares,
                "shares_title": ", ".join(
                    f"{kind} {_format.percent(share)}"
                    for kind, (_, share) in zip(("environment", "infrastructure", "policy"), shares, strict=True)
                ),
            }
        )
    return rows


def _quantiles(values: Mapping[str, float], name: str, *quantiles: str) -> str:
    if f"{name}/p50" not in values:
        return "–"
    return _format.several_seconds([values[f"{name}/{quantile}"] for quantile in quantiles])


def label_lines(substrates: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is particular to each substrate's sandboxes, such as ``qemu: accelerator tcg``."""
    first = substrates[0]["labels"] if substrates else {}
    common = {label for label, values in first.items() if all(s["labels"].get(label) == values for s in substrates)}
    told = {
        s["substrate"]: ", ".join(
            f"{label.replace('_', ' ')} {' or '.join(values)}"
            for label, values in s["labels"].items()
            if label not in common
        )
        for s in substrates
    }
    return [f"{name}: {words}" for name, words in told.items() if words]


def spread_line(summary: Mapping[str, Any]) -> str:
    """How far substrates are apart that started alike, in one sentence."""
    spreads = summary["spreads"]
    names = {
        "worker_hours": "worker-hours",
        "slot_hours": "slot-hours",
        "cold_start_s": "cold start p50",
        "first_action_s": "first action p50",
        "overhead_s": "action overhead p50",
    }
    told = [
        f"{label} {_format.ratio(spreads[key]['ratio'])} ({spreads[key]['most']} over {spreads[key]['least']})"
        for key, label in names.items()
        if key in spreads
    ]
    if not told:
        return "not computed: fewer than two substrates started on one rung"
    apart = "".join(
        f"; {s['substrate']} apart, its starts are {s['rung']}"
        for s in summary["substrates"]
        if s["rung"] and not s["is_floor"] and s["substrate"] not in spreads["substrates"]
    )
    return f"{', '.join(told)}; among {', '.join(spreads['substrates'])}, {spreads['rung']} starts{apart}"


def _prepared(group: Mapping[str, Any]) -> dict[str, str]:
    image, start = group["image_s"], group["cold_start_s"]
    return {
        **{name: str(group[name]) for name in ("substrate", "rung", "n")},
        "image": _format.several_seconds([image["p50"], image["p95"]]) if image["p95"] else "–",
        "start": _format.several_seconds([start["p50"], start["p95"]]),
    }


def _rung_line(substrates: Sequence[Mapping[str, Any]]) -> str:
    told = []
    for s in substrates:
        counts = ", ".join(f"{n} {rung}" for rung, n in sorted(s["rungs"].items()))
        told.append(f"{s['substrate']}: {counts or 'never started'}")
    return "; ".join(told)
