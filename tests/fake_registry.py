"""An image registry on loopback that fails where a test says so: as much of the protocol as a real engine speaks."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import re
import secrets
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
FOR_EVER = 1 << 30
TLS_HELLO = b"\x16"


@dataclass
class Fault:
    """What is answered instead of the truth, and how often."""

    pattern: str
    """Of the path."""
    status: int
    code: str
    """The registry's word for it; ``TRUNCATED``: half of the truth, and the connection ends."""
    times: int = FOR_EVER
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeRegistry:
    """Any name has the tag ``1``: an image that no engine has a layer of."""

    address: str = ""
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Paths, in order."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)

    def new_name(self) -> str:
        """A name that nobody has used, without its tag."""
        return f"{self.address}/image-{secrets.token_hex(4)}"

    def count(self, pattern: str) -> int:
        """How many requests had such a path."""
        return sum(bool(re.search(pattern, path)) for path in self.asked)

    def fail(self, pattern: str, status: int, code: str, *, times: int = FOR_EVER, **headers: str) -> None:
        """Answer so many first requests of that kind with an error."""
        self.faults.append(Fault(pattern, status, code, times, headers))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        try:
            first = await reader.readexactly(1)
            if first == TLS_HELLO:
                return  # an engine asks for TLS first; then it comes back without
            method, path, _ = (first + await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
            self.asked.append(path)
            status, headers, body = self._answer(method, path)
            headers |= {"Connection": "close", "Docker-Distribution-Api-Version": "registry/2.0"}
            headers.setdefault("Content-Length", str(len(body)))
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + (b"" if method == "HEAD" else body))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        for fault in self.faults:
            if fault.times and re.search(fault.pattern, path):
                fault.times -= method == "GET"  # an engine asks for a manifest by HEAD first, then again by GET
                if fault.code == "TRUNCATED":
                    _, headers, body = self._truth(path)
                    return 200, {**headers, "Content-Length": str(len(body))}, body[: len(body) // 2]
                return fault.status, dict(fault.headers), _error(fault.code)
        return self._truth(path)

    def _truth(self, path: str) -> tuple[int, dict[str, str], bytes]:
        match path.strip("/").split("/"):
            case ["v2"]:
                return 200, {}, b"{}"
            case ["v2", name, "manifests", tag] if tag == "1" or tag in self.blobs:
                manifest = self.blobs.get(tag) or self.manifests.setdefault(name, self._publish())
                return 200, {"Content-Type": MANIFEST, "Docker-Content-Digest": _digest(manifest)}, manifest
            case ["v2", _, "blobs", blob] if blob in self.blobs:
                return 200, {}, self.blobs[blob]
            case ["v2", _, "manifests", _]:
                return 404, {}, _error("MANIFEST_UNKNOWN")
        return 404, {}, _error("NAME_UNKNOWN")

    def _publish(self) -> bytes:
        """A new image of one file; its manifest."""
        content, buffer = secrets.token_bytes(1 << 20), io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            member = tarfile.TarInfo("file")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        layer = gzip.compress(buffer.getvalue(), 1)
        rootfs = {"type": "layers", "diff_ids": [_digest(buffer.getvalue())]}
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob(CONFIG, config),
            "layers": [self._blob(LAYER, layer)],
        }
        published = json.dumps(manifest).encode()
        self.blobs[_digest(published)] = published
        return published

    def _blob(self, kind: str, content: bytes) -> dict[str, str | int]:
        self.blobs[_digest(content)] = content
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _error(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": f"told to say {code}"}]}).encode()


@asynccontextmanager
async def fake_registry() -> AsyncIterator[FakeRegistry]:
    """A running one, which engines of this machine take for one that may do without TLS."""
    registry = FakeRegistry()
    server = await asyncio.start_server(registry.serve, "127.0.0.1", 0)
    registry.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield registry
    finally:
        server.close()
