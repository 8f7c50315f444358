"""Ray clusters of several nodes for tests: machines of their own with links one can cut, or a cheap one without links.

A machine here is a network namespace (an address and ports of its own), a process namespace (killing its first process
kills everything on it at once, and nothing escapes) and a Ray session folder of its own. It shares the file system.
Inside it a pid is not the pid outside: to signal a process whose pid an actor told, use :meth:`Node.signal`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from requirements import require

BIN = Path(sys.executable).parent
WIRE = Path(__file__).with_name("wire.py")
PREFIX = "rr-nodes-"

QUICK_DEATHS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""A silent node is dead after 5 s at the most; by default Ray gives it some 30."""

START_LIMIT_S = 90.0


@dataclass
class Node:
    """One machine of a cluster."""

    index: int
    """1 is the first worker; the head is no ``Node``."""
    address: str
    folder: Path
    labels: Mapping[str, str]
    process: subprocess.Popen[bytes]
    init: int
    """Pid, out here, of the first process in the machine."""
    wire: Wire

    @property
    def id(self) -> str:
        """Ray's id of this node, dead or alive."""
        return next(node["NodeID"] for node in ray_nodes() if node["NodeManagerAddress"] == self.address)

    @property
    def is_alive(self) -> bool:
        """What Ray believes."""
        return any(node["Alive"] for node in ray_nodes() if node["NodeManagerAddress"] == self.address)

    def pids(self) -> list[int]:
        """Everything that runs in the machine, as pids out here, parents before children."""
        return tree(self.init)

    def signal(self, pid: int, signum: signal.Signals) -> None:
        """Signals the process that has ``pid`` inside the machine, which is what ``os.getpid()`` says there."""
        os.kill(self.outer_pid(pid), signum)

    def outer_pid(self, pid: int) -> int:
        """The pid out here of what has ``pid`` in the machine; ProcessLookupError when there is no such process."""
        for outer in self.pids():
            status = read(f"/proc/{outer}/status")
            namespaces = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
            if namespaces[1:2] == [str(pid)]:
                return outer
        raise ProcessLookupError(f"no process {pid} on node {self.index}")

    def kill(self) -> None:
        """Everything on the machine is gone, at once; connections end with a reset. See ``cut`` for a silent end."""
        if self.process.poll() is None:
            os.kill(self.init, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """Freezes everything on the machine; its kernel still answers, as that of an overloaded one does."""
        # A process may fork while we look: again until nobody is new.
        stopped: set[int] = set()
        while new := set(self.pids()) - stopped:
            for pid in new:
                send(pid, signal.SIGSTOP)
            stopped |= new

    def go_on(self) -> None:
        """The end of ``stop``."""
        for pid in self.pids():
            send(pid, signal.SIGCONT)

    def cut(self) -> None:
        """From now on no packet passes either way, and nobody is told."""
        self.wire.set(self.index, is_cut=True)

    def mend(self) -> None:
        """The end of ``cut``: packets pass again."""
        self.wire.set(self.index, is_cut=False)

    def delay(self, delay_s: float) -> None:
        """Each packet takes so long, each way: a round trip takes twice that."""
        self.wire.set(self.index, delay_s=delay_s)


class Wire:
    """The network between the machines: see ``wire.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """See ``opened_wire``."""
        self._process = process
        self._states: dict[int, dict[str, float]] = {}
        ends = self._answer()
        self.addresses: list[str] = [address for address, _ in ends]
        """The head's, then those of the nodes."""
        self.namespaces = [f"/proc/{process.pid}/fd/{number}" for _, number in ends]

    def set(self, index: int, **change: float) -> None:
        """Returns when it holds."""
        state = self._states.setdefault(index, {"node": index, "delay_s": 0.0, "loss": 0.0, "is_cut": False})
        state |= change
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(state) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the wire ended with {self._process.wait()}")
        return json.loads(line)


@dataclass
class Nodes:
    """A running cluster; this process is its driver."""

    ray_address: str
    """For ``ray.init``; IP:PORT of the head."""
    workers: list[Node]
    env: dict[str, str] = field(repr=False)
    """In which ``ray`` commands and other drivers find it."""

    def __getitem__(self, index: int) -> Node:
        """``nodes[1]`` is the first worker."""
        return self.workers[index - 1]


@contextmanager
def opened_wire(count: int) -> Iterator[Wire]:
    """A network of ``count`` namespaces and this one. Skips the test where there can be none."""
    require("nodes", missing())
    command = [*die_with_us(), sys.executable, "-I", str(WIRE), str(count)]
    with ending(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)) as process:
        yield Wire(process)


@contextmanager
def wired_nodes(
    count: int = 2,
    *,
    labels: Sequence[Mapping[str, str]] = (),
    resources: Mapping[str, float] = {},
    cpus: int = 2,
    delay_s: float = 0.0,
    tuned: Mapping[str, str] = QUICK_DEATHS,
    env: Mapping[str, str] = {},
    connect: bool = True,
) -> Iterator[Nodes]:
    """``count`` machines and a head without CPUs out here, joined by a network of their own.

    Args:
        count: Worker machines. Each costs about 0.3 GB.
        labels: Per node, besides ``node=1``, ``node=2``...
        resources: Custom ones of every worker.
        delay_s: Each way between the head and a node; twice that between two nodes.
        tuned: Settings of Ray, ``RAY_...``, for every process of the cluster. ``{}`` for Ray's own.
        env: More variables for every process of the cluster, such as ``PYTHONPATH``.
        connect: Whether to call ``ray.init`` here; then ``ray.shutdown`` at the end.

    Skips the test where machines cannot be made. Nothing outlives this process, whatever ends it: machines die with
    it, devices and namespaces with their last process. Folders that a killed process left go at the next start.
    """
    require("nodes", missing())
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/tmp"))
    folder.chmod(0o755)
    ours = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        **tuned,
        **env,
    }
    ours.pop("RAY_ADDRESS", None)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        wire = stack.enter_context(opened_wire(count))
        head = (f"--node-ip-address={wire.addresses[0]}", "--head", "--port=0", "--num-cpus=0")
        head_folder = folder / "0"
        head_process = started(head_folder, ours, None, *head, "--include-dashboard=false")
        stack.enter_context(ending(head_process))
        found = wait_for(lambda: read(f"{head_folder}/ray_current_cluster").strip(), head_process, head_folder)
        nodes = Nodes(found, [], ours | {"RAY_ADDRESS": found})
        for index in range(1, count + 1):
            named = {"node": str(index), **(labels[index - 1] if index <= len(labels) else {})}
            own = folder / str(index)
            process = started(
                own,
                ours,
                wire.namespaces[index],
                f"--node-ip-address={wire.addresses[index]}",
                f"--address={found}",
                f"--num-cpus={cpus}",
                f"--labels={','.join(f'{key}={value}' for key, value in named.items())}",
                f"--resources={json.dumps(dict(resources))}",
            )
            stack.enter_context(ending(process))
            init = wait_for(lambda process=process: inner_init(process.pid), process, own)
            nodes.workers.append(Node(index, wire.addresses[index], own, named, process, init, wire))
        if connect:
            import ray

            stack.callback(ray.shutdown)
            ray.shutdown()  # that of tests before
            ray.init(found, configure_logging=False, log_to_driver=False)
            for node in nodes.workers:
                wait_for(lambda node=node: node.is_alive, node.process, node.folder)
        for node in nodes.workers:
            if delay_s:
                node.delay(delay_s)
        yield nodes


@contextmanager
def cheap_nodes(
    count: int = 2,
    *,
    cpus: int = 2,
    labels: Sequence[Mapping[str, str]] = (),
    env: Sequence[Mapping[str, str]] = (),
) -> Iterator[Any]:
    """A ``ray.cluster_utils.Cluster`` of ``count`` workers on loopback, labelled ``node=1``...; the head has no CPU.

    ``labels`` and ``env`` (more variables for its processes) are per node.

    Yields the cluster; its ``workers`` are the handles for ``remove_node``, in order.
    """
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()  # that of tests before
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        own = Path(folder, "ray")
        own.mkdir()
        with pytest.MonkeyPatch.context() as here:
            # It writes down its address for whoever looks for a cluster in this folder: nobody else shall join it.
            here.setenv("RAY_TMPDIR", folder)
            cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": 0, "include_dashboard": False, "temp_dir": str(own)},
            )
        try:
            cluster.workers = [
                cluster.add_node(
                    wait=False,
                    num_cpus=cpus,
                    labels={"node": str(index), **(labels[index - 1] if index <= len(labels) else {})},
                    env_vars=dict(env[index - 1]) if index <= len(env) else {},
                )
                for index in range(1, count + 1)
            ]
            cluster.wait_for_nodes()
            ray.init(cluster.address, configure_logging=False, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def missing() -> str | None:
    """Why machines cannot be made here, and what to do about it."""
    if sys.platform != "linux":
        return "needs Linux: run the tests in a Linux virtual machine"
    if os.geteuid() != 0:
        return "needs root to make network namespaces; fix: run the tests as root on a machine of their own"
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun; fix: modprobe tun, or start the container with --device /dev/net/tun"
    for command, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(command) is None:
            return f"no command {command}; fix: apt-get install {package}"
    done = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    if done.returncode:
        return f"namespaces are refused here ({done.stderr.decode().strip()}); fix: a container needs --privileged"
    return None


def sweep() -> None:
    """Removes the folders of processes that are no more."""
    for left in Path("/tmp").glob(f"{PREFIX}*-*"):
        pid = left.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)


def ray_nodes() -> list[dict[str, Any]]:
    import ray

    return ray.nodes()


def started(folder: Path, env: dict[str, str], namespace: str | None, *words: str) -> subprocess.Popen[bytes]:
    """A machine, and ``ray start`` as the first process in it; without ``namespace`` it has our network."""
    folder.mkdir()
    folder.chmod(0o755)
    enter = ["nsenter", f"--net={namespace}"] if namespace else []
    with (folder / "ray-start.log").open("wb") as log:
        return subprocess.Popen(
            [
                *die_with_us(),
                *enter,
                *("unshare", "--pid", "--kill-child=KILL", "--mount-proc"),
                *(str(BIN / "ray"), "start", "--block", "--disable-usage-stats", "--include-log-monitor=false"),
                *("--object-store-memory=80000000", f"--temp-dir={folder}"),
                *words,
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def die_with_us() -> list[str]:
    """The kernel kills what is started with these words when the thread that started it ends."""
    return ["setpriv", "--pdeathsig=KILL"]


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[Any]:
    """Killed and awaited at the end of the block."""
    try:
        yield process
    finally:
        for pid in reversed(tree(process.pid)):
            send(pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            close(pipe)


def close(pipe: IO[Any] | None) -> None:
    if pipe is not None:
        pipe.close()


def wait_for(look: Any, process: subprocess.Popen[Any], folder: Path) -> Any:
    """The first true answer; fails the test with the node's log when it ends or takes for ever."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while not (found := look()):
        if process.poll() is not None or time.monotonic() > deadline_s:
            pytest.fail(f"ray start: {process.poll()}\n{read(folder / 'ray-start.log')[-4000:]}")
        time.sleep(0.05)
    return found


def inner_init(pid: int) -> int | None:
    """The first process of the machine that ``unshare`` with this pid made."""
    children = read(f"/proc/{pid}/task/{pid}/children").split()
    return int(children[0]) if children else None


def tree(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*"):
            found += map(int, read(task / "children").split())
    return found


def send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def read(path: str | Path) -> str:
    """A file's text; empty when there is none (any more)."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
