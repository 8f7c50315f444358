"""Trainers outside the sandboxes' cluster: the policy here, the sandboxes there, and nothing left when either goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import little
import pytest

import rayroll
from rayroll import Act, Turn
from rayroll.errors import ClosedError, ConfigError, HostLostError
from rayroll.executor.remote import RemoteExecutor
from rayroll.policies.scripted import ScriptedPolicy

SOLVE = ScriptedPolicy(["echo 42 > answer.txt"])


class Served:
    """A gateway in a process and a Ray cluster of its own."""

    def __init__(self, folder: Path) -> None:
        self.secret_file = folder / "secret"
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.process = subprocess.Popen(
            [*serve_command(), "--listen", "127.0.0.1:0", "--secret-file", str(self.secret_file)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"listening at (\S+);", said)
        assert found is not None, said
        self.address = found[1]

    @property
    def secret(self) -> str:
        return self.secret_file.read_text().strip()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def serve_command() -> list[str]:
    return [sys.executable, "-c", "from rayroll.cli import main; main()", "serve"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    gateway = Served(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.end()
    assert gateway.process.returncode == 0


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """This process has no Ray, whose end the package's own fixture of this name looks at."""


@contextlib.asynccontextmanager
async def connected(served: Served, **options: Any) -> AsyncIterator[RemoteExecutor]:
    options = {"substrate_config": little.SUBSTRATE_CONFIG["local"], "session": {"lease_s": 3.0}, **options}
    async with rayroll.connect(served.address, "local", secret=served.secret, **options) as executor:
        yield executor
    await nothing_is_left_of(executor.run_id)


async def nothing_is_left_of(run_id: str) -> None:
    async def claim() -> bool:
        return not await asyncio.to_thread(little.left_on_this_node, run_id)

    await little.until_true(claim)


async def something_is_there_of(run_id: str) -> None:
    async def claim() -> bool:
        return bool(await asyncio.to_thread(little.left_on_this_node, run_id))

    await little.until_true(claim)


async def test_a_trainer_plays_groups_in_another_cluster(served: Served) -> None:
    async with connected(served) as executor:
        run = executor.submit([little.task("a"), little.task("b")], SOLVE, samples_per_task=3, max_in_flight=2)
        groups = [group async for group in run.groups()]
        assert (await executor.stats()).sessions == 0
    assert [len(group) for group in groups] == [3, 3]
    assert {rollout.reward for group in groups for rollout in group} == {1.0}
    assert len(run.state_dict()["finished"]) == 6


async def test_tokens_travel_untouched_and_the_policy_sees_the_end(served: Served) -> None:
    class Learner:
        def __init__(self) -> None:
            self.last_seen = ""

        async def act(self, turn: Turn) -> Act:
            return Act(f"echo {turn.index}", tokens={"ids": [1, 2, turn.index]})

        def last(self, turn: Turn) -> None:
            self.last_seen = turn.observation

    policy = Learner()
    async with connected(served) as executor:
        run = executor.submit([little.task()], policy, config=rayroll.executor.PlayConfig(max_steps=2))
        (rollout,) = [r async for r in run.rollouts()]
    assert [step.act.tokens for step in rollout.steps] == [{"ids": [1, 2, 0]}, {"ids": [1, 2, 1]}]
    assert policy.last_seen == "1\n"


async def test_a_run_is_paused_resumed_and_cancelled_from_afar(served: Served) -> None:
    versions: list[int | None] = []

    class Endless:
        async def act(self, turn: Turn) -> Act:
            versions.append(turn.policy_version)
            return Act("true")

    async with connected(served) as executor:
        run = executor.submit([little.task()], Endless(), config=rayroll.executor.PlayConfig(max_steps=10_000))
        await little.until(lambda: len(versions) > 3)
        await run.pause()
        asked = len(versions)
        run.resume(policy_version=7)
        await little.until(lambda: len(versions) > asked)
        await run.cancel(keep_partial=True)
        (rollout,) = [r async for r in run.rollouts()]
    assert versions[asked] == 7
    assert rollout.failure is not None and rollout.failure.error == "cancelled"


async def test_what_a_policy_raises_is_raised_to_its_reader_as_it_is(served: Served) -> None:
    class Broken:
        async def act(self, turn: Turn) -> Act:
            raise ZeroDivisionError("a bug of the trainer's")

    async with connected(served) as executor:
        with pytest.raises(ZeroDivisionError, match="the trainer's"):
            [r async for r in executor.submit([little.task()], Broken()).rollouts()]


async def test_a_run_goes_on_where_the_one_before_was_cut_off(served: Served) -> None:
    async with connected(served, run_id="cut") as executor:
        run = executor.submit([little.task()], SOLVE, samples_per_task=4, max_in_flight=1)
        async for _ in run.rollouts():
            break
        state = run.state_dict()
    async with connected(served, run_id="cut") as executor:
        again = executor.submit([little.task()], SOLVE, samples_per_task=4, state=state)
        made = [r async for r in again.rollouts()]
    assert again.total == len(made) == 3
    assert not {r.id for r in made} & set(state["finished"])


async def test_wrong_arguments_are_said_where_they_are_used(served: Served) -> None:
    async with connected(served) as executor:
        with pytest.raises(ConfigError, match="samples_per_task must be at least 1"):
            [r async for r in executor.submit([little.task()], SOLVE, samples_per_task=0).rollouts()]
    with pytest.raises(ConfigError, match="did you mean lease_s"):
        async with connected(served, session={"leese_s": 3}):
            pass
    with pytest.raises(ClosedError):
        executor.submit([little.task()], SOLVE)


async def test_without_the_secret_nobody_gets_in(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostLostError, match="another secret"):
        async with rayroll.connect(served.address, "local", secret="guessed"):
            pass
    monkeypatch.setenv("RAYROLL_SECRET_FILE", "/nowhere")
    with pytest.raises(ConfigError, match="rayroll serve"):
        async with rayroll.connect(served.address, "local"):
            pass
    assert served.secret_file.stat().st_mode & 0o077 == 0


def test_many_environments_as_one_have_their_sandboxes_in_another_cluster(served: Served) -> None:
    with rayroll.make_vec(
        tasks=[little.task()],
        num_envs=2,
        address=served.address,
        executor={"secret": served.secret},
        substrate_config=little.SUBSTRATE_CONFIG["local"],
    ) as envs:
        envs.reset(seed=1)
        observations, _, _, _, infos = envs.step(["echo a", "echo b"])
        assert (observations, infos["valid"].tolist()) == (("a\n", "b\n"), [True, True])
        _, rewards, terminations, _, _ = envs.step(["submit", "echo 42 > answer.txt"])
    assert (rewards.tolist(), terminations.tolist()) == ([0.0, 0.0], [True, False])


async def test_a_trainer_without_ray_that_is_killed_leaves_no_sandbox(served: Served) -> None:
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import little, ray, rayroll
from rayroll.policies.scripted import ScriptedPolicy

async def main():
    async with rayroll.connect({served.address!r}, "local", secret=sys.stdin.readline().strip(), run_id="killed",
                               substrate_config=little.SUBSTRATE_CONFIG["local"]) as executor:
        assert not ray.is_initialized()
        run = executor.submit([little.task()], ScriptedPolicy(["sleep 600"]))
        async for _ in run.rollouts():
            pass

asyncio.run(main())
"""
    trainer = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert trainer.stdin is not None
    trainer.stdin.write(served.secret + "\n")
    trainer.stdin.close()
    await something_is_there_of("killed")
    trainer.kill()
    await asyncio.to_thread(trainer.wait)
    await nothing_is_left_of("killed")


async def test_a_gateway_that_is_gone_is_an_error_to_whoever_reads(tmp_path: Path) -> None:
    gateway = await asyncio.to_thread(Served, tmp_path)
    async with rayroll.connect(
        gateway.address, "local", secret=gateway.secret, substrate_config=little.SUBSTRATE_CONFIG["local"]
    ) as executor:
        run = executor.submit([little.task()], ScriptedPolicy(["sleep 600"]))
        await something_is_there_of(executor.run_id)
        await asyncio.to_thread(gateway.end)
        with pytest.raises(HostLostError, match="the connection to the gateway broke"):
            [r async for r in run.rollouts()]
    await nothing_is_left_of(executor.run_id)
