"""The machines that other tests disturb: each handle's effect, seen through Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes import Nodes, cheap_nodes, missing, ray_nodes, wired_nodes
from requirements import require

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Ray opens sockets and threads of this process as it likes, and the clusters outlast a test."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with wired_nodes(2) as made:
        yield made


def remote_on(selector: dict[str, str]) -> Any:
    """An actor that says where it is, there."""
    import ray

    class Here:
        def where(self) -> tuple[str, int]:
            import os

            return ray.util.get_node_ip_address(), os.getpid()

    return ray.remote(Here).options(num_cpus=1, label_selector=selector).remote()


def ask(actor: Any, limit_s: float = 60.0) -> Any:
    import ray

    return ray.get(actor.where.remote(), timeout=limit_s)


def wait_until_dead(address_or_id: str) -> None:
    while any(node["Alive"] for node in ray_nodes() if address_or_id in (node["NodeManagerAddress"], node["NodeID"])):
        time.sleep(0.02)


def test_an_actor_runs_on_the_machine_whose_label_it_asks_for(nodes: Nodes) -> None:
    for node in nodes.workers:
        address, pid = ask(remote_on({"node": str(node.index)}))
        assert address == node.address
        assert node.outer_pid(pid) in node.pids()


def test_a_delayed_link_makes_a_call_take_its_round_trip_longer(nodes: Nodes) -> None:
    actor = remote_on({"node": "1"})
    ask(actor)
    nodes[1].delay(0.2)
    begun_s = time.monotonic()
    ask(actor)
    took_s = time.monotonic() - begun_s
    nodes[1].delay(0.0)
    assert took_s >= 0.4


def test_a_call_over_a_cut_link_times_out_and_is_answered_after_mending(nodes: Nodes) -> None:
    import ray

    actor = remote_on({"node": "1"})
    ask(actor)
    nodes[1].cut()
    call = actor.where.remote()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(call, timeout=0.5)
    nodes[1].mend()
    assert ray.get(call, timeout=60)[0] == nodes[1].address


def test_a_stopped_machine_is_silent_until_it_goes_on(nodes: Nodes) -> None:
    import ray

    actor = remote_on({"node": "1"})
    ask(actor)
    nodes[1].stop()
    call = actor.where.remote()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(call, timeout=0.5)
    nodes[1].go_on()
    assert ray.get(call, timeout=60)[0] == nodes[1].address


def test_an_actor_is_killed_by_the_pid_it_knows(nodes: Nodes) -> None:
    import ray

    actor = remote_on({"node": "1"})
    nodes[1].signal(ask(actor)[1], signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ask(actor)


def test_a_killed_machine_leaves_no_process_and_ray_sees_it_die(nodes: Nodes) -> None:
    import ray

    actor = remote_on({"node": "2"})
    ask(actor)
    pids = nodes[2].pids()
    nodes[2].kill()
    with pytest.raises(ray.exceptions.RayActorError):
        ask(actor)
    wait_until_dead(nodes[2].address)
    assert not nodes[2].is_alive
    assert nodes[1].is_alive
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    require("nodes", missing())
    program = (
        "import ray, signal, os\n"
        "from nodes import wired_nodes\n"
        "with wired_nodes(1, connect=False) as nodes:\n"
        "    print(nodes.workers[0].init, *nodes.workers[0].pids(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    pids = done.stdout.split()
    assert pids
    deadline_s = time.monotonic() + 10
    while left := [pid for pid in pids if Path(f"/proc/{int(pid)}").exists()]:
        assert time.monotonic() < deadline_s, f"left behind: {left}"
        time.sleep(0.02)


def test_cheap_nodes_take_actors_by_label_and_by_id_and_ray_sees_one_removed() -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=1)
    class Here:
        def where(self) -> str:
            node_id: str = ray.get_runtime_context().get_node_id()
            return node_id

    with cheap_nodes(2) as cluster:
        first, second = (worker.node_id for worker in cluster.workers)
        by_label = Here.options(label_selector={"node": "2"}).remote()
        by_id = Here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(first, soft=False)).remote()
        assert ask(by_label) == second
        assert ask(by_id) == first
        cluster.remove_node(cluster.workers[1], allow_graceful=False)
        # Only the raylet is killed here: its workers answer on for a moment.
        wait_until_dead(second)
        with pytest.raises(ray.exceptions.RayActorError):
            ask(by_label)
        assert ask(by_id) == first
