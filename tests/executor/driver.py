"""A run as somebody would write it, in a process of its own, for tests that interrupt or kill it.

Says on standard output, line by line: ``run ID``, ``host PID``, then ``kept ID`` for each rollout that is on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import little
import ray

from rayroll import Executor
from rayroll.policies.scripted import ScriptedPolicy
from rayroll.sinks import SinkWorker
from rayroll.sinks.jsonl import JsonlSink

ENDLESS = 100_000
SLOTS = 3


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - what its parent listens to


async def main(kind: str, out: str, options: dict[str, object]) -> None:
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="error")
    lease_s = float(str(options.get("lease_s", 3.0)))
    config = little.SUBSTRATE_CONFIG[kind]
    # The first two hold a slot each for ever, the others end at once and are followed by the next.
    policy = ScriptedPolicy(["test $RAYROLL_SEED -ge 2 || sleep 600", "echo 42 > answer.txt"])
    async with Executor(kind, substrate_config=config, session={"lease_s": lease_s}) as executor:
        say("run", executor.run_id)
        say("host", executor.host.pid)
        with SinkWorker([JsonlSink(out)]) as sinks:
            run = executor.submit([little.task()], policy, samples_per_task=ENDLESS, max_in_flight=SLOTS, seed=0)
            async for rollout in run.rollouts():
                await sinks.put(rollout)
                say("kept", rollout.id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
