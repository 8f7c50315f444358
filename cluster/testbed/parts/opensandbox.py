"""A hosted sandbox on this machine: OpenSandbox's own server on the test bed's engine, a stand-in for its `execd`.

The server is upstream's, from PyPI. Upstream's in-sandbox daemon is published as an image only, which no registry here
has; `execd/execd.go` speaks the part of its HTTP that is used. So what is measured here is the real control plane and a
daemon of ours.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from bed import venv
from bed.daemon import Daemon
from bed.engine import Engine
from bed.part import Bed, Part
from bed.place import Place, disk_used_bytes
from bed.shell import run

_VERSION = "1.1.1"
_SOURCES = Path(__file__).parent.parent / "execd"
_PYTHON = "opensandbox-python"
"""The interpreter's name in its environment."""
_DEADLINE_S = 60.0
_PORTS = (20000, 31999)
"""Where sandboxes' ports are published: below the range that the kernel takes outgoing ports from."""


class OpenSandbox(Part):
    """The server in a virtual environment of its own, and the image that it takes `execd` from."""

    name = "opensandbox"
    needs = ("docker",)
    packages = ("golang-go", "python3-venv")

    def up(self, bed: Bed) -> None:
        for folder in (_folder(bed.place), _home(bed.place)):
            folder.mkdir(parents=True, exist_ok=True)
        venv.ensure(bed.steps, _folder(bed.place) / "venv", "opensandbox-server", _VERSION, _PYTHON)
        image = _execd_image(bed)
        with bed.steps.step("opensandbox: answers"):
            server = _server(bed.place)
            if server.pid() is not None and bed.place.recorded("opensandbox-execd") != image:
                server.stop()  # it keeps the older one in memory
            if server.pid() is None:
                bed.place.loopback_port("opensandbox")
                _remove_helpers(bed.place)
            bed.place.record("opensandbox-execd", image)
            server.start(
                [
                    _bin(bed.place) / _PYTHON,
                    "-m",
                    "opensandbox_server.cli",
                    "--config",
                    _write_config(bed.place, image),
                ],
                is_ready=lambda: self.is_running(bed),
                deadline_s=_DEADLINE_S,
                env={"DOCKER_HOST": f"unix://{Engine(bed.place).socket}", "HOME": str(_home(bed.place))},
            )

    def is_running(self, bed: Bed) -> bool:
        return _answers(bed.place)

    def facts(self, bed: Bed) -> Mapping[str, object]:
        on_disk = {"log": str(_server(bed.place).log), "disk_used_bytes": disk_used_bytes(_folder(bed.place))}
        if not _answers(bed.place):
            return on_disk
        return {
            "address": _address(bed.place),
            "version": _VERSION,
            "execd": f"{bed.place.recorded('opensandbox-execd')} (a stand-in)",
            "pids": {"opensandbox-server": _server(bed.place).pid()},
            "sandboxes": len(_sandboxes(Engine(bed.place))),
            **on_disk,
        }

    def down(self, bed: Bed) -> None:
        _server(bed.place).stop()
        engine = Engine(bed.place)
        if engine.answers():
            _remove_helpers(bed.place)
            for container in _sandboxes(engine):
                engine.docker("rm", "--force", "--volumes", container)

    def exports(self, bed: Bed) -> Mapping[str, str]:
        return {"OPEN_SANDBOX_DOMAIN": _address(bed.place), "OPEN_SANDBOX_API_KEY": _key(bed.place)}


def _execd_image(bed: Bed) -> str:
    """The image with /execd and /bootstrap.sh, named after their sources; built once, its program cached."""
    digest = hashlib.sha256()
    for name in ("execd.go", "bootstrap.sh"):
        digest.update((_SOURCES / name).read_bytes())
    image, engine = f"rayroll-testbed/execd:{digest.hexdigest()[:12]}", Engine(bed.place)
    program = _folder(bed.place) / f"execd-{digest.hexdigest()[:12]}"
    if not program.exists():
        with bed.steps.step("opensandbox: execd, the stand-in, built"):
            half = program.with_suffix(".part")
            env = {"CGO_ENABLED": "0", "GO111MODULE": "off", "GOFLAGS": "", "GOCACHE": str(_folder(bed.place) / "go")}
            run(["go", "build", "-ldflags=-s -w", "-o", half, _SOURCES / "execd.go"], env=env)
            half.rename(program)
            shutil.rmtree(_folder(bed.place) / "go", ignore_errors=True)
    if not engine.inspect_image(image, "{{.Id}}"):
        with bed.steps.step(f"opensandbox: image {image}"), tempfile.TemporaryDirectory() as context:
            shutil.copy2(program, Path(context, "execd"))
            shutil.copy2(_SOURCES / "bootstrap.sh", context)
            # The server starts it with `tail -f /dev/null` and reads the two files out of it.
            Path(context, "Dockerfile").write_text("FROM busybox:latest\nCOPY execd bootstrap.sh /\n")
            engine.docker("build", "--quiet", "--tag", image, context)
    return image


def _server(place: Place) -> Daemon:
    return Daemon(_PYTHON, str(_config(place)), place.logs / "opensandbox.log")


def _folder(place: Place) -> Path:
    return place.cache / "opensandbox"


def _bin(place: Place) -> Path:
    return _folder(place) / "venv" / "bin"


def _home(place: Place) -> Path:
    """Where the server keeps its database, and what it would otherwise write below root's home."""
    return place.state / "opensandbox"


def _config(place: Place) -> Path:
    return place.run / "opensandbox.toml"


def _address(place: Place) -> str:
    return f"127.0.0.1:{place.recorded('opensandbox')}"


def _key(place: Place) -> str:
    return place.recorded("opensandbox-key") or place.record("opensandbox-key", secrets.token_hex(16))


def _write_config(place: Place, image: str) -> Path:
    config = _config(place)
    config.touch(0o600)
    text = json.dumps  # TOML's strings and lists of numbers are JSON's
    config.write_text(
        f"[server]\nhost = '127.0.0.1'\nport = {place.recorded('opensandbox')}\napi_key = {text(_key(place))}\n"
        "max_sandbox_timeout_seconds = 86400\n"
        f"[runtime]\ntype = 'docker'\nexecd_image = {text(image)}\n"
        f"[store]\ntype = 'sqlite'\npath = {text(str(_home(place) / 'opensandbox.db'))}\n"
        "[ingress]\nmode = 'direct'\n"
        f"[docker]\nnetwork_mode = 'bridge'\npublish_host = '127.0.0.1'\n"
        f"port_range_min = {_PORTS[0]}\nport_range_max = {_PORTS[1]}\nno_new_privileges = true\npids_limit = 512\n"
    )
    return config


def _sandboxes(engine: Engine) -> list[str]:
    return engine.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", "label=opensandbox.io/id").split()


def _remove_helpers(place: Place) -> None:
    """Containers that a server reads `execd` out of, and leaves behind when it is killed at it."""
    engine = Engine(place)
    for container in engine.docker("ps", "--all", "--quiet", "--filter", "name=sandbox-execd-").split():
        engine.docker("rm", "--force", container)


def _answers(place: Place) -> bool:
    if place.recorded("opensandbox") is None or _server(place).pid() is None:
        return False
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{_address(place)}/health", timeout=2.0) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


PART = OpenSandbox()
