"""A submitted job, from a fresh clone, on a cluster of two nodes whose workers find or build the runner themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from requirements import check, probe

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def ray_node(env: dict[str, str], log: Path, *words: str) -> Iterator[None]:
    """``ray start --block`` until the end of the block; it takes its children along when it is told to stop."""
    with log.open("w") as out:
        node = subprocess.Popen(
            [BIN / "ray", "start", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1", *words],
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Two nodes on this machine; yields the environment in which ``ray`` commands reach them."""
    check("local")
    port, dashboard = free_port(), free_port()
    # Ray's sockets lie in its folder, and a socket's path may have 107 bytes. Sandboxes of a root caller run as another
    # user, who must be able to reach the cache.
    folder = tempfile.mkdtemp(prefix="rr-", dir="/tmp")
    Path(folder).chmod(0o755)
    env = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAYROLL_CACHE_DIR": f"{folder}/cache",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
    }
    env.pop("RAY_ADDRESS", None)
    head = (
        *("--head", f"--port={port}", f"--temp-dir={folder}", "--num-cpus=2"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        f"--dashboard-agent-listen-port={free_port()}",
    )
    # A folder of its own, as on a machine of its own: in a common one each node unpacks the job's working folder anew,
    # under the feet of the other.
    second = (
        *(f"--address=127.0.0.1:{port}", "--num-cpus=1", f"--temp-dir={folder}/2"),
        f"--dashboard-agent-listen-port={free_port()}",
    )
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(ray_node(env, tmp_path / "head.log", *head))
        wait_for_dashboard(dashboard, tmp_path / "head.log")
        stack.enter_context(ray_node(env, tmp_path / "second.log", *second))
        yield env


def wait_for_dashboard(port: int, log: Path) -> None:
    from ray.job_submission import JobSubmissionClient

    for attempt in range(60):
        try:
            JobSubmissionClient(f"http://127.0.0.1:{port}").list_jobs()
        except Exception:
            if attempt == 59:
                pytest.fail(log.read_text()[-4000:])
            subprocess.run(["sleep", "1"], check=True)
        else:
            return


def readme_command() -> list[str]:
    """The words of the README's line, without the substrates that not every machine has."""
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("ray job submit")]
    words = line.split()
    at = words.index("--substrates")
    return words[:at] + words[at + 2 :]


@pytest.mark.timeout(600)
def test_the_readmes_job_runs_from_a_fresh_clone(cluster: dict[str, str], tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    out = tmp_path / "out"
    small = ["--actions", "5", "--concurrency", "1", "--rollouts", "1", "--tasks", "spanset-*", "--wandb", "offline"]
    submit, *words = readme_command()
    substrates = ["local", "docker"] if probe("docker").ok else ["local"]
    done = subprocess.run(
        [BIN / submit, *words, "--substrates", ",".join(substrates), *small, "--out", str(out)],
        cwd=checkout,
        env=cluster,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "succeeded" in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert [(cell["substrate"], cell["valid"]) for cell in summary["cells"]] == [(kind, 1) for kind in substrates]
    assert {(group["substrate"], group["n"]) for group in summary["preparation"]} == {(kind, 1) for kind in substrates}
    assert list(Path(cluster["RAYROLL_CACHE_DIR"], "runner").glob("runner-*")), (
        "the workers built no runner of their own"
    )
