"""EC2, on moto's API and real machines: what the conformance suite does not ask."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import asyncssh
import pytest
import pytest_asyncio
from requirements import check, needs

from rayroll.errors import ConfigError, EngineDownError, NoRoomError, StartTimeoutError, SubstrateError
from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxRef, SandboxSpec
from rayroll.substrates._reaper import sweep
from rayroll.substrates._sigv4 import form, signed
from rayroll.substrates._ssh import dial
from rayroll.substrates.ec2 import Ec2Config, Ec2Substrate
from rayroll.testing.sandboxes import open_sandbox
from rayroll.types import FileTree

pytestmark = pytest.mark.ec2

needs_ec2 = needs("ec2")

Request = dict[str, str]
ERROR = "<Response><Errors><Error><Code>{0}</Code><Message>so it is</Message></Error></Errors></Response>"
LOST = "connection"
GARBLED = "nonsense"


class Between(ThreadingHTTPServer):
    """Stands between the SDK and EC2: keeps what is asked, and answers in EC2's place where a test says so."""

    def __init__(self) -> None:
        self.ec2 = urlsplit(os.environ["AWS_ENDPOINT_URL_EC2"])
        self.asked: list[Request] = []
        self.answer: Callable[[Request], str | None] = lambda request: None
        """The code of an error; ``LOST``: it happens, and the answer does not arrive; ``GARBLED``: what arrives is no
        answer; None: as EC2 does."""
        super().__init__(("127.0.0.1", 0), Handler)

    def calls(self, action: str) -> list[Request]:
        return [request for request in self.asked if request["Action"] == action]


class Handler(BaseHTTPRequestHandler):
    server: Between

    def do_POST(self) -> None:
        request = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode(), keep_blank_values=True))
        self.server.asked.append(request)
        code = self.server.answer(request)
        if code == GARBLED:
            return self.reply(200, b"")
        if code not in (None, LOST):
            return self.reply(503 if code == "RequestLimitExceeded" else 400, ERROR.format(code).encode())
        ec2 = http.client.HTTPConnection(self.server.ec2.netloc, timeout=60)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("content-length", "host")
        }
        ec2.request("POST", "/", urlencode(request), headers)
        answer = ec2.getresponse()
        body = answer.read()
        ec2.close()
        if code is None:
            self.reply(answer.status, body)
        return None

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/xml")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not into the test's output."""


@pytest.fixture
def between() -> Iterator[Between]:
    with Between() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture
async def ec2(between: Between, run_id: str) -> AsyncIterator[Ec2Substrate]:
    """The open substrate, by way of ``between``; whatever the test leaves of its run fails it."""
    async with configured(between) as substrate:
        yield substrate
        between.answer = lambda request: None
        left = await substrate.list({"run": run_id})
        for ref in left:
            await substrate.destroy(ref)
        assert left == [], "the test left machines behind"


def configured(between: Between, **fields: Any) -> Ec2Substrate:
    return Ec2Substrate(Ec2Config(endpoint_url=f"http://127.0.0.1:{between.server_port}", poll_s=0.1, **fields))


def first(n: int, action: str, code: str) -> Callable[[Request], str | None]:
    """Answer the first ``n`` calls of an action with an error."""
    left = [code] * n

    def answer(request: Request) -> str | None:
        return left.pop() if request["Action"] == action and left else None

    return answer


async def subnets(substrate: Ec2Substrate) -> list[tuple[str, str]]:
    """Ids and zones of the default VPC's."""
    calls, _, _ = substrate._opened()
    found = (await calls.once("describe_subnets"))["Subnets"]
    return [(subnet["SubnetId"], subnet["AvailabilityZone"]) for subnet in found]


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """What it gives at last that is not nothing."""
    async with asyncio.timeout(30):
        while not (found := await holds()):  # noqa: ASYNC110 - of another machine, which tells nobody
            await asyncio.sleep(0.05)
    return found


async def is_empty(substrate: Ec2Substrate, run_id: str) -> bool:
    return not await substrate.list({"run": run_id})


async def test_a_machine_is_tagged_from_its_launch_and_ends_when_it_goes_off(
    ec2: Ec2Substrate, between: Between, run_id: str
) -> None:
    async with open_sandbox(ec2, run_id=run_id, owner="host/7 of *"):
        assert [ref.owner for ref in await ec2.list({"run": run_id, "owner": "host/7 of *"})] == ["host/7 of *"]
    (launch,) = between.calls("RunInstances")
    tags = {launch[key]: launch[key[:-3] + "Value"] for key in launch if key.endswith(".Key")}
    assert (tags["rayroll.run"], tags["rayroll.owner"]) == (run_id, "host/7 of *")
    assert launch["InstanceInitiatedShutdownBehavior"] == "terminate"


async def test_whoever_answers_with_another_host_key_is_refused(between: Between, run_id: str) -> None:
    """A machine that lets our key in, and does not have its own: nothing runs in it."""

    def impostor(request: Request) -> None:
        if request["Action"] == "RunInstances" and "UserData" in request:
            ours = base64.b64decode(request["UserData"]).decode()
            key = next(line.split("'")[1] for line in ours.splitlines() if line.startswith("echo 'ssh-ed25519"))
            script = f"#!/bin/sh\nmkdir -p /root/.ssh; echo '{key}' >/root/.ssh/authorized_keys\n"
            request["UserData"] = base64.b64encode(script.encode()).decode()

    between.answer = impostor
    async with configured(between, create_timeout_s=5.0) as substrate:
        with pytest.raises(StartTimeoutError, match="another host key"):
            await substrate.create(SandboxSpec(), Lease(run_id, "test"))
        assert await substrate.list({"run": run_id}) == []


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
async def test_a_launch_that_is_tried_again_has_the_same_client_token(
    ec2: Ec2Substrate, between: Between, run_id: str, code: str
) -> None:
    between.answer = first(2, "RunInstances", code)
    async with open_sandbox(ec2, run_id=run_id):
        tokens = [launch["ClientToken"] for launch in between.calls("RunInstances")]
    assert len(tokens) == 3 and len(set(tokens)) == 1


async def test_a_launch_whose_answer_is_lost_makes_one_machine(
    ec2: Ec2Substrate, between: Between, run_id: str
) -> None:
    between.answer = first(2, "RunInstances", LOST)
    async with open_sandbox(ec2, run_id=run_id) as live:
        assert [ref.id for ref in await ec2.list({"run": run_id})] == [live.ref.id]
    assert len(between.calls("RunInstances")) == 3


async def test_what_was_made_by_a_launch_that_never_answered_is_ended(between: Between, run_id: str) -> None:
    between.answer = lambda request: LOST if request["Action"] == "RunInstances" else None
    async with configured(between, create_timeout_s=2.0) as substrate:
        with pytest.raises((EngineDownError, StartTimeoutError)):
            await substrate.create(SandboxSpec(), Lease(run_id, "test"))
        await until(lambda: is_empty(substrate, run_id))


async def test_a_machine_that_cannot_be_seen_yet_is_waited_for(
    ec2: Ec2Substrate, between: Between, run_id: str
) -> None:
    between.answer = first(2, "DescribeInstances", "InvalidInstanceID.NotFound")
    async with open_sandbox(ec2, run_id=run_id) as live:
        assert (await live.sh("echo seen")).output == "seen\n"
    assert len(between.calls("RunInstances")) == 1


async def test_a_machine_that_is_never_seen_is_ended_by_its_id(between: Between, run_id: str) -> None:
    between.answer = lambda r: "InvalidInstanceID.NotFound" if r["Action"] == "DescribeInstances" else None
    async with configured(between, visible_timeout_s=1.0) as substrate:
        with pytest.raises(SubstrateError, match="does not know the machine") as caught:
            await substrate.create(SandboxSpec(), Lease(run_id, "test"))
        assert [end["InstanceId.1"] for end in between.calls("TerminateInstances")] == [caught.value.facts["id"]]
        between.answer = lambda request: None
        assert await substrate.list({"run": run_id}) == []


async def test_an_outage_is_no_part_of_the_time_that_a_machine_is_unknown(between: Between, run_id: str) -> None:
    looks_s: list[float] = []

    def answer(request: Request) -> str | None:
        if request["Action"] != "DescribeInstances" or not between.calls("RunInstances"):
            return None
        looks_s.append(time.monotonic())
        if len(looks_s) > 1 and looks_s[-1] < looks_s[0] + 2.0:
            return "RequestLimitExceeded"
        if len(looks_s) > 1:
            between.answer = lambda request: None
        return "InvalidInstanceID.NotFound"

    async with configured(between, visible_timeout_s=1.0) as substrate:
        between.answer = answer
        async with open_sandbox(substrate, run_id=run_id) as live:
            assert (await live.sh("echo seen")).output == "seen\n"


async def test_an_answer_that_cannot_be_read_is_asked_for_again(
    ec2: Ec2Substrate, between: Between, run_id: str
) -> None:
    answers = [first(1, action, GARBLED) for action in ("RunInstances", "DescribeInstances")]
    between.answer = lambda request: next((code for answer in answers if (code := answer(request))), None)
    async with open_sandbox(ec2, run_id=run_id) as live:
        assert (await live.sh("echo read")).output == "read\n"
    assert len({launch["ClientToken"] for launch in between.calls("RunInstances")}) == 1


async def test_without_room_here_it_is_launched_there(ec2: Ec2Substrate, between: Between, run_id: str) -> None:
    (full, _), (free, zone), *_ = await subnets(ec2)
    between.answer = lambda r: "InsufficientInstanceCapacity" if r.get("SubnetId") == full else None
    async with (
        configured(between, subnets=(full, free), instance_types=("t3.medium",)) as substrate,
        open_sandbox(substrate, run_id=run_id) as live,
    ):
        assert live.sandbox.facts["zone"] == zone


async def test_without_room_anywhere_it_says_so_by_its_deadline(between: Between, run_id: str) -> None:
    between.answer = lambda r: "SpotMaxPriceTooLow" if r.get("ClientToken") else None
    async with configured(between, market="spot", create_timeout_s=2.0) as substrate:
        with pytest.raises(NoRoomError) as caught:
            await substrate.create(SandboxSpec(), Lease(run_id, "test"))
    assert caught.value.facts["refused"] == {"t3.medium": "SpotMaxPriceTooLow", "t3a.medium": "SpotMaxPriceTooLow"}


async def test_types_that_are_too_small_are_passed_over(between: Between, run_id: str) -> None:
    async with configured(between, instance_types=("t3.nano", "t3.large")) as substrate:
        async with open_sandbox(substrate, SandboxSpec(memory_mib=6000), run_id=run_id) as live:
            assert live.sandbox.facts["type"] == "t3.large"
        with pytest.raises(ConfigError, match="too small"):
            await substrate.create(SandboxSpec(memory_mib=60_000), Lease(run_id, "test"))


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.4])
async def test_a_cancelled_create_leaves_nothing(ec2: Ec2Substrate, run_id: str, delay_s: float) -> None:
    create = asyncio.create_task(ec2.create(SandboxSpec(), Lease(run_id, "test")))
    await asyncio.wait({create}, timeout=delay_s)
    create.cancel()
    with pytest.raises(asyncio.CancelledError):
        await create
    assert await ec2.list({"run": run_id}) == []


async def test_a_machine_goes_off_with_its_lease_and_is_terminated(ec2: Ec2Substrate, run_id: str) -> None:
    """Also when its stream has broken: nobody holds anything of it any more."""
    sandbox = await ec2.create(SandboxSpec(), Lease(run_id, "test", 2.0))
    client = await RunnerClient.connect(sandbox.channel, lease_s=2.0)
    ec2._channels[sandbox.ref.id].abort()
    await client.close()
    assert "InstanceInitiatedShutdown" in await until(lambda: ec2.cause_of_death(sandbox.ref))
    assert await ec2.list({"run": run_id}) == []
    await ec2.destroy(sandbox.ref)


async def test_a_machine_that_nobody_comes_to_goes_off(between: Between, run_id: str) -> None:
    """Its host has died in between: only the timer in its user data is left."""

    def soon(request: Request) -> None:
        if request["Action"] == "RunInstances" and "UserData" in request:
            script = base64.b64decode(request["UserData"]).decode().replace("(sleep 360;", "(sleep 1;")
            request["UserData"] = base64.b64encode(script.encode()).decode()

    between.answer = soon
    async with configured(between) as substrate:
        create = asyncio.create_task(substrate.create(SandboxSpec(), Lease(run_id, "test")))
        await until(lambda: substrate.list({"run": run_id}))
        between.answer = lambda r: "InternalError" if r["Action"] == "TerminateInstances" else None
        create.cancel()
        await asyncio.wait({create})
        await until(lambda: is_empty(substrate, run_id))
        between.answer = lambda request: None


async def test_a_stopped_machine_is_started_instead_of_launching_one(between: Between, run_id: str) -> None:
    async with configured(between, stopped_pool=run_id) as substrate:
        (id,) = await substrate.stock(1)
        await until(lambda: substrate.cause_of_death(SandboxRef("ec2", id, "", "")))
        async with open_sandbox(substrate, run_id=run_id) as live:
            assert (live.ref.id, live.sandbox.rung) == (id, "warm")
            assert (await live.sh("echo awake")).output == "awake\n"
            assert len(between.calls("RunInstances")) == 1, "the one that stocked the pool"
            async with open_sandbox(substrate, run_id=run_id) as other:
                assert other.sandbox.rung == "cached", "the pool is empty"
        assert "User initiated" in await substrate.cause_of_death(live.ref), "it is used once"


async def test_a_command_outlives_its_machines_ssh_server(ec2: Ec2Substrate, run_id: str) -> None:
    """Killed with every connection, back after three seconds: the command runs once, and its result arrives."""
    async with open_sandbox(ec2, run_id=run_id) as live:
        command = asyncio.create_task(live.sh("echo ran >>/tmp/log; sleep 1; cat /tmp/log"))
        connection = await dial(ec2._hosts[live.ref.id], timeout_s=10.0)
        later = "setsid sh -c 'sleep 3; /usr/sbin/sshd -f /.rayroll/ssh/config' >/dev/null 2>&1 </dev/null &"
        with contextlib.suppress(asyncssh.Error):
            await connection.run(f"{later} kill -9 $(pidof sshd)", check=True)
        await connection.wait_closed()
        assert (await command).output == "ran\n"
        assert live.client.reattached == 1


async def test_a_sandbox_without_a_network_reaches_not_even_its_own_machine(ec2: Ec2Substrate, run_id: str) -> None:
    async with open_sandbox(ec2, run_id=run_id) as live:
        r = await live.sh("ip -brief address; exec 3<>/dev/tcp/127.0.0.1/22")
        assert "eth0" not in r.output and "refused" in r.output


async def test_a_dockerfile_is_refused_with_what_to_do(ec2: Ec2Substrate, run_id: str) -> None:
    spec = SandboxSpec(environment=FileTree.from_files({"Dockerfile": "FROM busybox\n"}))
    with pytest.raises(ConfigError, match="name it in images"):
        await ec2.create(spec, Lease(run_id, "test"))


async def test_a_probe_says_what_is_forbidden(between: Between) -> None:
    between.answer = lambda request: "UnauthorizedOperation" if request.get("DryRun") else None
    probe = await configured(between).probe()
    assert (probe.ok, "docs/substrates/ec2.md" in probe.fix) == (False, True)


async def test_a_probe_without_credentials_says_how_to_get_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    probe = await Ec2Substrate(Ec2Config()).probe()
    assert (probe.ok, probe.fix) == (False, "aws configure, or set AWS_PROFILE")


async def test_the_reaper_terminates_what_its_host_left_and_nothing_younger(ec2: Ec2Substrate, run_id: str) -> None:
    """By the API and the tags alone, as a process does that has no SDK."""
    lease = Lease(run_id, "host/7 of *")
    watch = {"sweep": "ec2", "run": lease.run_id, "owner": lease.owner, "tls_folder": None, "region": "eu-central-1"}
    watch |= {"url": ec2._facts["endpoint"], "credentials": {"key": "any", "secret": "any", "token": None}}
    sandbox = await ec2.create(SandboxSpec(), lease)
    assert await asyncio.to_thread(sweep, watch, time.time() - 600, []) == 0
    assert await asyncio.to_thread(sweep, {**watch, "owner": "host/7 of x"}, time.time(), []) == 0
    assert await asyncio.to_thread(sweep, watch, time.time(), []) == 1
    assert await is_empty(ec2, run_id)
    await ec2.destroy(sandbox.ref)


def test_the_reapers_signature_is_the_sdks() -> None:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    body = form("DescribeInstances", {"Filter.1.Name": "tag:rayroll.run", "Filter.1.Value.1": "a b/*~ü"})
    now_s = time.time()
    ours = signed(
        body,
        host="ec2.eu-central-1.amazonaws.com",
        region="eu-central-1",
        credentials={"key": "K", "secret": "S", "token": "T"},
        now_unix_s=now_s,
    )
    headers = {"content-type": ours["content-type"], "x-amz-date": ours["x-amz-date"], "x-amz-security-token": "T"}
    request = AWSRequest("POST", "https://ec2.eu-central-1.amazonaws.com/", headers=headers, data=body)
    auth = SigV4Auth(Credentials("K", "S", "T"), "ec2", "eu-central-1")
    request.context["timestamp"] = ours["x-amz-date"]
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert ours["authorization"].endswith(signature)


def test_a_configuration_without_a_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="launch_template"):
        Ec2Config.parse({"ami": None})
    check("ec2")
