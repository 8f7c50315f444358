"""A real Docker engine: Debian's dockerd on a containerd of its own, with base images, and a way out for builds."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from bed import carry, images
from bed.bridge import Bridge
from bed.daemon import Daemon
from bed.engine import Engine, answers
from bed.mounts import unmount_leftovers
from bed.part import Bed, Part
from bed.place import Place, disk_used_bytes
from bed.shell import run
from bed.shims import Shims

_CAP_SYS_RESOURCE = 24
_DEADLINE_S = 60.0

_CLAMPED_RUNC = """\
#!/bin/sh
# runc on a machine that gives nobody CAP_SYS_RESOURCE. Two things that a bundle may ask for then end in an error:
# a negative oomScoreAdj ("can't get final child's PID from pipe"; the pause container of a pod wants -998), and the
# capability itself ("unable to apply caps"; --privileged wants all). They become 0 and nothing.
was=
for word in "$@"; do
    [ "$was" = --bundle ] && sed -i \\
        -e 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' \\
        -e 's/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g' "$word/config.json"
    was=$word
done
exec runc "$@"
"""


class Docker(Part):
    """containerd and dockerd, with folders, sockets and a bridge that no other engine uses.

    containerd is a process of its own: a dockerd that was SIGKILLed together with the one it manages did not come back
    (2 of 2: "timeout waiting for containerd to start"); with its own, it did, and left nothing.
    """

    name = "docker"
    packages = (
        *("docker.io", "containerd", "runc", "iptables", "iproute2"),
        *("debootstrap", "busybox-static", "ca-certificates"),
        "bubblewrap",  # the substrate `local`
    )

    def up(self, bed: Bed) -> None:
        _mention_other_engine(bed)
        engine, bridge = Engine(bed.place), Bridge(bed.place)
        containerd, dockerd = _containerd(bed.place), _dockerd(bed.place)
        if dockerd.pid() is None:
            shims = _shims(bed.place)
            _note_ended(bed, shims.end(shims.is_orphan))
            if containerd.pid() is None and not list(shims.running()):
                _unmount_leftovers(bed.place)
        with bed.steps.step("docker: bridge and rules"):
            has_same_addresses = bridge.up()
        with bed.steps.step("docker: containerd answers"):
            containerd.start(
                ["containerd", "--config", _write_containerd_config(bed.place)],
                is_ready=lambda: _is_listening(_containerd_socket(bed.place)),
                deadline_s=_DEADLINE_S,
            )
        if dockerd.pid() is None:
            if not has_same_addresses:
                _forget_networks(bed, "their addresses are somebody else's by now")
            elif Path("/sys/class/net/docker0").exists():
                # A dockerd that has a --default-address-pool and remembers networks deletes docker0 when it starts,
                # whichever bridge is its own. One that remembers none does not.
                _forget_networks(bed, "docker0, another engine's, would be deleted with them")
        with bed.steps.step("docker: engine answers"):
            dockerd.start(_dockerd_command(bed.place, bridge), is_ready=engine.answers, deadline_s=_DEADLINE_S)
        images.ensure_all(images.Kitchen(bed.place, engine, carry.from_this_machine(bed.environ)), bed.steps)

    def is_running(self, bed: Bed) -> bool:
        return Engine(bed.place).answers()

    def facts(self, bed: Bed) -> Mapping[str, object]:
        engine, place = Engine(bed.place), bed.place
        on_disk = {"logs": str(place.logs), "disk_used_bytes": disk_used_bytes(place.state)}
        if not engine.answers():
            return on_disk
        info = json.loads(engine.docker("info", "--format", "{{json .}}"))
        return {
            "socket": str(engine.socket),
            "tcp": _tcp(place),
            "version": info["ServerVersion"],
            "containerd": run(["containerd", "--version"]).split()[2],
            "runc": run(["runc", "--version"]).split()[2],
            "runtime": info["DefaultRuntime"],
            "kernel": info["KernelVersion"],
            "storage": info["Driver"],
            "cgroup": f"v{info['CgroupVersion']} ({info['CgroupDriver']})",
            "bridge": f"{Bridge(place).device} {Bridge(place).address}",
            "iptables": place.recorded("iptables"),
            "pids": {"containerd": _containerd(place).pid(), "dockerd": _dockerd(place).pid()},
            "containers": f"{info['ContainersRunning']} running of {info['Containers']}",
            "images_bytes": engine.images(),
            **on_disk,
        }

    def down(self, bed: Bed) -> None:
        engine, place = Engine(bed.place), bed.place
        if engine.answers():
            engine.kill_containers()
        _dockerd(place).stop()
        _note_ended(bed, _shims(place).end())
        _containerd(place).stop()
        _unmount_leftovers(place)
        for folder in (place.run / "docker", place.run / "containerd"):  # names of networks long gone pile up in there
            shutil.rmtree(folder, ignore_errors=True)
        for leftover in (engine.socket, place.run / "docker.pid"):
            leftover.unlink(missing_ok=True)
        Bridge(place).down()

    def exports(self, bed: Bed) -> Mapping[str, str]:
        return {"DOCKER_HOST": f"unix://{Engine(bed.place).socket}", "RAYROLL_TESTBED_DOCKER_TCP": _tcp(bed.place)}


def _containerd(place: Place) -> Daemon:
    return Daemon("containerd", str(place.run / "containerd.toml"), place.logs / "containerd.log")


def _dockerd(place: Place) -> Daemon:
    return Daemon(
        "dockerd", f"--data-root={place.state / 'docker'}", place.logs / "dockerd.log", place.run / "docker.pid"
    )


def _containerd_socket(place: Place) -> Path:
    return place.run / "containerd" / "containerd.sock"


def _shims(place: Place) -> Shims:
    return Shims(_containerd_socket(place), place.run / "containerd", place.run / "docker" / "runtime-runc" / "moby")


def _unmount_leftovers(place: Place) -> None:
    for folder in (place.run / "docker", place.run / "containerd", place.state / "docker", place.state / "containerd"):
        unmount_leftovers(folder)


def _note_ended(bed: Bed, containers: list[str]) -> None:
    for container in containers:
        bed.steps.note(f"docker: ended container {container[:12]}, which its engine had lost")


def _tcp(place: Place) -> str:
    return f"tcp://127.0.0.1:{place.recorded('docker-tcp')}"


def _write_containerd_config(place: Place) -> Path:
    config = place.run / "containerd.toml"
    config.write_text(
        "version = 2\n"
        f'root = "{place.state / "containerd"}"\n'
        f'state = "{place.run / "containerd"}"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'  # the kubelet of this test bed talks to dockerd
        f'[grpc]\n  address = "{_containerd_socket(place)}"\n'
    )
    return config


def _dockerd_command(place: Place, bridge: Bridge) -> list[str | Path]:
    if _dockerd(place).pid() is None:
        place.loopback_port("docker-tcp")
    command: list[str | Path] = [
        "dockerd",
        f"--data-root={place.state / 'docker'}",
        f"--exec-root={place.run / 'docker'}",
        f"--pidfile={place.run / 'docker.pid'}",
        f"--containerd={_containerd_socket(place)}",
        f"--host=unix://{Engine(place).socket}",
        f"--host={_tcp(place)}",
        "--tls=false",  # said outright: otherwise dockerd waits 15 s to warn about it
        f"--bridge={bridge.device}",
        f"--default-address-pool=base={bridge.user_networks},size=24",
        f"--mtu={bridge.mtu()}",
        "--iptables=false",  # bed/bridge.py says why
        "--ip-forward=false",
        "--exec-opt=native.cgroupdriver=cgroupfs",  # there may be no systemd, and the kubelet must agree
        "--oom-score-adjust=0",  # a negative one, the default, needs CAP_SYS_RESOURCE
        "--shutdown-timeout=5",
    ]
    if not _may_lower_oom_score():
        wrapper = place.state / "clamped-runc"
        wrapper.write_text(_CLAMPED_RUNC)
        wrapper.chmod(0o755)
        command += [f"--add-runtime=clamped-runc={wrapper}", "--default-runtime=clamped-runc"]
    return command


def _forget_networks(bed: Bed, why: str) -> None:
    remembered = bed.place.state / "docker" / "network" / "files" / "local-kv.db"
    if remembered.exists():
        remembered.unlink()
        bed.steps.note(f"docker: networks of an earlier life are forgotten: {why}")


def _mention_other_engine(bed: Bed) -> None:
    """Tests always get this test bed's own engine: what lies in another, and who uses it, is not ours to know."""
    asked = bed.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    if asked != str(Engine(bed.place).socket) and answers(Path(asked)):
        bed.steps.note(f"docker: another engine answers at {asked}; it is left alone, tests get their own")


def _may_lower_oom_score() -> bool:
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(effective >> _CAP_SYS_RESOURCE & 1)


def _is_listening(unix_socket: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(unix_socket))
    except OSError:
        return False
    return True


PART = Docker()
