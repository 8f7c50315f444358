"""A run that stands still in every phase, in a process of its own, for a test that kills it.

One more rollout has finished before. Says ``kept`` when that is on disk and ``there`` when all others are in their
places. With a second word it is the one that goes on: nobody is held up, and what is on disk is not played again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import little
import ray
from chaos.stage import Stage

from rayroll import Executor
from rayroll.sinks import SinkWorker
from rayroll.sinks.jsonl import JsonlSink, finished_ids


def say(word: str) -> None:
    print(word, flush=True)  # noqa: T201 - what its parent listens to


async def main(folder: Path, *, goes_on: bool) -> None:
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="error")
    stage, out = Stage(folder), folder / "rollouts.jsonl"
    config = {"inner": "local", "inner_config": little.SUBSTRATE_CONFIG["local"]}
    host = {"runtime_env": {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}}
    async with Executor(
        "disturbed", run_id=folder.name, substrate_config=config, session={"lease_s": 3.0}, actor_options=host
    ) as executor:
        with SinkWorker([JsonlSink(out)]) as sinks:
            finished = finished_ids(out) if goes_on else ()
            run = stage.submit(executor, before=[little.task("before")], finished=finished)
            watching = asyncio.create_task(stage.go_on() if goes_on else tell(stage, executor))
            async for rollout in run.rollouts():
                await sinks.put(rollout)
                say("kept")
            await watching


async def tell(stage: Stage, executor: Executor) -> None:
    await stage.is_set(executor)
    say("there")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), goes_on=len(sys.argv) > 2))
