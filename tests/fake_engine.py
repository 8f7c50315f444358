"""A Docker engine that does what a test tells it: HTTP on a unix socket, a ledger of what was made, and hooks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

IMAGE = {"Id": "sha256:" + "a" * 64, "Architecture": "amd64", "Size": 1000, "Config": {"WorkingDir": "/app"}}
Hook = Callable[["Call"], Awaitable[tuple[int, Any] | None]]


class Lines(list[dict[str, Any]]):
    """An answer of several objects, one a line."""


@dataclass(frozen=True)
class Call:
    """A request that reached the engine."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes


@dataclass
class FakeEngine:
    """Containers exist from ``create`` to ``DELETE``; everything else is looked up here."""

    host: str
    images: dict[str, dict[str, Any]] = field(default_factory=lambda: {"plain:latest": IMAGE})
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    before: list[tuple[str, Hook]] = field(default_factory=list)
    """Pattern of ``METHOD path`` and what to do instead of the usual, unless it returns None."""
    after: list[tuple[str, Hook]] = field(default_factory=list)
    """The same, once the usual was done; a value returned replaces the answer."""

    def count(self, pattern: str) -> int:
        """How many calls matched ``METHOD path``."""
        return sum(bool(re.search(pattern, f"{call.method} {call.path}")) for call in self.calls)

    async def answer(self, call: Call) -> tuple[int, Any]:
        self.calls.append(call)
        answer = await self._hooked(self.before, call)
        if answer is None:
            answer = self._usual(call)
            answer = await self._hooked(self.after, call) or answer
        return answer

    @staticmethod
    async def _hooked(hooks: list[tuple[str, Hook]], call: Call) -> tuple[int, Any] | None:
        for pattern, hook in hooks:
            if re.search(pattern, f"{call.method} {call.path}"):
                answer = await hook(call)
                if answer is not None:
                    return answer
        return None

    def _usual(self, call: Call) -> tuple[int, Any]:
        match call.method, call.path.strip("/").split("/"):
            case _, ["version"]:
                return 200, {"Version": "0.0", "ApiVersion": "1.41", "Arch": "amd64"}
            case "GET", ["images", *name, "json"]:
                found = self.images.get("/".join(name))
                return (200, found) if found else (404, {"message": "No such image: " + "/".join(name)})
            case "POST", ["images", "create"]:
                self.images[f"{call.query['fromImage']}:{call.query['tag']}"] = IMAGE
                return 200, {"status": "pulled"}
            case "POST", ["volumes", "create"]:
                return 201, {"Name": json.loads(call.body)["Name"]}
            case "POST", ["containers", "create"]:
                name = call.query.get("name") or f"helper{len(self.calls)}"
                self.containers[name] = {"Id": name, "State": "created", **json.loads(call.body)}
                return 201, {"Id": name}
            case "GET", ["containers", "json"]:
                wanted = json.loads(call.query["filters"])["label"]
                return 200, [
                    {"Id": c["Id"], "Labels": c["Labels"], "State": c["State"], "Created": 0}
                    for c in self.containers.values()
                    if all(_has(c["Labels"], label) for label in wanted)
                ]
            case "POST", ["containers", name, "start"]:
                self.containers[name]["State"] = "running"
                return 204, None
            case "DELETE", ["containers", name]:
                if self.containers.pop(name, None) is None:
                    return 404, {"message": f"No such container: {name}"}
                return 204, None
            case "PUT", ["containers", _, "archive"]:
                return 200, None
            case _:
                return 404, {"message": f"nothing here: {call.method} {call.path}"}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection."""
        try:
            call = await _read(reader)
            if call.path == "/events":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                await reader.read()
            elif call.path.endswith("/attach"):
                writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
                await reader.read()
            else:
                status, content = await self.answer(call)
                lines = content if isinstance(content, Lines) else [] if content is None else [content]
                body = "\r\n".join(json.dumps(line) for line in lines).encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def _has(labels: dict[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in labels and (not equals or labels[name] == value)


async def _read(reader: asyncio.StreamReader) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    method, target, _ = head.split(" ", 2)
    length = re.search(r"(?i)content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else b""
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return Call(method, re.sub(r"^/v\d+\.\d+", "", unquote(parts.path)), query, body)


@asynccontextmanager
async def fake_engine(folder: Path) -> AsyncIterator[FakeEngine]:
    """A running one; ``host`` is what a DockerConfig takes."""
    path = folder / "engine.sock"
    engine = FakeEngine(f"unix://{path}")
    server = await asyncio.start_unix_server(engine.serve, path)
    try:
        yield engine
    finally:
        server.close()
