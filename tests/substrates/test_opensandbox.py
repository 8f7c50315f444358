"""OpenSandbox, on a real server: what the conformance suite does not ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
import pytest_asyncio
from requirements import check

from rayroll.errors import ConfigError, EngineDownError, SubstrateError
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates.opensandbox import OpenSandboxConfig, OpenSandboxSubstrate
from rayroll.testing.sandboxes import open_sandbox
from rayroll.types import FileTree

pytestmark = pytest.mark.opensandbox

DOCKERFILE = FileTree.from_files({"Dockerfile": "FROM busybox:latest\nRUN echo here > /built\n"})


@pytest_asyncio.fixture
async def hosted(run_id: str) -> AsyncIterator[OpenSandboxSubstrate]:
    """The open substrate; whatever the test leaves of its run fails it."""
    check("opensandbox")
    async with OpenSandboxSubstrate(OpenSandboxConfig(network="open")) as substrate:
        yield substrate
        left = await substrate.list({"run": run_id})
        for ref in left:
            await substrate.destroy(ref)
        assert left == [], "the test left sandboxes behind"


async def expires_in_s(substrate: OpenSandboxSubstrate, id: str) -> float:
    info = await substrate._info(id)
    assert info is not None and info.expires_at is not None
    return (info.expires_at - datetime.now(UTC)).total_seconds()


async def test_a_sandbox_in_use_outlives_its_lifetime(hosted: OpenSandboxSubstrate, run_id: str) -> None:
    """The policy thinks for longer than the server lets a sandbox live that nobody renews."""
    hosted.config = OpenSandboxConfig(network="open", lifetime_s=3.0)
    async with open_sandbox(hosted, run_id=run_id) as live:
        assert await expires_in_s(hosted, live.ref.id) <= 3.0
        await asyncio.sleep(5.0)
        assert (await live.sh("echo alive")).output == "alive\n"


async def test_durations_are_the_sandboxs_own_and_state_is_carried(hosted: OpenSandboxSubstrate, run_id: str) -> None:
    async with open_sandbox(hosted, run_id=run_id) as live:
        slept = await live.sh("cd /tmp; export WORD=kept; sleep 0.2")
        assert 200_000_000 <= slept.timing.run_ns < slept.timing.round_trip_ns
        assert (await live.sh('echo "$PWD $WORD"')).output == "/tmp kept\n"


async def test_any_run_and_owner_is_found_again(hosted: OpenSandboxSubstrate, run_id: str) -> None:
    owner = "host/7 of ü"
    async with open_sandbox(hosted, run_id=run_id, owner=owner) as live:
        assert [ref.id for ref in await hosted.list({"run": run_id, "owner": owner})] == [live.ref.id]
        assert [ref.owner for ref in await hosted.list({"run": run_id})] == [owner]


async def test_the_servers_proxy_leads_to_sandboxes_as_well(hosted: OpenSandboxSubstrate, run_id: str) -> None:
    async with (
        OpenSandboxSubstrate(OpenSandboxConfig(network="open", use_server_proxy=True)) as proxied,
        open_sandbox(proxied, run_id=run_id) as live,
    ):
        assert (await live.sh("echo through")).output == "through\n"


async def test_a_dockerfile_is_refused_where_nobody_said_what_becomes_of_it(
    hosted: OpenSandboxSubstrate, run_id: str
) -> None:
    with pytest.raises(ConfigError, match="registry"):
        await hosted.create(SandboxSpec(environment=DOCKERFILE), Lease(run_id, "test"))


async def test_a_dockerfile_is_built_on_the_servers_engine(run_id: str) -> None:
    check("opensandbox")
    config = OpenSandboxConfig(network="open", registry="")
    async with (
        OpenSandboxSubstrate(config) as hosted,
        open_sandbox(hosted, SandboxSpec(environment=DOCKERFILE), run_id=run_id) as live,
    ):
        assert (await live.sh("cat /built")).output == "here\n"


async def test_a_wrong_key_is_said_to_be_one(hosted: OpenSandboxSubstrate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG_KEY", "wrong")
    probe = await OpenSandboxSubstrate(OpenSandboxConfig(api_key_variable="WRONG_KEY")).probe()
    assert not probe.ok
    assert "api_key_variable" in probe.fix


class Busy(BaseHTTPRequestHandler):
    """A server that lists nothing and asks whoever creates for patience."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        pages = {"page": 1, "pageSize": 1, "totalItems": 0, "totalPages": 0, "hasNextPage": False}
        self.answer(200, {"items": [], "pagination": pages})

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(429, {"code": "BUSY", "message": "too many"}, {"Retry-After": "7"})

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(data)),
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Not into the test's output."""


async def test_a_server_that_asks_for_patience_says_for_how_long(run_id: str) -> None:
    pytest.importorskip("opensandbox")
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            config = OpenSandboxConfig(domain=f"127.0.0.1:{server.server_port}")
            async with OpenSandboxSubstrate(config) as substrate:
                with pytest.raises(SubstrateError) as caught:
                    await substrate.create(SandboxSpec(), Lease(run_id, "test"))
        finally:
            server.shutdown()
    assert caught.value.facts["retry_after_s"] == 7.0
    assert Busy.asked == ["/v1/sandboxes"], "it was not asked again"


async def test_a_server_that_is_not_there_is_a_probe_with_a_fix() -> None:
    pytest.importorskip("opensandbox")
    substrate = OpenSandboxSubstrate(OpenSandboxConfig(domain="127.0.0.1:1"))
    with pytest.raises(EngineDownError):
        await substrate.open()
    assert "opensandbox-server" in (await substrate.probe()).fix
