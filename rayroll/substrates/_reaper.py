"""The small process that outlives its host: when the host is gone it waits one lease, then removes what is left.

A runner ends itself when its lease lapses, and its sandbox goes with it. Not so a container that was created and never
started (it stays until the engine restarts, AutoRemove or not), nor a private root in /tmp. No hook of the host runs
on SIGKILL, and Ray ends a dead worker's children: so this is a grandchild in a session of its own, waiting for the end
of a pipe. What was kept for somebody to look into, it leaves alone until its time is over. It is told what to watch in
lines of JSON: ``{"watch": KEY, "sweep": "docker", "run": ..., "owner": ...}`` (or another kind: see ``sweep``),
``{"forget": KEY}``, and ``{"look": UNIX_S}`` for when something that was kept leaves a folder behind.

Standard library only, and it imports nothing else of this package but ``_leftovers`` and ``_sigv4`` (see
``_reaping.BOOT``): 14 MB for as long as the host lives instead of 60, and the files may be gone when it acts (Ray
removes a job's folder).
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rayroll.substrates._leftovers import find, remove
from rayroll.substrates._sigv4 import form, signed

__all__ = ["adopted_name", "kept_name", "kept_until", "main", "sweep"]

ADOPTED = ".adopted-"
KEPT = "-kept-until-"

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
        while until_unix_s := sweep_until_clean(watches, ended_unix_s):
            time.sleep(max(0.0, until_unix_s - time.time()) + SETTLE_S)


def wait_for_the_end(pipe: int, host_pid: int) -> list[Watch]:
    """What was watched when the pipe ended or the host did (a forked child of it may keep the pipe open)."""
    watches: dict[str, Watch] = {}
    looks: list[float] = []
    buffer = b""
    try:
        host = os.pidfd_open(host_pid)
    except OSError:
        host = pipe  # gone already: the pipe's end follows
    while True:
        until_s = max(0.0, min(looks) + SETTLE_S - time.time()) if looks else None
        ready, _, _ = select.select([pipe, host], [], [], until_s)
        if not ready:
            looks.remove(min(looks))
            remove_overdue(watches)
        elif pipe in ready:
            data = os.read(pipe, 65536)
            if not data:
                return list(watches.values())
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "forget" in order:
                    watches.pop(order["forget"], None)
                elif "look" in order:
                    looks.append(order["look"])
                else:
                    watches[order["watch"]] = order
        elif host in ready:
            return list(watches.values())


def remove_overdue(watches: dict[str, Watch]) -> None:
    """Local sandboxes that were kept, whose time is over, and whose host lives on but has let go of them."""
    for watch in watches.values():
        if watch["sweep"] == "local":
            for remains in find(Path(watch["base"]), {"run": watch["run"], "owner": watch["owner"]}):
                if remains.kept_until_unix_s and not remains.is_kept:
                    with contextlib.suppress(OSError):  # tried again at the host's end
                        remove(remains)


def sweep_until_clean(watches: list[Watch], ended_unix_s: float) -> float:
    """Until two looks in a row find nothing, or patience runs out. One that fails does not hold up the others.

    Returns:
        When to come again for what is kept, by wall clock; 0: there is none.
    """
    deadline = time.monotonic() + PATIENCE_S
    clean, pause_s = 0, SETTLE_S
    kept: list[float] = []
    while clean < 2 and time.monotonic() < deadline:
        kept.clear()
        found = failed = 0
        for watch in watches:
            try:
                found += sweep(watch, ended_unix_s, kept)
            except (OSError, http.client.HTTPException, ValueError):
                failed += 1
        clean = 0 if found or failed else clean + 1
        pause_s = min(2 * pause_s, 60.0) if failed else SETTLE_S
        if clean < 2:
            time.sleep(pause_s)
    return min(kept, default=0.0)


def sweep(watch: Watch, ended_unix_s: float, kept: list[float]) -> int:
    """Remove what belongs to the watched run and owner and is older than their host's end; how much that was.

    Younger sandboxes with the same names are those of a host that was started again. What is kept is passed over, and
    ``kept`` gets the end of its time.
    """
    sweeps = {
        "docker": sweep_docker,
        "ec2": sweep_ec2,
        "kubernetes": sweep_kubernetes,
        "local": sweep_local,
        "opensandbox": sweep_opensandbox,
    }
    return sweeps[watch["sweep"]](watch, ended_unix_s, kept)


def sweep_local(watch: Watch, ended_unix_s: float, kept: list[float]) -> int:
    """Processes, folders and cgroups of local sandboxes."""
    found = 0
    for remains in find(Path(watch["base"]), {"run": watch["run"], "owner": watch["owner"]}):
        if remains.is_kept:
            kept.append(remains.kept_until_unix_s)
        elif remains.created_unix_s <= ended_unix_s:
            remove(remains)
            found += 1
    return found


def adopted_name(name: str, owner: str) -> str:
    """A container's name once another owner than its label's has taken it over."""
    return f"{name.partition(ADOPTED)[0]}{ADOPTED}{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def is_owned(container: dict[str, Any], owner: str) -> bool:
    """By its name where somebody has taken it over, else by its label."""
    names = [name.lstrip("/") for name in container.get("Names") or ()]
    adopted = [name for name in names if ADOPTED in name]
    if adopted:
        return adopted_name(adopted[0], owner) in adopted
    return bool(container["Labels"].get("rayroll.owner") == owner)


def sweep_docker(watch: Watch, ended_unix_s: float, kept: list[float]) -> int:
    """Containers in any state, then networks and volumes, by their labels."""
    labels = [f"rayroll.run={watch['run']}"]
    filters = quote(json.dumps({"label": labels}))
    found = 0
    for container in ask(watch, "GET", f"/containers/json?all=1&filters={filters}"):
        if not is_owned(container, watch["owner"]):
            continue
        until_unix_s = kept_until(container.get("Names"))
        if time.time() < until_unix_s:
            kept.append(until_unix_s)
        elif container["Created"] <= ended_unix_s + 60.0:  # the engine's clock may be another machine's
            ask(watch, "DELETE", f"/containers/{container['Id']}?force=1&v=1")
            found += 1
    filters = quote(json.dumps({"label": [*labels, f"rayroll.owner={watch['owner']}"]}))
    for network in ask(watch, "GET", f"/networks?filters={filters}"):
        ask(watch, "DELETE", f"/networks/{network['Id']}")
        found += 1
    for volume in ask(watch, "GET", f"/volumes?filters={filters}").get("Volumes") or ():
        ask(watch, "DELETE", f"/volumes/{quote(volume['Name'])}?force=1")
        found += 1
    return found


def sweep_opensandbox(watch: Watch, ended_unix_s: float, kept: list[float]) -> int:
    """Sandboxes in any state, by their metadata. What a server was making when the host ended counts by its start."""
    found = 0
    wanted = quote("&".join(f"{quote(name)}={quote(value)}" for name, value in watch["metadata"].items()))
    while True:
        answer = ask(watch, "GET", f"/v1/sandboxes?page=1&pageSize=100&metadata={wanted}")
        old = [
            sandbox["id"]
            for sandbox in answer.get("items", ())
            if datetime.fromisoformat(sandbox["createdAt"]).timestamp() <= ended_unix_s + SETTLE_S
        ]
        for id in old:
            ask(watch, "DELETE", f"/v1/sandboxes/{id}")
        found += len(old)
        if len(old) < 100:
            return found


def sweep_kubernetes(watch: Watch, ended_unix_s: float, kept: list[float]) -> int:
    """Pods in any state, by their labels. What the API was making when the host ended counts by its start."""
    found, more = 0, ""
    pods = f"/api/v1/namespaces/{watch['namespace']}/pods"
    while True:
        page = ask(watch, "GET", f"{pods}?limit=500&labelSelector={quote(watch['selector'])}{more}")
        for pod in page.get("items") or ():
            metadata = pod["metadata"]
            until_unix_s = float((metadata.get("annotations") or {}).get("rayroll.kept-until", 0))
            if time.time() < until_unix_s:
                kept.append(until_unix_s)
            elif datetime.fromisoformat(metadata["creationTimestamp"]).timestamp() <= ended_unix_s + SETTLE_S:
                ask(watch, "DELETE", f"{pods}/{metadata['name']}?gracePeriodSeconds=0")
                found += 1
        if not (token := (page.get("metadata") or {}).get("continue")):
            return found
        more = f"&continue={quote(token)}"


def sweep_ec2(watch: Watch, ended_unix_s: float, kept: list[float]) -> int:
    """Instances that are not on their way out, by their tags."""
    literal = str.maketrans({character: f"\\{character}" for character in "*?\\"})
    filters = {
        "instance-state-name": ["pending", "running", "stopping", "stopped"],
        "tag:rayroll.run": [watch["run"].translate(literal)],
        "tag:rayroll.owner": [watch["owner"].translate(literal)],
    }
    asked = {}
    for number, (name, values) in enumerate(filters.items(), 1):
        asked[f"Filter.{number}.Name"] = name
        asked |= {f"Filter.{number}.Value.{at}": value for at, value in enumerate(values, 1)}
    answer = ask_ec2(watch, form("DescribeInstances", asked))
    found = re.findall(r"<instanceId>(i-\w+)</instanceId>.*?<launchTime>([^<]+)</launchTime>", answer, re.DOTALL)
    old = [id for id, at in found if datetime.fromisoformat(at).timestamp() <= ended_unix_s + SETTLE_S]
    if old:
        ask_ec2(watch, form("TerminateInstances", {f"InstanceId.{at}": id for at, id in enumerate(old, 1)}))
    return len(old)


def ask_ec2(watch: Watch, body: bytes) -> str:
    """One call to EC2; its XML. Raises OSError: it does not answer, or refuses."""
    host, region = urlsplit(watch["url"]).netloc, watch["region"]
    headers = signed(body, host=host, region=region, credentials=watch["credentials"], now_unix_s=time.time())
    connection = connect(watch)
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    finally:
        connection.close()
    if answer.status >= 300:
        raise OSError(f"EC2: {answer.status} {text[:200]!r}")
    return text


def kept_name(name: str, until_unix_s: float) -> str:
    """What a container is renamed to when it is kept: labels cannot be changed any more."""
    own, adopted, by = name.partition(ADOPTED)
    return f"{own}{KEPT}{math.ceil(until_unix_s)}{adopted}{by}"


def kept_until(names: list[str] | None) -> float:
    """Until when a container of these names is kept; 0: it is not."""
    found = re.search(rf"{KEPT}(\d+)({re.escape(ADOPTED)}|$)", (names or [""])[0])
    return float(found[1]) if found else 0.0


def ask(watch: Watch, method: str, path: str) -> Any:
    """One call to an engine. What is gone, or being removed, is no error.

    Raises:
        OSError: It does not answer, or refuses.
    """
    connection = connect(watch)
    try:
        connection.request(
            method, urlsplit(watch["url"]).path.rstrip("/") * is_web(watch) + path, headers=headers(watch)
        )
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status >= 400 and answer.status not in (404, 409):
        raise OSError(f"{method} {path}: {answer.status} {body[:200]!r}")
    return json.loads(body) if body and answer.status < 300 else {}


def is_web(watch: Watch) -> bool:
    """Its url is one of HTTP, whose path counts."""
    return str(watch["url"]).startswith("http")


def headers(watch: Watch) -> dict[str, str]:
    """What a request says to be let in; a token in a file may have been renewed there."""
    said = dict(watch.get("headers") or {"Host": "docker"})
    if watch.get("token_file"):
        with contextlib.suppress(OSError):
            said["Authorization"] = f"Bearer {Path(watch['token_file']).read_text().strip()}"
    return said


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=CALL_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CALL_TIMEOUT_S)
        self.sock.connect(self._path)


class NamedConnection(http.client.HTTPSConnection):
    """HTTPS to whom the watch trusts: its own authority where it names one, perhaps under another name."""

    def __init__(self, host: str, port: int | None, watch: Watch) -> None:
        import ssl

        context = ssl.create_default_context(cadata=watch.get("authority"))
        if not watch.get("verify", True):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if watch.get("certificate"):
            with in_memory(watch["certificate"]) as certificate, in_memory(watch["key"]) as key:
                context.load_cert_chain(certificate, key)
        super().__init__(host, port, timeout=CALL_TIMEOUT_S, context=context)
        self._secure, self._name = context, watch.get("server_name") or host

    def connect(self) -> None:
        sock = socket.create_connection((self.host, self.port), CALL_TIMEOUT_S)
        self.sock = self._secure.wrap_socket(sock, server_hostname=self._name)


@contextlib.contextmanager
def in_memory(text: str) -> Iterator[str]:
    """A file by that content, for a library that takes nothing else."""
    fd = os.memfd_create("rayroll")
    try:
        os.write(fd, text.encode())
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def connect(watch: Watch) -> http.client.HTTPConnection:
    """A connection to a watched engine."""
    parts = urlsplit(watch["url"])
    if parts.scheme == "unix":
        return UnixConnection(parts.path)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return NamedConnection(parts.hostname, parts.port, watch)
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
