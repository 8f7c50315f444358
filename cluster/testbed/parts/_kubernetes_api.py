"""Asking a Kubernetes API server, with nothing but the standard library."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from bed.errors import TestbedError

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Api:
    """One server, known by its authority, and who asks."""

    server: str
    authority: Path
    token: str

    def get(self, path: str) -> Any:
        """The object at `path`; None where there is none, or nobody answers."""
        content = self.read(path)
        return None if content is None else json.loads(content)

    def read(self, path: str) -> bytes | None:
        """What is at `path`, such as the log of a pod; None where there is nothing, or nobody answers."""
        try:
            return self._ask("GET", path)
        except (OSError, HTTPException):  # a refusal and a timeout are OSErrors; a reply that breaks off is not
            return None

    def answers(self, path: str) -> bool:
        """Whether a health check says yes."""
        return self.read(path) is not None

    def ensure(self, path: str, body: dict[str, object]) -> None:
        """Create it in the collection `path` unless it is there.

        Raises:
            TestbedError: The server refused, or did not answer.
        """
        try:
            self._ask("POST", path, body)
        except urllib.error.HTTPError as refused:
            if refused.code != 409:
                raise TestbedError(f"POST {path}: {refused.code} {refused.read().decode(errors='replace')}") from None
        except OSError as error:
            raise TestbedError(f"POST {path}: {error}") from None

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server}{path}", data=data, headers=headers, method=method)
        # Never through a proxy: it is an address of this machine.
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.authority))),
        )
        with direct.open(request, timeout=_TIMEOUT_S) as reply:
            content: bytes = reply.read()
            return content
