"""EC2 on this machine: moto answers its API, and each instance is a machine of the test bed's engine with a real sshd.

moto starts no machines. `landlord/landlord.py` runs its server and gives each instance one; it says what is EC2's about
them and what is not.
"""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from bed import carry, images, venv
from bed.daemon import Daemon
from bed.engine import Engine
from bed.part import Bed, Part
from bed.place import Place, disk_used_bytes

_VERSION = "5.2.5"
_LANDLORD = Path(__file__).parent.parent / "landlord" / "landlord.py"
_LABEL = "rayroll.testbed.ec2"
_PYTHON = "ec2-python"
"""The interpreter's name in its environment."""
_DEADLINE_S = 60.0


class Ec2(Part):
    """moto's server in a virtual environment of its own, and the image of its machines."""

    name = "ec2"
    needs = ("docker",)
    packages = ("python3-venv",)

    def up(self, bed: Bed) -> None:
        _folder(bed.place).mkdir(parents=True, exist_ok=True)
        venv.ensure(bed.steps, _folder(bed.place) / "venv", "moto[ec2,server]", _VERSION, _PYTHON)
        engine = Engine(bed.place)
        images.ensure(
            images.MACHINE, images.Kitchen(bed.place, engine, carry.from_this_machine(bed.environ)), bed.steps
        )
        with bed.steps.step("ec2: answers"):
            server, sources = _server(bed.place), _digest()
            if server.pid() is not None and bed.place.recorded("ec2-landlord") != sources:
                server.stop()  # another landlord than the one that is here now
            if server.pid() is None:
                bed.place.loopback_port("ec2")
            bed.place.record("ec2-landlord", sources)
            command: list[str | Path] = [_folder(bed.place) / "venv" / "bin" / _PYTHON, _LANDLORD]
            command += ["--docker", f"unix://{engine.socket}", "--image", images.MACHINE.image]
            command += ["--mark", _mark(bed.place), "--port", str(bed.place.recorded("ec2"))]
            server.start(
                command,
                is_ready=lambda: self.is_running(bed),
                deadline_s=_DEADLINE_S,
                # EC2 refuses what does not exist; moto does when it is asked to.
                env={"MOTO_ENABLE_AMI_VALIDATION": "true", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true"},
            )

    def is_running(self, bed: Bed) -> bool:
        return _answers(bed.place)

    def facts(self, bed: Bed) -> Mapping[str, object]:
        on_disk = {"log": str(_server(bed.place).log), "disk_used_bytes": disk_used_bytes(_folder(bed.place))}
        if not _answers(bed.place):
            return on_disk
        return {
            "endpoint": _endpoint(bed.place),
            "version": f"moto {_VERSION}",
            "image": images.MACHINE.image,
            "pids": {"landlord": _server(bed.place).pid()},
            "machines": len(_machines(bed.place)),
            **on_disk,
        }

    def down(self, bed: Bed) -> None:
        _server(bed.place).stop()
        engine = Engine(bed.place)
        if engine.answers():
            for container in _machines(bed.place):
                engine.docker("rm", "--force", "--volumes", container)

    def exports(self, bed: Bed) -> Mapping[str, str]:
        # None of the variables that AWS's own programs obey: those of this machine's user may be set, and are real.
        return {"RAYROLL_TESTBED_EC2": _endpoint(bed.place)}


def _digest() -> str:
    """What the landlord is made of."""
    digest = hashlib.sha256()
    for path in (*sorted(_LANDLORD.parent.iterdir()), _LANDLORD.parents[1] / "images" / "machine.Dockerfile"):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _server(place: Place) -> Daemon:
    return Daemon(_PYTHON, _mark(place), place.logs / "ec2.log")


def _folder(place: Place) -> Path:
    return place.cache / "ec2"


def _mark(place: Place) -> str:
    """Whose machines are whose, where two test beds share an engine."""
    return str(place.run / "ec2")


def _endpoint(place: Place) -> str:
    return f"http://127.0.0.1:{place.recorded('ec2')}"


def _machines(place: Place) -> list[str]:
    label = f"label={_LABEL}={_mark(place)}"
    return Engine(place).docker("ps", "--all", "--quiet", "--no-trunc", "--filter", label).split()


def _answers(place: Place) -> bool:
    if place.recorded("ec2") is None or _server(place).pid() is None:
        return False
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{_endpoint(place)}/moto-api/config", timeout=5.0):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


PART = Ec2()
