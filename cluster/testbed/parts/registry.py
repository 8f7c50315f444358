"""An image registry on loopback: what a cold start pulls from, and what a failed pull fails against."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from bed.daemon import Daemon
from bed.engine import Engine
from bed.part import Bed, Part
from bed.place import Place, disk_used_bytes
from bed.shell import run

_DEADLINE_S = 20.0
_OFFERED = ("busybox:latest", "python:3.11-slim")
"""The smallest image, and one of the size that tasks have."""


class Registry(Part):
    """Debian's docker-registry, holding copies of two base images that share no layer with what the engine has."""

    name = "registry"
    needs = ("docker",)
    packages = ("docker-registry",)

    def up(self, bed: Bed) -> None:
        with bed.steps.step("registry: answers"):
            if _daemon(bed.place).pid() is None:
                bed.place.loopback_port("registry")
            _daemon(bed.place).start(
                ["docker-registry", "serve", _write_config(bed.place)],
                is_ready=lambda: self.is_running(bed),
                deadline_s=_DEADLINE_S,
            )
        for image in _OFFERED:
            self._offer(image, bed)

    def is_running(self, bed: Bed) -> bool:
        return _get(bed.place, "") is not None

    def facts(self, bed: Bed) -> Mapping[str, object]:
        on_disk = {"log": str(_daemon(bed.place).log), "disk_used_bytes": disk_used_bytes(_store(bed.place))}
        catalog = _get(bed.place, "_catalog")
        if catalog is None:
            return on_disk
        return {
            "address": _address(bed.place),
            "version": run(["docker-registry", "--version"]).split()[-1],
            "pids": {"docker-registry": _daemon(bed.place).pid()},
            "images": ", ".join(f"{_address(bed.place)}/{image}" for image in _OFFERED),
            **on_disk,
        }

    def down(self, bed: Bed) -> None:
        _daemon(bed.place).stop()

    def exports(self, bed: Bed) -> Mapping[str, str]:
        return {"RAYROLL_TESTBED_REGISTRY": _address(bed.place)}

    def _offer(self, image: str, bed: Bed) -> None:
        """Push it under its own name, with a layer of its own, and leave the engine without that layer.

        Pushed as it is, a pull would find every layer in the engine already and measure nothing.
        """
        engine, name = Engine(bed.place), f"{_address(bed.place)}/{image}"
        source = engine.inspect_image(image, "{{.Id}}")
        offered = _store(bed.place) / f"{image}.offered"  # beside the store, so that both are cached or neither is
        if (
            offered.exists()
            and offered.read_text() == source
            and _get(bed.place, image.replace(":", "/manifests/")) is not None
        ):
            return
        with bed.steps.step(f"registry: offers {name}"):
            config = json.loads(engine.inspect_image(image, "{{json .Config}}"))
            changes = [f"ENV {variable}" for variable in config["Env"] or ()] + [f"CMD {json.dumps(config['Cmd'])}"]
            container = engine.docker("create", "--network", "none", image).strip()
            archive = bed.place.state / "offered.tar"
            try:
                engine.docker("export", "--output", archive, container)
                engine.docker("import", *(word for change in changes for word in ("--change", change)), archive, name)
                engine.docker("push", "--quiet", name)
                engine.docker("rmi", name)
            finally:
                engine.docker("rm", "--force", container)
                archive.unlink(missing_ok=True)
        offered.write_text(source)


def _daemon(place: Place) -> Daemon:
    return Daemon("docker-registry", str(place.run / "registry.yml"), place.logs / "registry.log")


def _store(place: Place) -> Path:
    return place.cache / "registry"


def _address(place: Place) -> str:
    return f"127.0.0.1:{place.recorded('registry')}"


def _write_config(place: Place) -> Path:
    config = place.run / "registry.yml"
    config.write_text(
        "version: 0.1\n"
        "log: {level: warn}\n"
        f"storage: {{filesystem: {{rootdirectory: {_store(place)}}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '{_address(place)}'}}\n"
    )
    return config


def _get(place: Place, path: str) -> bytes | None:
    """GET below /v2/; None when it is not there or nobody answers. Never through a proxy: it is on loopback."""
    if place.recorded("registry") is None:
        return None
    accepted = {"Accept": "application/vnd.docker.distribution.manifest.v2+json, application/json"}
    request = urllib.request.Request(f"http://{_address(place)}/v2/{path}", headers=accepted)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=2.0) as reply:
            content: bytes = reply.read()
            return content
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


PART = Registry()
