#!/usr/bin/env python3
"""Does the scheduler keep 10,000 slots busy, and which of its policies are worth having?

The real scheduler, hosts that are not there, and a virtual clock (``_simulation.py`` says what is modelled): first
200,000 rollouts on 10,000 slots, timed by the wall clock; then, at a tenth of the slots, policies against each other,
in situations of which each is known to hurt somebody:

* starts: fixed limits against the adaptive one, and how far that is from the best fixed one;
* pool: sandboxes started ahead of need against none;
* spares: a second attempt at late starts, or at late members of a group, against none.

Every cell plays the same rollouts with three seeds; shown is the median. ``most_s`` is when 95 % of all are settled:
the makespan is that of the one longest rollout, if it happened to be among the last. Prints a table on standard error,
and one JSON line, last, on standard output.

    scheduler_scale.py                      # all, about five minutes
    scheduler_scale.py --only scale         # the 10,000 slots alone
    scheduler_scale.py --smoke              # everything, small, in seconds
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from _facts import facts, load_average
from _simulation import CONTAINERS, CROWDED, Cluster, Outcome, Provider, Trouble, Work
from _stats import quantile
from rich.console import Console
from rich.table import Table

from rayroll.scheduler import Needs, SchedulerConfig
from rayroll.substrates.simulated import PROFILES, Draw, Profile

SLOTS_PER_NODE = 64
MOST_WALL_S = 120.0
FIXED = (1, 2, 3, 4, 8, 16, 64)
THINKS = Draw(median_s=5.0, sigma=0.6)
"""Seconds to an action. TraceLab (arXiv 2606.30560) has a heavy tail of them; its median differs with the model."""

# Fitted to 32 starts of busybox, one at a time, on a quiet machine: p50 0.187 s, p90 0.214 s (benchmarks/LOG.md).
DOCKER = PROFILES["docker-like"].model_copy(
    update={"create": Draw(median_s=0.02, sigma=0.3), "boot": Draw(median_s=0.165, sigma=0.1)}
)
# A sandbox from a provider: seconds, none of them this machine's, and one in fifty takes a minute.
REMOTE = Profile(
    create=Draw(median_s=3.0, sigma=0.4, straggler_share=0.02, straggler_factor=20),
    transport=Draw(median_s=0.03, sigma=0.3),
    run=Draw(median_s=0.1, sigma=1.0),
    destroy=Draw(median_s=0.3, sigma=0.3),
)

console = Console(stderr=True, width=None if sys.stderr.isatty() else 150)


@dataclass(frozen=True)
class Situation:
    """A cluster and its work, apart from the policy."""

    name: str
    profile: Profile
    work: Work
    more: dict[str, Any]


def situations(slots: int) -> list[Situation]:
    """Those in which starts are limited."""
    nodes = max(2, slots // SLOTS_PER_NODE)
    short = Work(rollouts=6 * slots, turns=2, policy=Draw(median_s=2.0, sigma=0.6))
    usual = Work(rollouts=4 * slots, turns=5, policy=THINKS)
    busy = [Trouble(node, 20.0, 60.0, slowdown=3.0) for node in range(nodes // 2)]
    return [
        Situation("containers, 2 cores", DOCKER, short, {}),
        Situation("containers, crowds cost half", DOCKER, short, {"curve": CROWDED}),
        Situation("containers, 32 cores", DOCKER, short, {"curve": replace(CONTAINERS, scale=16.0)}),
        Situation("half the nodes busy for a minute", DOCKER, short, {"troubles": busy}),
        Situation("heavy tails", PROFILES["heavy-tail"], usual, {}),
        Situation("one create in twenty fails", DOCKER.model_copy(update={"create_failure": 0.05}), short, {}),
        Situation("provider without limit", REMOTE, usual, {"curve": None}),
        Situation(
            "provider with a rate limit",
            REMOTE,
            usual,
            {"curve": None, "provider": Provider(per_s=slots / 50, burst=max(4, slots // 5), retry_after_s=5.0)},
        ),
        Situation(
            "a node fails every start for a minute",
            DOCKER,
            short,
            {"troubles": [Trouble(0, 10.0, 60.0, fails=True)]},
        ),
        Situation("a node is lost for a minute", DOCKER, short, {"troubles": [Trouble(0, 10.0, 60.0, is_down=True)]}),
    ]


def play(situation: Situation, slots: int, config: dict[str, Any], seed: int) -> Outcome:
    """One cell."""
    nodes = max(2, slots // SLOTS_PER_NODE)
    return Cluster(
        nodes=nodes,
        slots=slots // nodes,
        profile=situation.profile,
        work=situation.work,
        config=SchedulerConfig.parse(config),
        seed=seed,
        **situation.more,
    ).run()


def told(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The median over seeds of everything that is compared."""

    def median(of: Callable[[Outcome], float]) -> float:
        return round(statistics.median(of(outcome) for outcome in outcomes), 3)

    return {
        "makespan_s": median(lambda o: o.makespan_s),
        "most_s": median(lambda o: quantile(o.settled_s, 0.95)),
        "wait_p50_s": median(lambda o: quantile(o.waits_s, 0.5)),
        "wait_p95_s": median(lambda o: quantile(o.waits_s, 0.95)),
        "start_p50_s": median(lambda o: quantile(o.start_s, 0.5)),
        "start_p95_s": median(lambda o: quantile(o.start_s, 0.95)),
        "group_p95_s": median(lambda o: quantile(o.groups_s, 0.95)),
        "wasted": median(lambda o: o.attempts - o.done),
        "lost": median(lambda o: o.lost),
        "spares": median(lambda o: o.spares),
        "hit_rate": median(lambda o: o.hits / max(1, o.hits + o.misses)),
        "limit": median(lambda o: statistics.median(o.limits)),
    }


def cells(slots: int, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Every policy in every situation it is about."""
    for situation in situations(slots):
        for first in (*FIXED, None):
            starts = {} if first is None else {"first": first, "is_adaptive": False}
            outcomes = [play(situation, slots, {"starts": starts}, seed) for seed in seeds]
            policy = "adaptive" if first is None else f"fixed {first}"
            yield {"compares": "starts", "situation": situation.name, "policy": policy, **told(outcomes)}
    nodes = max(2, slots // SLOTS_PER_NODE)
    usual = Work(rollouts=4 * slots, turns=5, policy=THINKS, ahead=512)
    shapes = {"needs": lambda group: Needs(shape=f"task{group % 40}")}
    for situation in (
        Situation("containers, 2 cores", DOCKER, usual, shapes),
        Situation("heavy tails", PROFILES["heavy-tail"], usual, shapes),
        Situation("provider without limit", REMOTE, usual, {"curve": None, **shapes}),
    ):
        for most in (0, 2, 8, 32):
            outcomes = [play(situation, slots, {"warm": {"most_per_host": most}}, seed) for seed in seeds]
            policy = f"pool of {most}" if most else "no pool"
            yield {"compares": "pool", "situation": situation.name, "policy": policy, **told(outcomes)}
    usual = replace(usual, ahead=16)
    sick = [Trouble(node, 30.0, 1e9, slowdown=20.0) for node in range(max(1, nodes // 16))]
    for situation in (
        Situation("heavy tails", PROFILES["heavy-tail"], usual, {}),
        Situation("provider without limit", REMOTE, usual, {"curve": None}),
        Situation("one node in sixteen is slow", PROFILES["heavy-tail"], usual, {"troubles": sick}),
    ):
        for spares in ("never", "start", "group"):
            played = replace(situation, work=replace(situation.work, spares=spares))
            outcomes = [play(played, slots, {}, seed) for seed in seeds]
            yield {"compares": "spares", "situation": situation.name, "policy": spares, **told(outcomes)}


def scale(slots: int, rollouts: int, turns: int) -> dict[str, Any]:
    """Everything asked for at once, adaptive starts, no pool, no spares."""
    nodes = max(1, slots // SLOTS_PER_NODE)
    extra = slots - nodes * SLOTS_PER_NODE
    cluster = Cluster(
        nodes=nodes + (extra > 0),
        slots=SLOTS_PER_NODE,
        profile=DOCKER,
        work=Work(rollouts=rollouts, turns=turns, policy=THINKS, ahead=None),
    )
    gc.collect()
    gc.freeze()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    outcome = cluster.run()
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    assert outcome.done == rollouts, f"{rollouts - outcome.done} rollouts have no verdict"
    events = sum(outcome.events.values())
    return {
        "slots": slots,
        "rollouts": rollouts,
        "turns": turns,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "events": events,
        "reached": outcome.events["Reached"],
        "events_per_s": round(events / wall_s),
        "virtual_s": round(outcome.makespan_s, 1),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def against_best(policies: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By situation, the adaptive limit's ``most_s`` over that of the best fixed one which loses no rollouts for it."""
    ratios = {}
    for situation in {cell["situation"]: None for cell in policies if cell["compares"] == "starts"}:
        took_s = {
            cell["policy"]: cell["most_s"]
            for cell in policies
            if cell["compares"] == "starts"
            and cell["situation"] == situation
            and (cell["lost"] <= 2 or cell["policy"] == "adaptive")
        }
        ratios[situation] = round(took_s.pop("adaptive") / min(took_s.values()), 3)
    return ratios


def show(policies: Sequence[dict[str, Any]]) -> None:
    """A table for each comparison."""
    for compares in ("starts", "pool", "spares"):
        table = Table(title=compares, title_justify="left")
        columns = ("makespan_s", "most_s", "wait_p50_s", "wait_p95_s", "start_p50_s", "start_p95_s", "group_p95_s")
        last = {"starts": "limit", "pool": "hit_rate", "spares": "spares"}[compares]
        for column in ("situation", "policy", *columns, "wasted", "lost", last):
            table.add_column(column, justify="left" if column in ("situation", "policy") else "right")
        before = ""
        for cell in (cell for cell in policies if cell["compares"] == compares):
            name, before = ("" if cell["situation"] == before else cell["situation"]), cell["situation"]
            figures = [f"{cell[column]:.4g}" for column in (*columns, "wasted", "lost", last)]
            table.add_row(name, cell["policy"], *figures)
        console.print(table)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5, help="actions of each rollout in the scale run")
    parser.add_argument("--policy-slots", type=int, default=1_000, help="slots where policies are compared")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("scale", "policies"))
    parser.add_argument("--smoke", action="store_true", help="small, to see that it works")
    args = parser.parse_args()
    if args.smoke:
        args.slots, args.rollouts, args.policy_slots, args.seeds = 500, 4_000, 64, 1
    machine = facts()
    line: dict[str, Any] = {"slots": args.slots, "rollouts": args.rollouts, "wall_s": None, "policies": []}
    if args.only != "policies":
        line |= scale(args.slots, args.rollouts, args.turns)
        console.print(
            f"{line['rollouts']:,} rollouts on {line['slots']:,} slots: {line['wall_s']} s "
            f"({line['events_per_s']:,} events/s, {line['virtual_s']:,} s of virtual time)",
            highlight=False,
        )
        line["is_fast_enough"] = line["wall_s"] < MOST_WALL_S
    if args.only != "scale":
        for cell in cells(args.policy_slots, range(args.seeds)):
            line["policies"].append(cell)
        show(line["policies"])
        line["adaptive_over_best_fixed"] = against_best(line["policies"])
        for situation, ratio in line["adaptive_over_best_fixed"].items():
            console.print(f"  adaptive takes {ratio:.2f} of the best fixed limit: {situation}", highlight=False)
    line["machine"] = {**machine, "load_after": load_average()}
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
