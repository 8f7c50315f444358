#!/usr/bin/env python3
"""What is a sandbox worth that is already there: started ahead of need, or used and made clean again, beside a new one?

Each round does the same in turns, on every substrate: a *fresh* start, from asking to a sandbox that answers; a *warm*
hand-out, its sign of life included; and a *recycle*, in which a session that worked and was graded is closed: killed
off, restored, its digest compared with that of its birth. A recycled sandbox is handed out again and looked at.

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

from _facts import facts, load_average
from _stats import Gate, at_least, quantile, show_gates
from rich.console import Console
from rich.table import Table

import rayroll
from rayroll import Client, Session, SessionConfig, Task
from rayroll.substrates import load

WARM_GATE = 20.0
RECYCLE_GATE = 5.0
WORK = """
echo changed > planted; mkdir -p build/deep; for i in $(seq 50); do echo $i > build/deep/$i; done
for f in $(find . -type f | head -5); do echo '# changed' >> "$f"; done
echo x > /tmp/x; mkdir -p ~/.cache/tool; (setsid sleep 1000 &); cd build; export SEEN=1
"""
LEFT = 'ls -d planted build /tmp/x /tests ~/.cache/tool 2>/dev/null; echo "[$SEEN]"'

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


class Arm:
    """One substrate, with a client that makes every sandbox anew and one that uses them again."""

    def __init__(self, kind: str, task: Task) -> None:
        self.kind, self.task = kind, task
        self.ms: dict[str, list[float]] = {"fresh": [], "warm": [], "recycle": []}
        self.fresh = Client(kind, config=SessionConfig(lease_s=60.0))
        self.again = Client(kind, config=SessionConfig(lease_s=60.0, reset="recycle", max_reuses=1000))

    async def round(self) -> None:
        """Each of the three, once; raises where what was done before can still be seen."""
        async with self.fresh.open(self.task) as session:
            self.ms["fresh"].append(await _booted_ms(session))
        assert await self.fresh.warm(self.task)
        async with self.fresh.open(self.task) as session:
            self.ms["warm"].append(await _booted_ms(session))
            assert session.rung == "warm", session.rung
        session = self.again.open(self.task)
        left = (await session.exec(LEFT)).output
        assert left == "[]\n", f"an earlier session can be seen: {left}"
        assert (await session.exec(WORK)).exit_code == 0
        await session.grade()
        await session.close()
        spans = [span for span in session.recorder.spans if span.phase == "reset"]
        assert len(spans) == 1 and not self.again.pool.stats.quarantined, self.again.pool.stats
        self.ms["recycle"].append((spans[0].end_ns - spans[0].start_ns) / 1e6)

    def as_json(self) -> dict[str, Any]:
        """Medians, in milliseconds, and what the pool counted."""
        medians = {f"{name}_p50_ms": round(statistics.median(ms), 2) for name, ms in self.ms.items()}
        spread = {
            f"{name}_quarters_ms": [round(quantile(ms, q), 2) for q in (0.25, 0.75)] for name, ms in self.ms.items()
        }
        return {
            **medians,
            **spread,
            "rounds": len(self.ms["fresh"]),
            "hits": self.again.pool.stats.hits,
            "recycled": self.again.pool.stats.recycled,
        }

    def gates(self) -> list[Gate]:
        """The two claims, over ratios within a round."""
        pairs = list(zip(self.ms["fresh"], self.ms["warm"], self.ms["recycle"], strict=True))
        return [
            at_least(f"{self.kind}: fresh / warm", WARM_GATE, [fresh / warm for fresh, warm, _ in pairs]),
            at_least(f"{self.kind}: fresh / recycle", RECYCLE_GATE, [fresh / again for fresh, _, again in pairs]),
        ]


async def _booted_ms(session: Session) -> float:
    start_s = time.monotonic()
    await session.booted()
    return (time.monotonic() - start_s) * 1e3


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All rounds; the document that is printed."""
    task = next(iter(rayroll.load_pack(options.pack)))
    arms, skipped = [], {}
    for kind in options.substrates.split(","):
        substrate = load(kind)
        found = await substrate(substrate.config_type()).probe()
        if found.ok:
            arms.append(Arm(kind, task))
        else:
            skipped[kind] = found.reason
    before = facts()
    for arm in arms:
        await arm.fresh.__aenter__()
        await arm.again.__aenter__()
    try:
        for number in range(options.rounds + 1):
            for arm in arms if number % 2 else reversed(arms):
                await arm.round()
            if number == 0:  # images, caches
                for arm in arms:
                    arm.ms = {name: [] for name in arm.ms}
    finally:
        for arm in arms:
            await arm.fresh.close()
            await arm.again.close()
    headline = next((arm for arm in arms if arm.kind == "docker"), arms[0])
    medians = {name: value for name, value in headline.as_json().items() if name.endswith("_p50_ms")}
    # Beside docker, a local start is a few processes; its ratios are shown, and claimed of nothing.
    return {
        **medians,
        "substrate": headline.kind,
        "pack": options.pack,
        "substrates": {arm.kind: arm.as_json() for arm in arms},
        "gates": [gate.as_json() for gate in headline.gates()],
        "beside": [gate.as_json() for arm in arms if arm is not headline for gate in arm.gates()],
        "skipped": skipped,
        "machine": {**before, "load_after": load_average()},
    }


def show(document: dict[str, Any]) -> None:
    """For whoever watches."""
    table = Table("substrate", "fresh", "warm", "recycle", title="milliseconds at p50 (quarter points)", title_style="")
    for kind, of in document["substrates"].items():
        cells = [
            f"{of[f'{n}_p50_ms']:.3g} ({of[f'{n}_quarters_ms'][0]:.3g} - {of[f'{n}_quarters_ms'][1]:.3g})"
            for n in ("fresh", "warm", "recycle")
        ]
        table.add_row(kind, *cells)
    console.print(table)
    show_gates(console, document["gates"])
    for kind, reason in document["skipped"].items():
        console.print(f"not measured: {kind}: {reason}")


def main() -> int:
    """Measure; 1 where a claim does not hold, unless it is a smoke run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrates", default="docker,local", help="in a list with commas [%(default)s]")
    parser.add_argument("--pack", default="terminal", help="whose first task is used [%(default)s]")
    parser.add_argument("--rounds", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--smoke", action="store_true", help="three rounds: shows that it works, claims nothing")
    options = parser.parse_args()
    if options.smoke:
        options.rounds = 3
    document = asyncio.run(measure(options))
    show(document)
    print(json.dumps(document))
    return 0 if options.smoke or all(gate["passed"] for gate in document["gates"]) else 1


if __name__ == "__main__":
    sys.exit(main())
