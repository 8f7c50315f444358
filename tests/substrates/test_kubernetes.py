"""Kubernetes, on a real cluster: what the conformance suite does not ask."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker as docker_py
import pytest
import pytest_asyncio
import yaml
from little import until_true
from requirements import check, require

from rayroll.errors import ConfigError, EngineDownError, ImageError, SandboxLostError, StartTimeoutError
from rayroll.runner.build import runner_path
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, Login, SandboxSpec
from rayroll.substrates._kube_ground import pull_seconds
from rayroll.substrates._pod import merged
from rayroll.substrates._pod_stream import exit_code_of
from rayroll.substrates._published import Publisher
from rayroll.substrates.kubernetes import KubernetesConfig, KubernetesSubstrate
from rayroll.testing.conformance._program import program
from rayroll.testing.sandboxes import Live, open_sandbox
from rayroll.types import FileTree

pytestmark = pytest.mark.kubernetes

CONFIG = KubernetesConfig(network="open", request_share=0.1)
DOCKERFILE = FileTree.from_files({"Dockerfile": "FROM busybox:latest\nRUN echo here > /built\n"})
BUSYBOX = SandboxSpec(image="busybox:latest")


@pytest_asyncio.fixture
async def cluster(run_id: str) -> AsyncIterator[KubernetesSubstrate]:
    """The open substrate; whatever the test leaves of its run fails it."""
    check("kubernetes")
    async with KubernetesSubstrate(CONFIG) as substrate:
        yield substrate
        left = await substrate.list({"run": run_id})
        for ref in left:
            await substrate.destroy(ref)
        assert left == [], "the test left pods behind"


@contextlib.asynccontextmanager
async def other(**fields: Any) -> AsyncIterator[KubernetesSubstrate]:
    """Another substrate object, of a config that differs in these fields."""
    check("kubernetes")
    async with KubernetesSubstrate(CONFIG.model_copy(update=fields)) as substrate:
        yield substrate


def kubeconfig_text() -> str:
    return Path(os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser()).read_text()


async def pod_of(substrate: KubernetesSubstrate, live: Live) -> dict[str, Any]:
    pod = await substrate._look(live.ref.id)
    assert pod is not None
    return pod


# starts, and how they fail


async def test_a_node_that_pulls_says_so_and_then_the_start_is_cold_and_the_pull_apart(
    cluster: KubernetesSubstrate, run_id: str
) -> None:
    require("registry", None if "RAYROLL_TESTBED_REGISTRY" in os.environ else "there is none to pull from")
    name = f"{os.environ['RAYROLL_TESTBED_REGISTRY']}/pulled-{run_id}"
    api: Any = docker_py.from_env().api
    # Random, so that no layer of it is on the node.
    dockerfile = b"FROM busybox\nRUN head -c 80000000 /dev/urandom >/ballast\n"
    await asyncio.to_thread(lambda: list(api.build(fileobj=io.BytesIO(dockerfile), tag=f"{name}:1", rm=True)))
    await asyncio.to_thread(lambda: list(api.push(name, "1", stream=True)))
    await asyncio.to_thread(api.remove_image, f"{name}:1")
    spec = replace(BUSYBOX, image=f"{name}:1")
    async with open_sandbox(cluster, spec, run_id=run_id) as live:
        ground = cluster._opened()[2]

        async def is_told() -> bool:  # a busy kubelet sends few events a second
            return await ground.pull_s(live.ref.id) > 0

        await until_true(is_told)
        assert (live.sandbox.rung == "cold") == ("pull" in live.sandbox.phases_s)
        assert live.sandbox.phases_s["boot"] > 0
    async with open_sandbox(cluster, spec, run_id=run_id) as again:
        assert (again.sandbox.rung, "pull" in again.sandbox.phases_s) == ("cached", False)
        assert await ground.pull_s(again.ref.id) == 0
    await asyncio.to_thread(api.remove_image, f"{name}:1", force=True)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ('Successfully pulled image "busybox" in 345.5ms', 0.3455),
        ('Successfully pulled image "busybox" in 2.5s', 2.5),
        ('Successfully pulled image "a/b:1" in 1m2.25s (1m5s including waiting). Image size: 12 bytes.', 62.25),
        ('Successfully pulled image "busybox" in 1h0m1s', 3601.0),
        ('Container image "busybox" already present on machine', 0.0),
        ('Successfully pulled image "busybox"', 0.0),
    ],
)
def test_how_long_a_pull_took_is_what_its_kubelet_says(said: str, seconds: float) -> None:
    assert pull_seconds(said) == pytest.approx(seconds)


async def test_an_image_that_cannot_be_pulled_says_so_with_the_kubelets_words(
    cluster: KubernetesSubstrate, run_id: str
) -> None:
    start_s = time.monotonic()
    with pytest.raises(ImageError) as caught:
        await cluster.create(SandboxSpec(image="127.0.0.1:1/nothing:0"), Lease(run_id, "test"))
    assert caught.value.facts["reason"] in ("ErrImagePull", "ImagePullBackOff")
    assert "127.0.0.1:1" in caught.value.facts["said"]
    assert time.monotonic() - start_s < CONFIG.create_timeout_s, "it was not waited for as if it could still come"


async def test_an_image_that_may_not_be_pulled_is_told_from_one_that_cannot(run_id: str) -> None:
    async with other(image_pull_policy="Never") as substrate:
        with pytest.raises(ImageError) as caught:
            await substrate.create(SandboxSpec(image="nothing-of-that-name:0"), Lease(run_id, "test"))
        assert caught.value.facts["reason"] == "ErrImageNeverPull"
        assert await substrate.list({"run": run_id}) == []


async def test_a_pod_that_no_node_takes_is_waited_for_and_then_says_why(run_id: str) -> None:
    async with other(schedule_patience_s=2.0, node_selector={"rayroll.test/no-such": "node"}) as substrate:
        start_s = time.monotonic()
        with pytest.raises(StartTimeoutError) as caught:
            await substrate.create(BUSYBOX, Lease(run_id, "test"))
        assert time.monotonic() - start_s >= 2.0
        assert "node" in caught.value.facts["said"], "the scheduler's own words"
        assert await substrate.list({"run": run_id}) == []


async def test_a_pod_that_gets_its_node_late_starts_and_the_wait_is_no_part_of_its_start(run_id: str) -> None:
    """Nothing fits until the first one, which has asked for nearly all of the node's memory, is gone."""
    async with other(request_share=1.0) as substrate:
        nodes = await substrate._opened()[0].call(lambda core, namespace, options: core.list_node(**options))
        allocatable_mib = int(nodes["items"][0]["status"]["allocatable"]["memory"].removesuffix("Ki")) >> 10
        big = replace(BUSYBOX, cpus=0.01, memory_mib=round(allocatable_mib * 0.6))
        async with open_sandbox(substrate, big, run_id=run_id) as first:
            second = asyncio.create_task(substrate.create(big, Lease(run_id, "test")))
            await asyncio.sleep(2.0)
            assert not second.done()
            await substrate.destroy(first.ref)
        start_s = time.monotonic()
        sandbox = await second
        await substrate.destroy(sandbox.ref)
        assert sum(sandbox.phases_s.values()) < time.monotonic() - start_s + 1.0


async def test_a_cancelled_create_leaves_nothing_even_before_the_api_has_answered(
    cluster: KubernetesSubstrate, run_id: str
) -> None:
    for _ in range(3):
        create = asyncio.create_task(cluster.create(BUSYBOX, Lease(run_id, "test")))
        await asyncio.sleep(0.02)
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
    assert await cluster.list({"run": run_id}) == []


async def test_a_dockerfile_is_refused_where_nobody_said_what_becomes_of_it(
    cluster: KubernetesSubstrate, run_id: str
) -> None:
    with pytest.raises(ConfigError, match="registry"):
        await cluster.create(SandboxSpec(environment=DOCKERFILE), Lease(run_id, "test"))


async def test_a_dockerfile_is_built_on_the_nodes_engine(run_id: str) -> None:
    check("docker")
    async with (
        other(registry="") as substrate,
        open_sandbox(substrate, SandboxSpec(environment=DOCKERFILE), run_id=run_id) as live,
    ):
        assert (await live.sh("cat /built")).output == "here\n"


# what a pod is, and how it ends


async def test_a_pod_has_what_was_asked_for_and_nothing_that_was_not(cluster: KubernetesSubstrate, run_id: str) -> None:
    spec = replace(BUSYBOX, cpus=0.5, memory_mib=128)
    async with open_sandbox(cluster, spec, run_id=run_id) as live:
        pod = (await pod_of(cluster, live))["spec"]
        (container,) = pod["containers"]
        assert (await live.sh("ls /var/run/secrets 2>&1; true")).output.find("kubernetes.io") < 0
        assert (pod["restartPolicy"], pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (
            *("Never", False, False),
        )
        assert pod["activeDeadlineSeconds"] == CONFIG.lifetime_s
        assert container["resources"]["limits"]["memory"] == "128Mi"
        assert container["resources"]["limits"]["cpu"] == "500m"
        assert not container["securityContext"]["privileged"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert (await live.sh("touch /.rayroll/runner")).exit_code != 0, "an agent cannot change the runner"


async def test_what_eats_the_memory_of_the_whole_pod_is_its_cause_of_death(
    cluster: KubernetesSubstrate, run_id: str
) -> None:
    """Files in memory belong to nobody who could be killed for them, so in the end the runner is."""
    async with open_sandbox(cluster, replace(BUSYBOX, memory_mib=64), run_id=run_id) as live:
        path = live.path("intruder")
        await live.client.write_file(path, await asyncio.to_thread(program, live.client.greeting.machine), mode=0o755)
        with pytest.raises(SandboxLostError):
            while True:
                await live.sh("dd if=/dev/zero of=/dev/shm/$RANDOM$$ bs=1M count=20; true")
        assert await cluster.cause_of_death(live.ref) == "oom"

        async def is_removed_although_nobody_asked() -> bool:
            return await cluster.list({"run": run_id}) == []

        await until_true(is_removed_although_nobody_asked)


async def test_what_another_destroys_is_dead_even_if_its_kubelet_has_not_yet_said_that_it_runs(
    cluster: KubernetesSubstrate, run_id: str
) -> None:
    async with other() as stranger:
        for _ in range(4):  # a kubelet looks once a second
            async with open_sandbox(cluster, BUSYBOX, run_id=run_id) as live:
                await stranger.destroy(live.ref)
                with pytest.raises(SandboxLostError):
                    await live.sh("echo still here")


async def test_a_template_lies_below_what_is_ours(run_id: str, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(
        "metadata: {labels: {team: blue}}\n"
        "spec:\n"
        "  priority: 0\n"
        "  containers:\n"
        "  - name: sandbox\n"
        "    env: [{name: FROM_TEMPLATE, value: yes it is}]\n"
        "    volumeMounts: [{name: scratch, mountPath: /scratch}]\n"
        "  volumes: [{name: scratch, emptyDir: {}}]\n"
    )
    async with other(pod_template=str(template)) as substrate, open_sandbox(substrate, BUSYBOX, run_id=run_id) as live:
        assert (await live.sh('touch /scratch/here && echo "$FROM_TEMPLATE"')).output == "yes it is\n"
        assert (await pod_of(substrate, live))["metadata"]["labels"]["team"] == "blue"


async def test_an_image_of_ours_brings_the_runner_where_there_is_one(run_id: str) -> None:
    check("docker")
    files = {
        "Dockerfile": "FROM busybox:latest\nCOPY runner /rayroll/runner\n",
        "runner": await asyncio.to_thread(lambda: runner_path().read_bytes()),
    }
    publisher = Publisher("kubernetes", "", None)
    image, _ = await publisher.ensure(
        SandboxSpec(environment=FileTree.from_files(files, frozenset({"runner"}))), "", {}
    )
    await publisher.close()
    async with other(runner_image=image) as substrate, open_sandbox(substrate, BUSYBOX, run_id=run_id) as live:
        assert [volume for volume in (await pod_of(substrate, live))["spec"]["volumes"] if "configMap" in volume] == []
        assert (await live.sh("touch /.rayroll/runner")).exit_code != 0, "an agent cannot change the runner"
        assert (await live.sh("echo brought")).output == "brought\n"


@pytest.mark.parametrize(
    "taken",
    [
        "spec: {restartPolicy: Always}",
        "spec: {hostNetwork: true}",
        "spec: {containers: [{name: sandbox, image: mine}]}",
        "spec: {containers: [{name: beside, securityContext: {privileged: true}}]}",
        "metadata: {labels: {rayroll.run: mine}}",
        "kind: Deployment",
    ],
)
async def test_a_template_that_sets_what_is_ours_is_refused(taken: str, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(taken)
    with pytest.raises(ConfigError, match="pod template"):
        await KubernetesSubstrate(KubernetesConfig(pod_template=str(template))).open()


def test_lists_of_named_things_are_joined_by_name() -> None:
    theirs = {"containers": [{"name": "sandbox", "env": [{"name": "A", "value": "1"}]}, {"name": "beside"}]}
    ours = {"containers": [{"name": "sandbox", "image": "i", "env": [{"name": "B", "value": "2"}]}]}
    assert merged(theirs, ours)["containers"] == [
        {"name": "sandbox", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
        {"name": "beside"},
    ]


# streams


class Wire:
    """A TCP proxy in front of the API server, which cuts what is silent for too long, or everything at once."""

    def __init__(self, target: str, idle_s: float) -> None:
        self._target, self._idle_s = urlsplit(target), idle_s
        self._serving: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        behind, to_it = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            async with asyncio.timeout(self._idle_s) as clock:
                await asyncio.gather(self._pass(reader, to_it, clock), self._pass(behind, writer, clock))
        except TimeoutError:
            self.cuts += 1
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            to_it.transport.abort()
            self._serving.discard(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, clock: asyncio.Timeout) -> None:
        while data := await source.read(1 << 16):
            clock.reschedule(asyncio.get_running_loop().time() + self._idle_s)
            sink.write(data)
            await sink.drain()


@contextlib.asynccontextmanager
async def through_a_wire(tmp_path: Path, idle_s: float) -> AsyncIterator[tuple[KubernetesSubstrate, Wire]]:
    """The substrate, with a proxy between it and the API server."""
    check("kubernetes")
    async with other() as direct:
        server = direct._opened()[0].endpoint.url
    async with Wire(server, idle_s) as wire:
        (tmp_path / "kubeconfig").write_text(kubeconfig_text().replace(server, wire.url))
        async with other(kubeconfig=str(tmp_path / "kubeconfig")) as substrate:
            yield substrate, wire


async def test_renewing_the_lease_keeps_a_silent_stream_from_being_cut(tmp_path: Path, run_id: str) -> None:
    """60 s and a lease of 30, a tenth as long each: the policy thinks for two limits, and the stream is still there."""
    async with (
        through_a_wire(tmp_path, 6.0) as (substrate, wire),
        open_sandbox(substrate, BUSYBOX, run_id=run_id, lease_s=3.0) as live,
    ):
        await asyncio.sleep(13.0)
        assert (await live.sh("echo here")).output == "here\n"
        assert live.client.reattached == 0
        assert wire.cuts > 0, "the proxy does cut what is silent: connections that wait for the next call"


async def test_a_stream_that_is_cut_is_attached_again_and_the_command_goes_on(tmp_path: Path, run_id: str) -> None:
    async with (
        through_a_wire(tmp_path, 60.0) as (substrate, wire),
        open_sandbox(substrate, BUSYBOX, run_id=run_id) as live,
    ):
        call = asyncio.create_task(live.sh("echo once >>/tmp/log; sleep 1; cat /tmp/log; exit 3"))
        await asyncio.sleep(0.5)
        await wire.cut()
        result = await call
        assert (result.output, result.exit_code, live.client.reattached) == ("once\n", 3, 1)
        await live.client.ping()
        assert [ref.state for ref in await substrate.list({"run": run_id})] == ["running"]


async def test_the_pods_own_address_leads_to_its_runner_and_asks_for_the_key(run_id: str) -> None:
    async with (
        other(carrier="address") as substrate,
        open_sandbox(substrate, BUSYBOX, run_id=run_id) as live,
    ):
        assert live.sandbox.facts["carrier"] == "address"
        assert (await live.sh("echo direct")).output == "direct\n"
        pod = await pod_of(substrate, live)
        reader, writer = await asyncio.open_connection(pod["status"]["podIP"], CONFIG.port)
        writer.write(bytes(4096))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read(1)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("image", "user"), [("busybox:latest", "root"), ("debian:bookworm-slim", "daemon")])
async def test_a_shell_ends_with_its_own_code_and_not_with_one_that_was_made_up(
    cluster: KubernetesSubstrate, run_id: str, image: str, user: str
) -> None:
    async with open_sandbox(cluster, SandboxSpec(image=image), run_id=run_id) as live:
        script = 'id -un; echo "$WORD in $PWD"; echo apart >&2; exit 42'
        login = Login("/bin/sh", ("/bin/sh", "-c", script), "/tmp", user=user, env={"WORD": "it is"})
        shell = await cluster.shell(live.ref, login)
        printed: dict[int, bytes] = {1: b"", 2: b""}
        while (piece := await shell.read())[1]:
            printed[piece[0]] += piece[1]
        assert printed == {1: f"{user}\nit is in /tmp\n".encode(), 2: b"apart\n"}
        assert await shell.exit_code() == 42
        await shell.close()


async def test_a_shell_with_a_terminal_has_its_size_and_its_keys(cluster: KubernetesSubstrate, run_id: str) -> None:
    async with open_sandbox(cluster, run_id=run_id) as live:
        shell = await cluster.shell(live.ref, Login("/bin/sh", terminal=(31, 97)))
        await shell.write(b'until [ "$(stty size)" = "31 97" ]; do sleep 0.1; done; exit 7\n')
        while (await shell.read())[1]:
            pass
        assert await shell.exit_code() == 7
        await shell.close()


async def test_what_is_kept_outlives_its_host_until_its_time_is_over(cluster: KubernetesSubstrate, run_id: str) -> None:
    async with other() as host:
        sandbox = await host.create(BUSYBOX, Lease(run_id, "test"))
        runner = await RunnerClient.connect(sandbox.channel)
        await host.keep(sandbox.ref, time.time() + 5.0)
        await runner.leave(5.0)
    (ref,) = await cluster.list({"run": run_id})
    assert ref.is_kept
    assert await cluster.sweep({"run": run_id}, older_than_s=0.0) == ()
    deadline_s = time.monotonic() + 20.0
    while (await cluster.list({"run": run_id}))[0].state == "running":
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)
    assert [swept.id for swept in await cluster.sweep({"run": run_id}, older_than_s=0.0)] == [ref.id]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"status": "Success"}, 0),
        ({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "42"}]}}, 42),
        ({"status": "Failure", "message": "container not found"}, None),
        (None, None),
    ],
)
def test_a_status_that_did_not_come_is_no_success(said: object, code: int | None) -> None:
    assert exit_code_of(b"" if said is None else json.dumps(said).encode()) == code


# who may, and where


async def test_any_run_and_owner_is_found_again(cluster: KubernetesSubstrate, run_id: str) -> None:
    owner = "host/7 of ü, " + 100 * "very "
    async with open_sandbox(cluster, BUSYBOX, run_id=run_id, owner=owner) as live:
        assert [ref.id for ref in await cluster.list({"run": run_id, "owner": owner})] == [live.ref.id]
        assert [ref.owner for ref in await cluster.list({"run": run_id})] == [owner]


async def test_one_that_asks_for_no_network_is_in_the_policy(run_id: str) -> None:
    """That the cluster's network keeps to policies is the cluster's affair; the test bed's does not."""
    async with other(network="policy") as substrate, open_sandbox(substrate, BUSYBOX, run_id=run_id) as live:
        ground = substrate._opened()[2]
        assert ground._has_policy
        labels = (await pod_of(substrate, live))["metadata"]["labels"]
        assert labels["rayroll.network"] == "none"
        await substrate.set_network(live.ref, True)
        labels = (await pod_of(substrate, live))["metadata"]["labels"]
        assert labels["rayroll.network"] == "open"


@contextlib.asynccontextmanager
async def somebody(run_id: str, tmp_path: Path, rules: list[Any]) -> AsyncIterator[str]:
    """The kubeconfig of a service account with just these rights; needs an administrator's own."""
    check("kubernetes")
    rbac: Any = importlib.import_module("kubernetes.client").RbacAuthorizationV1Api
    name = {"metadata": {"name": run_id}}
    subject = {"kind": "ServiceAccount", "name": run_id}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": run_id}

    def make(core: Any, namespace: str, options: Any) -> Any:
        core.create_namespaced_service_account(namespace, name, **options)
        rights = rbac(core.api_client)
        rights.create_namespaced_role(namespace, {**name, "rules": rules}, **options)
        rights.create_namespaced_role_binding(namespace, {**name, "roleRef": role, "subjects": [subject]}, **options)
        return core.create_namespaced_service_account_token(run_id, namespace, {"spec": {"audiences": None}}, **options)

    def end(core: Any, namespace: str, options: Any) -> Any:
        rbac(core.api_client).delete_namespaced_role_binding(run_id, namespace)
        rbac(core.api_client).delete_namespaced_role(run_id, namespace)
        return core.delete_namespaced_service_account(run_id, namespace, **options)

    async with other() as admin:
        api = admin._opened()[0]
        try:
            token = (await api.call(make))["status"]["token"]
            kubeconfig = yaml.safe_load(kubeconfig_text())
            kubeconfig["users"][0]["user"] = {"token": token}
            (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
            yield str(tmp_path / "kubeconfig")
        finally:
            await api.call(end)


async def test_the_role_of_the_documents_is_enough_for_everything(run_id: str, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/substrates/kubernetes.md").read_text()
    role = yaml.safe_load(page.partition("```yaml\napiVersion: rbac")[2].partition("```")[0].partition("\n")[2])
    async with (
        somebody(run_id, tmp_path, role["rules"]) as kubeconfig,
        other(kubeconfig=kubeconfig, network="policy") as host,
    ):
        assert (await host.probe()).ok
        async with open_sandbox(host, BUSYBOX, run_id=run_id) as live:
            assert (await live.sh("echo allowed")).output == "allowed\n"
            assert await host._opened()[2].news(live.ref.id) != (False, "")
            shell = await host.shell(live.ref, Login("/bin/sh", ("true",)))
            await shell.close()


async def test_what_a_user_may_not_do_is_named(run_id: str, tmp_path: Path) -> None:
    some = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]}]
    async with somebody(run_id, tmp_path, some) as kubeconfig:
        probe = await KubernetesSubstrate(KubernetesConfig(kubeconfig=kubeconfig, network="open")).probe()
        assert not probe.ok
        assert "create pods, patch pods, get pods/attach" in probe.reason
        assert "get pods," not in probe.reason


async def test_a_wrong_token_is_said_to_be_one(tmp_path: Path) -> None:
    check("kubernetes")
    kubeconfig = yaml.safe_load(kubeconfig_text())
    kubeconfig["users"][0]["user"] = {"token": "wrong"}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    probe = await KubernetesSubstrate(KubernetesConfig(kubeconfig=str(tmp_path / "kubeconfig"))).probe()
    assert not probe.ok
    assert "credentials" in probe.fix


async def test_a_cluster_that_is_not_there_is_a_probe_with_a_fix(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    substrate = KubernetesSubstrate(KubernetesConfig(kubeconfig=str(path)))
    with pytest.raises(EngineDownError):
        await substrate.open()
    assert "kubectl" in (await substrate.probe()).fix
    nowhere = await KubernetesSubstrate(KubernetesConfig(kubeconfig=str(tmp_path / "nothing"))).probe()
    assert "KUBECONFIG" in nowhere.fix
