"""Pods whose API server, kubelet or engine is killed and is back after ten seconds; one on its way up, too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator

import little
import pytest
from chaos.stage import BYSTANDER, Stage, all_are_right, of, phase_of, play_beside
from executor.conftest import Opened
from requirements import require
from second_bed import CACHE, SecondBed, second_bed

from rayroll import Rollout
from rayroll.errors import EngineDownError
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.kubernetes import KubernetesConfig, KubernetesSubstrate

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

AWAY_S = 4.0
"""Until it is started; to be of use again takes it six seconds more."""
LEASE_S = 60.0
"""On a busy machine these six seconds are thirty."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecondBed]:
    """One of this module's own: the test bed's is not ours to kill."""
    is_there = os.geteuid() == 0 and (CACHE / "kubernetes" / "kubelet").exists()
    require("kubernetes", None if is_there else "needs root, and what `cluster/testbed/testbed up kubernetes` compiles")
    with second_bed("images", "kubernetes") as bed:
        bed("up", "kubernetes")
        yield bed


@pytest.fixture
def config(cluster: SecondBed, monkeypatch: pytest.MonkeyPatch) -> KubernetesConfig:
    kubeconfig = f"{cluster.folder}/run/kubeconfig"
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    return KubernetesConfig(kubeconfig=kubeconfig, network="open", request_share=0.1)


def pids(cluster: SecondBed) -> dict[str, int]:
    """By daemon."""
    found: dict[str, int] = cluster.facts("kubernetes")["pids"] | cluster.facts("docker")["pids"]
    return found


async def start(cluster: SecondBed) -> None:
    """What was killed."""
    await asyncio.to_thread(cluster, "up", "kubernetes")


async def containers(cluster: SecondBed) -> list[str]:
    """Those of pods that run."""
    ask = ("ps", "--quiet", "--filter", "label=io.kubernetes.pod.uid")
    return (await asyncio.to_thread(cluster.docker, *ask)).split()


async def is_empty(cluster: SecondBed) -> bool:
    return not await containers(cluster)


Played = Callable[[str], Awaitable[list[Rollout]]]


@pytest.fixture
def played(opened: Opened, stage: Stage, cluster: SecondBed, config: KubernetesConfig) -> Played:
    """Rollouts in every phase as a daemon is killed, with others beside them; nothing of them runs any more."""
    pods = config.model_dump(include={"kubeconfig", "network", "request_share"})

    async def play(daemon: str) -> list[Rollout]:
        pid = (await asyncio.to_thread(pids, cluster))[daemon]
        async with (
            opened("kubernetes", disturbance={}, substrate_config=pods, session={"lease_s": LEASE_S}) as executor,
            opened() as others,
        ):

            async def fault() -> None:
                os.kill(pid, signal.SIGKILL)
                beside, _ = await asyncio.gather(play_beside(others), asyncio.sleep(AWAY_S))
                assert {(rollout.reward, rollout.attempts) for rollout in beside} == {(1.0, 1)}
                await start(cluster)

            rollouts = await stage.play(executor, fault)
        await little.until_true(lambda: is_empty(cluster))
        return rollouts

    return play


@pytest.mark.parametrize("daemon", ["kube-apiserver", "kubelet"])
async def test_a_daemon_that_is_killed_ends_nothing_that_runs(played: Played, daemon: str) -> None:
    rollouts = await played(daemon)
    all_are_right(rollouts)
    assert {phase_of(rollout) for rollout in rollouts if rollout.attempts > 1} <= {"start"}
    assert {len(of(rollouts, phase).steps) for phase in ("exec", "between")} == {2}, "no command ran twice"


async def test_pods_that_end_with_their_killed_engine_are_played_again(played: Played) -> None:
    rollouts = await played("dockerd")
    all_are_right(rollouts)
    assert {"policy", "between", BYSTANDER}.isdisjoint(
        phase_of(rollout) for rollout in rollouts if rollout.attempts < 2
    )


async def test_a_create_outlives_its_api_server_and_one_that_begins_without_it_fails_at_once(
    cluster: SecondBed, config: KubernetesConfig, run_id: str
) -> None:
    lease = Lease(run_id, "test", LEASE_S)
    api_server = (await asyncio.to_thread(pids, cluster))["kube-apiserver"]
    async with KubernetesSubstrate(config) as substrate:
        creating = asyncio.create_task(substrate.create(SandboxSpec(), lease))
        await little.until_true(lambda: is_made(substrate, run_id))
        os.kill(api_server, signal.SIGKILL)
        assert not creating.done(), "too late"
        with pytest.raises(EngineDownError):
            await substrate.create(SandboxSpec(), lease)
        await start(cluster)
        sandbox = await creating
        runner = await RunnerClient.connect(sandbox.channel)
        assert (await runner.exec("echo up")).output == "up\n"
        await runner.close()
        await substrate.destroy(sandbox.ref)
        assert await substrate.list({"run": run_id}) == []
    await little.until_true(lambda: is_empty(cluster))


async def is_made(substrate: KubernetesSubstrate, run_id: str) -> bool:
    return bool(await substrate.list({"run": run_id}))
