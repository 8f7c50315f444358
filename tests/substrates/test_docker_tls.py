"""An engine behind TLS, with certificates of both ends, as ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH`` have it."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from requirements import needs, use_testbed

from rayroll.runner.client import RunnerClient
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates import _endpoint as endpoints
from rayroll.substrates.docker import DockerConfig, DockerSubstrate

pytestmark = pytest.mark.docker
needs_docker = needs("docker")
use_testbed()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A folder as Docker's clients expect one (ca.pem, cert.pem, key.pem), with the server's pair beside them."""
    (tmp_path / "server.ext").write_text("subjectAltName=IP:127.0.0.1\n")
    (tmp_path / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    new_key = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    script = f"""
    {new_key} -x509 -keyout ca-key.pem -out ca.pem -subj /CN=ca -days 2
    for name in server client; do
        {new_key} -keyout $name-key.pem -out $name.csr -subj /CN=$name
        openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 \\
            -extfile $name.ext -out $name.pem
    done
    cp client.pem cert.pem; cp client-key.pem key.pem
    """
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@asynccontextmanager
async def behind_tls(unix_path: str, certificates: Path) -> AsyncIterator[str]:
    """The engine's socket, on a TLS port that asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
    context.load_cert_chain(certificates / "server.pem", certificates / "server-key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    serving: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        engine_reader, engine_writer = await asyncio.open_unix_connection(unix_path)
        await asyncio.gather(relay(reader, engine_writer), relay(engine_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def test_everything_works_through_tls(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unix_path = endpoints.find(None).url.removeprefix("unix://")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    async with behind_tls(unix_path, certificates) as host, DockerSubstrate(DockerConfig(host=host)) as docker:
        lease = Lease(f"test-{secrets.token_hex(4)}", "host-1", 20.0)
        sandbox = await docker.create(SandboxSpec(image="busybox:latest", memory_mib=64), lease)
        client = await RunnerClient.connect(sandbox.channel, reopen=lambda: docker.reopen(sandbox.ref))
        assert (await client.exec("head -c 1000000 /dev/zero | wc -c")).output == "1000000\n"
        sandbox.channel.close()
        assert (await client.exec("echo again")).output == "again\n"
        await client.close()
        await docker.destroy(sandbox.ref)
        assert await docker.list({"run": lease.run_id}) == []


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    certificates: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = tmp_path_factory.mktemp("stranger")
    script = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -out ca.pem -subj /CN=x"
    )
    await asyncio.to_thread(
        subprocess.run, ["sh", "-ec", f"{script}; cp ca.pem cert.pem"], cwd=stranger, check=True, capture_output=True
    )
    unix_path = endpoints.find(None).url.removeprefix("unix://")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(stranger))
    async with behind_tls(unix_path, certificates) as host:
        probe = await DockerSubstrate(DockerConfig(host=host)).probe()
    assert not probe.ok and "DOCKER_TLS_VERIFY" in probe.fix
