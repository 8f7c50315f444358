"""The small process that outlives its host: when the host is gone it waits one lease, then removes what is left.

A runner ends itself when its lease lapses, and its sandbox goes with it. Not so a container that was created and never
started (it stays until the engine restarts, AutoRemove or not), nor a private root in /tmp. No hook of the host runs
on SIGKILL, and Ray ends a dead worker's children: so this is a grandchild in a session of its own, waiting for the end
of a pipe. It is told what to watch in lines of JSON: ``{"watch": KEY, "sweep": "docker" | "local", "run": ...,
"owner": ..., "lease_s": ..., ...}`` and ``{"forget": KEY}``.

Standard library only, and it imports nothing else of this package but ``_leftovers`` (see ``_reaping.BOOT``): 14 MB
for as long as the host lives instead of 60, and the files may be gone when it acts (Ray removes a job's folder).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rayroll.substrates._leftovers import find, remove

__all__ = ["main", "sweep"]

SETTLE_S = 3.0
"""Pause before looking again: an engine may still be making what a killed host had asked for."""
PATIENCE_S = 1800.0
"""How long an engine that does not answer is asked again."""
CALL_TIMEOUT_S = 60.0

Watch = dict[str, Any]


def main() -> None:
    """Detach, say our pid, watch the host, sweep."""
    host_pid = int(sys.argv[2])
    Path("/proc/self/comm").write_text("rayroll-reaper")
    pid = os.fork()
    if pid:
        with contextlib.suppress(BrokenPipeError):  # the host may be gone already
            os.write(1, b"%d\n" % pid)
        os._exit(0)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watches = wait_for_the_end(0, host_pid)
    if watches:
        ended_unix_s = time.time()
        time.sleep(max(watch["lease_s"] for watch in watches))
        sweep_until_clean(watches, ended_unix_s)


def wait_for_the_end(pipe: int, host_pid: int) -> list[Watch]:
    """What was watched when the pipe ended or the host did (a forked child of it may keep the pipe open)."""
    watches: dict[str, Watch] = {}
    buffer = b""
    try:
        host = os.pidfd_open(host_pid)
    except OSError:
        host = pipe  # gone already: the pipe's end follows
    while True:
        ready, _, _ = select.select([pipe, host], [], [])
        if pipe in ready:
            data = os.read(pipe, 65536)
            if not data:
                return list(watches.values())
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "forget" in order:
                    watches.pop(order["forget"], None)
                else:
                    watches[order["watch"]] = order
        elif host in ready:
            return list(watches.values())


def sweep_until_clean(watches: list[Watch], ended_unix_s: float) -> None:
    """Until two looks in a row find nothing, or patience runs out. One that fails does not hold up the others."""
    deadline = time.monotonic() + PATIENCE_S
    clean, pause_s = 0, SETTLE_S
    while clean < 2 and time.monotonic() < deadline:
        found = failed = 0
        for watch in watches:
            try:
                found += sweep(watch, ended_unix_s)
            except (OSError, http.client.HTTPException, ValueError):
                failed += 1
        clean = 0 if found or failed else clean + 1
        pause_s = min(2 * pause_s, 60.0) if failed else SETTLE_S
        if clean < 2:
            time.sleep(pause_s)


def sweep(watch: Watch, ended_unix_s: float) -> int:
    """Remove what belongs to the watched run and owner and is older than their host's end; how much that was.

    Younger sandboxes with the same names are those of a host that was started again.
    """
    return {"docker": sweep_docker, "local": sweep_local}[watch["sweep"]](watch, ended_unix_s)


def sweep_local(watch: Watch, ended_unix_s: float) -> int:
    """Processes, folders and cgroups of local sandboxes."""
    found = 0
    for remains in find(Path(watch["base"]), {"run": watch["run"], "owner": watch["owner"]}):
        if remains.created_unix_s <= ended_unix_s:
            remove(remains)
            found += 1
    return found


def sweep_docker(watch: Watch, ended_unix_s: float) -> int:
    """Containers in any state, then networks and volumes, by their labels."""
    labels = [f"rayroll.run={watch['run']}", f"rayroll.owner={watch['owner']}"]
    filters = quote(json.dumps({"label": labels}))
    found = 0
    for container in ask(watch, "GET", f"/containers/json?all=1&filters={filters}"):
        if container["Created"] <= ended_unix_s + 60.0:  # the engine's clock may be another machine's
            ask(watch, "DELETE", f"/containers/{container['Id']}?force=1&v=1")
            found += 1
    for network in ask(watch, "GET", f"/networks?filters={filters}"):
        ask(watch, "DELETE", f"/networks/{network['Id']}")
        found += 1
    for volume in ask(watch, "GET", f"/volumes?filters={filters}").get("Volumes") or ():
        ask(watch, "DELETE", f"/volumes/{quote(volume['Name'])}?force=1")
        found += 1
    return found


def ask(watch: Watch, method: str, path: str) -> Any:
    """One call to an engine. What is gone, or being removed, is no error.

    Raises:
        OSError: It does not answer, or refuses.
    """
    connection = connect(watch)
    try:
        connection.request(method, path, headers={"Host": "docker"})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status >= 400 and answer.status not in (404, 409):
        raise OSError(f"{method} {path}: {answer.status} {body[:200]!r}")
    return json.loads(body) if body and answer.status < 300 else {}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=CALL_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CALL_TIMEOUT_S)
        self.sock.connect(self._path)


def connect(watch: Watch) -> http.client.HTTPConnection:
    """A connection to a watched engine."""
    parts = urlsplit(watch["url"])
    if parts.scheme == "unix":
        return UnixConnection(parts.path)
    assert parts.hostname is not None
    if not watch["tls_folder"]:
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=CALL_TIMEOUT_S)
    import ssl

    folder = Path(watch["tls_folder"])
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    if not watch["tls_verify"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=CALL_TIMEOUT_S, context=context)
