"""A stand-in for EC2: moto answers the API, and every instance that it reports is a machine with an SSH server.

The machine is a container of the test bed's engine. It is `pending` until it has started, gets the user data that it
was launched with as cloud-init would run it, and is reported with the address that it really has. One that switches
itself off is terminated or stopped, as its instance says. What is not EC2's: a boot takes half a second, terminating
has taken effect when the call returns, and whatever AMI it was launched from, it is one Debian; but for AMIs that were
registered as ``docker:IMAGE``, whose machines have what that image of the engine has.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import email
import io
import logging
import os
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from moto.core.types import Base64EncodedString
from moto.ec2.models import instances as moto_instances
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance, InstanceBackend, InstanceState, StateReason
from moto.ec2.responses import instances as moto_responses
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

LABEL = "rayroll.testbed.ec2"
HERE = Path(__file__).parent
DEBIAN_PARAMETER = "resolve:ssm:/aws/service/debian/"
"""How an AMI can be named by a public parameter; EC2 looks up Debian's own, moto knows nothing of parameters."""
FROM_DOCKER = "docker:"
"""How the name of an AMI begins that stands for an image of the engine."""
RECIPE = (HERE.parent / "images" / "machine.Dockerfile").read_text()
NO_TOKEN = "ABCDE"
"""What moto takes for one where none was given."""
REMEMBERED_S = 600.0
"""How long a terminated instance can be asked about: EC2 takes about an hour. Every look goes through all of them."""
AT_ONCE = 4
"""Containers started or ended at the same time: Docker 20.10 locks itself up when hundreds end in one moment."""
PENDING, RUNNING, SHUTTING_DOWN, STOPPING = ("pending", 0), ("running", 16), ("shutting-down", 32), ("stopping", 64)

logger = logging.getLogger("landlord")


class Landlord:
    """Makes, stops and removes machines, and notices those that have switched themselves off."""

    def __init__(self, engine: docker.DockerClient, image: str, mark: str) -> None:
        self.engine, self.image, self.mark = engine, image, mark
        self.tenants: dict[str, Rented] = {}
        """By container."""
        programs = {"machine": "var/lib/cloud/machine", "poweroff": "usr/sbin/poweroff"}
        self._programs = archive({place: (HERE / name).read_bytes() for name, place in programs.items()})
        self._room = threading.Semaphore(AT_ONCE)
        self._work = ThreadPoolExecutor(2 * AT_ONCE)
        self._baking = threading.Lock()

    def later(self, work: Callable[[], None]) -> None:
        self._work.submit(logged(work))

    def evict_all(self) -> None:
        """Machines of an earlier life, whose instances nobody remembers."""
        for container in self.engine.containers.list(all=True, filters={"label": f"{LABEL}={self.mark}"}):
            self.remove(container)

    def make(self, tenant: Rented) -> Any:
        """A machine that has not been switched on."""
        memory_mib, cpus = size_of(tenant)
        container = self.engine.containers.create(
            self.system_of(tenant),
            name=f"ec2-{tenant.id}",
            hostname=f"ip-{tenant.id[2:]}",
            labels={LABEL: self.mark},
            # A user of a real machine is root there, with namespaces and firewalls of its own.
            cap_add=["SYS_ADMIN", "NET_ADMIN"],
            security_opt=["seccomp=unconfined"],
            tmpfs={"/run": "rw,nosuid,nodev,noexec,mode=755"},
            mem_limit=f"{memory_mib}m",
            memswap_limit=f"{memory_mib}m",
            nano_cpus=min(cpus, os.cpu_count() or 1) * 10**9,
            pids_limit=4096,
            log_config={"type": "none"},
        )
        container.put_archive("/", self._programs)
        return container

    def system_of(self, tenant: Rented) -> str:
        """The engine's image that its AMI stands for."""
        (ami,) = tenant.ec2_backend.describe_images(ami_ids=[tenant.image_id])
        if not ami.name.startswith(FROM_DOCKER):
            return self.image
        image = self.engine.images.get(ami.name.removeprefix(FROM_DOCKER))
        name = f"rayroll-testbed/machine-of:{image.id.removeprefix('sha256:')[:32]}"
        with self._baking, contextlib.suppress(docker.errors.ImageNotFound):
            return str(self.engine.images.get(name).id)
        with self._baking:
            # An image's variables are a container's; a machine has them where every login reads them.
            variables = "".join(f"{line}\n" for line in image.attrs["Config"]["Env"] or ())
            recipe = RECIPE.replace("FROM debian:bookworm-slim", f"FROM {image.id}\nUSER root\nWORKDIR /")
            recipe += "ENTRYPOINT []\nCOPY environment /etc/environment\n"
            context = archive({"Dockerfile": recipe.encode(), "environment": variables.encode()})
            self.engine.images.build(fileobj=io.BytesIO(context), custom_context=True, tag=name, rm=True, forcerm=True)
        return name

    def switch_on(self, tenant: Rented, container: Any) -> str:
        """Boot a machine with its tenant's user data; its address."""
        once, always = scripts_of(tenant)
        container.put_archive("/", archive({"var/lib/cloud/once": once, "var/lib/cloud/always": always}))
        self.tenants[container.id] = tenant
        with self._room:
            container.start()
        container.reload()
        address: str = container.attrs["NetworkSettings"]["IPAddress"]
        return address

    def switch_off(self, container: Any) -> None:
        self.tenants.pop(container.id, None)  # first, or its end would be taken for its own doing
        with self._room:
            container.kill()
            container.wait()

    def remove(self, container: Any) -> None:
        self.tenants.pop(container.id, None)
        with self._room, contextlib.suppress(docker.errors.NotFound):
            container.remove(force=True, v=True)

    def watch(self) -> None:
        """For ever: tell tenants whose machine has ended by itself."""
        while True:
            try:
                ended = self.engine.events(decode=True, filters={"event": "die", "label": f"{LABEL}={self.mark}"})
                for container in list(self.tenants):
                    self._look(container)  # at what ended while nobody listened
                for event in ended:
                    self._look(event["id"])
            except (docker.errors.DockerException, requests.RequestException) as error:
                logger.warning("the engine does not answer: %s", error)
            time.sleep(1.0)

    def _look(self, id: str) -> None:
        tenant = self.tenants.get(id)
        if tenant is None:
            return
        with contextlib.suppress(docker.errors.NotFound):
            if self.engine.containers.get(id).status == "running":
                return
        self.tenants.pop(id, None)
        self.later(tenant.has_switched_itself_off)


class Rented(Instance):
    """moto's instance, with a machine."""

    __module__ = Instance.__module__  # by which moto knows whose models are whose
    landlord: Landlord

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.address: str | None = None
        self.ended_s: float | None = None
        super().__init__(*args, **kwargs)
        self.container: Any = None
        self.lock = threading.RLock()
        self._enter(PENDING)
        self.landlord.later(self._boot)

    @property
    def private_ip_address(self) -> str | None:
        return self.address

    @property
    def public_ip_address(self) -> str | None:
        return self.address

    def start(self) -> InstanceState:
        with self.lock:
            before = copy.copy(self._state)
            if self._state.name == "stopped":
                super().start()
                self._enter(PENDING)
                self.landlord.later(self._boot)
        return before

    def _end_for_good(self) -> None:
        super().terminate()
        self.ended_s = time.monotonic()

    def stop(self) -> InstanceState:
        return self._end(super().stop, STOPPING, self.landlord.switch_off)

    def terminate(self) -> InstanceState:
        return self._end(self._end_for_good, SHUTTING_DOWN, self.landlord.remove)

    def _end(self, end: Callable[[], Any], state: tuple[str, int], how: Callable[[Any], None]) -> InstanceState:
        with self.lock:
            before = copy.copy(self._state)
            if before.name in ("terminated", state[0]) or (before.name == "stopped" and state is STOPPING):
                return before
            self._enter(state)
            if self.container is not None:
                how(self.container)
            self.address = None
            end()
        return before

    def has_switched_itself_off(self) -> None:
        with self.lock:
            if self._state.name not in ("running", "pending"):
                return
            stays = self.instance_initiated_shutdown_behavior == "stop"
            if not stays:
                self.landlord.remove(self.container)
            self.address = None
            super().stop() if stays else self._end_for_good()
            self.state_reason = StateReason(
                "Client.InstanceInitiatedShutdown: Instance initiated shutdown", "Client.InstanceInitiatedShutdown"
            )

    def _boot(self) -> None:
        with self.lock:
            if self._state.name != "pending":
                return  # somebody was faster
            try:
                if self.container is None:
                    self.container = self.landlord.make(self)
                self.address = self.landlord.switch_on(self, self.container)
                self._enter(RUNNING)
            except (docker.errors.DockerException, requests.RequestException):
                logger.exception("no machine for %s", self.id)
                self._end_for_good()
                self.state_reason = StateReason(
                    "Server.InternalError: Internal error on launch", "Server.InternalError"
                )

    def _enter(self, state: tuple[str, int]) -> None:
        self._state = InstanceState(*state)


def scripts_of(tenant: Rented) -> tuple[bytes, bytes]:
    """What cloud-init would run of user data: at the first boot only, and at each."""
    if tenant.user_data is None:
        return b"", b""
    text = tenant.user_data.decode()
    if text.startswith("#!"):
        return text.encode(), b""
    if not text.lower().startswith("content-type: multipart/"):
        return b"", b""  # settings for cloud-init, of which nothing here knows any
    parts = {part.get_content_type(): part.get_payload(decode=True) for part in email.message_from_string(text).walk()}
    script = parts.get("text/x-shellscript") or b""
    return (b"", script) if b"[scripts-user, always]" in (parts.get("text/cloud-config") or b"") else (script, b"")


def size_of(tenant: Rented) -> tuple[int, int]:
    """Memory in MiB and CPUs of an instance's type."""
    facts = INSTANCE_TYPES.get(tenant.instance_type, {})
    return facts.get("MemoryInfo", {}).get("SizeInMiB", 1024), facts.get("VCpuInfo", {}).get("DefaultVCpus", 1)


def archive(files: dict[str, bytes]) -> bytes:
    """Programs for a machine; an empty one is there and cannot be run."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if content else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()


def logged(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except Exception:
            logger.exception("failed")

    return run


def rent_out(landlord: Landlord) -> None:
    """From now on moto's instances are rented ones."""
    Rented.landlord = landlord
    moto_instances.Instance = Rented  # type: ignore[misc]
    run = InstanceBackend.run_instances

    known: dict[tuple[str, str, str], Any] = {}
    asking = threading.Lock()

    def run_instances(self: Any, image_id: str, *args: Any, **kwargs: Any) -> Any:
        if (image_id or "").startswith(DEBIAN_PARAMETER):
            image_id = debian_ami(self)
        token = kwargs.get("client_token", NO_TOKEN)
        with asking:  # moto keeps a token and does not heed it
            forget(self.reservations)
            key = (self.account_id, self.region_name, token)
            if token == NO_TOKEN or key not in known:
                known[key] = run(self, image_id, *args, **kwargs)
            return known[key]

    InstanceBackend.run_instances = run_instances  # type: ignore[method-assign]
    parse = moto_responses.parse_user_data

    def parse_user_data(value: Any) -> Any:
        # What ModifyInstanceAttribute brings has been decoded already, and moto would decode it again.
        return Base64EncodedString.from_raw_bytes(value) if isinstance(value, bytes) else parse(value)

    moto_responses.parse_user_data = parse_user_data


def forget(reservations: dict[str, Any]) -> None:
    """Instances that were terminated long ago."""
    before_s = time.monotonic() - REMEMBERED_S
    for id, reservation in list(reservations.items()):
        if all(instance.ended_s is not None and instance.ended_s < before_s for instance in reservation.instances):
            reservations.pop(id, None)


def debian_ami(backend: Any) -> str:
    """The one that stands for Debian's own; registered when it is first asked for."""
    name = "debian-12-stand-in"
    found = [ami for ami in backend.describe_images() if ami.name == name]
    return str((found or [backend.register_image(name)])[0].id)


class Quiet(MotoRequestHandler):
    """HTTP/1.1, so that clients keep their connections, and no line in the log for every request."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("--docker", "--image", "--mark"):
        parser.add_argument(option, required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    engine = docker.DockerClient(base_url=given.docker, timeout=120, max_pool_size=32)
    landlord = Landlord(engine, given.image, given.mark)
    landlord.evict_all()
    rent_out(landlord)
    threading.Thread(target=landlord.watch, daemon=True).start()
    server = make_server(
        "127.0.0.1", given.port, DomainDispatcherApplication(create_backend_app), threaded=True, request_handler=Quiet
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
