"""Talking to the test bed's Docker engine: through Debian's own client, never the machine's settings."""

from __future__ import annotations

import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bed.errors import TestbedError
from bed.place import Place
from bed.shell import run


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine behind one unix socket."""

    place: Place

    @property
    def socket(self) -> Path:
        return self.place.run / "docker.sock"

    def docker(self, *words: str | Path, stdin: bytes | None = None, timeout_s: float = 900.0) -> str:
        """Run the docker client and return what it printed."""
        # Debian's client belongs to Debian's engine; one in /usr/local may be newer and want plugins for `build`.
        client = shutil.which("docker", path="/usr/bin") or "docker"
        env = {
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(self.place.run / "docker-client"),
            "DOCKER_CONTEXT": "",
            "DOCKER_BUILDKIT": "0",
        }
        return run([client, *words], env=env, stdin=stdin, timeout_s=timeout_s)

    def answers(self) -> bool:
        return answers(self.socket)

    def version(self) -> str:
        return self.docker("version", "--format", "{{.Server.Version}}").strip()

    def images(self) -> dict[str, int]:
        """Size in bytes by `name:tag`."""
        names = self.docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
        tagged = [name for name in names if "<none>" not in name]
        return {name: int(self.inspect_image(name, "{{.Size}}")) for name in tagged}

    def inspect_image(self, image: str, template: str) -> str:
        """One fact about an image; empty where the engine does not have the image."""
        try:
            return self.docker("image", "inspect", "--format", template, image).strip()
        except TestbedError:
            return ""

    def remove_build_stages(self) -> None:
        """Delete what a build of ours with several stages leaves untagged: its compilers are larger than its result."""
        stages = ["image", "ls", "--quiet", "--filter", "dangling=true", "--filter", "label=rayroll.testbed.stage"]
        for image in self.docker(*stages).split():
            self.docker("rmi", image)

    def kill_containers(self) -> None:
        """End what runs at once: a stop of the engine would give each container its ten seconds."""
        running = self.docker("ps", "--quiet", "--no-trunc").split()
        with suppress(TestbedError):  # it complains of those that ended by themselves meanwhile
            self.docker("kill", *running)


def answers(unix_socket: Path) -> bool:
    """Whether a Docker engine answers a ping there within two seconds."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2.0)
            client.connect(str(unix_socket))
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return client.recv(64).startswith(b"HTTP/1.0 200")
    except OSError:
        return False
